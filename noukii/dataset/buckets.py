"""Aspect-ratio buckets, in agreement with sd-scripts.

Source of the rules: sd-scripts 48d368f, `make_bucket_resolutions` in library/model_util.py and
`BucketManager.select_bucket` in library/train_util.py. All functions are pure.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Bucket:
    """The size, in pixels, of the pictures of one batch."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True)
class Fit:
    """How a picture goes into its bucket: resize to `resized`, then crop the centre to `bucket`."""

    bucket: Bucket
    resized: tuple[int, int]

    @property
    def crop(self) -> tuple[int, int]:
        """Left and top of the bucket's part in the resized picture."""
        return (self.resized[0] - self.bucket.width) // 2, (self.resized[1] - self.bucket.height) // 2


@dataclass(frozen=True)
class BucketRule:
    """How pictures are put into buckets; sizes in pixels.

    `resolution` (width, height) bounds a bucket's area. Without `enable` there is one bucket, of
    that size. With `no_upscale` a picture is never enlarged, buckets are whatever multiples of
    `step` fit into it, and `min_size` and `max_size` have no effect.
    """

    resolution: tuple[int, int]
    enable: bool
    no_upscale: bool
    step: int
    min_size: int
    max_size: int


def fit(width: int, height: int, rule: BucketRule) -> Fit:
    """Return the bucket for an upright picture of `width` x `height` pixels.

    Raises:
        ValueError: a side would be under one step of the bucket grid; str() says so in plain words.
    """
    if width < 1 or height < 1:
        raise ValueError(f"{width}x{height} has no pixels")
    if not rule.enable:
        return _cover(width, height, Bucket(*rule.resolution))
    if rule.no_upscale:
        return _fit_inside(width, height, rule)
    buckets = predefined_buckets(rule)
    same = Bucket(width, height)
    if same in buckets:
        return Fit(same, (width, height))
    aspect = width / height
    return _cover(width, height, min(buckets, key=lambda bucket: abs(bucket.width / bucket.height - aspect)))


@functools.lru_cache(maxsize=32)
def predefined_buckets(rule: BucketRule) -> tuple[Bucket, ...]:
    """Return the buckets of a rule that may enlarge pictures, sorted by width, then height."""
    step = rule.step
    low = rule.min_size - rule.min_size % step
    high = -(-rule.max_size // step) * step
    area = rule.resolution[0] * rule.resolution[1]
    square = int(math.sqrt(area) // step) * step
    found = {Bucket(square, square)}
    for width in range(low, high + 1, step):
        height = min(high, area // width // step * step)
        if height >= low:
            found |= {Bucket(width, height), Bucket(height, width)}
    return tuple(sorted(found))


def _cover(width: int, height: int, bucket: Bucket) -> Fit:
    """Scale so that the picture just covers the bucket; sizes are rounded half up."""
    wider = width / height > bucket.width / bucket.height
    scale = bucket.height / height if wider else bucket.width / width
    return Fit(bucket, (int(width * scale + 0.5), int(height * scale + 0.5)))


def _fit_inside(width: int, height: int, rule: BucketRule) -> Fit:
    step, area = rule.step, rule.resolution[0] * rule.resolution[1]
    resized = (width, height)
    if width * height > area:
        resized = _shrink(width, height, area, step)
    bucket = Bucket(resized[0] // step * step, resized[1] // step * step)
    if not (bucket.width and bucket.height):
        raise _too_small(width, height, rule)
    return Fit(bucket, resized)


def _shrink(width: int, height: int, area: int, step: int) -> tuple[int, int]:
    """Scale down to about `area`, one side a multiple of `step`: the side that keeps the aspect better.

    Returns a side of 0 where either way leaves none: sd-scripts divides by zero there.
    """
    aspect = width / height
    exact_width = math.sqrt(area * aspect)
    by_width = _floor_to(exact_width, step)
    its_height = _floor_to(by_width / aspect, step)
    by_height = _floor_to(area / exact_width, step)
    its_width = _floor_to(by_height * aspect, step)
    if not (by_width and its_height and by_height and its_width):
        return 0, 0
    if abs(by_width / its_height - aspect) < abs(its_width / by_height - aspect):
        return by_width, int(by_width / aspect + 0.5)
    return int(by_height * aspect + 0.5), by_height


def _floor_to(value: float, step: int) -> int:
    """Round half up to a whole number, then down to a multiple of `step`."""
    return int(value + 0.5) // step * step


def _too_small(width: int, height: int, rule: BucketRule) -> ValueError:
    if min(width, height) < rule.step:
        return ValueError(f"{width}x{height} pixels: a side is under {rule.step}, the least a bucket needs")
    return ValueError(
        f"{width}x{height} pixels: so long that, scaled to the resolution, a side is under {rule.step}"
    )
