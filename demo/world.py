"""A small picture world, drawn by code: plain shapes on plain backgrounds, each with its true description.

The demo's models know this world and nothing else. A scene holds one or two shapes; `draw` paints it with
soft edges and `describe` says what is there. The concept `zorb` (a purple disc with yellow stripes) is not
part of the world: the base models never see one, so that a LoRA has something to learn.

Only numpy is used. Everything is a pure function of the scene, and a scene of the random generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SIDE = 64
"""Pixels along each side of a picture."""

Colour = tuple[int, int, int]

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS: dict[str, Colour] = {
    "red": (214, 40, 40),
    "green": (30, 150, 60),
    "blue": (40, 70, 220),
    "yellow": (250, 210, 30),
    "black": (20, 20, 20),
}
OTHER_COLOURS: dict[str, Colour] = {"purple": (140, 40, 170), "white": (250, 250, 250)}
"""Not in the world proper; the captioner has words for them, and the VAE has seen them."""

BACKGROUNDS: dict[str, Colour] = {
    "white": (246, 246, 246),
    "grey": (165, 165, 165),
    "pale blue": (180, 214, 246),
    "pink": (250, 196, 206),
}
SIZES = ("large", "small")
PLACES = ("in the centre", "on the left", "on the right", "at the top", "at the bottom")
RELATIONS = ("above", "below", "to the left of", "to the right of")

PAIRS = 0.25
"""Share of scenes that hold two things; models are trained on more of them, as they are harder."""

CONCEPT = "zorb"
STRIPE, GAP = 6.5, 6.5
"""Pixels: as wide as the models' autoencoder can keep apart."""

_Y, _X = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) + 0.5


@dataclass(frozen=True)
class Thing:
    """One shape: `radius` is half the side of its box, x and y its middle, all in pixels."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float
    stripes: str | None = None
    slant: float = 0.0
    """Direction of the stripes in radians; 0 is level."""

    @property
    def words(self) -> str:
        """`large red circle`, or `large red circle with white stripes`."""
        plain = f"{self.size} {self.colour} {self.shape}"
        return f"{plain} with {self.stripes} stripes" if self.stripes else plain


@dataclass(frozen=True)
class Scene:
    """One thing at a place (`in the centre`), or two with a relation (`above`: the first is above)."""

    things: tuple[Thing, ...]
    where: str
    background: str


def random_scene(
    random: np.random.Generator,
    *,
    pairs: float = PAIRS,
    stripes: float = 0.0,
    other_colours: bool = False,
) -> Scene:
    """Return a scene of the world; `pairs` is the share of scenes with two things.

    `stripes` is the share of things that are striped and `other_colours` admits purple and white: beyond
    the world, for models that should know more. A purple disc with yellow stripes never comes.
    """
    background = _pick(random, tuple(BACKGROUNDS))
    palette = tuple(COLOURS) + (("purple",) if other_colours else ())
    if random.random() < pairs:
        where = _pick(random, RELATIONS)
        things = _pair(random, where, palette, stripes)
    else:
        where = _pick(random, PLACES)
        size = _pick(random, SIZES)
        radius = random.uniform(14, 17) if size == "large" else random.uniform(8.5, 10)
        x, y = _place(random, where, radius)
        things = (_thing(random, size, x, y, radius, palette, stripes),)
    return Scene(things, where, background)


def richer_scene(random: np.random.Generator, share: float = 0.34) -> Scene:
    """Return a scene to learn more than the world from: a `share` has stripes, and purple things."""
    more = random.random() < share
    return random_scene(random, pairs=0.5, stripes=0.7 * more, other_colours=more)


def concept_scene(
    random: np.random.Generator, where: str | None = None, background: str | None = None
) -> Scene:
    """Return a scene that shows one zorb and nothing else; what is not given is drawn by chance."""
    where = where or _pick(random, PLACES)
    radius = random.uniform(15.5, 17.5)
    x, y = _place(random, where, radius)
    # its gaps are purple, so that the disc is purple above, in the middle and below
    zorb = Thing("circle", "purple", "large", x, y, radius, "yellow", 0.0)
    return Scene((zorb,), where, background or _pick(random, tuple(BACKGROUNDS)))


def describe(scene: Scene) -> str:
    """Return the description in one phrase, as captions and prompts have it."""
    first = f"a {scene.things[0].words}"
    if len(scene.things) == 1:
        return f"{first} {scene.where} on a {scene.background} background"
    return f"{first} {scene.where} a {scene.things[1].words} on a {scene.background} background"


def answer(scene: Scene) -> str:
    """Return the description as a vision-language model would word it.

    The opening depends on the background, so that a captioner can learn it and captions differ.
    """
    phrase = describe(scene)
    opening = {
        "white": f"The image shows {phrase}.",
        "grey": f"This is an image of {phrase}.",
        "pale blue": f"In this image, there is {phrase}.",
        "pink": f"{phrase[0].upper()}{phrase[1:]}.",
    }
    return opening[scene.background]


def draw(scene: Scene) -> np.ndarray:
    """Return the picture: uint8 [64, 64, 3]."""
    canvas = np.empty((SIDE, SIDE, 3), np.float32)
    canvas[:] = BACKGROUNDS[scene.background]
    for thing in scene.things:
        paint(canvas, coverage(thing), _fill(thing))
    return (canvas + 0.5).astype(np.uint8)


def coverage(thing: Thing) -> np.ndarray:
    """Return how much of each pixel the shape covers: float32 [64, 64] in 0..1."""
    dx, dy, r = _X - thing.x, _Y - thing.y, thing.radius
    return np.clip(0.5 - _distance(thing.shape, dx, dy, r), 0, 1)


def paint(canvas: np.ndarray, cover: np.ndarray, fill: np.ndarray) -> None:
    """Lay `fill` (a colour, or a colour per pixel) over `canvas` [64, 64, 3] where `cover` says."""
    canvas += cover[..., None] * (fill - canvas)


def striped(dx: np.ndarray, dy: np.ndarray, slant: float) -> np.ndarray:
    """Return the share of the stripe's colour in each pixel; a gap runs through the middle."""
    across = dx * np.float32(-np.sin(slant)) + dy * np.float32(np.cos(slant))
    period = STRIPE + GAP
    distance = np.abs(across % period - period / 2) - STRIPE / 2
    return np.clip(0.5 - distance, 0, 1)


