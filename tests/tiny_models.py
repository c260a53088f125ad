"""Models with the real architecture and toy dimensions, random weights, made in a second."""

from __future__ import annotations

import shutil
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def make_tiny_sd(folder: Path, seed: int = 0) -> Path:
    """Write an SD1.5-shaped diffusers folder: UNet of 32/64 channels, CLIP text 2 x 32, VAE 8x down."""
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(seed)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 16, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=64,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=77,
            bos_token_id=49406,
            eos_token_id=49407,
            pad_token_id=49407,
        )
    )
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    for name, part in (
        ("unet", unet),
        ("vae", vae),
        ("text_encoder", text_encoder),
        ("scheduler", scheduler),
    ):
        part.save_pretrained(folder / name)
    (folder / "tokenizer").mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(CHECKOUT / "noukii" / "assets" / "clip_vocab" / name, folder / "tokenizer")
    (folder / "model_index.json").write_text(
        '{"_class_name": "StableDiffusionPipeline", "scheduler": ["diffusers", "DDPMScheduler"], '
        '"text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"], '
        '"unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]}'
    )
    return folder
