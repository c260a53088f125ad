"""Small pictures that a page can carry inside itself."""

from __future__ import annotations

import base64
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from PIL import Image, features

from noukii.dataset.small import open_small

LONGEST_SIDE = 400
"""Pixels; sharp enough for a card on a phone's dense screen."""

_ATTEMPTS = ((1.0, 74), (1.0, 58), (0.85, 52), (0.7, 46), (0.5, 42), (0.35, 36), (0.2, 30))
"""Scale and quality, tried in turn until a picture fits: noise and foliage need the later ones."""

_FAST = {"method": 2}
"""For WebP: half the time of the default for files a few percent larger; JPEG ignores it."""


@dataclass(frozen=True)
class Thumbnail:
    """Where a small picture lies in its spool, and how large it and its original are, in pixels."""

    original: tuple[int, int]
    size: tuple[int, int]
    start: int
    length: int


class ThumbnailSpool:
    """Thumbnails kept in a temporary file: all are known before the page starts, none is in memory.

    Args:
        total_bytes: what all pictures of the page may take together.
        count: how many there will be; each gets an equal share, at most `most` bytes.
        longest_side: of a thumbnail, in pixels; nothing is enlarged.
    """

    def __init__(
        self, total_bytes: int, count: int, longest_side: int = LONGEST_SIDE, most: int = 24_000
    ) -> None:
        self._limit = max(2_000, min(most, total_bytes // max(count, 1)))
        self._longest_side = longest_side
        self._format = "WEBP" if features.check("webp") else "JPEG"
        self._file = tempfile.TemporaryFile(prefix="noukii-")  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> ThumbnailSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, path: Path) -> Thumbnail:
        """Make the thumbnail of an image file. Raises UnusableImage if it cannot be read."""
        picture, original = open_small(path, self._longest_side)
        picture.thumbnail((self._longest_side, self._longest_side), Image.Resampling.LANCZOS)
        attempt = 0
        while True:
            scale, quality = _ATTEMPTS[attempt]
            size = tuple(max(1, round(side * scale)) for side in picture.size)
            scaled = picture if scale == 1.0 else picture.resize(size, Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            scaled.save(buffer, self._format, quality=quality, **_FAST)
            if buffer.tell() <= self._limit or attempt == len(_ATTEMPTS) - 1:
                break
            far = buffer.tell() > 1.7 * self._limit
            attempt = min(attempt + (3 if far else 1), len(_ATTEMPTS) - 1)
        start = self._file.seek(0, io.SEEK_END)
        self._file.write(buffer.getbuffer())
        return Thumbnail(original, scaled.size, start, buffer.tell())

    def data_uri(self, thumbnail: Thumbnail) -> str:
        """Return the picture as the `src` of an `<img>`."""
        self._file.seek(thumbnail.start)
        content = base64.b64encode(self._file.read(thumbnail.length)).decode("ascii")
        return f"data:image/{self._format.lower()};base64,{content}"
