"""One command at a time in a folder: a second copy refuses and names the first."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from noukii.errors import InputError

LOCK_NAME = ".noukii.lock"
"""The lock's file. What counts is the kernel's lock on it, which ends with the process, even by kill -9."""

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextmanager
def folder_lock(path: Path, what: str) -> Iterator[int]:
    """Hold `path` (made if it is not there) for this process while the block runs.

    `what` names the command, for the message of whoever comes second. Yields the lock's file
    descriptor: a child that inherits it keeps the lock for as long as it lives (see `also_held_by`).
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


def also_held_by(handle: int, pid: int, what: str) -> None:
    """Write down a child that has inherited the lock: it is named where this process has died before it."""
    os.pwrite(handle, f"{pid} {what}\n".encode(), os.fstat(handle).st_size)


def _acquire(file: Path, folder: Path) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(handle, 4096, 0).decode("utf-8", "replace")
            holders = _holders(handle, text)
            os.close(handle)
            raise _refusal(folder, holders) from None
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


def _refusal(folder: Path, holders: list[tuple[int, str]]) -> InputError:
    """Name who works in the folder; the first of `holders` is the one that ends the others."""
    if not holders:
        return InputError(folder, "another process works in it", "wait until it has ended")
    named = " and ".join(f"process {pid} ({what})" for pid, what in holders[:3])
    works = "works" if len(holders) == 1 else "work"
    return InputError(
        folder,
        f"{named} {works} in this folder",
        f"wait until it has ended, or stop it: kill {holders[0][0]}",
    )


def _holders(handle: int, text: str) -> list[tuple[int, str]]:
    """Return (pid, what it is) of the living processes that hold the lock.

    The first one that is written down and lives stands for all: the command ends its trainer, a
    launcher takes its trainer with it. Where none of them lives, whoever has the file open is named,
    as far as the system tells.
    """
    having_it = _with_file_open(handle)
    written = []
    for line in text.splitlines():
        pid, _, what = line.partition(" ")
        # the number of a dead process may be another one's by now
        if pid.isdigit() and _is_alive(int(pid)) and (not having_it or int(pid) in having_it):
            written.append((int(pid), what))
    return written[:1] or [(pid, "left over from an earlier run") for pid in having_it]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    with suppress(OSError, IndexError):  # a dead process whose parent has not asked for it yet
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return True


def _with_file_open(handle: int) -> list[int]:
    """Return the other processes that have the file of `handle` open; empty where /proc is missing."""
    wanted = os.fstat(handle)
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            status = entry.stat()
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                found.add(int(entry.parts[2]))
    return sorted(found - {os.getpid()})


def _missing_folders(path: Path) -> list[Path]:
    """Return `path` and those of its parents that do not exist, the innermost first."""
    missing = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    return missing
