"""Pictures that look the same: a re-saved, resized or slightly cut copy, the next shot of a burst.

Each picture becomes a small fingerprint: a hash of 128 bits (is each of 8 x 8 places darker than its
right-hand and its lower neighbour, "dHash") finds candidates cheaply, and 16 x 16 colours decide. Nothing
is ever dropped for it; a person is told, for a picture that is there twice weighs twice in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noukii.dataset.decoding import UnusableImage
from noukii.dataset.small import open_small
from noukii.hardware import cpu_count

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 16
"""Colours are compared at this many places a side."""

LEAST_STEP = 3
"""Grey levels by which neighbours must differ to count: in a flat area only noise differs."""

MOST_BITS = 16
"""Of the 128 bits of two hashes, so many may differ in a candidate."""

MOST_DIFFERENCE = 0.3
"""Mean difference of the colours, as a share of the picture's own contrast, up to which two are alike.

Measured on photographs: a JPEG of quality 30, half the size, 15 % brighter, blurred or 3 % cut on each side
stays below 0.3 (8 % cut: 0.6); different photographs are at 0.98 and more."""

LEAST_CONTRAST = 6.0
"""Grey levels; an all but empty picture is compared as if it had this contrast."""

LARGEST_SHIFT = 24.0
"""Grey levels by which one of the two may be brighter as a whole, or of another tint."""

SAME_SHAPE = 1.08
"""Their aspect ratios may differ by this factor."""


@dataclass(frozen=True)
class Fingerprint:
    """What is kept of a picture: 128 bits, 16 x 16 RGB values row by row, width / height."""

    bits: int
    colours: bytes
    aspect: float


def fingerprint(picture: Image) -> Fingerprint:
    """Return the fingerprint of an upright RGB picture of any size."""
    import numpy
    from PIL import Image as pillow

    grey = picture.convert("L").resize((9, 9), pillow.Resampling.BOX)
    levels = numpy.asarray(grey, dtype=numpy.int16)
    right = levels[:8, 1:] - levels[:8, :8] >= LEAST_STEP
    below = levels[1:, :8] - levels[:8, :8] >= LEAST_STEP
    bits = int.from_bytes(numpy.packbits(numpy.concatenate([right.ravel(), below.ravel()])).tobytes(), "big")
    colours = picture.convert("RGB").resize((SIDE, SIDE), pillow.Resampling.BOX).tobytes()
    return Fingerprint(bits, colours, picture.width / picture.height)


def alike(one: Fingerprint, other: Fingerprint) -> bool:
    """Say whether two pictures look the same to a person who flips between them."""
    if (one.bits ^ other.bits).bit_count() > MOST_BITS:
        return False
    if max(one.aspect, other.aspect) > SAME_SHAPE * min(one.aspect, other.aspect):
        return False
    import numpy

    a, b = (
        numpy.frombuffer(each.colours, dtype=numpy.uint8).astype(numpy.float32).reshape(-1, 3)
        for each in (one, other)
    )
    shift = a.mean(axis=0) - b.mean(axis=0)
    if numpy.abs(shift).max() > LARGEST_SHIFT:
        return False
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    contrast = max(float(numpy.abs(a).mean()), float(numpy.abs(b).mean()), LEAST_CONTRAST)
    # A picture without contrast is its colour: then the shift counts as well.
    difference = float(numpy.abs(a - b).mean())
    if contrast == LEAST_CONTRAST:
        difference += float(numpy.abs(shift).mean())
    return difference <= MOST_DIFFERENCE * contrast


def groups(fingerprints: Sequence[Fingerprint | None]) -> list[list[int]]:
    """Return the groups of two or more pictures that look the same, by place, in order.

    A picture belongs to a group if it is like any one in it. None (no picture) is like nothing.
    """
    import numpy

    leader = list(range(len(fingerprints)))

    def lead(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    there = [(place, one) for place, one in enumerate(fingerprints) if one is not None]
    hashes = numpy.frombuffer(b"".join(one.bits.to_bytes(16, "big") for _, one in there), dtype=numpy.uint64)
    hashes = hashes.reshape(-1, 2)
    for number, (place, one) in enumerate(there):
        # The cheap question first, to all at once: there are as many pairs as half the square.
        differing = numpy.bitwise_count(hashes[:number] ^ hashes[number]).sum(axis=1)
        for candidate in numpy.flatnonzero(differing <= MOST_BITS):
            earlier, other = there[candidate]
            if lead(earlier) != lead(place) and alike(other, one):
                leader[lead(place)] = lead(earlier)
    found: dict[int, list[int]] = {}
    for place in range(len(fingerprints)):
        found.setdefault(lead(place), []).append(place)
    return [places for places in found.values() if len(places) > 1]


def near_duplicates(paths: Iterable[Path]) -> list[list[Path]]:
    """Return the groups of files that look the same; a file that cannot be read is in none."""
    files = list(paths)
    with ThreadPoolExecutor(min(cpu_count(), 8)) as pool:
        fingerprints = list(pool.map(_of_file, files))
    return [[files[place] for place in group] for group in groups(fingerprints)]


def _of_file(path: Path) -> Fingerprint | None:
    try:
        return fingerprint(open_small(path, 4 * SIDE)[0])
    except (UnusableImage, OSError):
        return None
