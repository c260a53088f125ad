"""Text in the columns of a terminal, where a Chinese letter takes two and an accent none: pure functions."""

from __future__ import annotations

import re
import unicodedata


def columns_of(text: str) -> int:
    """Return how many columns a terminal gives a text of one line."""
    return sum(map(_columns, text))


def shortened(text: str, most: int) -> str:
    """Return a text that takes at most `most` columns; … stands for what was left out."""
    if columns_of(text) <= most:
        return text
    return _head(text, max(0, most - 1)) + "…"


def padded(text: str, columns: int, right: bool = False) -> str:
    """Return a text with blanks behind it (in front of it with `right`) up to so many columns."""
    blanks = " " * (columns - columns_of(text))
    return blanks + text if right else text + blanks


def wrapped(text: str, columns: int, first: str = "", further: str = "") -> list[str]:
    """Return a text in lines of at most `columns` columns; a word that fits into none is broken.

    Args:
        first: stands before the first line.
        further: stands before every other line.
    """
    lines: list[str] = []
    line, begun = first, False  # begun: the line holds a word
    for blanks, word in re.findall(r"(\s*)(\S+)", text):
        gap = blanks if begun else ""
        if begun and columns_of(line + gap + word) > columns and columns_of(further + word) <= columns:
            lines.append(line)
            line, gap = further, ""
        rest = gap + word
        while rest and columns_of(line + rest) > columns:
            # At least one character a line, however narrow the terminal is.
            part = _head(rest, columns - columns_of(line)) or rest[: 0 if line.strip() else 1]
            lines.append((line + part).rstrip())
            line, rest = further, rest[len(part) :].lstrip()
        line, begun = line + rest, bool(rest) or begun
    return [*lines, line] if line.strip() else lines


def _head(text: str, columns: int) -> str:
    """Return as much of the start of a text as so many columns hold."""
    taken = 0
    for place, char in enumerate(text):
        taken += _columns(char)
        if taken > columns:
            return text[:place]
    return text


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
