"""The saved LoRAs of a run with the validation loss of each, and the best of them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii.report.run_files import Metric, RunFiles, checkpoint_label, read_lora_header

RISE = 0.01
"""The loss has risen after the best checkpoint if it ends more than this share above it."""


@dataclass(frozen=True)
class Checkpoint:
    """One LoRA file; `step` and `validation_loss` are None where nothing says them."""

    name: str
    label: str
    size: int
    step: int | None
    validation_loss: float | None
    is_final: bool


def checkpoints(files: RunFiles) -> list[Checkpoint]:
    """Return the LoRA files of a run by step, the finished one last."""
    values = {metric.step: metric.validation_loss for metric in files.metrics}
    found = []
    for path, size in files.checkpoints:
        label = checkpoint_label(path)
        is_final = label == "finished"
        step = _step(path, label, files.metrics)
        value = values.get(step) if step is not None else None
        usable = value is not None and math.isfinite(value)
        found.append(Checkpoint(path.name, label, size, step, value if usable else None, is_final))
    return sorted(found, key=lambda one: (one.is_final, one.step if one.step is not None else -1))


def best(saved: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the saved LoRA with the lowest validation loss; None if none was measured.

    Of two with the same loss the earlier step counts, of one step's two files the finished one.
    """
    measured = [one for one in saved if one.validation_loss is not None]
    return min(measured, key=lambda one: (one.validation_loss, one.step, not one.is_final), default=None)


def has_risen(one: Checkpoint, metrics: Sequence[Metric]) -> bool:
    """Tell whether the validation loss ended clearly above that of a checkpoint, at a later step."""
    later = [
        metric.validation_loss
        for metric in metrics
        if metric.validation_loss is not None and one.step is not None and metric.step > one.step
    ]
    return bool(later) and one.validation_loss is not None and later[-1] > (1 + RISE) * one.validation_loss


def _step(path: Path, label: str, metrics: Sequence[Metric]) -> int | None:
    """Return after which step a LoRA was saved: its name says it, else its metadata, else the last metric."""
    if label.startswith("step "):
        return int(label.removeprefix("step "))
    header = read_lora_header(path)
    written = header.metadata.get("ss_steps", "") if header else ""
    if written.isascii() and written.isdigit() and len(written) < 19:
        return int(written)
    return metrics[-1].step if metrics and label == "finished" else None
