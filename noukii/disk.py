"""Room on a disk, asked about before a job starts and named when a write fails."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from pathlib import Path

from noukii.errors import InputError, RunError

RESERVE = 16 * 2**20
"""Bytes left over for logs and small files."""


def size(count: float) -> str:
    """Return a number of bytes as `790 KB`, `2.3 MB` or `4.2 GB` (powers of ten, as file managers do)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} KB"


def require_space(folder: Path, total: int, largest: int = 0) -> None:
    """Check that `total` bytes fit where `folder` is or will be, and a file of `largest` bytes may exist.

    Raises:
        InputError: too little space, no right to write there, or a file-size limit (`ulimit -f`).
    """
    place = existing_parent(folder)
    if not place.is_dir():
        raise InputError(place, "is a file where a folder is needed", "name another folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(place, "you have no right to write there", "name another folder")
    free = shutil.disk_usage(place).free
    if total + RESERVE > free:
        raise InputError(
            place,
            f"too little space: about {size(total + RESERVE)} are needed, {size(free)} are free",
            "free some space there, or write to another disk",
        )
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit not in (resource.RLIM_INFINITY, -1) and largest > limit:
        raise InputError(
            folder,
            f"files may have at most {size(limit)} here (ulimit -f); one of {size(largest)} is needed",
            "ulimit -f unlimited",
        )


def existing_parent(path: Path) -> Path:
    """Return `path` or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def write_failure(path: Path, error: OSError, next_step: str, need: int = 0) -> RunError:
    """Return the message for a write to `path` that the system refused; `need` are the bytes it wanted."""
    reason = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "your share of the disk is used up",
        errno.EFBIG: "the file is larger than is allowed here (ulimit -f)",
        errno.EROFS: "the disk is read-only",
    }.get(error.errno or 0, error.strerror or str(error))
    if need and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason += f"; about {size(need)} are needed"
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                reason += f", {size(shutil.disk_usage(existing_parent(path)).free)} are free"
    return RunError(path, f"could not be written: {reason}", next_step)
