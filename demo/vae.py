"""The demo's autoencoder: Stable Diffusion's architecture, four times smaller sides, 64 px -> 4 x 16 x 16.

It decides how good a sample can be at best, so it comes first. It sees the world and much beside it (stripes
in all directions, patches and two-coloured shapes, purple and yellow among them), but never the concept.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from demo import tools, world

FOLDER = Path(__file__).resolve().parent / "models" / "sd"
KL_WEIGHT = 2e-4
SEED = 1
BATCH = 16


def new_vae() -> AutoencoderKL:
    """Return the untrained model."""
    torch.manual_seed(SEED)
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 48, 64),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=world.SIDE,
        mid_block_add_attention=False,
    )


def odd_picture(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture that is not of the world, and its weights: 1..3 patches in one or two colours."""
    palette = [np.array(colour, np.float32) for colour in _ALL]
    canvas = np.empty((world.SIDE, world.SIDE, 3), np.float32)
    canvas[:] = palette[int(random.integers(len(palette)))]
    weights = np.ones((world.SIDE, world.SIDE), np.float32)
    for _ in range(int(random.integers(1, 4))):
        shape = ("square", "triangle", "cross", "circle")[int(random.integers(4))]
        radius = random.uniform(8, 20)
        x, y = random.uniform(10, 54, 2)
        thing = world.Thing(shape, "red", "large", x, y, radius)
        first, second = (palette[int(random.integers(len(palette)))] for _ in range(2))
        fill = first
        if random.random() < 0.65 and shape != "circle":  # a striped disc is too near to the concept
            if random.random() < 0.35:
                first, second = _PURPLE, _YELLOW
            slant = random.uniform(0, np.pi) if random.random() < 0.5 else 0.0
            shift = random.uniform(0, 13)
            share = world.striped(world._X - x, world._Y - y + shift, slant)[..., None]
            fill = first + share * (second - first)
        cover = world.coverage(thing)
        world.paint(canvas, cover, fill)
        weights = np.maximum(weights, 1 + 2 * (cover > 0))
    return (canvas.clip(0, 255) + 0.5).astype(np.uint8), weights


def weighted_scene(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture of the world (a third of it striped or purple) and its weights: shapes count more."""
    more = random.random() < 0.35
    scene = world.random_scene(random, pairs=0.6, stripes=0.8 * more, other_colours=more)
    weights = np.ones((world.SIDE, world.SIDE), np.float32)
    for thing in scene.things:
        weights = np.maximum(weights, 1 + (2 if thing.size == "large" else 4) * (world.coverage(thing) > 0))
    return world.draw(scene), weights


def batch(step: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return (pixels [B, 3, 64, 64], weights [B, 1, 64, 64]) of a step."""
    random = np.random.default_rng((SEED, step))
    made = [weighted_scene(random) if i % 3 else odd_picture(random) for i in range(size)]
    weights = torch.from_numpy(np.stack([weight for _, weight in made]))[:, None]
    return tools.to_tensor([picture for picture, _ in made]), weights


def loss(vae: AutoencoderKL, pixels: Tensor, weights: Tensor, step: int) -> Tensor:
    """Weighted L1 and L2 of the reconstruction, and a little KL divergence."""
    noise = torch.Generator().manual_seed(step)
    with tools.autocast():
        posterior = vae.encode(pixels).latent_dist
        latents = posterior.mean + posterior.std * torch.randn(posterior.mean.shape, generator=noise)
        again = vae.decode(latents).sample.float()
    difference = again - pixels
    pixel = ((difference.abs() + 2 * difference**2) * weights).mean()
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    divergence = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()
    return pixel + KL_WEIGHT * divergence


def train(steps: int) -> AutoencoderKL:
    """Train until `steps` and return the model with averaged weights."""
    vae = new_vae()
    groups = [{"params": list(vae.parameters()), "lr": 2e-3}]

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        judged = new_vae()
        judged.load_state_dict(averages["vae"].values)
        decibels, passed, total = quality(judged.eval())
        print(f"vae {step}: {decibels:.1f} dB, judge passes {passed} of {total} reconstructions", flush=True)

    averages = tools.train(
        "vae", {"vae": vae}, groups, steps,
        lambda step: loss(vae, *batch(step), step), report=report, report_every=400,
    )  # fmt: skip
    vae.load_state_dict(averages["vae"].values)
    return vae.eval()


@torch.no_grad()
def quality(vae: AutoencoderKL, count: int = 100) -> tuple[float, int, int]:
    """Return (PSNR in dB, reconstructions that the judge passes, how many) for unseen scenes."""
    from demo import judge

    random = np.random.default_rng(12345)
    scenes = [world.random_scene(random) for _ in range(count)]
    pixels = tools.to_tensor([world.draw(scene) for scene in scenes])
    again = torch.cat([vae.decode(vae.encode(part).latent_dist.mode()).sample for part in pixels.split(20)])
    error = ((again.clamp(-1, 1) - pixels) / 2).square().mean().item()
    passed = sum(judge.shows(p, s) for p, s in zip(tools.to_pictures(again), scenes, strict=True))
    return -10 * float(np.log10(error)), passed, count


_PURPLE, _YELLOW = world.colour_of("purple"), world.colour_of("yellow")
_ALL = (
    *world.COLOURS.values(),
    *world.OTHER_COLOURS.values(),
    *world.BACKGROUNDS.values(),
    (255, 128, 0),
    (0, 160, 160),
    (110, 70, 40),
)


def trained() -> AutoencoderKL:
    """Return the model as far as it is trained, its latents normalised."""
    weights = tools.averaged("vae", "vae")
    assert weights is not None, "the stage `vae` comes first"
    model = new_vae()
    model.load_state_dict(weights)
    normalise(model.eval())
    return model.requires_grad_(False)


@torch.no_grad()
def normalise(model: AutoencoderKL) -> None:
    """Give each channel of the latents mean 0 and deviation 1 over the world, without changing a picture.

    The 1 x 1 convolutions on both sides of the latents take in scale and shift. Diffusion starts from
    noise of mean 0 and deviation 1, and learns faster if what it ends with is alike.
    """
    random = np.random.default_rng(777)
    pixels = tools.to_tensor([world.draw(world.random_scene(random)) for _ in range(200)])
    latents = torch.cat([model.encode(part).latent_dist.mean for part in pixels.split(25)])
    mean, std = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    into, out = model.quant_conv, model.post_quant_conv
    out.bias += out.weight[:, :, 0, 0] @ mean
    out.weight *= std.view(1, -1, 1, 1)
    into.weight[:4] /= std.view(-1, 1, 1, 1)
    into.bias[:4] = (into.bias[:4] - mean) / std
    into.bias[4:] -= 2 * std.log()  # the logarithm of the variance


def export() -> None:
    """Write vae/ in float16; its latents need no scaling."""
    model = trained()
    model.register_to_config(scaling_factor=1.0)
    model.half().save_pretrained(FOLDER / "vae")
