"""Is somebody still there who could stop this run? If not, it saves and ends by itself."""

from __future__ import annotations

import os
from pathlib import Path

DRIVER_PID = "NOUKII_DRIVER_PID"
"""Environment variable: the process that shows this run and passes the user's stop on (run_training.sh)."""

DRIVER = "NOUKII_DRIVER"
"""Environment variable: set where the driver says in its own words how a stopped run goes on."""


class Overseer:
    """accelerate's launcher and our driver, as far as they started this process."""

    def __init__(self) -> None:
        self._launcher = os.getppid() if "ACCELERATE_MIXED_PRECISION" in os.environ else None
        named = os.environ.get(DRIVER_PID, "")
        self._driver = int(named) if named.isascii() and named.isdigit() and len(named) < 10 else None
        self._driver_born = None if self._driver is None else _birth(self._driver)

    def is_gone(self) -> bool:
        """Say whether one of them has ended, even if another process got its number since."""
        if self._launcher is not None and os.getppid() != self._launcher:
            return True
        if self._driver is None:
            return False
        return self._driver_born is None or _birth(self._driver) != self._driver_born


def driver_speaks() -> bool:
    """Say whether the driver tells the user how to go on."""
    return bool(os.environ.get(DRIVER))


def _birth(pid: int) -> str | None:
    """Return when process `pid` began, in the system's own words; None if it is dead or a zombie."""
    try:
        # the name in brackets may hold anything; state and start time are fields 1 and 20 after it
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # another user's: it lives
    return "alive"
