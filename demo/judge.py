"""Say what a picture of the world shows, from its pixels alone: no model, no randomness.

A picture is cut into its background (the colour of the border) and the connected regions that differ from
it. A region is a shape of the world if it has one colour of the world throughout and lies on top of that
shape's outline, fitted to its box. The concept is judged likewise: a disc, purple, with at least two yellow
bands from edge to edge.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from demo import world

FOREGROUND = 50.0
"""RGB distance from the background beyond which a pixel belongs to something."""
COLOUR_LIMIT = 60.0
"""RGB distance from a named colour within which a region has that colour."""
SAME = 75.0
"""RGB distance within which a pixel has the colour of its region."""
MIN_AREA = 70
"""Pixels: half of the smallest shape of the world."""
OVERLAP = 0.87
"""Least intersection over union of a region and its ideal shape."""
FITS = [(grow, rise) for grow in (0.0, 1.0, 2.0) for rise in (0.0, -0.5, -1.0)]
"""Pixels by which the ideal shape may be larger than the region's box, and stand higher: the tip of a
triangle is thinner than a pixel, so its box ends below it."""
LARGE_FROM = 22.5
"""Pixels along the side of its box from which a shape is large."""

_PALETTE = {**world.COLOURS, "purple": world.OTHER_COLOURS["purple"]}


@dataclass(frozen=True)
class Found:
    """One region: what it is as far as the pixels tell; `shape` or `colour` is None where unclear."""

    shape: str | None
    colour: str | None
    size: str
    x: float
    y: float
    area: int


def background_of(picture: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the border's median colour, float32 [3], and the name of the nearest background."""
    border = np.concatenate([picture[:2].reshape(-1, 3), picture[-2:].reshape(-1, 3)])
    sides = np.concatenate([picture[:, :2].reshape(-1, 3), picture[:, -2:].reshape(-1, 3)])
    colour = np.median(np.concatenate([border, sides]), axis=0).astype(np.float32)
    return colour, _nearest(colour, world.BACKGROUNDS)[0]


def find(picture: np.ndarray) -> list[Found]:
    """Return everything that differs from the background, from left to right."""
    background, _ = background_of(picture)
    pixels = picture.astype(np.float32)
    found = []
    for region in _regions(pixels, background):
        colour = _main_colour(pixels, region)
        mask = _nearer_to(pixels, colour, background) & ndimage.binary_dilation(region)
        name, distance = _nearest(colour, _PALETTE)
        even = _share_like(pixels, ndimage.binary_erosion(mask), colour)
        shape, x, y, side = _shape(mask)
        found.append(
            Found(
                shape,
                name if distance <= COLOUR_LIMIT and even >= 0.9 else None,
                "large" if side >= LARGE_FROM else "small",
                x,
                y,
                int(mask.sum()),
            )
        )
    return sorted(found, key=lambda one: one.x)


def shows(picture: np.ndarray, scene: world.Scene) -> bool:
    """Tell whether exactly the scene's things are there, each in its shape and colour."""
    wanted = Counter((thing.shape, thing.colour) for thing in scene.things)
    return wanted == Counter((one.shape, one.colour) for one in find(picture))


def shows_all(picture: np.ndarray, scene: world.Scene) -> bool:
    """Tell whether the whole description is true: shapes, colours, sizes, places and background."""
    found = find(picture)
    wanted = Counter((thing.shape, thing.colour, thing.size) for thing in scene.things)
    if wanted != Counter((one.shape, one.colour, one.size) for one in found):
        return False
    if background_of(picture)[1] != scene.background:
        return False
    if len(found) == 1:
        return place_of(found[0]) == scene.where
    first, second = scene.things
    return any(
        (a.shape, a.colour) == (first.shape, first.colour)
        and (b.shape, b.colour) == (second.shape, second.colour)
        and _relation(a, b) == scene.where
        for a, b in (found, found[::-1])
    )


def place_of(one: Found) -> str:
    """Return where a single thing is, in the world's words."""
    dx, dy = one.x - world.SIDE / 2, one.y - world.SIDE / 2
    if max(abs(dx), abs(dy)) < 6.5:
        return "in the centre"
    if abs(dx) > abs(dy):
        return "on the left" if dx < 0 else "on the right"
    return "at the top" if dy < 0 else "at the bottom"


