"""Opening a picture at a reduced size, for thumbnails and comparisons."""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image, ImageOps

from noukii.dataset.images import open_image


def open_small(path: Path, longest_side: int) -> tuple[Image.Image, tuple[int, int]]:
    """Return an upright RGB picture of at least `longest_side`, and the original's upright size.

    A plain photograph is decoded at an eighth to a half of its size, as JPEG allows: many times
    faster for a camera's 24 megapixels. Everything else goes the way the trainer reads it.

    Raises:
        UnusableImage: it cannot be read.
    """
    try:
        with Image.open(path) as opened:
            if opened.format == "JPEG" and opened.mode in ("RGB", "L"):
                full = opened.size
                turned = opened.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
                opened.draft("RGB", (longest_side * 2, longest_side * 2))
                upright = ImageOps.exif_transpose(opened)
                return upright.convert("RGB"), full[::-1] if turned else full
    except Exception:
        pass  # whatever Pillow stumbles over, the careful way names it
    picture = open_image(path)
    return picture, picture.size
