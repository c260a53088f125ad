"""File names as text: to print any of them, and to refuse those that climb out of a folder."""

from __future__ import annotations

import os
import unicodedata

MAX_NAME_BYTES = 200
"""Room is left for suffixes (`-step00000100.safetensors`) below the usual limit of 255."""


def printable(path: str | os.PathLike[str]) -> str:
    """Return `path` as one line that any terminal can print.

    Control characters and bytes that are not UTF-8 become backslash escapes.
    """
    text = os.fsdecode(path)
    shown = []
    for char in text:
        category = unicodedata.category(char)
        if category == "Cs":  # surrogateescape: a byte that is not UTF-8
            code = ord(char)
            shown.append(f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:x}")
        elif (
            category in ("Cc", "Zl", "Zp") or char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        ):
            shown.append(char.encode("unicode_escape").decode("ascii"))
        else:
            shown.append(char)
    return "".join(shown)


def name_problem(name: str) -> str | None:
    """Say why `name` cannot be the name of one file or folder; None if it can."""
    if not name or not name.strip():
        return "is empty"
    if name in (".", "..") or name.startswith("~"):
        return "does not name a folder of its own"
    if "/" in name or "\\" in name:
        return "contains a slash; a plain name is wanted, not a path"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):
        return "contains a control character or bytes that are not UTF-8"
    if name != name.strip():
        return "starts or ends with a space"
    if name.startswith("-"):
        return "starts with a dash and would be read as a flag"
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return None
