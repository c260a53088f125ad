"""Which files of a folder are pictures: by name, and by content where the name does not say."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from noukii.dataset.content import (
    PICTURE_EXTENSIONS,
    PLUGIN_EXTENSIONS,
    SNIFF_BYTES,
    UNSUPPORTED_EXTENSIONS,
    extension,
    is_litter,
    picture_format,
)
from noukii.dataset.decoding import has_plugin
from noukii.errors import InputError
from noukii.files import TEMPORARY_PREFIX

_COMPANIONS = (
    ".txt .caption .json .jsonl .html .htm .md .csv .tsv .toml .yaml .yml .xml .xmp .log .ini .cfg .css .js"
    " .py .sh .bat .url .lnk .db .sqlite .rtf .doc .docx .odt .aae .bak .old .orig .lock .sha256 .md5"
)
COMPANION_EXTENSIONS = frozenset(_COMPANIONS.split())
"""Files that belong beside pictures, or at least are no picture anyone expects to be used."""


@dataclass(frozen=True)
class Skipped:
    """A file (or folder) that will not be used, and why, in plain words."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Listing:
    """What lies in a folder.

    `images` are candidates by name or by their first bytes; only `inspect_image` shows whether they
    can be decoded. `litter` counts files and folders that an operating system or a trainer left.
    `folders` are subfolders that were not entered. Captions and other companions are not mentioned.
    """

    images: list[Path]
    skipped: list[Skipped]
    litter: int
    folders: list[Path] = field(default_factory=list)


def list_images(folder: Path, recursive: bool = False) -> Listing:
    """List the pictures of `folder`, sorted by name; links to files are followed, loops are not.

    Nothing is decoded, and nothing is opened unless its name leaves in doubt what it is.

    Raises:
        InputError: the folder is missing, is a file, or cannot be read.
    """
    listing = Listing([], [], 0, [])
    litter = _list_into(listing, folder, recursive, set())
    return Listing(
        sorted(listing.images, key=_order),
        sorted(listing.skipped, key=lambda entry: _order(entry.path)),
        litter,
        sorted(listing.folders, key=_order),
    )


def _order(path: Path) -> tuple[str, ...]:
    return path.parts


def _list_into(listing: Listing, folder: Path, recursive: bool, seen: set[tuple[int, int]]) -> int:
    """Add the entries of one folder to `listing` and return the number of litter entries."""
    try:
        identity = os.stat(folder)
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        raise InputError(folder, "there is no such folder", "check the path") from None
    except NotADirectoryError:
        raise InputError(folder, "is a file, not a folder", "name the folder that holds the images") from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        if not seen:
            raise InputError(folder, reason, "check its permissions") from None
        listing.skipped.append(Skipped(folder, reason))
        return 0
    seen.add((identity.st_dev, identity.st_ino))
    litter = 0
    for entry in entries:
        path = folder / entry.name
        try:
            status = entry.stat()
        except OSError as error:
            if is_litter(entry.name):
                litter += 1
            elif _may_be_picture(entry.name):
                reason = (
                    "a link that leads nowhere"
                    if entry.is_symlink()
                    else f"cannot be read ({error.strerror})"
                )
                listing.skipped.append(Skipped(path, reason))
            continue
        if stat.S_ISDIR(status.st_mode):
            if is_litter(entry.name, folder=True):
                litter += 1
            elif not recursive:
                listing.folders.append(path)
            elif (status.st_dev, status.st_ino) not in seen:
                litter += _list_into(listing, path, recursive, seen)
        elif is_litter(entry.name) or entry.name.startswith(TEMPORARY_PREFIX):
            litter += 1
        elif not stat.S_ISREG(status.st_mode):
            if _may_be_picture(entry.name):
                listing.skipped.append(Skipped(path, "not a regular file"))
        else:
            _classify(listing, path, entry.name)
    return litter


def _may_be_picture(name: str) -> bool:
    end = extension(name)
    return end in PICTURE_EXTENSIONS or end in PLUGIN_EXTENSIONS or end in UNSUPPORTED_EXTENSIONS


def _classify(listing: Listing, path: Path, name: str) -> None:
    end = extension(name)
    if end in PICTURE_EXTENSIONS:
        listing.images.append(path)
        return
    if end in COMPANION_EXTENSIONS:
        return
    try:
        with open(path, "rb") as stream:
            head = stream.read(SNIFF_BYTES)
    except OSError as error:
        if _may_be_picture(name):
            listing.skipped.append(Skipped(path, f"cannot be read ({error.strerror})"))
        return
    kind = picture_format(head)
    if end in PLUGIN_EXTENSIONS:
        package = PLUGIN_EXTENSIONS[end]
        if kind not in ("HEIF", "JXL", None) or has_plugin(package):
            listing.images.append(path)
        else:
            listing.skipped.append(
                Skipped(path, f"needs {package} (pip install {package}), or export it as JPEG")
            )
    elif end in UNSUPPORTED_EXTENSIONS:
        # Raw files are TIFF by their first bytes: only a plain photograph under such a name is a picture.
        if kind in ("JPEG", "PNG", "WEBP", "GIF") and "download" not in UNSUPPORTED_EXTENSIONS[end]:
            listing.images.append(path)
        else:
            listing.skipped.append(Skipped(path, UNSUPPORTED_EXTENSIONS[end]))
    elif kind is not None:
        listing.images.append(path)
