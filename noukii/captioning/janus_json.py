"""The JSON files of a model folder, read by one reader and asked for values of one kind.

A model folder comes from the network and may be damaged or written by someone with other ideas:
every value is checked before it is used, and what is wrong is said with the file's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noukii.errors import InputError
from noukii.names import printable

NEXT_STEP = "./setup.sh --captioning-only fetches Janus-Pro-1B (4.2 GB); or name another folder with --model"
POINTER = b"version https://git-lfs"
SHOWN = 40
"""Characters of an odd value that a message quotes."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises InputError for anything else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", NEXT_STEP) from None
    return parse_object(path, data)


def parse_object(path: Path, data: bytes, what: str = "") -> dict[str, Any]:
    """Return the JSON object that `data` of the file `path` is; `what` names a part of the file."""
    refuse_pointer(path, data[:128])
    subject = f"{what} " if what else ""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(path, f"{subject}is not JSON, or was cut off", NEXT_STEP) from None
    if not isinstance(value, dict):
        raise InputError(path, f"{subject}is not a JSON object", NEXT_STEP)
    return value


def refuse_pointer(path: Path, start: bytes) -> None:
    """Refuse what `git clone` leaves without Git-LFS."""
    if start.startswith(POINTER):
        reason = "is a Git-LFS pointer: a note of a few bytes that stands for the real file"
        raise InputError(path, reason, f"run `git lfs pull` in that folder, or: {NEXT_STEP}")


def section(path: Path, settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`; an empty one where it is missing or null."""
    value = settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_kind(path, key, value, "an object with settings of its own")
    return value


def check_whole(path: Path, settings: Mapping[str, Any], key: str, most: int) -> None:
    """Refuse a value under `key` that is not a whole number from 1 to `most`; missing or null is fine."""
    value = settings.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise wrong_kind(path, key, value, f"a whole number from 1 to {most:,}")


def check_number(path: Path, settings: Mapping[str, Any], key: str) -> None:
    """Refuse a value under `key` that is not a number above 0; missing or null is fine."""
    value = settings.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e12:
        raise wrong_kind(path, key, value, "a number above 0")


def check_numbers(path: Path, settings: Mapping[str, Any], key: str, count: int) -> None:
    """Refuse a value under `key` that is not a list of `count` finite numbers; missing or null is fine."""
    value = settings.get(key)
    if value is None:
        return
    if not (isinstance(value, list) and len(value) == count and all(map(_is_finite, value))):
        raise wrong_kind(path, key, value, f"a list of {count} numbers")


def check_text(path: Path, settings: Mapping[str, Any], key: str) -> None:
    """Refuse a value under `key` that is not text; missing or null is fine."""
    value = settings.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong_kind(path, key, value, "text")


def wrong_kind(path: Path, key: str, value: object, wanted: str) -> InputError:
    """Return the refusal of one value in a JSON file."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "deeply nested"
    shown = printable(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
    return InputError(path, f"{printable(key)} is {shown}; {wanted} is wanted", NEXT_STEP)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of 400 digits
        return False
