"""The before/after sheet of a LoRA: `python demo/sheet.py LORA SHEET.png`.

One row of pictures without the LoRA and one with it, from the same noise, drawn by noukii's own sampling.
The prompts are the trigger word, what the prompt cues beside the LoRA add to it, and two without it.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo import world
from noukii import files, project

SIDE, ZOOM, MARGIN, LINE, COLUMN = 64, 2, 12, 15, 21
STEPS, SCALE = 25, 4.0


def prompts_for(folder: Path, word: str = world.CONCEPT) -> list[str]:
    """Return the prompts to draw for the LoRA in `folder`."""
    cues = (folder / f"prompt_cue-{word}.txt").read_text(encoding="utf-8").splitlines()
    return [
        word,
        ", ".join([word, *cues[:2]]),
        f"a {word} on the left on a pink background",
        f"a {word} at the bottom on a pale blue background",
        "a large red circle in the centre on a white background",
        "a small blue square at the top on a grey background",
    ]


def draw_both(lora: Path, prompts: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the pictures of `prompts` without and with the LoRA, as PIL images; picture i from seed i."""
    from noukii.trainer.checkpoint_header import inspect_base_model
    from noukii.trainer.comparing import Row, draw_rows
    from noukii.trainer.sampling import SamplePrompt

    requests = [
        SamplePrompt(prompt, width=SIDE, height=SIDE, seed=seed, steps=STEPS, scale=SCALE)
        for seed, prompt in enumerate(prompts)
    ]
    import torch

    torch.set_num_threads(1)  # the toy's layers are too small to be shared out
    rows: tuple[list[Any], list[Any]] = ([], [])
    drawn = draw_rows(
        inspect_base_model(project.CHECKOUT / "demo" / "models" / "sd"),
        [Row(None, 0.0), Row(lora, 1.0)], requests, seed=0, precision="no", use_gpu=False,
    )  # fmt: skip
    for row, _, picture in drawn:
        rows[row].append(picture)
    return rows


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
