"""Decoding any picture to what the models see: 8-bit RGB, upright, first frame, on white."""

from __future__ import annotations

import functools
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from noukii.dataset.colour import profile_name, to_srgb
from noukii.dataset.content import SNIFF_BYTES, describe_content, extension

MAX_PIXELS = 2 * 89_478_485
"""Pillow's own limit against decompression bombs: about 179 million pixels."""

LARGE_PIXELS = 24_000_000
"""Pictures over this are decoded one at a time, so that memory does not grow with the core count."""

_BAND_PIXELS = 4_000_000

# Pillow warns of large pictures, odd EXIF and palettes with bytes as transparency. All of it is dealt
# with here, and a folder of a thousand photographs would flood the terminal.
warnings.filterwarnings("ignore", module=r"PIL\b.*")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

# EPS is left out because it would start Ghostscript; TGA has no mark of its own and takes text for a
# picture, so that it is tried for its own extensions only.
_FORMAT_NAMES = "PNG JPEG WEBP BMP DIB GIF TIFF AVIF JPEG2000 PPM QOI PCX ICO SGI DDS HEIF JXL"
_TARGA = (".tga", ".icb", ".vda", ".vst")
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_one_large = threading.Lock()
_limit_lifted = threading.Lock()


class UnusableImage(Exception):
    """A picture that cannot be used; str() is the reason in plain words."""


@dataclass(frozen=True)
class Looks:
    """What a decoded file is: its upright size, and whether its pixels need any change (R6)."""

    format: str
    width: int
    height: int
    plain: bool
    notes: tuple[str, ...]


@functools.cache
def has_plugin(package: str) -> bool:
    """Tell whether pillow-heif or pillow-jxl-plugin is installed; if so it is registered."""
    try:
        if package == "pillow-heif":
            import pillow_heif

            pillow_heif.register_heif_opener()
        else:
            import pillow_jxl  # noqa: F401  (registers itself)
    except ImportError:
        return False
    return True


@functools.cache
def _formats() -> tuple[str, ...]:
    """Register every plug-in there is and return the formats to try, in Pillow's names."""
    Image.init()
    has_plugin("pillow-heif")
    has_plugin("pillow-jxl-plugin")
    return tuple(name for name in _FORMAT_NAMES.split() if name in Image.OPEN)


def open_image(path: Path) -> Image.Image:
    """Return the picture as 8-bit RGB, upright, first frame, on white where transparent.

    Raises:
        UnusableImage: with the reason; no other exception for a bad file.
    """
    with decoded(path) as (image, looks):
        return _finish(image, looks)


def look_at(path: Path) -> Looks:
    """Decode the whole file and say what it is, without converting its pixels.

    JPEG is decoded at an eighth of its size: the whole entropy-coded stream is read, so that a cut
    or damaged file still fails, but the inverse transforms are saved.

    Raises:
        UnusableImage: with the reason.
    """
    with decoded(path, for_check=True) as (_, looks):
        return looks


