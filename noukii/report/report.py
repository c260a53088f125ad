"""report.html: what a training run did, from the files in its folder.

Every part is optional: a run of upstream's trainer has no metrics.jsonl, a stopped one may have no
LoRA. What is missing is not shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from noukii.dataset.images import UnusableImage
from noukii.errors import InputError
from noukii.report import checkpoints as saved_loras
from noukii.report import run_data
from noukii.report import run_summary as summary
from noukii.report.caption_checks import FLAGS
from noukii.report.caption_records import real, whole
from noukii.report.charts import Series, line_chart
from noukii.report.cues import read_cues
from noukii.report.data_review import count_images, review_data
from noukii.report.pages import write_page
from noukii.report.run_files import Metric, RunFiles, SamplePicture, read_run
from noukii.report.thumbnails import Thumbnail, ThumbnailSpool

PAGE = "report.html"
_PICTURE_BYTES = 12_000_000
_DATA_BYTES, _DATA_SIDE = 2_000_000, 220

RunFacts = dict[str, object]
"""What run.json says of a run."""

Line = tuple[str, str, Callable[[Metric], float | None]]
"""One line of a chart: its name, its CSS class, its value at a step."""

_DRAWABLE = 1e100
"""Larger numbers (and those as small) cannot be told from damage, nor be drawn."""

_LONG = 300
"""Characters of a metadata value that the page shows; tag statistics can be megabytes."""


@dataclass(frozen=True)
class Chart:
    """One chart, drawn twice: for a desk and for a phone, so that its letters stay readable."""

    wide: Markup
    narrow: Markup
    lines: tuple[tuple[str, str], ...]
    """(name, CSS class) of each line, for the legend."""


@dataclass(frozen=True)
class SampleGrid:
    """Sample pictures: a row per checkpoint, a column per prompt; None where one is missing."""

    prompts: tuple[int, ...]
    texts: tuple[str, ...]
    """What each prompt says; empty where nobody has written it down."""
    rows: tuple[tuple[str, tuple[Thumbnail | None, ...]], ...]


def write_report(run_folder: Path, page: Path | None = None, running: RunFacts | None = None) -> Path:
    """Write `report.html` into the folder of a LoRA and return its path.

    Reads metrics.jsonl, run.json, the .toml, the .safetensors' headers, sample/ and prompt_cue-*.txt,
    as far as they are there.

    Args:
        page: where the page goes instead.
        running: of a run that goes on: what its run.json will say. The page then loads itself anew every
            half minute and leaves out the data's pictures, which do not change.

    Raises:
        InputError: there is no such folder.
    """
    if not run_folder.is_dir():
        raise InputError(run_folder, "is not a folder", "name a LoRA's folder under trained_loras/")
    files = read_run(run_folder, running)
    metrics = summary.metrics_with_smoothing([metric for metric in files.metrics if metric.step > 0])
    cues = [(keyword, concepts) for keyword, concepts in read_cues(run_folder) if concepts]
    saved = saved_loras.checkpoints(files)
    best = saved_loras.best(saved)
    with (
        ThumbnailSpool(_PICTURE_BYTES, len(files.samples)) as spool,
        ThumbnailSpool(_DATA_BYTES, max(count_images(files), 60), _DATA_SIDE) as small,
    ):
        data = [] if running is not None else review_data(files, cues, small)
        return write_page(
            page or run_folder / PAGE,
            "report.html",
            running=running is not None,
            step_total=_total_steps(files),
            best=best,
            risen=best is not None and saved_loras.has_risen(best, files.metrics),
            validation_chart=validation_chart(files.metrics, best),
            measured=[metric for metric in files.metrics if metric.validation_loss is not None],
            data=data,
            flags={flag.key: flag for flag in FLAGS},
            small_picture=small.data_uri,
            every_setting=summary.every_setting(files.run),
            repeat=summary.command_text(files.run.get("repeat")),
            title=str(files.run.get("output_name") or run_folder.absolute().name),
            facts=summary.facts(files.run),
            lora=files.lora,
            tiles=_tiles(files, metrics),
            outcome=summary.outcome(files.run),
            broken_loss=summary.broken_loss(metrics),
            loss_chart=loss_chart(metrics),
            rate_chart=rate_chart(metrics),
            loss_points=summary.loss_points(metrics),
            steps=summary.spread(metrics),
            step_count=len(metrics),
            samples=_sample_grid(files, spool),
            picture=spool.data_uri,
            data_sets=run_data.data_set_rows(files),
            buckets=run_data.bucket_rows(files),
            warnings=run_data.warnings(files),
            skipped=run_data.skipped_files(files),
            cues=[] if data else cues,
            settings=summary.settings(files),
            made_with=summary.made_with(files.run),
            checkpoints=saved,
            command=summary.command_text(files.run.get("command")),
            metadata=[(key, _shortened(value)) for key, value in sorted(files.lora.metadata.items())]
            if files.lora
            else [],
        )


def loss_chart(metrics: Sequence[Metric]) -> Chart | None:
    """Return the loss by step, raw and smoothed; None if there is none."""
    return _chart(
        metrics,
        "loss",
        [
            ("each step", "raw", lambda metric: metric.loss),
            ("smoothed", "smooth", lambda metric: metric.loss_smoothed),
        ],
    )


def rate_chart(metrics: Sequence[Metric]) -> Chart | None:
    """Return the learning rates by step; one line where UNet and text encoder have the same."""
    unet, text = (lambda metric: metric.lr_unet), (lambda metric: metric.lr_text_encoder)
    if all(metric.lr_text_encoder in (None, metric.lr_unet) for metric in metrics):
        return _chart(metrics, "learning rate", [("learning rate", "smooth", unet)])
    return _chart(metrics, "learning rate", [("UNet", "smooth", unet), ("text encoder", "second", text)])


def validation_chart(metrics: Sequence[Metric], best: saved_loras.Checkpoint | None) -> Chart | None:
    """Return the validation loss by step, with a dot where the best saved LoRA is; None if there is none."""
    measured = [metric for metric in metrics if metric.validation_loss is not None]
    lines: list[Line] = [("held-out images", "smooth", lambda metric: metric.validation_loss)]
    if best is not None:
        lines.append(
            (
                "lowest among the saved",
                "best",
                lambda metric: metric.validation_loss if metric.step == best.step else None,
            )
        )
    return _chart(measured, "validation loss", lines, from_zero=False)


def _chart(
    metrics: Sequence[Metric], label: str, lines: Sequence[Line], from_zero: bool = True
) -> Chart | None:
    series = []
    for name, style, value in lines:
        points = [(float(metric.step), _or_gap(value(metric))) for metric in metrics]
        if any(math.isfinite(y) for _, y in points):
            series.append(Series(name, style, points))
    if not series:
        return None
    title = f"{label} by step: " + ", ".join(line.name for line in series)
    options = {"title": title, "x_label": "step", "y_label": label}
    return Chart(
        wide=line_chart(series, width=1120, height=320, from_zero=from_zero, **options),
        narrow=line_chart(series, width=360, height=250, from_zero=from_zero, **options),
        lines=tuple((line.name, line.style) for line in series),
    )


def _or_gap(value: float | None) -> float:
    """Return what can be drawn; a gap for nothing, and for what would make all else a flat line."""
    if value is None or abs(value) > _DRAWABLE:
        return math.nan
    return float(value) if abs(value) > 1 / _DRAWABLE else 0.0 * value


def _tiles(files: RunFiles, metrics: Sequence[Metric]) -> dict[str, object]:
    """Return the numbers at the top of the page; None where one is unknown."""
    points = summary.loss_points(metrics)
    metadata = files.lora.metadata if files.lora else {}
    asked = metadata.get("ss_steps") or metadata.get("ss_max_train_steps") or ""
    asked = asked if asked.isascii() and asked.isdecimal() and len(asked) < 13 else ""
    return {
        "steps": metrics[-1].step if metrics else (int(asked) if asked else None),
        "epochs": metrics[-1].epoch if metrics else None,
        "loss": points[-1].metric.loss_smoothed if points else None,
        "seconds": _number(files.run.get("seconds")),
        "per_step": summary.seconds_per_step(metrics),
        "memory": _number(files.run.get("peak_memory_bytes")),
        "size": files.lora.size if files.lora else None,
        "rank": metadata.get("ss_network_dim") if metadata.get("ss_network_dim") != "None" else None,
    }


def _number(value: object) -> float | int | None:
    found = real(value)
    return found if found is not None and math.isfinite(found) and found >= 0 else None


def _total_steps(files: RunFiles) -> int | None:
    plan = files.run.get("plan")
    return whole(plan.get("steps")) if isinstance(plan, dict) else None


def _row_label(sample: SamplePicture) -> str:
    if sample.at == 0:
        return "base model"
    return f"{'epoch' if sample.by_epoch else 'step'} {sample.at}"


def _sample_grid(files: RunFiles, spool: ThumbnailSpool) -> SampleGrid | None:
    """Return the pictures: the base model's first, then by step."""
    samples = sorted(files.samples, key=lambda sample: sample.at > 0)
    prompts = tuple(sorted({sample.prompt for sample in samples}))
    rows: dict[str, dict[int, Thumbnail]] = {}
    for sample in samples:
        row = rows.setdefault(_row_label(sample), {})
        try:
            row[sample.prompt] = spool.add(sample.path)
        except (UnusableImage, OSError):
            continue  # a picture that was being drawn when the run was stopped
    grid = tuple((label, tuple(row.get(prompt) for prompt in prompts)) for label, row in rows.items() if row)
    listed = files.run.get("sample_prompts")
    known = [str(line) for line in listed] if isinstance(listed, list) else []
    texts = tuple(known[prompt] if prompt < len(known) else "" for prompt in prompts)
    return SampleGrid(prompts, texts, grid) if grid else None


def _shortened(value: str) -> str:
    return value if len(value) <= _LONG else f"{value[:_LONG]} … ({len(value):,} characters)"
