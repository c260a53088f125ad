"""The errors a user may see: each names the file or folder, the reason and the next step.

Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import os

from noukii.names import printable


class NoukiiError(Exception):
    """A problem to be told in plain words; `exit_code` is the command's exit status."""

    exit_code = 1

    def __init__(self, where: str | os.PathLike[str], reason: str, next_step: str = "") -> None:
        self.where = printable(where)
        self.reason = reason
        self.next_step = next_step
        super().__init__(self.where, reason, next_step)

    def __str__(self) -> str:
        text = f"{self.where}: {self.reason}"
        return f"{text}\n  next: {self.next_step}" if self.next_step else text


class InputError(NoukiiError):
    """What was asked for cannot be done as asked; found before anything was written."""

    exit_code = 2


class RunError(NoukiiError):
    """The job started and failed."""

    exit_code = 1


class Interrupted(NoukiiError):
    """The user stopped the job (Ctrl-C or SIGTERM) and what was done is saved."""

    exit_code = 130
