"""One progress bar for every long job: a live bar on a terminal, plain lines when piped."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TextIO

PLAIN_SECONDS = 10.0
"""A piped job says where it is at most this often."""


def duration(seconds: float) -> str:
    """Return `seconds` as `7 s`, `3 min 20 s` or `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _screen(stream: TextIO) -> tuple[int, int]:
    """Return the columns and rows of a terminal; 80 and 24 where it has none, as in some containers.

    tqdm takes those for a window that is full already, and shows no bar at all.
    """
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24


class Progress:
    """Counts `total` things of one `unit`; shows the rate and the time left on stderr."""

    def __init__(self, title: str, total: int, unit: str, done: int = 0) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._first = self._done = done
        self._start = self._said = time.monotonic()
        self._one = unit[:-1] if unit.endswith("s") else unit
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            columns, rows = _screen(sys.stderr)
            self._bar = tqdm(
                total=total, initial=done, desc=title, unit=self._one, file=sys.stderr,
                ncols=columns, nrows=rows,
            )  # fmt: skip
            self._bar.dynamic_ncols = _screen  # asked each time: windows change their size

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more as done; `note` (a loss, a file name) stands behind the figures."""
        self._done += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._said >= PLAIN_SECONDS or self._done == self._total:
            self._said = now
            elapsed = max(now - self._start, 1e-9)
            rate = (self._done - self._first) / elapsed
            left = (self._total - self._done) / rate if rate else 0.0
            speed = f"{rate:.2f} {self._unit}/s" if rate >= 1 or not rate else f"{1 / rate:.2f} s/{self._one}"
            text = f"{self._title}: {self._done}/{self._total} {self._unit}, {speed}, {duration(left)} left"
            print(f"{text}, {note}" if note else text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
