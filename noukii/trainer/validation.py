"""The validation loss: how well images that are not trained are denoised, at fixed noise and timesteps.

Each value of a run, and of any other run on the same images, is measured on the very same pairs of (noise,
timestep), so that two values differ by the LoRA alone. Pairs are functions of the image's place; timesteps
are spread evenly over all of them. The loss is the plain mean squared error: no min-SNR weight, no noise
offset, the caption whole, the LoRA's dropout off, the latent the mean of the VAE's posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noukii.dataset.samples import Sample
from noukii.trainer.base_model import BaseModel
from noukii.trainer.batches import derived_seed
from noukii.trainer.cache import LatentSource
from noukii.trainer.job import Job
from noukii.trainer.lora import LoraNetwork
from noukii.trainer.objective import training_loss
from noukii.trainer.one_batch import TIMESTEPS, autocast

PAIRS = 64
"""About so many (image, timestep) pairs make up one value; more images than that are not looked at."""

PER_IMAGE = 8
"""Timesteps for each image, at most."""

VALUES = 20
"""About so many values are measured in a run, unless --validate_every_n_steps says otherwise."""

GOLDEN = 0.618_033_988_749_895


@dataclass(frozen=True)
class Pair:
    """One measurement: which sample, at which timestep, with noise from which seed."""

    sample: int
    timestep: int
    seed: int


def make_pairs(count: int) -> list[Pair]:
    """Return the measurements on `count` images; the timesteps of all together fill 0 to 999 evenly."""
    images = min(count, PAIRS)
    per_image = max(1, min(PER_IMAGE, PAIRS // max(images, 1)))
    pairs = []
    for image in range(images):
        for number in range(per_image):
            place = (number + (image * GOLDEN) % 1.0) / per_image
            timestep = min(TIMESTEPS - 1, int(place * TIMESTEPS))
            pairs.append(Pair(image, timestep, derived_seed(0, "validation noise", image, number)))
    return pairs


def interval(total_steps: int, asked: int | None) -> int:
    """Return after how many steps the loss is measured again."""
    return asked or max(1, math.ceil(total_steps / VALUES))


@contextmanager
def at_rest(*modules: nn.Module | None) -> Iterator[None]:
    """Set modules to eval mode for a while: no dropout, no recomputing."""
    modes = {module: module.training for module in modules if module is not None}
    for module in modes:
        module.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.train(mode)


@contextmanager
def strength(network: LoraNetwork, multiplier: float) -> Iterator[None]:
    """Let the LoRA work at another strength for a while; at 0 the model is the base model, bit for bit."""
    before = network.multiplier
    network.multiplier = multiplier
    try:
        yield
    finally:
        network.multiplier = before


class Validation:
    """Measures a run's validation loss; `embed` gives a caption's embedding on the device, [1, tokens, D]."""

    def __init__(
        self, job: Job, model: BaseModel, network: LoraNetwork, latents: LatentSource,
        embed: Callable[[str], Tensor], device: torch.device,
    ) -> None:  # fmt: skip
        self._job, self._model, self._network, self._latents = job, model, network, latents
        self._embed, self._device = embed, device
        self._samples: Sequence[Sample] = job.validation
        self._pairs = make_pairs(len(self._samples))
        self._every = interval(job.total_steps, job.settings.validate_every_n_steps)

    def is_due(self, number: int, saves: bool) -> bool:
        """Tell whether to measure after step `number` (from 1), at which a LoRA is saved or not."""
        last = number == self._job.total_steps
        return bool(self._pairs) and (saves or last or number % self._every == 0)

    def loss(self, multiplier: float = 1.0) -> float:
        """Return the mean loss over all pairs. Nothing of the training is touched."""
        if not self._pairs:
            return math.nan
        total = torch.zeros((), device=self._device)
        with (
            torch.no_grad(),
            at_rest(self._network, self._model.unet, self._model.text_encoder),
            strength(self._network, multiplier),
        ):
            for batch in self._batches():
                total += self._batch(batch)
        return float(total) / len(self._pairs)

    def _batches(self) -> Iterator[list[Pair]]:
        """Yield pairs of pictures of one size, as many as a training step takes."""
        most = max(one.config.batch_size for one in self._job.sets)
        by_size: dict[tuple[int, int], list[Pair]] = {}
        for pair in self._pairs:
            bucket = self._samples[pair.sample].fit.bucket
            by_size.setdefault((bucket.width, bucket.height), []).append(pair)
        for pairs in by_size.values():
            for first in range(0, len(pairs), most):
                yield pairs[first : first + most]

    def _batch(self, pairs: Sequence[Pair]) -> Tensor:
        """Return the sum of the losses of some pairs."""
        samples = [self._samples[pair.sample] for pair in pairs]
        means = [self._latents.posterior(sample, False).mean for sample in samples]
        noise = [
            torch.randn(mean.shape, generator=torch.Generator().manual_seed(pair.seed))
            for mean, pair in zip(means, pairs, strict=True)
        ]
        latents = torch.stack(means).to(self._device) * self._model.vae_scaling_factor
        timesteps = torch.tensor([pair.timestep for pair in pairs], device=self._device)
        dtype = self._model.unet.dtype
        with autocast(self._job.settings, self._device):
            text = torch.cat([self._embed(sample.caption) for sample in samples])

            def predict(noisy: Tensor, at: Tensor) -> Tensor:
                answer = self._model.unet(
                    noisy.to(dtype), at, encoder_hidden_states=text.to(dtype), return_dict=False
                )
                return answer[0]

            return training_loss(
                predict,
                latents,
                torch.stack(noise).to(self._device),
                timesteps,
                self._model.alphas_cumprod,
                prediction_type=self._model.prediction_type,
            ).sum()
