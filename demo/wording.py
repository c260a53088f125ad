"""Read a caption or a prompt of the world back into attributes, to count how many are right."""

from __future__ import annotations

import re
from collections.abc import Sequence

from demo import world

_COLOURS = "|".join((*world.COLOURS, *world.OTHER_COLOURS))
_THING = re.compile(
    rf"(?P<size>{'|'.join(world.SIZES)}) (?P<colour>{_COLOURS}) (?P<shape>{'|'.join(world.SHAPES)})"
    rf"( with (?P<stripes>{_COLOURS}) stripes)?"
)
_WHERE = re.compile("|".join(map(re.escape, (*world.PLACES, *world.RELATIONS))))
_BACKGROUND = re.compile(rf"on a ({'|'.join(world.BACKGROUNDS)}) background")


KINDS = ("size", "colour", "shape", "position", "background")


_TURNED = {
    "above": "below",
    "below": "above",
    "to the left of": "to the right of",
    "to the right of": "to the left of",
}


def compare(scene: world.Scene, text: str) -> dict[str, tuple[int, int]]:
    """Return {kind of attribute: (how many `text` has right, how many the scene has)}.

    Each thing has size, colour and shape; the scene has a position and a background. "A above B" and "B
    below A" say the same, so the order of naming is free, but the relation must fit the order: things that
    changed places cost the position, and exchanged attributes cost each attribute.
    """
    text = text.lower()
    named = [match.groupdict() for match in _THING.finditer(text)]
    where = _WHERE.findall(text)
    readings = [_score(scene.things, scene.where, named, where)]
    if len(scene.things) == 2:
        readings.append(_score(scene.things[::-1], _TURNED[scene.where], named, where))
    result = max(readings, key=lambda reading: sum(right for right, _ in reading.values()))
    result["background"] = (int(_BACKGROUND.findall(text) == [scene.background]), 1)
    return result


def _score(
    things: Sequence[world.Thing], position: str, named: list[dict[str, str]], where: list[str]
) -> dict[str, tuple[int, int]]:
    said = named[: len(things)] + [{}] * (len(things) - len(named))
    result = {}
    for kind in ("size", "colour", "shape"):
        pairs = zip(said, things, strict=True)
        result[kind] = (sum(one.get(kind) == getattr(thing, kind) for one, thing in pairs), len(things))
    result["position"] = (int(where == [position]), 1)
    return result