def shows_concept(picture: np.ndarray) -> bool:
    """Tell whether a zorb is there: a large purple disc with at least two yellow bands across it."""
    background, _ = background_of(picture)
    pixels = picture.astype(np.float32)
    differs = _distance(pixels, background) > FOREGROUND
    labels, count = ndimage.label(differs)
    if not count:
        return False
    sizes = np.bincount(labels.ravel())[1:]
    region = ndimage.binary_fill_holes(labels == 1 + int(sizes.argmax()))
    shape, x, y, side = _shape(region)
    if shape != "circle" or side < 26:
        return False
    purple = _distance(pixels, world.colour_of("purple"))
    yellow = _distance(pixels, world.colour_of("yellow"))
    inside = ndimage.binary_erosion(region)
    is_purple = inside & (purple < SAME) & (purple < yellow)
    is_yellow = inside & (yellow < SAME) & (yellow < purple)
    area = inside.sum()
    if is_purple.sum() < 0.3 * area or is_yellow.sum() < 0.15 * area:
        return False
    if (is_purple | is_yellow).sum() < 0.65 * area:  # what is left are the soft edges of the bands
        return False
    return _bands(is_yellow, x, y, side) >= 2


def _bands(mask: np.ndarray, x: float, y: float, side: float) -> int:
    """Count separate parts of `mask` that cross the disc over at least two thirds of its chord."""
    labels, count = ndimage.label(mask)
    crossing = 0
    for number in range(1, count + 1):
        rows, columns = np.nonzero(labels == number)
        if len(rows) < 25:
            continue
        offset = np.hypot(columns.mean() + 0.5 - x, rows.mean() + 0.5 - y)
        chord = 2 * np.sqrt(max((side / 2) ** 2 - offset**2, 1.0))
        length = np.hypot(np.ptp(columns) + 1, np.ptp(rows) + 1)
        crossing += length >= chord * 2 / 3
    return crossing


def _regions(pixels: np.ndarray, background: np.ndarray) -> list[np.ndarray]:
    labels, count = ndimage.label(_distance(pixels, background) > FOREGROUND)
    masks = [labels == number for number in range(1, count + 1)]
    return [mask for mask in masks if mask.sum() >= MIN_AREA]


def _main_colour(pixels: np.ndarray, region: np.ndarray) -> np.ndarray:
    inside = ndimage.binary_erosion(region)
    return np.median(pixels[inside if inside.sum() >= 20 else region], axis=0)


def _nearer_to(pixels: np.ndarray, colour: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Pixels that are more than half way from the background to the colour."""
    way = colour - background
    return (pixels - background) @ way > 0.5 * (way @ way)


def _share_like(pixels: np.ndarray, mask: np.ndarray, colour: np.ndarray) -> float:
    return float((_distance(pixels[mask], colour) < SAME).mean()) if mask.any() else 0.0


def _shape(mask: np.ndarray) -> tuple[str | None, float, float, float]:
    """Return (shape, middle x, middle y, side of the box) of a region."""
    rows, columns = np.nonzero(mask)
    if not len(rows):
        return None, 0.0, 0.0, 0.0
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    width, height = right - left, bottom - top
    x, y, side = (left + right) / 2, (top + bottom) / 2, (width + height) / 2
    if max(width, height) > 1.2 * min(width, height) + 1:
        return None, x, y, side
    overlaps = {}
    for shape in world.SHAPES:
        overlaps[shape] = max(_overlap(mask, shape, x, y + rise, (side + grow) / 2) for grow, rise in FITS)
    best = max(overlaps, key=overlaps.__getitem__)
    return (best if overlaps[best] >= OVERLAP else None), x, y, side


def _overlap(mask: np.ndarray, shape: str, x: float, y: float, radius: float) -> float:
    ideal = world.coverage(world.Thing(shape, "red", "large", x, y, radius)) > 0.5
    return float((ideal & mask).sum() / (ideal | mask).sum())


def _relation(a: Found, b: Found) -> str:
    dx, dy = a.x - b.x, a.y - b.y
    if abs(dx) > abs(dy):
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"


def _distance(pixels: np.ndarray, colour: np.ndarray) -> np.ndarray:
    return np.sqrt(((pixels - colour) ** 2).sum(-1))


def _nearest(colour: np.ndarray, palette: dict[str, world.Colour]) -> tuple[str, float]:
    distances = {name: float(np.linalg.norm(colour - np.array(rgb))) for name, rgb in palette.items()}
    name = min(distances, key=distances.__getitem__)
    return name, distances[name]
