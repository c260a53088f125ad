"""Pixels of any mode to 8-bit RGB: CMYK and grey by their profiles, deep and floating-point values.

An RGB picture keeps its numbers whatever profile it names: upstream's captioner and every SD1.5 trainer
read them so, and a file that is RGB already is to be copied byte for byte.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from PIL import Image, ImageChops, ImageCms

if TYPE_CHECKING:
    import numpy

_SPACE_OF_MODE = {"L": "GRAY", "CMYK": "CMYK", "LAB": "Lab "}

_BAND_PIXELS = 4_000_000

_VISIBLE = 3
"""A profile that moves no shade of grey by more than this (of 255) is sRGB for every practical purpose."""


def to_srgb(image: Image.Image) -> Image.Image:
    """Return the colours of a loaded picture as mode RGB; transparency is dropped, not applied.

    A picture that is RGB already is returned itself, not a copy.
    """
    basic = _basic(image)
    profile = _profile(image, basic.mode)
    if profile is not None and _differs(profile, basic.mode):
        return ImageCms.applyTransform(basic, _transform(profile, basic.mode)) or basic
    if basic.mode == "LAB":
        lab = ImageCms.buildTransform(ImageCms.createProfile("LAB"), _srgb(), "LAB", "RGB")
        return ImageCms.applyTransform(basic, lab) or basic
    return basic if basic.mode == "RGB" else basic.convert("RGB")


def profile_name(image: Image.Image) -> str | None:
    """Return the name of the embedded profile if `to_srgb` applies it, else None."""
    mode = _basic_mode(image.mode)
    profile = _profile(image, mode)
    if profile is None or not _differs(profile, mode):
        return None
    return _description(profile)


def _basic_mode(mode: str) -> str:
    if mode in ("RGB", "L", "CMYK", "LAB"):
        return mode
    return "L" if mode in ("LA", "La", "1") or mode.startswith(("I", "F")) else "RGB"


def _basic(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB, L, CMYK or LAB, without alpha, 8 bits a channel."""
    mode = image.mode
    if mode == "CMYK":
        # Adobe stores CMYK JPEGs inverted, and Pillow takes every CMYK JPEG to be so. Without Adobe's
        # mark the values are as they stand.
        if image.format == "JPEG" and "adobe" not in image.info:
            return ImageChops.invert(image)
        return image
    if mode in ("RGB", "L", "LAB"):
        return image
    if mode.startswith("I") or mode == "F":
        return _from_deep(image)
    if mode in ("RGBa", "La"):
        return image.convert(mode[:-1] + "A").convert(_basic_mode(mode))
    return image.convert(_basic_mode(mode))


def _from_deep(image: Image.Image) -> Image.Image:
    """Scale 16-bit, 32-bit and floating-point grey to 8 bits.

    16-bit values lose their low byte. Floats are taken as 0..1 or as 0..255 if they lie there, all
    other ranges are stretched from their smallest to their largest value. NaN becomes the smallest.
    """
    import numpy

    # In bands: a float copy of 178 million pixels, made several times over, would fill a small machine.
    height = max(1, _BAND_PIXELS // image.width)
    tops = range(0, image.height, height)

    def band(top: int) -> numpy.ndarray:
        return numpy.asarray(image.crop((0, top, image.width, min(top + height, image.height))))

    if image.mode.startswith("I;16"):
        shift: int | None = 8
    elif image.mode == "I":
        lowest = min(int(band(top).min()) for top in tops)
        highest = max(int(band(top).max()) for top in tops)
        shift = (8 if highest > 255 else 0) if lowest >= 0 and highest < 65536 else None
    else:
        shift = None
    low, high = (0.0, 0.0) if shift is not None else _range(band(top) for top in tops)
    scale = 255.0 / (high - low or 1.0)
    result = Image.new("L", image.size)
    for top in tops:
        values = band(top)
        if shift is None:
            values = values.astype(numpy.float32)
            values = (numpy.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) * scale
            values = numpy.clip(numpy.rint(values), 0, 255)
        else:
            values = values >> shift
        result.paste(Image.fromarray(values.astype(numpy.uint8)), (0, top))
    return result


def _range(bands: Iterable[numpy.ndarray]) -> tuple[float, float]:
    """Return the values that become black and white."""
    import numpy

    lows, highs = [], []
    for values in bands:
        finite = values[numpy.isfinite(values)]
        if finite.size:
            lows.append(float(finite.min()))
            highs.append(float(finite.max()))
    low, high = (min(lows), max(highs)) if lows else (0.0, 0.0)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= 0 and high <= 255:
        return 0.0, 255.0
    return low, high


def _profile(image: Image.Image, mode: str) -> bytes | None:
    """Return the embedded profile if it is readable and belongs to pixels of `mode`."""
    data = image.info.get("icc_profile")
    if not data or mode not in _SPACE_OF_MODE or image.mode == "1":
        return None
    return data if _space(data) == _SPACE_OF_MODE[mode] else None


def _open_profile(data: bytes) -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(io.BytesIO(data))


@functools.cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@functools.lru_cache(maxsize=64)
def _space(data: bytes) -> str:
    try:
        return _open_profile(data).profile.xcolor_space
    except (OSError, ImageCms.PyCMSError, ValueError, TypeError):
        return ""


@functools.lru_cache(maxsize=64)
def _description(data: bytes) -> str:
    try:
        text = ImageCms.getProfileDescription(_open_profile(data))
    except (OSError, ImageCms.PyCMSError, ValueError, TypeError):
        return "without a name"
    return " ".join("".join(char for char in text if char.isprintable()).split())[:60] or "without a name"


@functools.lru_cache(maxsize=64)
def _transform(data: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(
        _open_profile(data),
        _srgb(),
        mode,
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )


@functools.lru_cache(maxsize=64)
def _differs(data: bytes, mode: str) -> bool:
    """Tell whether the profile, applied, would be seen; a profile that cannot be applied is not."""
    try:
        transform = _transform(data, mode)
    except (OSError, ImageCms.PyCMSError, ValueError):
        return False
    if mode in ("CMYK", "LAB"):
        return True
    before = Image.frombytes("L", (256, 1), bytes(range(256)))
    after = ImageCms.applyTransform(before, transform)
    difference = ImageChops.difference(before.convert("RGB"), after).getextrema()
    return max(high for _, high in difference) > _VISIBLE
