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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from noukii.driver import processes
from noukii.errors import RunError
from noukii.lock import also_held_by
from noukii.progress import PLAIN_SECONDS
from noukii.stop import StopSignal

TAIL_BYTES = 64 * 1024
"""How much of the end of the output is kept for the reading of a failure."""
SAYING = "stopping: the step that has begun is finished and saved; Ctrl-C again ends it at once"
LAUNCHER_TRACEBACK = b"Traceback (most recent call last):"
LAUNCHER_VERDICT = b"subprocess.CalledProcessError: Command "


@dataclass(frozen=True)
class Ending:
    """How the trainer ended.

    `exit_code` is the started program's (negative: the signal). `stopped`: we were asked to stop.
    `orphaned`: the launcher died before the trainer, whose own status is unknown then.
    """

    exit_code: int
    tail: str
    stopped: bool
    orphaned: bool = False


def run(
    command: Sequence[str],
    *,
    environment: dict[str, str],
    log: BinaryIO,
    missing: str,
    lock: int | None = None,
    tick: Callable[[], object] | None = None,
) -> Ending:
    """Run the trainer to its end.

    On a terminal the trainer sees a terminal too, so that its progress bar lives; piped, bars become
    a line every ten seconds. `log` gets every byte. The first Ctrl-C, SIGTERM or hang-up becomes one
    SIGTERM for the training process itself: it finishes its step and saves (SIGINT would do the same,
    but shows tracebacks where it meets an interpreter that still starts). Ctrl-C once more kills it and
    raises KeyboardInterrupt.

    `lock` is the descriptor of our folder lock. It becomes the standard input of all that is started,
    since a launcher passes that on to the trainer, and so the lock is held as long as any of them lives.
    If the launcher dies, the trainer is waited for all the same. `tick` is called several times a second.

    Raises:
        RunError: the program cannot be started; `missing` is the next step then.
    """
    on_terminal = sys.stdout.isatty()
    with StopSignal(SAYING) as stop:
        source, sink = _terminal() if on_terminal else os.pipe()
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL if lock is None else lock,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # a Ctrl-C in the terminal reaches us alone
            )
        except OSError as error:
            os.close(source)
            raise RunError(command[0], f"cannot be started ({error.strerror})", missing) from None
        finally:
            os.close(sink)
        if lock is not None:
            also_held_by(lock, child.pid, "the trainer of a run whose terminal is gone")
        output = _Output(log, sys.stdout.fileno(), bars=on_terminal)
        following = _Following(child, source, output, stop, tick)
        try:
            following.to_the_end(on_terminal)
        except BaseException:
            _end_at_once(child)
            raise
        finally:
            os.close(source)
            output.finish()
    tail = output.tail.decode("utf-8", "replace")
    return Ending(child.returncode, tail, stop.requested, following.orphaned)


class _Following:
    """Reads what the trainer prints until it and its launcher have ended; passes a wish to stop on."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        source: int,
        output: _Output,
        stop: StopSignal,
        tick: Callable[[], object] | None,
    ) -> None:
        self.orphaned = False
        self._tick = tick
        self._child, self._source, self._output, self._stop = child, source, output, stop
        self._told = False
        self._quiet_since: float | None = None

    def to_the_end(self, on_terminal: bool) -> None:
        while True:
            self._pass_on_a_stop()
            if on_terminal:
                _follow_window_size(self._source)
            if self._tick is not None and not self._stop.requested:
                self._tick()
            ready, _, _ = select.select([self._source], [], [], 0.2)
            if ready:
                try:
                    block = os.read(self._source, 65536)
                except OSError:  # how a terminal says that nobody has its other end
                    block = b""
                if not block:
                    break
                self._output.feed(block)
            elif self._child.poll() is not None and not self._trainer_lives():
                # A stray grandchild may hold the pipe for ever; what the trainer printed is read by then.
                self._quiet_since = self._quiet_since or time.monotonic()
                if time.monotonic() - self._quiet_since > 5:
                    break
        while True:
            self._pass_on_a_stop()
            try:
                self._child.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            if not self._trainer_lives():
                return
            time.sleep(0.2)  # the trainer is no child of ours: nothing tells of its end

    def _pass_on_a_stop(self) -> None:
        if self._stop.requested and not self._told:
            self._told = True
            _ask_to_stop(self._child)

    def _trainer_lives(self) -> bool:
        """Say whether the launcher, which is gone, has left the trainer behind."""
        if not self.orphaned:
            code = self._child.poll()
            if code == 0 or (code == 1 and LAUNCHER_VERDICT in self._output.tail):
                return False  # it has waited for the trainer
            left = [str(one.pid) for one in processes.of_group(self._child.pid)]
            if code is None or not left:
                return False
            self.orphaned = True
            self._output.note(
                f"the launcher has ended before the trainer; waiting for it (process {', '.join(left)})"
            )
        return bool(processes.of_group(self._child.pid))


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

    def note(self, text: str) -> None:
        """Say something of our own between the trainer's lines."""
        self._show(f"{text}\n".encode())

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


def _ask_to_stop(child: subprocess.Popen[bytes]) -> None:
    """Send one SIGTERM to the training process: the launcher's child, or the child itself.

    The launcher must not get it, for it would end without waiting for the trainer; nor must the
    trainer's own helpers, which it ends itself.
    """
    trainer = [one.pid for one in processes.children(child.pid)]
    if not trainer:
        trainer = [child.pid] if child.poll() is None else processes.eldest(child.pid)
    for pid in trainer:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _end_at_once(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
