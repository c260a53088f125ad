"""Pictures of a finished run's LoRAs at several strengths, from the same noise: what --compare draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii.errors import InputError
from noukii.quiet import prepare_libraries
from noukii.trainer.checkpoint_header import BaseModelFiles
from noukii.trainer.sampling import SamplePrompt, draw, prompt_seed

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Row:
    """One row of the sheet: a LoRA at a strength; None is the base model alone."""

    lora: Path | None
    strength: float


def draw_rows(
    base: BaseModelFiles,
    rows: Sequence[Row],
    prompts: Sequence[SamplePrompt],
    *,
    seed: int,
    precision: str,
    use_gpu: bool,
    clip_skip: int | None = None,
    token_length: int = 75,
) -> Iterator[tuple[int, int, Image]]:
    """Yield (row, column, picture), row after row; every row starts from the same noise.

    Args:
        seed: of prompts that name none.
        precision: kohya's word, no, fp16 or bf16, for a GPU; a CPU computes in float32.
        token_length: of prompts, 75, 150 or 225.

    Raises:
        InputError: a LoRA was made for another base model.
    """
    prepare_libraries()
    import torch

    from noukii.trainer.base_model import load_base_model
    from noukii.trainer.lora import LoraMismatch, create_network, lora_alphas, lora_ranks
    from noukii.trainer.lora_file import read_lora
    from noukii.trainer.packed_convs import pack
    from noukii.trainer.text_encoding import encode_prompt

    device = torch.device("cuda" if use_gpu else "cpu")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision if use_gpu else "no", torch.float32)
    model = load_base_model(base, dtype=dtype, device=device, parts=("unet", "text_encoder"))
    vae = load_base_model(base, dtype=torch.float32, device=device, parts=("vae",)).vae
    if device.type == "cpu":
        pack(model.unet, trains=False)

    def embed(text: str) -> Any:
        ids = torch.tensor([model.tokenizer.chunks(text, token_length)])
        return encode_prompt(model.text_encoder, ids, clip_skip).to(device, model.unet.dtype)

    network, loaded = None, None
    for number, row in enumerate(rows):
        if row.lora is not None and row.lora != loaded:
            if network is not None:
                network.remove()
            tensors = {name: value.float() for name, value in read_lora(row.lora)[0].items()}
            parts = [
                part if any(name.startswith(prefix) for name in tensors) else None
                for part, prefix in ((model.unet, "lora_unet_"), (model.text_encoder, "lora_te_"))
            ]
            network = create_network(
                *parts, rank=max(lora_ranks(tensors), default=1), alpha=max(lora_alphas(tensors), default=1.0)
            )
            try:
                network.load_kohya(tensors)
            except LoraMismatch as error:
                raise InputError(
                    row.lora, str(error), "name the run's base model with --base-model"
                ) from None
            network.apply()
            network.to(device).eval()
            loaded = row.lora
        if network is not None:
            network.multiplier = row.strength if row.lora is not None else 0.0
        mixed = torch.autocast(device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
        for column, prompt in enumerate(prompts):
            with torch.no_grad(), mixed:
                picture = draw(
                    prompt,
                    unet=model.unet,
                    vae=vae,
                    embed=embed,
                    alphas_cumprod=model.alphas_cumprod,
                    scaling_factor=model.vae_scaling_factor,
                    prediction_type=model.prediction_type,
                    seed=prompt_seed(seed, column),
                )
            yield number, column, picture
