"""One command at a time in a folder: a second copy refuses and names the first."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noukii.errors import InputError

LOCK_NAME = ".noukii.lock"
"""The lock's file. What counts is the kernel's lock on it, which ends with the process, even by kill -9."""

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextmanager
def folder_lock(path: Path, what: str) -> Iterator[int]:
    """Hold `path` (made if it is not there) for this process while the block runs.

    `what` names the command, for the message of whoever comes second. Yields the lock's file
    descriptor: a child that inherits it (`pass_fds`) keeps the lock for as long as it lives.
    The lock's file is removed at the end, and so is a folder that was made here and stayed empty.

    Raises:
        InputError: another process holds the folder.
    """
    made = _missing_folders(path)
    path.mkdir(parents=True, exist_ok=True)
    file = path / LOCK_NAME
    handle = -1
    try:
        handle = _acquire(file, path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {what}\n".encode(), 0)
        yield handle
    finally:
        if handle >= 0:
            file.unlink(missing_ok=True)  # before the lock ends: who waits for it looks again
            os.close(handle)
        for folder in made:
            try:
                folder.rmdir()
            except OSError:
                break


def _acquire(file: Path, folder: Path) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
            os.close(handle)
            holder, _, doing = text.partition(" ")
            known = holder.isdigit()
            raise InputError(
                folder,
                f"process {holder} works in this folder ({doing})"
                if known
                else "another process works in it",
                f"wait until it has ended, or stop it: kill {holder}" if known else "wait until it has ended",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:  # some network disks have none: go on without
                os.close(handle)
                raise
            return handle
        # The holder before us may have removed the file between our open and our lock.
        try:
            same = os.fstat(handle).st_ino == os.stat(file, follow_symlinks=False).st_ino
        except FileNotFoundError:
            same = False
        if same:
            return handle
        os.close(handle)


def _missing_folders(path: Path) -> list[Path]:
    """Return `path` and those of its parents that do not exist, the innermost first."""
    missing = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    return missing
