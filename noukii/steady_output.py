"""Standard output and error that may go away without ending the job: the files it writes are what matters.

`command | head -1` closes the pipe after a line, a log on a full disk takes no more text, a terminal
is shut. From then on what is printed goes nowhere.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO

from noukii.names import printable

_CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF)
"""The reader is gone: nobody is left to be told."""


class SteadyOutput:
    """A text stream like the one it wraps, except that its first failing write is its last."""

    def __init__(self, stream: TextIO, number: int) -> None:
        self._stream = stream
        self._number = number
        self.problem = ""
        """Why text was lost, where that is more than a reader who left."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """Lead the stream's descriptor to nowhere; what waits in its buffer goes there too."""
        where = _path_of(self._number)
        lead_to_nowhere(self._number)
        if error.errno in _CLOSED or self.problem:
            return
        self.problem = error.strerror or str(error)
        if self._number == 1:
            print(f"{where}: could not be written: {self.problem}; the work goes on", file=sys.stderr)


def lead_to_nowhere(number: int) -> None:
    """Make a file descriptor, open or closed, one that swallows everything."""
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)


def _path_of(number: int) -> str:
    """Return the name of the file behind a descriptor, where the system tells it."""
    try:
        return f"standard output ({printable(os.readlink(f'/proc/self/fd/{number}'))})"
    except OSError:
        return "standard output"
