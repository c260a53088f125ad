"""One batch: collecting its inputs, and its loss. What is computed is said in objective.py."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noukii.dataset.samples import Sample
from noukii.trainer import batches
from noukii.trainer.base_model import BaseModel
from noukii.trainer.batches import Batch, noise_generator
from noukii.trainer.cache import LatentSource, TextSource
from noukii.trainer.job import Job
from noukii.trainer.objective import apply_noise_offset, training_loss
from noukii.trainer.settings import TrainerSettings
from noukii.trainer.text_encoding import encode_prompt

TIMESTEPS = 1000
DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""The dtype of the base model's weights and of the computation, by --mixed_precision."""


@dataclass
class Inputs:
    """One batch on the device, all drawn and looked up, nothing computed yet.

    mean, std, draw, noise: [B, 4, H/8, W/8]; timesteps, prior_weights: [B]; text: [B, tokens, D], or None
    where the trained text encoder makes it from `captions`.
    """

    mean: Tensor
    std: Tensor
    draw: Tensor
    noise: Tensor
    timesteps: Tensor
    prior_weights: Tensor | None
    captions: list[str]
    text: Tensor | None


def gather(
    job: Job, latents: LatentSource, text: TextSource | None, device: torch.device, step: int, slot: int,
    batch: Batch,
) -> Inputs:  # fmt: skip
    """Collect batch number `slot` of `step`.

    All that is random is drawn on the CPU from (seed, step, slot), so every device sees the same.
    """
    seed, settings = job.seed, job.settings
    samples = samples_of(job, batch)
    posteriors = [
        latents.posterior(sample, batches.is_flipped(sample, seed, step, slot, place))
        for place, sample in enumerate(samples)
    ]
    captions = [batches.caption_of(sample, seed, step, slot, place) for place, sample in enumerate(samples)]
    mean = torch.stack([posterior.mean for posterior in posteriors])
    noise = torch.randn(mean.shape, generator=noise_generator(seed, step, slot, "noise"))
    if settings.noise_offset:
        shift = torch.randn((*mean.shape[:2], 1, 1), generator=noise_generator(seed, step, slot, "offset"))
        noise = apply_noise_offset(noise, shift, settings.noise_offset)
    weights = None
    if settings.prior_loss_weight != 1.0:
        weights = torch.tensor(
            [settings.prior_loss_weight if sample.subset.is_reg else 1.0 for sample in samples]
        )
    embeddings = None
    if text is not None:
        remember = [not sample.subset.shuffle_caption for sample in samples]
        embeddings = torch.stack(
            [text.embedding(caption, keep) for caption, keep in zip(captions, remember, strict=True)]
        )
    inputs = (
        mean,
        torch.stack([posterior.std for posterior in posteriors]),
        torch.randn(mean.shape, generator=noise_generator(seed, step, slot, "posterior")),
        noise,
        torch.randint(
            0, TIMESTEPS, (len(samples),), generator=noise_generator(seed, step, slot, "timesteps")
        ),
        weights,
    )
    moved = [value if value is None else value.to(device, non_blocking=True) for value in inputs]
    return Inputs(*moved, captions, None if embeddings is None else embeddings.to(device, non_blocking=True))


def batch_loss(job: Job, model: BaseModel, inputs: Inputs) -> Tensor:
    """Return the loss of one batch: the mean over its samples, a 0-d float32 tensor."""
    latents = (inputs.mean + inputs.std * inputs.draw) * model.vae_scaling_factor
    dtype = model.unet.dtype
    with autocast(job.settings, latents.device):
        text = inputs.text
        if text is None:
            text = encode_captions(job, model, inputs.captions)

        def predict(noisy: Tensor, timesteps: Tensor) -> Tensor:
            return model.unet(
                noisy.to(dtype), timesteps, encoder_hidden_states=text.to(dtype), return_dict=False
            )[0]

        return training_loss(
            predict,
            latents,
            inputs.noise,
            inputs.timesteps,
            model.alphas_cumprod,
            prediction_type=model.prediction_type,
            prior_weights=inputs.prior_weights,
            min_snr_gamma=job.settings.min_snr_gamma,
        ).mean()


def autocast(settings: TrainerSettings, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which the models compute with --mixed_precision."""
    if settings.mixed_precision == "no":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[settings.mixed_precision])


def samples_of(job: Job, batch: Batch) -> list[Sample]:
    """Return the samples of a batch."""
    samples = job.sets[batch.set_index].samples
    return [samples[index] for index in batch.sample_indices]


def encode_captions(job: Job, model: BaseModel, texts: list[str]) -> Tensor:
    """Return [B, tokens, D], with gradients if the LoRA is in the text encoder and gradients are on."""
    ids = [model.tokenizer.chunks(text, job.settings.token_length) for text in texts]
    return encode_prompt(model.text_encoder, torch.tensor(ids), job.settings.clip_skip)
