"""Pictures for training and captioning: which files count, what they hold, the copy a trainer reads.

    listing = list_images(folder)
    infos, broken = inspect_images(listing.images)
    image = open_image(infos[0].path)          # 8-bit RGB, upright, on white

Nothing here writes into a user's folder (R2); a bad file is an UnusableImage or a Skipped (R1).
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from noukii.dataset.content import extension
from noukii.dataset.decoding import LARGE_PIXELS, UnusableImage, look_at, open_image
from noukii.dataset.listing import Listing, Skipped, list_images
from noukii.dataset.stems import picture_stem, safe_stems
from noukii.files import copy_file, sha256_file, whole_file
from noukii.hardware import cpu_count

__all__ = [
    "KOHYA_EXTENSIONS",
    "ImageInfo",
    "Listing",
    "Skipped",
    "UnusableImage",
    "inspect_image",
    "inspect_images",
    "list_images",
    "open_image",
    "picture_stem",
    "safe_stems",
    "write_training_copy",
]

KOHYA_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""The extensions sd-scripts lists, in lower case (library/train_util.py, IMAGE_EXTENSIONS)."""

_EXTENSION_OF_FORMAT = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "BMP": ".bmp"}

_one_large_copy = threading.Lock()

_PNG_EFFORT = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""Run lengths alone make photographs as small as zlib's level 3 does, in a third of the time."""


@dataclass(frozen=True)
class ImageInfo:
    """A picture that was decoded to its end.

    `width` and `height` are those of the upright picture. `as_is` says that the file's own bytes are
    what a trainer reads rightly (R6); else `notes` say what the training copy changes. `sha256` is
    that of the file's bytes, `extension` the one its training copy gets.
    """

    path: Path
    width: int
    height: int
    as_is: bool
    notes: tuple[str, ...]
    sha256: str
    extension: str = ".png"
    size_bytes: int = 0


def inspect_image(path: Path) -> ImageInfo:
    """Decode the file fully and describe it.

    Raises:
        UnusableImage: it cannot be used; str() is the reason.
    """
    looks = look_at(path)
    as_is = looks.plain and looks.format in _EXTENSION_OF_FORMAT
    notes = list(looks.notes)
    end = _EXTENSION_OF_FORMAT[looks.format] if as_is else ".png"
    if as_is and end == ".jpg" and extension(path.name) == ".jpeg":
        end = ".jpeg"
    named = extension(path.name)
    if as_is and end != named and not (end == ".jpg" and named in (".jpe", ".jfif")):
        notes.append(f"is really {looks.format}")
    try:
        digest, size = sha256_file(path), os.stat(path).st_size
    except OSError as error:
        raise UnusableImage(f"cannot be read ({error.strerror})") from None
    return ImageInfo(path, looks.width, looks.height, as_is, tuple(notes), digest, end, size)


def inspect_images(
    paths: Iterable[Path], advance: Callable[[], object] | None = None
) -> tuple[list[ImageInfo], list[Skipped]]:
    """Inspect many files on all cores; the order is kept, and memory does not grow with their number.

    `advance` is called once for each file, in the calling thread.
    """
    infos: list[ImageInfo] = []
    skipped: list[Skipped] = []
    with ThreadPoolExecutor(min(cpu_count(), 16)) as pool:
        try:
            for answer in pool.map(_inspect_or_skip, paths):
                (infos if isinstance(answer, ImageInfo) else skipped).append(answer)  # type: ignore[arg-type]
                if advance is not None:
                    advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return infos, skipped


def _inspect_or_skip(path: Path) -> ImageInfo | Skipped:
    try:
        return inspect_image(path)
    except UnusableImage as error:
        return Skipped(path, str(error))


def write_training_copy(info: ImageInfo, folder: Path, stem: str) -> Path:
    """Write the copy a trainer reads rightly (R6) to `folder` and return its path.

    A file that is right already is copied byte for byte, under the extension of its real format;
    any other becomes a PNG.

    Raises:
        UnusableImage: the file was changed or removed since it was inspected.
    """
    target = folder / f"{stem}{info.extension}"
    if info.as_is:
        try:
            copy_file(info.path, target)
        except OSError as error:
            if error.filename == os.fspath(info.path):
                raise UnusableImage(f"cannot be read any more ({error.strerror})") from None
            raise
        if sha256_file(target) != info.sha256:
            target.unlink()
            raise UnusableImage("was changed while the run began")
        return target
    with _one_large_copy if info.width * info.height > LARGE_PIXELS else nullcontext():
        image = open_image(info.path)
        if image.size != (info.width, info.height):
            raise UnusableImage("was changed while the run began")
        with whole_file(target) as temporary:
            image.save(temporary, "PNG", **_PNG_EFFORT)
    return target
