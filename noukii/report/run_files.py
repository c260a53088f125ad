"""Reading what a training run left in its folder. Every part may be missing or damaged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from noukii.report.caption_records import json_lines, real, whole

_MAX_HEADER = 100_000_000
"""Bytes; the safetensors library itself refuses a longer header."""

_MOST_STEPS = 10**12
"""More in metrics.jsonl are damage, and would press all that is right into one end of the chart."""

_SAMPLE = re.compile(
    r"^(?P<name>.*?)_?(?P<epoch>e?)(?P<at>\d{6,})_(?P<prompt>\d{2,})(?:_\d{14}(?:_\d+)?)?\.(?:png|jpg|jpeg|webp)$",
    re.IGNORECASE,
)
_CHECKPOINT = re.compile(r"-(?:step(?P<step>\d+)|(?P<epoch>\d{6}))$")


@dataclass(frozen=True)
class Metric:
    """One optimiser step as metrics.jsonl has it; None where the line lacks the value."""

    step: int
    epoch: int | None
    loss: float | None
    loss_smoothed: float | None
    lr_unet: float | None
    lr_text_encoder: float | None
    seconds: float | None
    samples: int | None
    validation_loss: float | None = None


@dataclass(frozen=True)
class LoraFile:
    """What a LoRA's header says, read without its tensors."""

    path: Path
    size: int
    modules: int
    parameters: int
    dtypes: tuple[str, ...]
    metadata: dict[str, str]


@dataclass(frozen=True)
class SamplePicture:
    """A picture drawn during the run: `at` is a step, or an epoch if `by_epoch`."""

    path: Path
    at: int
    by_epoch: bool
    prompt: int


@dataclass(frozen=True)
class RunFiles:
    """Everything of a run that could be read."""

    folder: Path
    run: dict[str, object] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    lora: LoraFile | None = None
    checkpoints: tuple[tuple[Path, int], ...] = ()
    """Every .safetensors of the folder with its size in bytes; the finished LoRA comes last."""
    config: dict[str, object] = field(default_factory=dict)
    samples: tuple[SamplePicture, ...] = ()
    cues: tuple[Path, ...] = ()


def read_run(folder: Path, run: dict[str, object] | None = None) -> RunFiles:
    """Read the folder of a finished or a stopped run; `run` stands for a run.json that is not written yet."""
    run = read_object(folder / "run.json") if run is None else run
    loras = sorted((path for path in folder.glob("*.safetensors") if path.is_file()), key=_age)
    named = str(run.get("output_name") or folder.absolute().name)
    final = next((path for path in loras if path.stem == named), loras[-1] if loras else None)
    if final is not None:
        loras = [*(path for path in loras if path != final), final]
    return RunFiles(
        folder=folder,
        run=run,
        metrics=tuple(read_metrics(folder / "metrics.jsonl")),
        lora=read_lora_header(final) if final else None,
        checkpoints=tuple((path, path.stat().st_size) for path in loras),
        config=_first_config(folder),
        samples=tuple(find_samples(folder / "sample")),
        cues=tuple(sorted(folder.glob("prompt_cue-*.txt"))),
    )


def read_metrics(path: Path) -> list[Metric]:
    """Return the steps of metrics.jsonl by number; after a resume the later line of a step counts."""
    steps: dict[int, Metric] = {}
    for line in json_lines(path):
        step = whole(line.get("step"))
        if step is None or abs(step) > _MOST_STEPS:
            continue
        steps[step] = Metric(
            step=step,
            epoch=whole(line.get("epoch")),
            loss=real(line.get("loss")),
            loss_smoothed=real(line.get("loss_smoothed")),
            lr_unet=real(line.get("lr_unet")),
            lr_text_encoder=real(line.get("lr_text_encoder")),
            seconds=real(line.get("seconds")),
            samples=whole(line.get("samples")),
            validation_loss=real(line.get("validation_loss")),
        )
    return [steps[step] for step in sorted(steps)]


def read_lora_header(path: Path) -> LoraFile | None:
    """Return what the header of a safetensors file says; None if it is damaged or no such file."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                return None
            header = json.loads(stream.read(length))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    metadata = header.pop("__metadata__", {})
    tensors = {name: entry for name, entry in header.items() if isinstance(entry, dict)}
    weights = {name: entry for name, entry in tensors.items() if not name.endswith(".alpha")}
    return LoraFile(
        path=path,
        size=size,
        modules=len({name.split(".")[0] for name in weights}),
        parameters=sum(_elements(entry.get("shape")) for entry in weights.values()),
        dtypes=tuple(sorted({str(entry.get("dtype")) for entry in weights.values()})),
        metadata={str(key): str(value) for key, value in metadata.items()}
        if isinstance(metadata, dict)
        else {},
    )


def read_object(path: Path) -> dict[str, object]:
    """Return a JSON object; an empty one if the file is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def find_samples(folder: Path) -> list[SamplePicture]:
    """Return the sample pictures in `folder`, ours and kohya's names alike, by step and prompt."""
    found: dict[tuple[bool, int, int], SamplePicture] = {}
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    for path in paths:
        match = _SAMPLE.match(path.name)
        if match:
            at, prompt, by_epoch = int(match["at"]), int(match["prompt"]), bool(match["epoch"])
            found[by_epoch, at, prompt] = SamplePicture(path, at, by_epoch, prompt)
    return [found[key] for key in sorted(found)]


def checkpoint_label(path: Path) -> str:
    """Return "step 100" or "epoch 2" for an intermediate LoRA, "finished" for the last one."""
    match = _CHECKPOINT.search(path.stem)
    if not match:
        return "finished"
    return f"step {int(match['step'])}" if match["step"] else f"epoch {int(match['epoch'])}"


def smoothed(values: Iterable[float | None], weight: float = 0.96) -> list[float | None]:
    """Return an exponential mean of a loss that has none, without its start's pull towards 0."""
    mean, mass, result = 0.0, 0.0, []
    for value in values:
        if value is not None and math.isfinite(value):
            mean = weight * mean + (1 - weight) * value
            mass = weight * mass + (1 - weight)
        result.append(mean / mass if mass else None)
    return result


def _first_config(folder: Path) -> dict[str, object]:
    for path in sorted(folder.glob("*.toml")):
        try:
            value = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
        except (OSError, ValueError, TOMLKitError):
            continue
        return value
    return {}


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name


def _elements(shape: object) -> int:
    sizes = [whole(side) or 0 for side in shape] if isinstance(shape, list) else [0]
    return math.prod(sizes)
