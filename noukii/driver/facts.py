"""What `run.json` says of a run."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from noukii.driver import launch
from noukii.driver.outputs import LOG_NAME
from noukii.driver.prepare import Machine, Prepared
from noukii.driver.repeat import repeat_command
from noukii.errors import NoukiiError
from noukii.trainer.run_log import GPU_MEMORY
from noukii.trainer.safetensors_header import BadHeader, read_header

PACKAGES = ("torch", "transformers", "diffusers", "accelerate", "safetensors", "pillow")


def before_training(
    prepared: Prepared,
    machine: Machine,
    run_folder: Path,
    *,
    command: Sequence[str],
    output_name: str,
    started: float,
) -> dict[str, Any]:
    """Return what is known of a run when it starts; the time in seconds since 1970."""
    options = prepared.options
    builtin = prepared.trainer == "builtin"
    return {
        "command": list(command),
        "trainer": prepared.trainer,
        "base_model": options.base_model.name if options.base_model else None,
        "output_name": output_name,
        "seed": options.seed,
        "started_at": _utc(started),
        "repeat": repeat_command(options),
        "validation_folder": str(options.validation_folder) if options.validation_folder else None,
        "sample_prompts": prompt_texts(run_folder / "sample_prompts.txt"),
        "settings": _settings(command) if builtin else {},
        "plan": prepared.plan.as_dict(),
        "versions": _versions() if builtin else _versions_beside(launch.kohya_accelerate()),
        "device": machine.hardware.gpu_name or "CPU",
        "precision": machine.precision,
    }


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

    `lora` is a file of it that was found whole, in the run's folder. `trained_here`: this process has started
    the trainer, so that its memory is known.
    """
    known = before_training(
        prepared, machine, lora.parent, command=command, output_name=output_name, started=started
    )
    memory = None
    if machine.hardware.has_gpu:
        memory = _peak_gpu_memory(lora.parent / LOG_NAME)
    elif trained_here:
        memory = _peak_memory()
    return {
        **known,
        "base_model_sha256": written_in(lora).get("ss_new_sd_model_hash"),
        "finished_at": _utc(finished),
        "seconds": round(finished - started, 1),
        "exit_code": exit_code,
        "peak_memory_bytes": memory,
        "estimated_memory_bytes": round(machine.load.bytes()),
    }


def prompt_texts(path: Path) -> list[str]:
    """Return the prompts of a prompt file, without the options behind them; empty if there is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return []
    prompts = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [re.split(r"(?:^|\s)--(?=[A-Za-z])", line)[0].strip() for line in prompts]


def _settings(command: Sequence[str]) -> dict[str, Any]:
    """Return every setting that the built-in trainer was started with, as JSON values."""
    from noukii.trainer import settings

    scripts = [place for place, word in enumerate(command) if word.endswith("train_network.py")]
    if not scripts:
        return {}
    try:
        found = asdict(settings.parse(list(command[scripts[-1] + 1 :])))
    except NoukiiError:  # of another version, before a resume
        return {}
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


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
    """The most of this machine's memory that the trainer has had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _peak_gpu_memory(log: Path) -> int | None:
    """The most memory of the GPU, in bytes, as the built-in trainer says at its end; else None."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.findall(rf"^{GPU_MEMORY}: (\d{{1,15}}) bytes$", text, re.MULTILINE)
    return int(found[-1]) if found else None


def _versions_beside(program: Path) -> dict[str, str]:
    """Return the versions of the packages in another environment, by the names of their folders."""
    found = {}
    for folder in program.parent.parent.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        if name.lower() in PACKAGES:
            found[name.lower()] = version
    return found


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
