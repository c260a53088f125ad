"""What `run.json` says of a run."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from noukii.driver.prepare import Machine, Prepared
from noukii.trainer.safetensors_header import BadHeader, read_header

PACKAGES = ("torch", "transformers", "diffusers", "accelerate", "safetensors", "pillow")


def collect(
    prepared: Prepared,
    machine: Machine,
    lora: Path,
    *,
    command: Sequence[str],
    output_name: str,
    started: float,
    finished: float,
    exit_code: int,
    trained_here: bool,
) -> dict[str, Any]:
    """Return the facts of a run; times in seconds since 1970.

    `lora` is a file of it that was found whole. `trained_here`: this process has started the trainer,
    so that its memory is known.
    """
    options = prepared.options
    builtin = prepared.trainer == "builtin"
    memory = _peak_memory() if trained_here and not machine.hardware.has_gpu else None
    return {
        "command": list(command),
        "trainer": prepared.trainer,
        "base_model": options.base_model.name if options.base_model else None,
        "base_model_sha256": written_in(lora).get("ss_new_sd_model_hash"),
        "output_name": output_name,
        "seed": options.seed,
        "started_at": _utc(started),
        "finished_at": _utc(finished),
        "seconds": round(finished - started, 1),
        "exit_code": exit_code,
        "plan": prepared.plan.as_dict(),
        "versions": _versions() if builtin else {},
        "device": machine.hardware.gpu_name or "CPU",
        "precision": machine.precision,
        "peak_memory_bytes": memory,
    }


def times(lora: Path) -> tuple[float, float]:
    """Return when the training of a LoRA began and ended: what the file says, else the file's own time."""
    written = written_in(lora)
    finished = _number(written.get("ss_training_finished_at")) or lora.stat().st_mtime
    return _number(written.get("ss_training_started_at")) or finished, finished


def steps_of(lora: Path) -> int | None:
    """Return how many steps a LoRA was trained; None where the file does not say."""
    steps = written_in(lora).get("ss_steps", "")
    return int(steps) if steps.isascii() and steps.isdigit() and len(steps) < 19 else None


def written_in(lora: Path) -> dict[str, str]:
    """Return the metadata of a LoRA; empty if the file cannot be read."""
    try:
        return read_header(lora).metadata
    except (BadHeader, OSError):
        return {}


def _number(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < 1e11 else 0.0


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _peak_memory() -> int:
    """The most memory that the trainer has had, in bytes (of the GPU's nothing is known here)."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
