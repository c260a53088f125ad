"""What a run tells while it trains: progress line, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from noukii import files
from noukii.progress import Progress

METRICS_NAME = "metrics.jsonl"
SMOOTHING = 0.98
"""Share of the earlier losses in the smoothed one: about the last 50 steps count."""


class RunLog:
    """Context manager; `record` takes one optimiser step.

    metrics.jsonl gets one line per step: step and epoch (from 1), loss, loss_smoothed, lr_unet,
    lr_text_encoder (null if that part is not trained), seconds (of this step), samples (of this step).
    Of several processes, one is `active`; the others log nothing.
    """

    def __init__(
        self, output_dir: Path, total_steps: int, *, done: int = 0, earlier: str = "",
        tensorboard: Path | None = None, active: bool = True,
    ) -> None:  # fmt: skip
        self._path = output_dir / METRICS_NAME
        self._lines = earlier.splitlines()
        self._weighted, self._weight = 0.0, 0.0
        for line in self._lines:
            self._smooth(float(json.loads(line)["loss"]))
        self._total, self._done, self._tensorboard = total_steps, done, tensorboard
        self._writer: Any = None
        self._active = active

    def __enter__(self) -> RunLog:
        if not self._active:
            return self
        files.write_text(self._path, self.text())
        self._stream = open(self._path, "a", encoding="utf-8", buffering=1)
        if self._tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._tensorboard), purge_step=self._done + 1)
        self._progress = Progress("training", self._total, "steps", done=self._done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        self._progress.__exit__(kind, error, trace)
        self._stream.close()
        if self._writer is not None:
            self._writer.close()

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
        self._lines.append(json.dumps(line))
        self._stream.write(self._lines[-1] + "\n")
        self._progress.advance(note=f"loss {smoothed:.4f}")
        if self._writer is not None:
            scalars = {"loss/current": loss, "loss/average": smoothed}
            scalars |= {f"lr/{name}": rate for name, rate in rates.items()}
            if adapted != rates:
                scalars |= {f"lr/d*lr/{name}": rate for name, rate in adapted.items()}
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step)

    def _smooth(self, loss: float) -> float:
        self._weighted = SMOOTHING * self._weighted + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        return self._weighted / self._weight
