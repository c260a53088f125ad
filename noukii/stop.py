"""Ctrl-C and SIGTERM as a wish: the job finishes its step, saves and ends."""

from __future__ import annotations

import signal
import sys
from types import FrameType


class StopSignal:
    """Context manager; `requested` turns true at the first SIGINT or SIGTERM.

    A second signal raises KeyboardInterrupt, for a job that does not come to its next check.
    """

    def __init__(self, saying: str = "stopping after this step; press Ctrl-C again to stop at once") -> None:
        self.requested = False
        self._saying = saying

    def __enter__(self) -> StopSignal:
        self._before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print(f"\n{self._saying}", file=sys.stderr, flush=True)
