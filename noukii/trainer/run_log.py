"""What a run tells while it trains: progress line, metrics.jsonl, TensorBoard.

None of it may end a run. What cannot be written is told once, kept, and written as soon as it can be.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from noukii import files
from noukii.disk import write_failure
from noukii.progress import Progress, duration

METRICS_NAME = "metrics.jsonl"
GPU_MEMORY = "most memory of the GPU at once"
"""How the line of the log begins that says it."""
SMOOTHING = 0.98
"""Share of the earlier losses in the smoothed one: about the last 50 steps count."""

TIMED_STEPS = 5
"""After the first one, so many steps are timed before the time left is told."""

TRY_AGAIN_SECONDS = 30.0
"""How long after a failed write the next attempt is made."""


class RunLog:
    """Context manager; `record` takes one optimiser step.

    metrics.jsonl gets one line per step: step and epoch (from 1), loss, loss_smoothed, lr_unet,
    lr_text_encoder (null if that part is not trained), seconds (of this step), samples (of this step), and
    validation_loss where it was measured after this step. A line of step 0 holds the base model's.
    Of several processes, one is `active`; the others log nothing.
    """

    def __init__(
        self, output_dir: Path, total_steps: int, *, done: int = 0, earlier: str = "",
        tensorboard: Path | None = None, active: bool = True,
    ) -> None:  # fmt: skip
        self._lines = earlier.splitlines()
        self._weighted, self._weight = 0.0, 0.0
        for line in map(json.loads, self._lines):
            if "loss" in line:  # the line of step 0 has none
                self._smooth(float(line["loss"]))
        self._total, self._done = total_steps, done
        self._timed: list[float] = []
        self._active = active
        self._metrics = _MetricsFile(output_dir / METRICS_NAME, self._lines, self.say)
        self._board = _Board(tensorboard, self.say) if tensorboard is not None and active else None

    def __enter__(self) -> RunLog:
        if not self._active:
            return self
        self._progress = Progress("training", self._total, "steps", done=self._done)
        self._metrics.begin()
        if self._board is not None:
            self._board.begin(self._done + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        self._metrics.close()
        if self._board is not None:
            self._board.close()
        self._progress.__exit__(kind, error, trace)

    def text(self) -> str:
        """Return metrics.jsonl as it is up to now."""
        return "".join(f"{line}\n" for line in self._lines)

    def say(self, text: str) -> None:
        """Print a line without breaking the progress bar."""
        if self._active:
            self._progress.say(text)

    def record(
        self,
        *,
        step: int,
        epoch: int,
        loss: float,
        rates: dict[str, float],
        adapted: dict[str, float],
        seconds: float,
        samples: int,
        validation_loss: float | None = None,
    ) -> None:
        """Log one step. `rates`: what the schedule sets; `adapted`: what is used (Prodigy finds a factor)."""
        if not self._active:
            return
        smoothed = self._smooth(loss)
        line = {
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "loss_smoothed": smoothed,
            "lr_unet": adapted.get("unet"),
            "lr_text_encoder": adapted.get("textencoder"),
            "seconds": round(seconds, 4),
            "samples": samples,
        }
        if validation_loss is not None:
            line["validation_loss"] = validation_loss
        self._metrics.add(json.dumps(line))
        self._progress.advance(note=f"loss {smoothed:.4f}")
        self._tell_time(step, seconds)
        if self._board is not None:
            scalars = {"loss/current": loss, "loss/average": smoothed}
            scalars |= {f"lr/{name}": rate for name, rate in rates.items()}
            if validation_loss is not None:
                scalars["loss/validation"] = validation_loss
            if adapted != rates:
                scalars |= {f"lr/d*lr/{name}": rate for name, rate in adapted.items()}
            self._board.add(scalars, step)

    def record_base(self, validation_loss: float) -> None:
        """Log what the base model reaches, before the first step."""
        if self._active:
            self._metrics.add(json.dumps({"step": 0, "epoch": 0, "validation_loss": validation_loss}))

    def _tell_time(self, step: int, seconds: float) -> None:
        """After a few timed steps, once: how long the rest will take. The first step is slower."""
        if len(self._timed) > TIMED_STEPS:
            return
        self._timed.append(seconds)
        left = self._total - step
        if len(self._timed) > TIMED_STEPS and left > TIMED_STEPS:
            each = statistics.median(self._timed[1:])
            self.say(f"{each:.2g} s a step: about {duration(each * left)} for the {left} steps to come")

    def _smooth(self, loss: float) -> float:
        self._weighted = SMOOTHING * self._weighted + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        return self._weighted / self._weight


class _MetricsFile:
    """`lines` on the disk. After a failed write the file is written anew once there is room again."""

    def __init__(self, path: Path, lines: list[str], say: Callable[[str], None]) -> None:
        self._path, self._lines, self._say = path, lines, say
        self._stream: Any = None
        self._size = 0
        self._failed_at: float | None = None

    def begin(self) -> None:
        self._rewrite()

    def add(self, line: str) -> None:
        self._lines.append(line)
        if self._stream is None:
            if self._failed_at is None or time.monotonic() - self._failed_at >= TRY_AGAIN_SECONDS:
                self._rewrite()
            return
        data = f"{line}\n".encode()
        try:
            rest = data
            while rest:  # a nearly full disk takes a part of it first
                rest = rest[self._stream.write(rest) :]
            self._size += len(data)
        except OSError as error:
            with contextlib.suppress(OSError):  # half a line would not be read back
                os.ftruncate(self._stream.fileno(), self._size)
            self._drop(error)

    def close(self) -> None:
        if self._stream is None:
            self._rewrite()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None
        elif self._lines:
            self._say(f"! {self._path.name} lacks the last steps: it could not be written any more")

    def _rewrite(self) -> None:
        text = "".join(f"{line}\n" for line in self._lines)
        try:
            files.write_text(self._path, text)
            self._stream = open(self._path, "ab", buffering=0)  # noqa: SIM115  (closed in close or _drop)
            self._size = self._stream.tell()
        except OSError as error:
            self._drop(error)
            return
        if self._failed_at is not None:
            self._failed_at = None
            self._say(f"{self._path.name} is complete again")

    def _drop(self, error: OSError) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None
        if self._failed_at is None:
            self._say(f"! {write_failure(self._path, error, '')}; training goes on")
        self._failed_at = time.monotonic()


class _Board:
    """TensorBoard's event file. After a failed write a new one is begun later."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._writer: Any = None
        self._failed_at: float | None = None
        self._hook_before = threading.excepthook

    def begin(self, step: int) -> None:
        threading.excepthook = self._thread_failed
        self._open(step)

    def add(self, scalars: dict[str, float], step: int) -> None:
        if self._writer is None:
            if self._failed_at is not None and time.monotonic() - self._failed_at < TRY_AGAIN_SECONDS:
                return
            self._open(step)
        try:
            for name, value in scalars.items():
                if self._writer is not None:
                    self._writer.add_scalar(name, value, step)
        except (OSError, ValueError) as error:
            self._drop(error)

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except (OSError, ValueError) as error:
            self._drop(error)
        finally:
            threading.excepthook = self._hook_before

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            self._failed_at = None
        except (OSError, ValueError) as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        if self._failed_at is None:
            known = error if isinstance(error, OSError) else OSError(str(error))
            self._say(f"! TensorBoard: {write_failure(self._folder, known, '')}; training goes on")
        self._failed_at = time.monotonic()
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError, ValueError):
                writer.close()

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        """Its writing thread raises what `add` and `close` get to see anyway; told once is enough."""
        is_theirs = type(args.thread).__name__ == "_AsyncWriterThread"
        if not (is_theirs and isinstance(args.exc_value, (OSError, ValueError))):
            self._hook_before(args)
