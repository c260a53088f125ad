"""Any picture -> the square of numbers that Janus' vision tower looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""What Janus' image processors fall back to; every published checkpoint names its own values (0.5)."""


@dataclass(frozen=True)
class PixelRule:
    """How a checkpoint wants its pictures: sides in pixels, mean and std per channel of 0..1 values."""

    image_size: int
    min_size: int = 14
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    rescale: float = 1 / 255
    normalize: bool = True

    @property
    def background(self) -> tuple[int, int, int]:
        """The colour beside a picture that is not square: the mean, rounded down (127 for 0.5).

        Both upstream and transformers compute it so and ignore `background_color` in the JSON.
        """
        red, green, blue = (int(value * 255) for value in self.mean)
        return red, green, blue


def pixel_rule(settings: Mapping[str, Any], image_size: int) -> PixelRule:
    """Read preprocessor_config.json as either layout writes it.

    `image_size` is the vision tower's. Raises ValueError with the reason in plain words.
    """
    size = settings.get("image_size", settings.get("size", image_size))
    if isinstance(size, Mapping):
        size = size.get("height", size.get("longest_edge", image_size))
    if size != image_size:
        raise ValueError(f"prepares pictures of {size} pixels, but the vision tower wants {image_size}")
    rule = PixelRule(
        image_size=image_size,
        min_size=int(settings.get("min_size", 14)),
        mean=_triple(settings, "image_mean", CLIP_MEAN),
        std=_triple(settings, "image_std", CLIP_STD),
        rescale=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
        normalize=bool(settings.get("do_normalize", True)),
    )
    if not 1 <= rule.min_size <= image_size:
        raise ValueError(f"min_size is {rule.min_size}; it must lie between 1 and {image_size}")
    return rule


def scaled_size(width: int, height: int, rule: PixelRule) -> tuple[int, int]:
    """Return (width, height) after scaling: the longest side fills the square, the other rounds down.

    Upstream rounds down (transformers' own Janus processor rounds to nearest, one pixel off for
    half of all sizes), and no side gets smaller than `min_size`.
    """
    longest = max(width, height)
    # The order of the two operations decides the last bit, and so the pixel: divide first.
    return (
        max(int(width / longest * rule.image_size), rule.min_size),
        max(int(height / longest * rule.image_size), rule.min_size),
    )


def square(image: Image, rule: PixelRule) -> Image:
    """Scale an RGB picture (bicubic) and centre it on a square of the background colour."""
    from PIL import Image as pillow

    scaled = image.resize(scaled_size(*image.size, rule), pillow.Resampling.BICUBIC)
    side = rule.image_size
    if scaled.size == (side, side):
        return scaled
    canvas = pillow.new("RGB", (side, side), rule.background)
    canvas.paste(scaled, ((side - scaled.width) // 2, (side - scaled.height) // 2))
    return canvas


def pixel_values(image: Image, rule: PixelRule) -> np.ndarray:
    """Return float32 [3, image_size, image_size] for one upright RGB picture."""
    import numpy as np

    # float64 for the first product, float32 after it: the roundings of upstream's processor.
    values = (np.asarray(square(image, rule), dtype=np.float64) * rule.rescale).astype(np.float32)
    if rule.normalize:
        values = (values - np.array(rule.mean, np.float32)) / np.array(rule.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)


def _triple(
    settings: Mapping[str, Any], key: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    given = settings.get(key)
    if given is None:
        return default
    if not (
        isinstance(given, (list, tuple))
        and len(given) == 3
        and all(isinstance(v, (int, float)) for v in given)
    ):
        raise ValueError(f"{key} must be three numbers, not {given!r}")
    if key == "image_std" and not all(given):
        raise ValueError("image_std holds a zero")
    red, green, blue = (float(value) for value in given)
    return red, green, blue
