"""The before/after sheet of a LoRA: `python demo/sheet.py LORA SHEET.png`.

One row of pictures without the LoRA and one with it, from the same noise, drawn by noukii's own sampling.
The prompts are the trigger word, what the prompt cues beside the LoRA add to it, and two without it.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo import world
from noukii import files, project

SIDE, ZOOM, MARGIN, LINE, COLUMN = 64, 2, 12, 15, 21
STEPS, SCALE = 25, 4.0


def prompts_for(folder: Path, word: str = world.CONCEPT) -> list[str]:
    """Return the prompts to draw for the LoRA in `folder`."""
    cues = [path.read_text(encoding="utf-8").split("\n") for path in sorted(folder.glob("prompt_cue-*.txt"))]
    first = [line for lines in cues for line in lines if line][:3]
    return [
        word,
        ", ".join([word, *first]),
        f"a {word} on the left on a pink background",
        f"a {word} at the bottom on a pale blue background",
        "a large red circle in the centre on a white background",
        "a small blue square at the top on a grey background",
    ]


def draw_both(lora: Path, prompts: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the pictures of `prompts` without and with the LoRA, as PIL images."""
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    import torch

    from noukii.trainer import sampling
    from noukii.trainer.base_model import load_base_model
    from noukii.trainer.checkpoint_header import inspect_base_model
    from noukii.trainer.lora import create_network, lora_alphas, lora_ranks
    from noukii.trainer.lora_file import read_lora
    from noukii.trainer.text_encoding import encode_prompt

    model = load_base_model(
        inspect_base_model(project.CHECKOUT / "demo" / "models" / "sd"), dtype=torch.float32
    )
    tensors, _ = read_lora(lora)
    network = create_network(
        model.unet, model.text_encoder, rank=lora_ranks(tensors).pop(), alpha=lora_alphas(tensors).pop()
    )
    network.load_kohya(tensors)
    network.eval()

    def embed(text: str) -> Any:
        return encode_prompt(model.text_encoder, torch.tensor([model.tokenizer.chunks(text)]), None)

    def draw() -> list[Any]:
        request = sampling.SamplePrompt("", width=SIDE, height=SIDE, steps=STEPS, scale=SCALE)
        return [
            sampling.draw(
                replace(request, prompt=prompt),
                unet=model.unet,
                vae=model.vae,
                embed=embed,
                alphas_cumprod=model.alphas_cumprod,
                scaling_factor=model.vae_scaling_factor,
                prediction_type=model.prediction_type,
                seed=index,
            )
            for index, prompt in enumerate(prompts)
        ]

    with torch.inference_mode():
        before = draw()
        network.apply()
        return before, draw()


def make_sheet(prompts: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> Any:
    """Return both rows on one light picture, a line of text above each and the prompts below."""
    from PIL import Image, ImageDraw

    cell = SIDE * ZOOM + MARGIN
    texts = [textwrap.wrap(prompt, COLUMN) for prompt in prompts]
    height = MARGIN + 2 * (LINE + cell) + LINE * max(map(len, texts))
    sheet = Image.new("RGB", (MARGIN + cell * len(before), height), (246, 245, 241))
    pen = ImageDraw.Draw(sheet)
    for column, lines in enumerate(texts):
        place = (MARGIN + column * cell, MARGIN + 2 * (LINE + cell) - LINE // 2)
        pen.multiline_text(place, "\n".join(lines), fill=(40, 40, 40))
    for row, (words, pictures) in enumerate((("without the LoRA", before), ("with the LoRA", after))):
        top = MARGIN + row * (LINE + cell)
        pen.text((MARGIN, top), words, fill=(40, 40, 40))
        for column, picture in enumerate(pictures):
            large = picture.resize((SIDE * ZOOM, SIDE * ZOOM), Image.Resampling.NEAREST)
            sheet.paste(large, (MARGIN + column * cell, top + LINE))
    return sheet


def main() -> None:
    """Draw the sheet and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lora", type=Path)
    parser.add_argument("sheet", type=Path)
    options = parser.parse_args()
    prompts = prompts_for(options.lora.parent)
    sheet = make_sheet(prompts, *draw_both(options.lora, prompts))
    with files.whole_file(options.sheet) as temporary:
        sheet.save(temporary, format="PNG")
    print(f"before/after sheet: {options.sheet}")


if __name__ == "__main__":
    main()
