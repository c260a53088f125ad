"""Whole-folder files of ours in an output folder, told from the user's by the hash of what we wrote.

The hash stands in .noukii.json before the file is there (or, for a page whose bytes are not known yet,
a mark that it is being written), so that what a killed run leaves is known as ours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noukii import files
from noukii.captioning.manifest import State

_BEING_WRITTEN = "being written"


class OwnFiles:
    """Replaces and removes our own files in one output folder; a file of the user's is never touched."""

    def __init__(self, folder: Path, state: State) -> None:
        self._folder = folder
        self._state = state

    def is_free(self, name: str) -> bool:
        """Tell whether `name` may be written: nothing is there, or what we wrote, or a blank file."""
        path = self._folder / name
        if not os.path.lexists(path):
            return True
        if not path.is_file() or path.is_symlink():
            return False
        known = self._state.own.get(name, [])
        if _BEING_WRITTEN in known or files.sha256_file(path) in known:
            return True
        return path.stat().st_size < 100 and not path.read_bytes().strip()

    def write(self, name: str, data: bytes) -> bool:
        """Write `data` unless the user has a file there; returns whether it was written."""
        path, digest = self._folder / name, hashlib.sha256(data).hexdigest()
        same = path.is_file() and files.sha256_file(path) == digest
        if not same and not self.is_free(name):
            return False
        self._state.own[name] = list(dict.fromkeys([*self._state.own.get(name, [])[-1:], digest]))
        self._state.write(self._folder)
        if not same:
            files.write_bytes(path, data)
        self._state.own[name] = [digest]
        self._state.write(self._folder)
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Take note of the file that the block writes; ask `is_free` first."""
        self._state.own[name] = [*self._state.own.get(name, [])[-1:], _BEING_WRITTEN]
        self._state.write(self._folder)
        yield
        self._state.own[name] = [files.sha256_file(self._folder / name)]
        self._state.write(self._folder)

    def remove(self, name: str) -> None:
        """Remove our file of that name, if it is still as we wrote it."""
        path = self._folder / name
        if name in self._state.own and path.is_file() and self.is_free(name):
            path.unlink()
        if self._state.own.pop(name, None) is not None:
            self._state.write(self._folder)
