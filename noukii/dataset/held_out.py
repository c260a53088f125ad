"""Which images are held out of the training to measure it on (`--validation 0.1`): a pure function of names.

The command that plans and the trainer that trains ask the same question and must get the same answer, so it
depends on the names of the training copies alone: not on the seed, the order, or other images' captions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

LEAST = 2
"""A data set of fewer images has none to spare."""


def held_out(names: Sequence[str], share: float) -> set[int]:
    """Return the places of the names that are held out: about `share` of them, at least one, never all.

    Args:
        names: of one data set's images without extension, no two alike.
        share: more than 0 and less than 1.
    """
    if len(names) < LEAST:
        return set()
    count = min(max(1, round(share * len(names))), len(names) - 1)
    order = sorted(range(len(names)), key=lambda place: (_number(names[place]), names[place]))
    return set(order[:count])


def _number(name: str) -> bytes:
    """Return what the names are sorted by: any order will do that has nothing to do with the pictures."""
    return hashlib.sha256(b"held out/" + name.encode("utf-8", "surrogateescape")).digest()
