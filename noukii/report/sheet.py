"""The checkpoint sheet: pictures in rows and columns, as a page and as one picture to pass on."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from noukii import files
from noukii.report.pages import write_page
from noukii.report.thumbnails import ThumbnailSpool

PAGE, PICTURE = "compare.html", "compare.png"
_PAGE_BYTES = 16_000_000
_LONGEST_SIDE = 512
_GAP, _LINE = 8, 18
_INK, _PAPER, _QUIET = (30, 30, 30), (250, 249, 246), (110, 106, 98)


def write_sheet(
    folder: Path,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    pictures: Sequence[Sequence[Image.Image]],
    best: str = "",
) -> tuple[Path, Path]:
    """Write `compare.html` and `compare.png` into a folder and return their paths.

    Args:
        rows: what each row is; `best` is the one to point out.
        columns: the prompts.
        pictures: a list for each row.
    """
    count = len(rows) * len(columns)
    with (
        ThumbnailSpool(_PAGE_BYTES, count, _LONGEST_SIDE, most=400_000) as spool,
        tempfile.TemporaryDirectory(prefix="noukii-") as room,
    ):
        grid = []
        for number, line in enumerate(pictures):
            small = []
            for place, picture in enumerate(line):
                path = Path(room) / f"{number}-{place}.png"
                picture.save(path)
                small.append(spool.add(path))
            grid.append((rows[number], small))
        page = write_page(
            folder / PAGE, "compare.html", title=title, columns=columns, grid=grid, best=best,
            picture=spool.data_uri,
        )  # fmt: skip
    with files.whole_file(folder / PICTURE) as temporary:
        draw_sheet(rows, columns, pictures).save(temporary, "PNG")
    return page, folder / PICTURE


def draw_sheet(
    rows: Sequence[str], columns: Sequence[str], pictures: Sequence[Sequence[Image.Image]]
) -> Image.Image:
    """Return the sheet as one picture; tiny pictures are enlarged, so that they can be seen."""
    font = ImageFont.load_default(13)
    width = max(picture.width for line in pictures for picture in line)
    height = max(picture.height for line in pictures for picture in line)
    scale = max(1, 192 // max(width, height))
    width, height = width * scale, height * scale
    side = max(round(font.getlength(text)) for text in rows) + 2 * _GAP
    heads = [_wrapped(text, font, width) for text in columns]
    top = max(len(lines) for lines in heads) * _LINE + 2 * _GAP
    sheet = Image.new(
        "RGB", (side + len(columns) * (width + _GAP), top + len(rows) * (height + _GAP)), _PAPER
    )
    pen = ImageDraw.Draw(sheet)
    for place, lines in enumerate(heads):
        for number, line in enumerate(lines):
            pen.text((side + place * (width + _GAP), _GAP + number * _LINE), line, _INK, font)
    for number, (text, line) in enumerate(zip(rows, pictures, strict=True)):
        y = top + number * (height + _GAP)
        pen.text((_GAP, y + height // 2 - _LINE // 2), text, _QUIET, font)
        for place, picture in enumerate(line):
            size = (picture.width * scale, picture.height * scale)
            method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
            sheet.paste(picture.resize(size, method), (side + place * (width + _GAP), y))
    return sheet


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Return a text in lines of at most `width` pixels, five at most."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [*lines[:4], lines[4] + " …"] if len(lines) > 5 else lines
