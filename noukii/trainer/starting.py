"""A stop before there is anything to save: one line and status 130, wherever the process stands.

Imports of torch and transformers take seconds, images are encoded for minutes; a KeyboardInterrupt would
come out of the midst of a library as a page of its source. Imports nothing heavy, so that it can come first.
"""

from __future__ import annotations

import os
from types import FrameType

from noukii.stop import stop_signals, tell

STOPPED = 130

_begun = False


def leave_quietly_until_training() -> None:
    """From now on Ctrl-C, SIGTERM and SIGHUP end the process with one line (the loop has its own way)."""
    import signal

    for which in stop_signals():
        signal.signal(which, _leave)


def training_begins() -> None:
    """The loop takes over; a signal that comes after its end finds all saved and changes nothing."""
    global _begun
    _begun = True


def _leave(signum: int, frame: FrameType | None) -> None:
    if _begun:
        return
    start = "\n" if os.isatty(2) else ""
    tell(f"{start}stopped before the first step; nothing was trained\n")
    # Not an exception: libraries being imported catch those, and threads would be waited for. What is
    # unfinished lies under temporary names, which the next run removes.
    os._exit(STOPPED)
