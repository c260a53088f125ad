"""Ctrl-C while a command still imports its modules: it ends quietly, since nothing was begun.

Imported first of all, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPPED = 130


def stop_quietly_until_started() -> None:
    """From now on a SIGINT ends the process with exit code 130, until `hand_over` is called.

    A process that was started with SIGINT ignored (nohup, a job in the background) goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def hand_over() -> bool:
    """Let SIGINT raise KeyboardInterrupt again; returns whether `stop_quietly_until_started` was in force."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        return False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return True


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(STOPPED)
