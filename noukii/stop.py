"""Ctrl-C, SIGTERM and a lost terminal as a wish: the job finishes its step, saves and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType

AGAIN_AFTER = 1.0
"""Seconds after a SIGINT from which a further one is taken for impatience.

A service manager, a container or a shutdown signals a whole tree of processes, and a parent passes the wish
on to its child besides: then several signals mean one wish. A key that bounces does the same.
"""


class StopSignal:
    """Context manager; `requested` turns true at the first SIGINT, SIGTERM or SIGHUP.

    A SIGINT a second or more after an earlier one raises KeyboardInterrupt, for a job that does not come to
    its next check. SIGTERM and SIGHUP never do, however often they come. A SIGHUP that is ignored (nohup)
    stays ignored.
    """

    def __init__(self, saying: str = "stopping after this step; press Ctrl-C again to stop at once") -> None:
        self.requested = False
        self._saying = saying
        self._interrupted_at: float | None = None

    def __enter__(self) -> StopSignal:
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self._before = {which: signal.signal(which, self._on_signal) for which in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            self._leave_terminal()
        if not self.requested:
            self.requested = True
            tell(f"\n{self._saying}\n")
        if signum == signal.SIGINT:
            now = time.monotonic()
            if self._interrupted_at is None:
                self._interrupted_at = now
            elif now - self._interrupted_at >= AGAIN_AFTER:
                raise KeyboardInterrupt

    def _leave_terminal(self) -> None:
        """Send what is printed from now on nowhere: writing to a terminal that is gone is an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in self._terminals:
            os.dup2(nowhere, stream)
        os.close(nowhere)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that mean stop; without SIGHUP where it is ignored."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


def tell(text: str) -> None:
    """Write to stderr from a signal handler: print could be in the midst of a line, or its reader be gone."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
