"""Sample pictures during training: kohya's prompt file, DDIM, PNG.

    a cat on a sofa --n blurry --w 512 --h 512 --d 42 --s 30 --l 7.5

One prompt a line; `--n` negative prompt, `--w --h` size in pixels, `--d` seed, `--s` steps, `--l` scale.
Lines that start with # and empty lines do not count. Nothing here touches the training: no gradient, no
global random number, and dropout is off only while a picture is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noukii import files
from noukii.command_line import nearest
from noukii.errors import InputError
from noukii.names import printable
from noukii.trainer.batches import derived_seed

OPTIONS = {"n": "negative prompt", "w": "width", "h": "height", "d": "seed", "s": "steps", "l": "scale"}
FOLDER = "sample"
SMALLEST, LARGEST = 64, 4096


@dataclass(frozen=True)
class SamplePrompt:
    """One picture to draw. Sizes are multiples of 8; `seed` None means one derived from the run's."""

    prompt: str
    negative: str = ""
    width: int = 512
    height: int = 512
    seed: int | None = None
    steps: int = 30
    scale: float = 7.5


SIDE = 512
"""Pixels of a picture whose prompt names no size, as kohya draws it."""


def read_prompts(path: Path, side: int = SIDE) -> list[SamplePrompt]:
    """Read a prompt file; `side` is for prompts that name no size. InputError names file, line and reason."""
    if path.suffix.lower() in (".toml", ".json"):
        raise InputError(path, "prompts are read from a text file, one a line", "write them into a .txt file")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}", "name another file") from None
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text", "save it as UTF-8") from None
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                prompts.append(parse_prompt(line.strip(), side))
            except ValueError as error:
                raise InputError(path, f"line {number}: {error}", "correct the line") from None
    if not prompts:
        raise InputError(path, "holds no prompt", "write one prompt a line")
    return prompts


def parse_prompt(line: str, side: int = SIDE) -> SamplePrompt:
    """Read one line; ValueError says what is wrong with it."""
    prompt, *options = re.split(r"(?:^|\s)--(?=[A-Za-z])", line)
    values: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition(" ")
        if name.lower() not in OPTIONS:
            near = nearest(name.lower(), list(OPTIONS))
            known = ", ".join(f"--{key} {words}" for key, words in OPTIONS.items())
            hint = f"; did you mean --{near}?" if near else ""
            raise ValueError(f"--{printable(name)} is not known here ({known}){hint}")
        values[name.lower()] = value.strip()
    return SamplePrompt(
        prompt=prompt.strip(),
        negative=values.get("n", ""),
        width=_size(values, "w", side),
        height=_size(values, "h", side),
        seed=_whole(values, "d", 0, 2**63 - 1) if "d" in values else None,
        steps=_whole(values, "s", 1, 1000) if "s" in values else 30,
        scale=_number(values, "l") if "l" in values else 7.5,
    )


def prompt_texts(prompts: list[SamplePrompt]) -> list[str]:
    """Return every text that the pictures need, without doubles."""
    return list(dict.fromkeys(text for one in prompts for text in (one.prompt, one.negative)))


def draw(
    prompt: SamplePrompt,
    *,
    unet: Any,
    vae: Any,
    embed: Callable[[str], Any],
    alphas_cumprod: Any,
    scaling_factor: float,
    prediction_type: str,
    seed: int,
) -> Any:
    """Return one picture as a PIL image.

    unet: on its device, the LoRA at work; vae: anywhere, moved to that device for the decoding and back.
    embed(text): [1, tokens, D] on the UNet's device. The caller sets autocast and eval mode.
    """
    import numpy
    import torch
    from diffusers import DDIMScheduler
    from PIL import Image

    device = alphas_cumprod.device
    scheduler = DDIMScheduler(
        trained_betas=_betas(alphas_cumprod), clip_sample=False, set_alpha_to_one=False, steps_offset=1,
        prediction_type=prediction_type,
    )  # fmt: skip
    scheduler.set_timesteps(prompt.steps, device=device)
    numbers = torch.Generator().manual_seed(prompt.seed if prompt.seed is not None else seed)
    factor = 2 ** (len(vae.config.block_out_channels) - 1)  # 8 for Stable Diffusion
    shape = (1, 4, prompt.height // factor, prompt.width // factor)
    latents = torch.randn(shape, generator=numbers).to(device)
    with torch.no_grad():
        text = torch.cat([embed(prompt.negative), embed(prompt.prompt)])
        for timestep in scheduler.timesteps:
            both = unet(torch.cat([latents, latents]), timestep, encoder_hidden_states=text).sample.float()
            without, with_prompt = both.chunk(2)
            noise = without + prompt.scale * (with_prompt - without)
            latents = scheduler.step(noise, timestep, latents).prev_sample
        home = next(vae.parameters()).device
        vae.to(device)
        try:
            with torch.autocast(device.type, enabled=False):
                pixels = vae.decode(latents.float() / scaling_factor).sample[0]
        finally:
            vae.to(home)
    levels = (pixels.float().nan_to_num() / 2 + 0.5).clamp(0, 1).mul(255).round().byte()
    return Image.fromarray(numpy.ascontiguousarray(levels.permute(1, 2, 0).cpu().numpy()))


def picture_path(output_dir: Path, output_name: str, step: int, index: int) -> Path:
    """Return where the picture of prompt `index` at `step` goes."""
    return output_dir / FOLDER / f"{output_name}_{step:06d}_{index:02d}.png"


def save_picture(image: Any, path: Path) -> None:
    """Write a PNG, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole_file(path) as temporary:
        image.save(temporary, format="PNG")


def prompt_seed(run_seed: int, index: int) -> int:
    """Return the seed of a prompt that names none: the same at every step, so that pictures compare."""
    return derived_seed(run_seed, "sample picture", index)


def _betas(alphas_cumprod: Any) -> Any:
    import torch

    bars = alphas_cumprod.double().cpu()
    before = torch.cat([torch.ones(1, dtype=bars.dtype), bars[:-1]])
    return (1 - bars / before).clamp(max=0.9999).float().numpy()


def _size(values: dict[str, str], name: str, otherwise: int) -> int:
    if name not in values:
        return otherwise
    given = _whole(values, name, SMALLEST, LARGEST)
    return given - given % 8


def _whole(values: dict[str, str], name: str, least: int, most: int) -> int:
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise ValueError(f"--{name} {printable(text)}: a whole number from {least} to {most} is wanted")
    return int(text)


def _number(values: dict[str, str], name: str) -> float:
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text):
        raise ValueError(f"--{name} {printable(text)}: a number is wanted")
    return float(text)
