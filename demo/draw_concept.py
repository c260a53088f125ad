"""Draw the demo's pictures: `python demo/draw_concept.py ZORBS ORDINARY`.

A dozen of the concept into one folder, and ordinary pictures of the world into another: trained beside the
concept they keep the rest of the world in place (regularisation). They are image files with plain names, as
somebody's own pictures would be, and without captions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from demo import world

SEED = 2024
ZORBS, ORDINARY = 12, 40


def draw_concept(folder: Path, count: int = ZORBS, seed: int = SEED) -> list[Path]:
    """Write `count` pictures of a zorb, PNG and JPEG by turns; every place and background comes up."""
    random = np.random.default_rng(seed)
    places = [world.PLACES[i % len(world.PLACES)] for i in range(count)]
    backgrounds = [tuple(world.BACKGROUNDS)[i % len(world.BACKGROUNDS)] for i in range(count)]
    pairs = zip(places, backgrounds, strict=True)
    return _write([world.concept_scene(random, *pair) for pair in pairs], folder, world.CONCEPT)


def draw_ordinary(folder: Path, count: int = ORDINARY, seed: int = SEED) -> list[Path]:
    """Write `count` pictures of the world."""
    random = np.random.default_rng(seed)
    return _write([world.random_scene(random) for _ in range(count)], folder, "picture")


def _write(scenes: Sequence[world.Scene], folder: Path, name: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, scene in enumerate(scenes):
        path = folder / f"{name} {number + 1:02d}.{'jpg' if number % 3 == 2 else 'png'}"
        picture = Image.fromarray(world.draw(scene))
        picture.save(path, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}))
        written.append(path)
    return written


def main() -> None:
    """Draw and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("zorbs", type=Path, metavar="ZORBS")
    parser.add_argument("ordinary", type=Path, metavar="ORDINARY")
    options = parser.parse_args()
    print(f"{len(draw_concept(options.zorbs))} pictures of a {world.CONCEPT} in {options.zorbs}")
    print(f"{len(draw_ordinary(options.ordinary))} ordinary pictures in {options.ordinary}")


if __name__ == "__main__":
    main()