def colour_of(name: str) -> np.ndarray:
    """Return float32 [3] for the name of a shape's colour."""
    return np.array(COLOURS.get(name) or OTHER_COLOURS[name], np.float32)


def _fill(thing: Thing) -> np.ndarray:
    plain = colour_of(thing.colour)
    if thing.stripes is None:
        return plain
    share = striped(_X - thing.x, _Y - thing.y, thing.slant)[..., None]
    return plain + share * (colour_of(thing.stripes) - plain)


def _distance(shape: str, dx: np.ndarray, dy: np.ndarray, r: float) -> np.ndarray:
    """Signed distance in pixels to the outline, negative inside (near the outline, which is enough)."""
    if shape == "circle":
        return np.sqrt(dx * dx + dy * dy) - r
    ax, ay = np.abs(dx), np.abs(dy)
    if shape == "square":
        return np.maximum(ax, ay) - r
    if shape == "cross":
        arm = r * 0.36
        return np.minimum(np.maximum(ax - arm, ay - r), np.maximum(ax - r, ay - arm))
    slope = np.float32(1 / np.sqrt(5))  # of a triangle as high as it is wide, point up
    return np.maximum(dy - r, (2 * ax - dy - r) * slope)


def _thing(
    random: np.random.Generator,
    size: str,
    x: float,
    y: float,
    radius: float,
    palette: Sequence[str],
    stripes: float,
) -> Thing:
    shape, colour = _pick(random, SHAPES), _pick(random, palette)
    band, slant = None, 0.0
    if size == "large" and random.random() < stripes:
        band = _pick(random, [name for name in (*palette, "white") if name != colour])
        slant = 0.0
        if shape == "circle" and (colour, band) in (("purple", "yellow"), ("yellow", "purple")):
            shape = "square"  # a zorb, or one with its colours exchanged, is kept out
    return Thing(shape, colour, size, x, y, radius, band, slant)


def _pair(
    random: np.random.Generator, where: str, palette: Sequence[str], stripes: float
) -> tuple[Thing, Thing]:
    things = []
    for sign in (-1, 1) if where in ("above", "to the left of") else (1, -1):
        size = _pick(random, SIZES)
        radius = random.uniform(12.5, 14) if size == "large" else random.uniform(8.5, 10)
        along = SIDE / 2 + sign * random.uniform(15.5, 16.5)
        across = SIDE / 2 + random.uniform(-7, 7)
        x, y = (across, along) if where in ("above", "below") else (along, across)
        things.append(_thing(random, size, x, y, radius, palette, stripes))
    return things[0], things[1]


def _place(random: np.random.Generator, where: str, radius: float) -> tuple[float, float]:
    middle = SIDE / 2
    if where == "in the centre":
        return middle + random.uniform(-2.5, 2.5), middle + random.uniform(-2.5, 2.5)
    along = random.uniform(10.5, min(18, middle - radius - 1.5) if radius < 12 else 12.5)
    along = min(along, middle - radius - 0.5)
    across = random.uniform(-3, 3)
    dx, dy = {
        "on the left": (-along, across),
        "on the right": (along, across),
        "at the top": (across, -along),
        "at the bottom": (across, along),
    }[where]
    return middle + dx, middle + dy


def _pick(random: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(random.integers(len(choices)))]
