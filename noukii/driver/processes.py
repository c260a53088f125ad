"""Which processes there are below or beside another: from /proc, or from ps where that is missing."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A living process: not one that has ended and only waits to be asked for its status."""

    pid: int
    parent: int
    group: int


def children(parent: int) -> list[Process]:
    """Return the living children of a process."""
    return [one for one in _all() if one.parent == parent]


def of_group(group: int) -> list[Process]:
    """Return the living processes of a process group."""
    return [one for one in _all() if one.group == group]


def eldest(group: int) -> list[int]:
    """Return the pids of those processes of a group whose parents are not in it."""
    members = of_group(group)
    inside = {one.pid for one in members}
    return [one.pid for one in members if one.parent not in inside]


def _all() -> list[Process]:
    found = []
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        for stat in proc.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                # the name in brackets may hold anything; what follows it is state, parent, group
                state, parent, group = stat.read_bytes().rpartition(b")")[2].split()[:3]
                if state not in (b"Z", b"X"):
                    found.append(Process(int(stat.parent.name), int(parent), int(group)))
        return found
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for row in map(str.split, listing.splitlines()):
        if len(row) >= 4 and not row[3].startswith("Z"):
            found.append(Process(int(row[0]), int(row[1]), int(row[2])))
    return found
