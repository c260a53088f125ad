"""Reading captions.jsonl, whatever state it is in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HAND = "hand"
"""The `finish_reason` of a caption that the user wrote."""


@dataclass(frozen=True)
class Record:
    """What captions.jsonl says of one image; None where a line lacks it."""

    file: str
    source: str | None
    raw: str | None
    caption: str | None
    finish_reason: str | None
    keyword: str | None
    width: int | None
    height: int | None
    max_caption_tokens: int | None
    settings: tuple[tuple[str, str], ...]
    """Model, question, temperature and so on, as text."""


_SETTINGS = (
    ("model", "model"),
    ("prompt", "question"),
    ("temperature", "temperature"),
    ("top_p", "top p"),
    ("seed", "seed"),
    ("max_new_tokens", "longest answer"),
)


def read_manifest(path: Path) -> tuple[dict[str, Record], list[tuple[str, str]]]:
    """Return the records of captions.jsonl by file name, and the (file, reason) of skipped files.

    A later line of the same file replaces an earlier one. A missing manifest is an empty one, and a
    line that is not a record (cut off by a full disk, edited) is passed over: the images are there.
    """
    records: dict[str, Record] = {}
    skipped: list[tuple[str, str]] = []
    for line in json_lines(path):
        name = _text(line, "file") or _text(line, "source")
        if not name:
            continue
        reason = _text(line, "reason") or _text(line, "skipped")
        if reason:
            skipped.append((_text(line, "source") or name, reason))
            continue
        records[name] = Record(
            file=name,
            source=_text(line, "source"),
            raw=_text(line, "raw"),
            caption=_text(line, "caption"),
            finish_reason=_text(line, "finish_reason"),
            keyword=_text(line, "keyword"),
            width=whole(line.get("width")),
            height=whole(line.get("height")),
            max_caption_tokens=whole(line.get("max_caption_tokens")),
            settings=tuple((label, str(line[key])) for key, label in _SETTINGS if line.get(key) is not None),
        )
    return records, skipped


def json_lines(path: Path) -> Iterator[dict[str, object]]:
    """Yield the objects of a JSON Lines file; lines that are none are left out, as is a missing file."""
    try:
        stream = open(path, encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
    except OSError:
        return
    with stream:
        for line in stream:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def whole(value: object) -> int | None:
    """Return a number as an int; None for anything else (a missing key, text, NaN, true)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if abs(value) < 1e300 else None  # math.isfinite cannot take an int of 400 digits


def real(value: object) -> float | None:
    """Return a number as it stands (NaN and infinity too); None for anything else, text or true, say.

    A whole number that no float can hold comes from damage alone, and is none either.
    """
    if isinstance(value, float):
        return value
    return value if whole(value) is not None else None  # type: ignore[return-value]


def _text(line: dict[str, object], key: str) -> str | None:
    value = line.get(key)
    return value if isinstance(value, str) else None
