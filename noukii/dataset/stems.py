"""Names for training copies: the user's own names, mended where a trainer or a disk would stumble."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from noukii.dataset.content import PICTURE_EXTENSIONS, PLUGIN_EXTENSIONS, extension

_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")

MAX_STEM_BYTES = 200
"""Room for `-12.png`, `.txt` and a trainer's `_0512x0512_sd.npz` below the usual limit of 255."""


def picture_stem(name: str) -> str:
    """Return a picture's file name without its extension, as kohya cuts it."""
    end = extension(name)
    return name[: -len(end)] if end else name


def safe_stems(paths: list[Path]) -> dict[Path, str]:
    """Return a stem for each path's copy; all of one call may share a folder.

    Stems are unique, also where letter case is ignored or accents are composed; a stem that is fine
    already stays as it is. `cat.jpg` and `cat.png` become `cat` and `cat-2`: the first in the order
    of names keeps the plain one. Names that need no mending come before mended ones.
    """
    chosen: dict[Path, str] = {}
    taken: set[str] = set()
    wanted = {path: _own_stem(path.name) for path in sorted(paths, key=lambda path: path.parts)}
    fine = [path for path, stem in wanted.items() if safe_name(stem) == stem]
    for path in fine:
        if _fold(wanted[path]) not in taken:
            taken.add(_fold(wanted[path]))
            chosen[path] = wanted[path]
    for path in (*fine, *wanted):
        if path not in chosen:
            chosen[path] = unique_name(safe_name(wanted[path]), taken)
    return {path: chosen[path] for path in paths}


def unique_name(name: str, taken: set[str]) -> str:
    """Return `name`, or `name-2`, `name-3` …, whichever is free first; `taken` learns of it."""
    unique, number = name, 1
    while _fold(unique) in taken:
        number += 1
        unique = f"{name}-{number}"
    taken.add(_fold(unique))
    return unique


def _own_stem(name: str) -> str:
    return picture_stem(name) if _has_picture_extension(name) else name


def _has_picture_extension(name: str) -> bool:
    return extension(name) in PICTURE_EXTENSIONS or extension(name) in PLUGIN_EXTENSIONS


def _fold(stem: str) -> str:
    """Return what case-insensitive and accent-composing file systems take to be one name."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", stem).casefold())


def safe_name(name: str) -> str:
    """Return `name` as one that every trainer and disk takes; itself where it is one already.

    Bytes that are not UTF-8 become `_`, control characters become spaces, and dashes or dots at the
    start, spaces or dots at the end, what is over MAX_STEM_BYTES and signs that turn the direction of
    writing (with them a name shows as another one) go.
    """
    text = "".join("_" if unicodedata.category(char) == "Cs" else char for char in name)
    text = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in text)
    text = _DIRECTIONS.sub("", text)
    text = text.lstrip("-. ").rstrip(". ").strip()
    data = text.encode("utf-8")
    if len(data) > MAX_STEM_BYTES:
        text = data[:MAX_STEM_BYTES].decode("utf-8", "ignore").rstrip(". ")
    return text or "image"
