"""report.html while the run goes on: in `trained_loras/NAME/`, where the result will be.

Until then that folder holds the page and a mark that says whose it is. It gives way to the result, and is
removed if there is none. Where an interrupted result of that name lies already, which a resumed run is to
complete, the page goes into the working folder instead. Nothing here may end or slow down a run.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from noukii import project
from noukii.driver import outputs

PAUSE = 20.0
"""Seconds from one page to the next, at least."""

COST = 30
"""And so many times as long as it took to make it."""


class LivePage:
    """Writes the page of one run again and again; `facts` is what its run.json will say, as far as known."""

    def __init__(self, run_folder: Path, name: str, facts: dict[str, Any]) -> None:
        self._folder, self._facts = run_folder, facts
        self._made_shelf = not project.trained_loras().exists()
        self._place = outputs.open_placeholder(name)
        self._next = 0.0
        self._seen: tuple[int, int] | None = None
        self._works = True

    @property
    def path(self) -> Path:
        """Where the page is."""
        return (self._place or self._folder) / "report.html"

    def tick(self) -> None:
        """Write the page if there is news and enough time has passed; called often."""
        if not self._works or time.monotonic() < self._next:
            return
        news = self._news()
        if news == self._seen and self._seen is not None:
            return
        began = time.monotonic()
        try:
            from noukii.report.report import write_report

            write_report(self._folder, self.path, self._facts)
        except Exception:  # whatever it is: the run matters, and its end makes the page anew
            self._works = False
        self._seen = news
        ended = time.monotonic()
        self._next = ended + max(PAUSE, COST * (ended - began))

    def close(self) -> None:
        """Remove the folder if no result has taken its place."""
        if self._place is not None:
            outputs.remove_placeholder(self._place)
        if self._made_shelf:
            with contextlib.suppress(OSError):  # it holds the result
                project.trained_loras().rmdir()

    def _news(self) -> tuple[int, int]:
        try:
            found = (self._folder / "metrics.jsonl").stat()
        except OSError:
            return (0, 0)
        return found.st_size, found.st_mtime_ns
