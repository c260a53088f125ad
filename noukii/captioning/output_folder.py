"""What lies in an output folder, by name: pictures, captions, free names."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii import files
from noukii.dataset.captions import UnreadableCaption, read_caption
from noukii.dataset.content import PICTURE_EXTENSIONS
from noukii.dataset.images import ImageInfo
from noukii.names import printable

Stamp = tuple[int, int, int]
CAPTION_EXTENSIONS = (".txt", ".caption")


@dataclass(frozen=True)
class Beside:
    """The caption file beside an image."""

    text: str
    problem: str = ""


class OutputFolder:
    """The names in the output folder, by stem, so that thousands of images need one listing."""

    def __init__(self, folder: Path, names: Sequence[str] | None = None) -> None:
        """Look at the folder, or only at `names` in it."""
        self._folder = folder
        self._names: dict[str, list[str]] = {}
        if names is None:
            try:
                names = os.listdir(folder)
            except OSError:  # not there yet
                names = []
        for name in sorted(names):
            self._names.setdefault(fold(os.path.splitext(name)[0]), []).append(name)

    def images(self, stem: str) -> list[Path]:
        """Return the picture files of a stem."""
        return [
            self._folder / name
            for name in self._names.get(fold(stem), [])
            if os.path.splitext(name)[1].lower() in PICTURE_EXTENSIONS
        ]

    def caption(self, stem: str, file: str | None = None) -> Beside | None:
        """Return the text beside an image (`cat.txt`, `cat.png.txt`); None if there is no text."""
        for name in self._caption_names(stem, file):
            try:
                text = read_caption(self._folder / name).text
            except UnreadableCaption as error:
                return Beside("", f"{printable(name)} is kept, but the trainer cannot read it: {error}")
            if text:
                return Beside(text)
        return None

    def _caption_names(self, stem: str, file: str | None) -> list[str]:
        """Return the caption files of an image, the one that a trainer takes first."""
        names = [*self._names.get(fold(stem), []), *(self._names.get(fold(file), []) if file else [])]
        found = []
        for wanted in CAPTION_EXTENSIONS:
            named = [name for name in names if os.path.splitext(name)[1].lower() == wanted]
            exact = [name for name in named if os.path.splitext(name)[0] in (stem, file)]
            # Another letter case is another image's, unless the disk takes the two names for one.
            if not exact and named and (self._folder / (stem + wanted)).exists():
                exact = named
            found += sorted(exact, key=lambda name: (name != stem + wanted, name))
        return found

    def has_blank_caption(self, stem: str, file: str) -> bool:
        """Tell whether a .txt of the image is there and empty: the user wants it written again."""
        return self.caption(stem, file) is None and bool(self._caption_names(stem, file))

    def is_free(self, stem: str, info: ImageInfo, first_choice: bool) -> bool:
        """Tell whether a new image may take `stem`: no other picture has it.

        Later choices must not meet a caption either: it is someone else's.
        """
        if not first_choice:
            return not self.images(stem) and self.caption(stem) is None
        return all(
            info.as_is and path.stat().st_size == info.size_bytes and files.sha256_file(path) == info.sha256
            for path in self.images(stem)
        )


def caption_now(folder: Path, stem: str, file: str) -> Beside | None:
    """Return the text beside an image as it is at this moment, without listing the folder."""
    endings = [
        variant
        for ending in CAPTION_EXTENSIONS
        for variant in (ending, ending.upper(), f".{ending[1:].capitalize()}")
    ]
    names = [base + ending for base in dict.fromkeys((stem, file)) for ending in endings]
    return OutputFolder(folder, [name for name in names if (folder / name).is_file()]).caption(stem, file)


def stamp(path: Path) -> Stamp | None:
    """Return what changes whenever a file is replaced or written to; None if it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def fold(name: str) -> str:
    """Return a name as file systems that fold letter case and accents compare it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
