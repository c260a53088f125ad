"""The trainer as a child process: its output shown live and kept whole, its stop asked for politely."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from noukii.errors import RunError
from noukii.progress import PLAIN_SECONDS
from noukii.stop import StopSignal

TAIL_BYTES = 64 * 1024
"""How much of the end of the output is kept for the reading of a failure."""
LAUNCHER_TRACEBACK = b"Traceback (most recent call last):"
LAUNCHER_VERDICT = b"subprocess.CalledProcessError: Command "


@dataclass(frozen=True)
class Ending:
    """How the trainer ended: its status (negative: the signal), the end of its output, our wish to stop."""

    exit_code: int
    tail: str
    stopped: bool


def run(
    command: Sequence[str],
    *,
    environment: dict[str, str],
    log: BinaryIO,
    missing: str,
    keep_open: Sequence[int] = (),
) -> Ending:
    """Run the trainer to its end.

    On a terminal the trainer sees a terminal too, so that its progress bar lives; piped, bars become
    a line every ten seconds. `log` gets every byte. The first Ctrl-C, SIGTERM or hang-up becomes one
    SIGINT for the training process itself: it finishes its step and saves. A second one kills it and
    raises KeyboardInterrupt. `keep_open` are file descriptors that the child inherits (our lock).

    Raises:
        RunError: the program cannot be started; `missing` is the next step then.
    """
    on_terminal = sys.stdout.isatty()
    with StopSignal(
        "stopping: the trainer finishes its step and saves; Ctrl-C again ends it at once"
    ) as stop:
        source, sink = _terminal() if on_terminal else os.pipe()
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # a Ctrl-C in the terminal reaches us alone
                pass_fds=tuple(keep_open),
            )
        except OSError as error:
            os.close(source)
            raise RunError(command[0], f"cannot be started ({error.strerror})", missing) from None
        finally:
            os.close(sink)
        output = _Output(log, sys.stdout.fileno(), bars=on_terminal)
        try:
            with _hang_up_is_a_stop():
                _follow(child, source, output, stop, on_terminal)
        except BaseException:
            _end_at_once(child)
            raise
        finally:
            os.close(source)
            output.finish()
    return Ending(child.returncode, output.tail.decode("utf-8", "replace"), stop.requested)


def _follow(
    child: subprocess.Popen[bytes], source: int, output: _Output, stop: StopSignal, on_terminal: bool
) -> None:
    told = False
    ended_at = None
    while True:
        if stop.requested and not told:
            told = True
            _interrupt_trainer(child)
        if on_terminal:
            _follow_window_size(source)
        ready, _, _ = select.select([source], [], [], 0.2)
        if ready:
            try:
                block = os.read(source, 65536)
            except OSError:  # how a terminal says that nobody has its other end
                block = b""
            if not block:
                break
            output.feed(block)
        elif child.poll() is not None:
            # A stray grandchild may hold the pipe for ever; what the trainer printed is read by then.
            ended_at = ended_at or time.monotonic()
            if time.monotonic() - ended_at > 5:
                break
    while True:
        try:
            child.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            if stop.requested and not told:
                told = True
                _interrupt_trainer(child)


class _Output:
    """Splits the trainer's output: all of it to the log, what helps to the screen, its end to `tail`."""

    def __init__(self, log: BinaryIO, screen: int, bars: bool) -> None:
        self.tail = b""
        self._log: BinaryIO | None = log
        self._screen: int | None = screen
        self._bars = bars
        self._line = b""  # the current line, as far as it has come and is not shown yet
        self._shown_part = False  # a part of the current line is on the screen
        self._held: list[bytes] = []  # a traceback that may be the launcher's own
        self._bar_shown = float("-inf")

    def feed(self, block: bytes) -> None:
        self.tail = (self.tail + block)[-TAIL_BYTES:]
        if self._log is not None:
            try:
                self._log.write(block)
                self._log.flush()
            except OSError as error:  # a full disk must not end a run that could still be saved
                self._log = None
                self._show(f"\nthe log cannot be written any more: {error.strerror}\n".encode())
        pieces = (self._line + block).replace(b"\r\n", b"\n").splitlines(keepends=True)
        self._line = b""
        if pieces and not pieces[-1].endswith(b"\n"):  # after a \r, a \n may come with the next block
            self._line = pieces.pop()
        for piece in pieces:
            self._piece(piece)
        if self._bars and self._line and not self._held and not LAUNCHER_TRACEBACK.startswith(self._line):
            self._show(self._line)
            self._line, self._shown_part = b"", True

    def finish(self) -> None:
        """Show what was held back: the output ended without the end of its line."""
        if self._line:
            self._piece(self._line)
        for piece in self._held:
            self._show(piece)
        self._held, self._line = [], b""

    def _piece(self, piece: bytes) -> None:
        starts_line = not self._shown_part
        self._shown_part = self._shown_part and not piece.endswith((b"\n", b"\r"))
        if self._held:
            self._held.append(piece)
            if not piece.startswith((b" ", b"\n")):
                held, self._held = self._held, []
                if not piece.startswith(LAUNCHER_VERDICT):
                    for line in held:
                        self._show(line)
        elif starts_line and piece.rstrip() == LAUNCHER_TRACEBACK:
            self._held = [piece]
        elif piece.endswith(b"\r") and not self._bars:
            now = time.monotonic()
            if piece.strip() and now - self._bar_shown >= PLAIN_SECONDS:
                self._bar_shown = now
                self._show(piece.rstrip() + b"\n")
        else:
            self._show(piece)

    def _show(self, data: bytes) -> None:
        if self._screen is None:
            return
        try:
            while data:
                data = data[os.write(self._screen, data) :]
        except OSError:  # the terminal or the reader of our pipe is gone: training goes on, the log has it
            self._screen = None


def _terminal() -> tuple[int, int]:
    source, sink = pty.openpty()
    settings = termios.tcgetattr(sink)
    settings[1] &= ~termios.OPOST  # line ends stay as they are, in the log too
    termios.tcsetattr(sink, termios.TCSANOW, settings)
    fcntl.ioctl(sink, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return source, sink


def _follow_window_size(terminal: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        known = struct.unpack("HHHH", size)[1] > 0  # a terminal in a CI job may have no columns
        if known and size != fcntl.ioctl(terminal, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0)):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextlib.contextmanager
def _hang_up_is_a_stop() -> Iterator[None]:
    """A lost ssh connection stops the trainer as Ctrl-C does (unless nohup asked to ignore it)."""
    before = signal.getsignal(signal.SIGHUP)
    if before in (signal.SIG_IGN, None):
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _interrupt_trainer(child: subprocess.Popen[bytes]) -> None:
    """Send one SIGINT to the training process: the launcher's child, or the child itself.

    The launcher must not get it, for it would end without waiting for the trainer; nor must the
    trainer's own helpers, which it ends itself.
    """
    for pid in _children(child.pid) or [child.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


def _children(parent: int) -> list[int]:
    found = []
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        for stat in proc.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                # the name in brackets may hold anything; the parent is the second field after it
                if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(stat.parent.name))
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [int(row[0]) for row in rows if len(row) == 2 and int(row[1]) == parent]


def _end_at_once(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
