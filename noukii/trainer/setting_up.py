"""Before the loop: models loaded one after the other, latents and embeddings made, the LoRA put in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from noukii.errors import InputError
from noukii.trainer import batches, sampling
from noukii.trainer.base_model import BaseModel, load_base_model, read_ahead
from noukii.trainer.batches import derived_seed
from noukii.trainer.cache import LatentSource, TextSource
from noukii.trainer.job import Job
from noukii.trainer.lora import LoraMismatch, LoraNetwork, create_network
from noukii.trainer.one_batch import DTYPES, encode_captions
from noukii.trainer.optimizer import make_optimizer, make_scheduler
from noukii.trainer.packed_convs import pack
from noukii.trainer.text_encoding import clip_layers
from noukii.trainer.workers import Workers

TRAINED_PARTS = ("unet", "text_encoder")


def load_vae(job: Job, workers: Workers) -> tuple[Any, dict[str, Tensor]]:
    """Return the VAE in float32, and what was read of the other parts' weights meanwhile.

    Nothing is read ahead where memory is short: the VAE is to be gone before the rest comes.
    """
    early = None
    if not job.settings.gradient_checkpointing:
        early = read_ahead(job.base, DTYPES[job.settings.mixed_precision], TRAINED_PARTS)
    vae = load_base_model(job.base, dtype=torch.float32, device=workers.device, parts=("vae",)).vae
    return vae, early.wait() if early is not None else {}


def load_trained_parts(job: Job, workers: Workers, early: dict[str, Tensor]) -> BaseModel:
    """Load UNet and text encoder in the run's precision."""
    dtype = DTYPES[job.settings.mixed_precision]
    return load_base_model(job.base, dtype=dtype, device=workers.device, parts=TRAINED_PARTS, early=early)


def latent_source(job: Job, workers: Workers, vae: Any, say: Callable[[str], None]) -> LatentSource:
    """Encode all images if latents are cached, and let go of the VAE again."""
    settings = job.settings
    source = LatentSource(
        vae,
        workers.device,
        remember=settings.caches_latents,
        on_disk=settings.cache_latents_to_disk,
        workers=min(settings.max_data_loader_n_workers, os.cpu_count() or 1),
        keep_workers=settings.persistent_data_loader_workers,
        bfloat16=settings.mixed_precision == "bf16",
    )
    if settings.caches_latents:
        # Every process encodes all images: with a cache on disk the first one's files serve the others.
        if settings.cache_latents_to_disk and not workers.is_main:
            workers.wait_for_all()
        source.fill((*(sample for one in job.sets for sample in one.samples), *job.validation), say)
        if settings.cache_latents_to_disk and workers.is_main:
            workers.wait_for_all()
        source.release_vae(keep=bool(job.prompts))
    return source


def try_optimizer(job: Job) -> None:
    """Make optimiser and schedule for one number: InputError now, not after all images were encoded."""
    group = {"name": "unet", "params": [nn.Parameter(torch.zeros(1))], "lr": job.settings.lr_unet}
    make_scheduler(job.settings, make_optimizer(job.settings, [group])[0], job.total_steps)


def network_and_text(
    job: Job, model: BaseModel, workers: Workers, given: dict[str, Tensor] | None
) -> tuple[LoraNetwork, TextSource | None]:
    """Make the LoRA and put it into the models; encode the captions once if nothing can change them.

    given: weights to start from (--network_weights).
    The text source is None where the text encoder is trained. A frozen text encoder whose captions are all
    known is unloaded.
    """
    settings = job.settings
    text = None
    if not settings.trains_text_encoder:
        # Encoded one at a time: an embedding depends on its caption alone.
        text = TextSource(lambda caption: encode_captions(job, model, [caption])[0])
        captions = batches.possible_captions(job.sets)
        measured = (sample.caption for sample in job.validation)
        text.fill([*(captions or ()), *measured, *sampling.prompt_texts(list(job.prompts))])
        if captions is not None:
            text.forget_encoder()
            model.text_encoder = None
            empty_gpu_cache(workers.device)
    if workers.device.type == "cpu" and not settings.gradient_checkpointing:
        pack(model.unet, trains=True)  # with checkpointing, memory is short
    network = create_network(
        model.unet if settings.trains_unet else None,
        model.text_encoder if settings.trains_text_encoder else None,
        rank=settings.rank,
        alpha=settings.network_alpha,
        dropout=settings.network_dropout,
        seed=derived_seed(job.seed, "lora"),
    )
    if given is not None:
        try:
            network.load_kohya(given)
        except LoraMismatch as error:
            raise InputError(settings.network_weights or "", str(error), "give a LoRA that fits") from None
    network.apply()
    network.to(workers.device).train()
    if settings.gradient_checkpointing:
        model.unet.enable_gradient_checkpointing()
        if settings.trains_text_encoder:
            _checkpoint_text_encoder(model.text_encoder)
    return network, text


def _checkpoint_text_encoder(text_encoder: Any) -> None:
    """transformers recomputes in train mode only, so it is set, without the dropout that would come along."""
    for layer in clip_layers(text_encoder):
        layer.self_attn.dropout = 0.0
    text_encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    text_encoder.train()


def empty_gpu_cache(device: torch.device) -> None:
    """Give unused GPU memory back to the driver, so that the next model finds it in one piece."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
