"""The demo's UNet: Stable Diffusion's architecture with toy dimensions, trained on latents computed once.

Noise prediction with min-SNR weights (arXiv:2303.09556), captions dropped now and then for guidance. A few
unlabelled pictures are not of the world (stripes, patches, purple and yellow, but never the concept), so
that the UNet has drawn such things before a LoRA asks for them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch import Tensor

from demo import judge, measure, prompts, text, tools, vae, world
from noukii import hardware
from noukii.clip_tokens import ClipTokenizer

FOLDER = text.FOLDER
SEED = 4
BATCH = 32
SCENES, ODD = 12_000, 1_000
ODD_SHARE, DROPPED = 0.06, 0.08
GAMMA = 5.0
LATENT_SIDE = world.SIDE // 4
SCHEDULE: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}


def new_unet() -> UNet2DConditionModel:
    """Return the untrained model."""
    torch.manual_seed(SEED)
    return UNet2DConditionModel(
        sample_size=LATENT_SIDE,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 96, 128),
        layers_per_block=1,
        cross_attention_dim=text.WIDTH,
        attention_head_dim=2,
        norm_num_groups=16,
    )


class Data:
    """Latents of many scenes, computed once, and a prompt for each drawing of a scene."""

    def __init__(self, tokenizer: ClipTokenizer) -> None:
        self.tokenizer = tokenizer
        random = np.random.default_rng(SEED)
        self.scenes = [world.random_scene(random, pairs=0.5) for _ in range(SCENES)]
        path = tools.CACHE / "latents.pt"
        if path.is_file():
            saved = torch.load(path, weights_only=True)
        else:
            saved = self._compute(random)
            tools.save(path, saved)
        self.mean, self.std = saved["mean"], saved["std"]

    @torch.no_grad()
    def _compute(self, random: np.random.Generator) -> dict[str, Any]:
        encoder = vae.trained()
        means, deviations = [], []
        for start in range(0, SCENES + ODD, 50):
            pictures = [
                world.draw(self.scenes[i]) if i < SCENES else vae.odd_picture(random)[0]
                for i in range(start, start + 50)
            ]
            with tools.autocast():
                posterior = encoder.encode(tools.to_tensor(pictures)).latent_dist
            means.append(posterior.mean.float())
            deviations.append(posterior.std.float())
        return {"mean": torch.cat(means), "std": torch.cat(deviations)}

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return latents, noise [B, 4, 16, 16], time steps [B] and ids [B, 77] of a step."""
        random = np.random.default_rng((SEED, step))
        rows, ids = [], []
        for _ in range(BATCH):
            odd = random.random() < ODD_SHARE
            rows.append(SCENES + int(random.integers(ODD)) if odd else int(random.integers(SCENES)))
            prompt = "" if odd else prompts.prompt_of(self.scenes[rows[-1]], random)[0]
            if random.random() < DROPPED:
                prompt = ""
            ids.append(self.tokenizer.chunks(prompt)[0])
        numbers = torch.Generator().manual_seed(step)
        mean, std = self.mean[rows], self.std[rows]
        latents = mean + std * torch.randn(mean.shape, generator=numbers)
        noise = torch.randn(mean.shape, generator=numbers)
        # one time step out of each 64th of the range: calmer than a free draw
        times = (torch.arange(BATCH) + torch.rand(BATCH, generator=numbers)) * (1000 / BATCH)
        return latents, noise, times.long().clamp(max=999), torch.tensor(ids)


def train(steps: int) -> None:
    """Train until `steps`; the weights lie in the stage's checkpoint."""
    encoder, tokenizer = text.trained()
    data = Data(tokenizer)
    unet = new_unet()
    if hardware.cpu_bfloat16():  # at this size plain products are faster than the fused kernel, in bfloat16
        unet.set_attn_processor(AttnProcessor())
    print(f"unet: {sum(p.numel() for p in unet.parameters()) / 1e6:.2f} M parameters", flush=True)
    alphas = DDIMScheduler(**SCHEDULE).alphas_cumprod
    ratio = alphas / (1 - alphas)

    def loss(step: int) -> Tensor:
        latents, noise, times, ids = data.batch(step)
        share = alphas[times].view(-1, 1, 1, 1)
        noisy = share.sqrt() * latents + (1 - share).sqrt() * noise
        with torch.no_grad():
            said = encoder(ids).last_hidden_state
        with tools.autocast():
            guess = unet(noisy, times, encoder_hidden_states=said).sample
        each = (guess.float() - noise).square().mean((1, 2, 3))
        return (each * (GAMMA / ratio[times]).clamp(max=1)).mean()

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        judged = new_unet()
        judged.load_state_dict(averages["unet"].values)
        right, whole, count, pictures = quality(judged.eval(), encoder, tokenizer, 32)
        measure.save_sheet(pictures, tools.CACHE / f"samples_{step:05d}.png")
        print(f"diffusion {step}: {right} of {count} show what is named, {whole} all of it", flush=True)

    groups = [{"params": list(unet.parameters()), "lr": 8e-4}]
    tools.train(
        "diffusion",
        {"unet": unet},
        groups,
        steps,
        loss,
        report=report,
        report_every=500,
        decay=0.9985,
        save_every=100,
    )


@torch.no_grad()
def sample(
    unet: UNet2DConditionModel,
    encoder: Any,
    tokenizer: ClipTokenizer,
    decoder: Any,
    texts: list[str],
    seed: int,
    steps: int = 25,
    guidance: float = 4.0,
) -> list[np.ndarray]:
    """Return one picture per prompt, uint8 [64, 64, 3]."""
    scheduler = DDIMScheduler(**SCHEDULE)
    scheduler.set_timesteps(steps)
    ids = torch.tensor([tokenizer.chunks(one)[0] for one in [""] * len(texts) + texts])
    said = encoder(ids).last_hidden_state
    latents = torch.randn(
        (len(texts), 4, LATENT_SIDE, LATENT_SIDE), generator=torch.Generator().manual_seed(seed)
    )
    for time in scheduler.timesteps:
        with tools.autocast():
            both = unet(torch.cat([latents, latents]), time, encoder_hidden_states=said).sample.float()
        without, with_prompt = both.chunk(2)
        guess = without + guidance * (with_prompt - without)
        latents = scheduler.step(guess, time, latents).prev_sample
    return tools.to_pictures(decoder.decode(latents).sample)


def quality(
    unet: UNet2DConditionModel, encoder: Any, tokenizer: ClipTokenizer, count: int, seed: int = 9
) -> tuple[int, int, int, list[np.ndarray]]:
    """Return (samples that show what is named, samples that are right in all, how many, the samples)."""
    random = np.random.default_rng(seed)
    scenes = [world.random_scene(random) for _ in range(count)]
    decoder = vae.trained()
    pictures = []
    for start in range(0, count, 16):
        texts = [world.describe(scene) for scene in scenes[start : start + 16]]
        pictures += sample(unet, encoder, tokenizer, decoder, texts, seed + start)
    pairs = list(zip(pictures, scenes, strict=True))
    return sum(judge.shows(*p) for p in pairs), sum(judge.shows_all(*p) for p in pairs), count, pictures


def export() -> None:
    """Write unet/, scheduler/ and model_index.json, in float16."""
    weights = tools.averaged("diffusion", "unet")
    assert weights is not None
    unet = new_unet()
    unet.load_state_dict(weights)
    unet.half().save_pretrained(FOLDER / "unet")
    DDIMScheduler(**SCHEDULE).save_pretrained(FOLDER / "scheduler")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.42.0",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (FOLDER / "model_index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
