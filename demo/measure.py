"""Measure the demo's models: `python demo/measure.py captioner | base | concept [--lora FILE]`.

Samples are drawn by diffusers' own StableDiffusionPipeline from demo/models/sd, in float32, and judged from
their pixels. Seeds are fixed; captions, prompts and pictures are none that a model was trained on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from demo import judge, wording, world

MODELS = Path(__file__).resolve().parent / "models"
QUESTION = "describe this image in detail"
STEPS, GUIDANCE, AT_A_TIME = 25, 4.0, 16


def captioner(count: int = 200, seed: int = 54321) -> dict[str, tuple[int, int]]:
    """Return {kind of attribute: (right, named)} for captions of `count` unseen scenes."""
    import torch
    from PIL import Image

    from noukii.captioning.describe import describe
    from noukii.captioning.janus import load
    from noukii.captioning.janus_files import check_model

    janus = load(check_model(MODELS / "janus"), "cpu", torch.float32)
    random = np.random.default_rng(seed)
    scenes = [world.random_scene(random) for _ in range(count)]
    totals = dict.fromkeys(wording.KINDS, (0, 0))
    for start in range(0, count, AT_A_TIME):
        part = scenes[start : start + AT_A_TIME]
        captions = describe(
            janus, [Image.fromarray(world.draw(scene)) for scene in part],
            [f"{seed} {start + i}" for i in range(len(part))],
            question=QUESTION, max_new_tokens=60, temperature=0.1, top_p=0.95, seed=42,
        )  # fmt: skip
        for scene, caption in zip(part, captions, strict=True):
            for kind, (right, named) in wording.compare(scene, caption.text).items():
                totals[kind] = (totals[kind][0] + right, totals[kind][1] + named)
    return totals


def base(
    count: int = 64, seed: int = 9, lora: Path | None = None, weight: float = 1.0
) -> tuple[int, int, list[np.ndarray]]:
    """Return (samples that show what the prompt names, those right in all, the samples) for world prompts."""
    random = np.random.default_rng(seed)
    scenes = [world.random_scene(random) for _ in range(count)]
    pictures = draw([world.describe(scene) for scene in scenes], seed, lora, weight)
    pairs = list(zip(pictures, scenes, strict=True))
    return sum(judge.shows(*p) for p in pairs), sum(judge.shows_all(*p) for p in pairs), pictures


def concept(
    count: int = 32,
    seed: int = 11,
    lora: Path | None = None,
    weight: float = 1.0,
    prompts: Sequence[str] = (),
) -> tuple[int, list[np.ndarray]]:
    """Return (samples that show the concept, the samples) for prompts with the trigger, in turn.

    By default: the word alone, the word in a sentence, and worded as the captions are, by turns, for all
    places and backgrounds.
    """
    prompts = prompts or concept_prompts()
    pictures = draw([prompts[i % len(prompts)] for i in range(count)], seed, lora, weight)
    return sum(map(judge.shows_concept, pictures)), pictures


def concept_prompts() -> list[str]:
    """Return prompts with the trigger as people write them."""
    word = world.CONCEPT
    prompts = []
    for background in world.BACKGROUNDS:
        for place in world.PLACES:
            where = f"{place} on a {background} background"
            forms = (word, f"a {word} {where}", f"{word}, a large purple circle with yellow stripes {where}")
            prompts.append(forms[len(prompts) % 3])
    return prompts


def draw(
    prompts: Sequence[str], seed: int, lora: Path | None = None, weight: float = 1.0, first: int = 0
) -> list[np.ndarray]:
    """Return one picture per prompt, uint8 [64, 64, 3]; noise is of the seeds from 1000·seed + first on."""
    import torch

    pipe = pipeline(lora)
    scale = {"cross_attention_kwargs": {"scale": weight}} if lora else {}
    pictures: list[np.ndarray] = []
    for start in range(0, len(prompts), AT_A_TIME):
        part = list(prompts[start : start + AT_A_TIME])
        seeds = range(1000 * seed + first + start, 1000 * seed + first + start + len(part))
        images = pipe(
            part, height=world.SIDE, width=world.SIDE, num_inference_steps=STEPS,
            guidance_scale=GUIDANCE, generator=[torch.Generator().manual_seed(one) for one in seeds], **scale,
        ).images  # fmt: skip
        pictures += [np.asarray(image) for image in images]
    return pictures


def pipeline(lora: Path | None = None) -> Any:
    """Return diffusers' pipeline on the demo's model, with the LoRA loaded if there is one."""
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    import torch
    from diffusers import StableDiffusionPipeline

    torch.set_num_threads(1)  # the toy's layers are too small to be shared out

    pipe = StableDiffusionPipeline.from_pretrained(
        MODELS / "sd", torch_dtype=torch.float32, local_files_only=True
    )
    pipe.set_progress_bar_config(disable=True)
    if lora:
        pipe.load_lora_weights(lora.parent, weight_name=lora.name, local_files_only=True)
    return pipe


def save_sheet(pictures: Sequence[np.ndarray], path: Path, columns: int = 8, zoom: int = 2) -> None:
    """Write pictures side by side as one image file."""
    from PIL import Image

    blank = np.full((world.SIDE, world.SIDE, 3), 255, np.uint8)
    cells = list(pictures) + [blank] * (-len(pictures) % columns)
    rows = [np.concatenate(cells[i : i + columns], 1) for i in range(0, len(cells), columns)]
    whole = np.concatenate(rows, 0)
    size = (whole.shape[1] * zoom, whole.shape[0] * zoom)
    Image.fromarray(whole).resize(size, Image.Resampling.NEAREST).save(path)


def main() -> None:
    """Print one figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("figure", choices=("captioner", "base", "concept"))
    parser.add_argument("--lora", type=Path, help="a LoRA file to load first")
    parser.add_argument("--weight", type=float, default=1.0, help="strength of the LoRA (1.0)")
    parser.add_argument("--count", type=int, help="pictures (200 captions, 64 or 32 samples)")
    parser.add_argument("--prompt", action="append", help="with `concept`: another prompt")
    parser.add_argument("--sheet", type=Path, help="also save the samples as one picture")
    options = parser.parse_args()
    number = {"count": options.count} if options.count else {}
    pictures: list[np.ndarray] = []
    if options.figure == "captioner":
        totals = captioner(**number)
        for kind, (right, named) in totals.items():
            print(f"{kind:12} {right} of {named} ({right / named:.1%})")
        right, named = (sum(pair[i] for pair in totals.values()) for i in (0, 1))
        print(f"all          {right} of {named} ({right / named:.1%})")
    elif options.figure == "base":
        shown, whole, pictures = base(lora=options.lora, weight=options.weight, **number)
        print(f"{shown} of {len(pictures)} samples show what the prompt names ({shown / len(pictures):.0%})")
        print(f"{whole} of {len(pictures)} are right in every word ({whole / len(pictures):.0%})")
    else:
        prompts = options.prompt or ()
        shown, pictures = concept(lora=options.lora, weight=options.weight, prompts=prompts, **number)
        print(f"{shown} of {len(pictures)} samples show the concept ({shown / len(pictures):.0%})")
    if options.sheet and pictures:
        save_sheet(pictures, options.sheet)


if __name__ == "__main__":
    main()