@contextmanager
def decoded(path: Path, for_check: bool = False) -> Iterator[tuple[Image.Image, Looks]]:
    """Yield the loaded first frame, as Pillow gives it, and what it is."""
    try:
        with _regular_file(path) as stream:
            image = _open(stream, path)
            pixels = image.width * image.height
            if pixels > MAX_PIXELS:
                raise UnusableImage(
                    f"{image.width}x{image.height} pixels, over the limit of {MAX_PIXELS // 10**6} million"
                )
            if not pixels:
                raise UnusableImage("has no pixels")
            with _one_large if pixels > LARGE_PIXELS else nullcontext():
                try:
                    looks = _load(image, for_check)
                except ValueError as error:
                    if not _is_text_bomb(error):
                        raise
                    image = _open_without_text(stream)  # the text stands behind the pixels
                    looks = _load(image, for_check)
                yield image, looks
    except UnusableImage:
        raise
    except FileNotFoundError:
        raise UnusableImage("is gone, or a link that leads nowhere") from None
    except PermissionError:
        raise UnusableImage("cannot be read (permission denied)") from None
    except MemoryError:
        raise UnusableImage("needs more memory than there is") from None
    except Exception as error:  # a damaged file makes Pillow's plug-ins raise nearly anything (R1)
        raise UnusableImage(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "truncated" in text or "Truncated" in text:
        return "cut off: the end of the file is missing"
    return f"damaged ({text[:120] or type(error).__name__})"


@contextmanager
def _regular_file(path: Path) -> Iterator[BinaryIO]:
    status = os.stat(path)  # before opening: a named pipe would wait for a writer for ever
    if not stat.S_ISREG(status.st_mode):
        raise UnusableImage("not a regular file")
    if status.st_size == 0:
        raise UnusableImage("0 bytes")
    with open(path, "rb") as stream:
        yield stream


def _open(stream: BinaryIO, path: Path) -> Image.Image:
    formats = [*_formats(), "TGA"] if extension(path.name) in _TARGA else list(_formats())
    try:
        return Image.open(stream, formats=formats)
    except Image.DecompressionBombError:
        return _open_bomb(stream, formats)
    except Image.UnidentifiedImageError:
        stream.seek(0)
        raise UnusableImage(describe_content(stream.read(SNIFF_BYTES))) from None
    except ValueError as error:
        if not _is_text_bomb(error):
            raise
        return _open_without_text(stream)


def _is_text_bomb(error: ValueError) -> bool:
    """Some image generators store megabytes of text in a PNG; Pillow refuses that, the pixels are fine."""
    return "MAX_TEXT" in str(error)


def _open_without_text(stream: BinaryIO) -> Image.Image:
    """Open a PNG without its texts, and without its colour profile if that is the bomb."""
    texts = (b"tEXt", b"zTXt", b"iTXt")
    try:
        return Image.open(_png_without(stream, texts), formats=["PNG"])
    except ValueError:
        return Image.open(_png_without(stream, (*texts, b"iCCP")), formats=["PNG"])


def _open_bomb(stream: BinaryIO, formats: list[str]) -> Image.Image:
    """Read the header once more, to be able to name the picture's size; `decoded` refuses it."""
    with _limit_lifted:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            stream.seek(0)
            return Image.open(stream, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _png_without(stream: BinaryIO, kinds: tuple[bytes, ...]) -> BinaryIO:
    """Return a PNG without chunks of these kinds, the rest unchanged."""
    stream.seek(0)
    kept = io.BytesIO()
    kept.write(stream.read(8))
    while len(head := stream.read(8)) == 8:
        length = int.from_bytes(head[:4], "big") + 4
        if head[4:] in kinds:
            stream.seek(length, os.SEEK_CUR)
        else:
            kept.write(head)
            kept.write(stream.read(length))
    kept.seek(0)
    return kept


def _load(image: Image.Image, for_check: bool) -> Looks:
    width, height = image.size
    kind = image.format or ""
    deep = any(_is_deep(tile) for tile in getattr(image, "tile", []))
    frames = _frame_count(image)
    if for_check and kind in ("JPEG", "MPO"):
        image.draft(None, (max(width // 8, 1), max(height // 8, 1)))
        image.load()
    else:
        image.load()
        width, height = image.size  # TIFF is turned upright while it is loaded
    notes = []
    orientation = _orientation(image)
    if orientation != 1:
        notes.append(f"turned upright (EXIF orientation {orientation})")
        if orientation >= 5:
            width, height = height, width
    if frames > 1:
        notes.append(f"first of {frames} frames")
    if kind == "JPEG2000":
        deep = deep or image.mode == "I;16"
    if deep or image.mode.startswith("I"):
        notes.append("reduced to 8 bits")
    elif image.mode == "F":
        notes.append("floating-point values scaled to 8 bits")
    if image.mode == "CMYK":
        notes.append("CMYK converted to RGB")
    if _is_transparent(image):
        notes.append("transparent parts put on white")
    profile = profile_name(image)
    if profile:
        notes.append(f"colour profile {profile} applied")
    alpha = "A" in image.mode or "a" in image.mode or "transparency" in image.info
    plain = image.mode == "RGB" and not (notes or alpha)
    return Looks(kind, width, height, plain, tuple(notes))


def _is_deep(tile: tuple[object, ...]) -> bool:
    """Tell whether a plug-in's tile holds 16 bits a channel: SGI's decoder, or a raw mode like RGB;16B."""
    arguments = tile[3] if len(tile) > 3 else ""
    raw_mode = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return tile[0] == "SGI16" or (isinstance(raw_mode, str) and ";16" in raw_mode)


def _frame_count(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # a damaged later frame does not matter: only the first is used
        return 2


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(0x0112, 1)
    except Exception:  # EXIF is often broken, and then says nothing about the pixels
        return 1
    return value if value in _TRANSPOSE else 1


def _is_transparent(image: Image.Image) -> bool:
    alpha = _alpha(image)
    return alpha is not None and alpha.getextrema()[0] < 255


def _alpha(image: Image.Image) -> Image.Image | None:
    """Return the alpha channel (mode L), or None if the picture has none."""
    mode = image.mode
    if mode in ("RGBA", "LA", "PA"):
        return image.getchannel("A")
    if mode in ("RGBa", "La"):
        return image.convert(mode[:-1] + "A").getchannel("A")
    if "transparency" in image.info and mode in ("1", "L", "P", "RGB"):
        try:
            return image.convert("RGBA").getchannel("A")
        except (ValueError, TypeError):  # a value that does not fit the mode marks no pixel
            return None
    return None


def _on_white(image: Image.Image) -> Image.Image:
    """Return a picture with transparent parts as RGB on white, made in bands so that memory stays small."""
    result = Image.new("RGB", image.size, (255, 255, 255))
    height = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, height):
        band = image.crop((0, top, image.width, min(top + height, image.height)))
        result.paste(to_srgb(band), (0, top), mask=_alpha(band))
    return result


def _finish(image: Image.Image, looks: Looks) -> Image.Image:
    """Return the loaded `image` as its training copy shows it."""
    rgb = _on_white(image) if _is_transparent(image) else to_srgb(image)
    orientation = _orientation(image)
    if orientation != 1:
        rgb = rgb.transpose(_TRANSPOSE[orientation])
    elif rgb is image:
        rgb = image.copy()
    if rgb.size != (looks.width, looks.height):
        raise UnusableImage("its size changed while it was read")
    rgb.info = {}
    return rgb
