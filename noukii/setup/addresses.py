"""Paths, URLs and repositories as a user writes them, looked at before anything is begun with them.

`label` is the flag or the variable that the text came from; it stands in the messages.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path

from noukii.errors import InputError
from noukii.names import printable

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP = re.compile(r"[\w.-]+@?[\w.-]*:(?!//)[^\\]")
"""`host:path`, as git and ssh take it"""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def absolute(text: str) -> Path:
    """Return a path without `~` and independent of where the user stands; it need not exist."""
    return Path(os.path.abspath(os.path.expanduser(text)))


def existing(label: str, text: str, *, folder: bool = False, step: str = "check the spelling") -> Path:
    """Return the path of something that is there.

    Raises:
        InputError: it is not, or cannot be looked at.
    """
    path = absolute(text)
    try:
        there = path.is_dir() if folder else path.exists()
    except OSError as error:
        raise InputError(path, f"{label}: {error.strerror}", step) from None
    if not there:
        if path.is_symlink():
            where = printable(os.readlink(path))
            raise InputError(path, f"{label}: is a link to {where}, which is not there", step)
        what = "there is no such folder" if folder else "it is not there"
        raise InputError(path, f"{label}: {what}", step)
    return path


def url(label: str, text: str, schemes: tuple[str, ...] = ("https", "http")) -> str:
    """Return an address with its scheme in small letters.

    Raises:
        InputError: it is none, or of a kind that cannot be fetched from.
    """
    found = _SCHEME.match(text)
    kinds = ", ".join(f"{scheme}://" for scheme in schemes)
    if found is None or found[1].lower() not in schemes:
        raise InputError(f"{label} {_without_password(text)}", f"is no address ({kinds})", "correct it")
    scheme = found[1].lower()
    text = scheme + text[len(scheme) :]
    try:
        parts = urllib.parse.urlsplit(text)
        good = scheme == "file" or (bool(parts.hostname) and parts.port != 0)
    except ValueError:  # unbalanced brackets, a port that is no number or too large
        good = False
    if not good or (scheme != "file" and re.search(r"[\s\x00-\x1f\x7f]", text)):
        raise InputError(f"{label} {_without_password(text)}", "is not a valid address", "correct it")
    return text


def file_or_url(label: str, text: str) -> str:
    """Return a URL as it is, a path made absolute."""
    return url(label, text, ("https", "http", "file")) if _SCHEME.match(text) else str(absolute(text))


def repository(label: str, text: str) -> str:
    """Return what git takes: a URL, `host:path` or a path, the latter made absolute."""
    found = _SCHEME.match(text)
    if found and found[1].lower() in ("http", "https", "file"):
        return file_or_url(label, text)
    return text if found or (_SCP.match(text) and not Path(text).exists()) else str(absolute(text))


def hub_model(label: str, text: str) -> str:
    """Return `owner/name@revision`, a file:// address or the absolute path of a model's folder."""
    if _SCHEME.match(text):
        return url(label, text, ("file",))
    if text.startswith(("/", ".", "~")) or absolute(text).is_dir():
        return str(absolute(text))
    if not _HUB_NAME.fullmatch(text):
        raise InputError(
            f"{label} {printable(text)}",
            "is neither a model on the Hub nor a folder",
            "give owner/name@revision, or the path of a folder",
        )
    return text


def index(label: str, text: str) -> str:
    """Return the address of a package index, or the absolute path of a folder that is one."""
    if _SCHEME.match(text):
        return url(label, text, ("https", "http", "file"))
    return str(existing(label, text, folder=True, step="give the index' address, https://…"))


def _without_password(text: str) -> str:
    """A URL that cannot be read may hold a password all the same."""
    return printable(re.sub(r"//[^/]*@", "//…@", text))
