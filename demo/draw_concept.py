"""Draw pictures of the concept into a folder: `python demo/draw_concept.py FOLDER [--count 12]`.

They are ordinary image files with ordinary names, as somebody's own pictures would be, and without captions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from demo import world

SEED = 2024


def draw_concept(folder: Path, count: int = 12, seed: int = SEED) -> list[Path]:
    """Write `count` pictures of a zorb, PNG and JPEG by turns; every place and background comes up."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    places = [world.PLACES[i % len(world.PLACES)] for i in range(count)]
    backgrounds = [tuple(world.BACKGROUNDS)[i % len(world.BACKGROUNDS)] for i in range(count)]
    written = []
    for number, (place, background) in enumerate(zip(places, backgrounds, strict=True)):
        scene = world.concept_scene(random, place, background)
        path = folder / f"zorb {number + 1:02d}.{'jpg' if number % 3 == 2 else 'png'}"
        picture = Image.fromarray(world.draw(scene))
        picture.save(path, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}))
        written.append(path)
    return written


def main() -> None:
    """Draw and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=12)
    options = parser.parse_args()
    written = draw_concept(options.folder, options.count)
    print(f"{len(written)} pictures of a {world.CONCEPT} in {options.folder}")


if __name__ == "__main__":
    main()
