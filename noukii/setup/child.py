"""git, pip and uv as children of setup.sh: they end with it, or keep its lock where it is killed hard.

Each gets a process group of its own: what it has started (pip's workers, git's helpers) ends with it. Where
setup.sh itself dies by kill -9, they live on with its lock, so that a second run does not work beside them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from noukii.lock import also_held_by

PATIENCE = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, None))
"""How a group is asked to end, and the seconds until it is asked harder."""
_locks: list[int] = []


@contextmanager
def holding(lock: int) -> Iterator[None]:
    """Let the children of this block inherit the file descriptor of a lock."""
    _locks.append(lock)
    try:
        yield
    finally:
        _locks.remove(lock)


def run(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as subprocess.run does with these options; ends it where we are stopped.

    Raises:
        FileNotFoundError: there is no such program.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=_locks, **options
    )
    try:
        for lock in _locks:
            also_held_by(lock, process.pid, os.path.basename(os.fspath(command[0])))
        out, err = process.communicate()
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    for sent, seconds in PATIENCE:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sent)
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError, PermissionError):  # who has outlived the group's first process
        os.killpg(process.pid, signal.SIGKILL)
