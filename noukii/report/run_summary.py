"""From what a run left behind to what its report shows: pure functions."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from noukii.names import printable
from noukii.report.caption_records import whole
from noukii.report.readable import counted, moment, percent
from noukii.report.run_data import dicts
from noukii.report.run_files import Metric, RunFiles, smoothed

_SETTINGS = (
    ("ss_network_dim", "rank"),
    ("ss_network_alpha", "alpha"),
    ("ss_network_module", "network"),
    ("ss_network_dropout", "network dropout"),
    ("ss_learning_rate", "learning rate"),
    ("ss_unet_lr", "learning rate, UNet"),
    ("ss_text_encoder_lr", "learning rate, text encoder"),
    ("ss_optimizer", "optimiser"),
    ("ss_lr_scheduler", "schedule"),
    ("ss_lr_warmup_steps", "warm-up steps"),
    ("ss_max_train_steps", "steps asked for"),
    ("ss_num_epochs", "epochs"),
    ("ss_num_batches_per_epoch", "steps per epoch"),
    ("ss_gradient_accumulation_steps", "gradient accumulation"),
    ("ss_mixed_precision", "mixed precision"),
    ("ss_gradient_checkpointing", "gradient checkpointing"),
    ("ss_max_grad_norm", "largest gradient norm"),
    ("ss_min_snr_gamma", "min-SNR gamma"),
    ("ss_noise_offset", "noise offset"),
    ("ss_prior_loss_weight", "prior loss weight"),
    ("ss_clip_skip", "CLIP skip"),
    ("ss_max_token_length", "longest caption, tokens"),
    ("ss_training_comment", "comment"),
)
_TRAINERS = {"builtin": "built-in", "kohya": "kohya's"}
_NEEDS_QUOTES = re.compile(r"[^\w@%+=:,./-]", re.ASCII)


@dataclass(frozen=True)
class LossPoint:
    """A step worth naming: its number, and the loss there."""

    label: str
    metric: Metric


def metrics_with_smoothing(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics; where no line has a smoothed loss, it is computed from the raw one."""
    if not metrics or any(metric.loss_smoothed is not None for metric in metrics):
        return tuple(metrics)
    means = smoothed(metric.loss for metric in metrics)
    return tuple(
        Metric(**{**metric.__dict__, "loss_smoothed": mean})
        for metric, mean in zip(metrics, means, strict=True)
    )


def loss_points(metrics: Sequence[Metric]) -> list[LossPoint]:
    """Return the first step, the one of the lowest smoothed loss, and the last."""
    usable = [metric for metric in metrics if metric.loss_smoothed is not None]
    usable = [metric for metric in usable if math.isfinite(metric.loss_smoothed or 0)]
    if not usable:
        return []
    lowest = min(usable, key=lambda metric: (metric.loss_smoothed or 0, metric.step))
    return [LossPoint("first", usable[0]), LossPoint("lowest", lowest), LossPoint("last", usable[-1])]


def broken_loss(metrics: Sequence[Metric]) -> str:
    """Return from where on the loss is no number, in words; empty if there is no such step."""
    broken = [metric for metric in metrics if metric.loss is not None and not math.isfinite(metric.loss)]
    if not broken:
        return ""
    where = (
        f"step {broken[0].step}" if len(broken) == 1 else f"{len(broken)} steps from step {broken[0].step} on"
    )
    return (
        f"The loss of {where} is not a finite number; what was trained from there on is of no use, and the"
        " loss at the end is the last finite one. A lower --learning-rate helps, or --precision no."
    )


def spread(metrics: Sequence[Metric], most: int = 40) -> list[Metric]:
    """Return at most `most` of the metrics, evenly spread, the first and the last among them."""
    if len(metrics) <= most:
        return list(metrics)
    return [metrics[round(place * (len(metrics) - 1) / (most - 1))] for place in range(most)]


def settings(files: RunFiles) -> list[tuple[str, str]]:
    """Return (name, value) of the settings that were set, most asked-for first."""
    metadata = files.lora.metadata if files.lora else {}
    run = files.run
    rows = [
        ("base model", _first(run.get("base_model"), metadata.get("ss_sd_model_name"))),
        (
            "base model's SHA-256",
            _first(
                run.get("base_model_sha256"),
                metadata.get("ss_new_sd_model_hash"),
                metadata.get("ss_sd_model_hash"),
            ),
        ),
        ("trainer", _first(run.get("trainer"))),
        ("seed", _first(run.get("seed"), metadata.get("ss_seed"))),
        ("held out for validation", _validation(run)),
        *((label, _first(metadata.get(key))) for key, label in _SETTINGS),
        *_config_settings(files.config),
        ("device", _first(run.get("device"))),
        ("precision", _first(run.get("precision"))),
    ]
    return [(label, value) for label, value in rows if value]


def every_setting(run: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return all settings that the trainer was started with, those left at their default too."""
    found = run.get("settings")
    rows = found.items() if isinstance(found, dict) else ()
    return [(str(name), _first(value) or "–") for name, value in rows]


def facts(run: Mapping[str, object]) -> list[str]:
    """Return what stands under the title: base model, trainer, when it ended."""
    found = []
    if base := _first(run.get("base_model")):
        found.append(f"on {printable(base)}")
    if trainer := _first(run.get("trainer")):
        found.append(f"{_TRAINERS.get(trainer, printable(trainer))} trainer")
    if finished := run.get("finished_at"):
        found.append(moment(finished))
    return found


def made_with(run: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return start, end and (package, version) by name."""
    rows = [
        (label, moment(run[key]))
        for key, label in (("started_at", "started"), ("finished_at", "finished"))
        if run.get(key)
    ]
    found = run.get("versions")
    packages = found.items() if isinstance(found, dict) else ()
    return rows + sorted((str(name), str(value)) for name, value in packages if value)


def command_text(command: object) -> str:
    """Return a command as lines for a POSIX shell, one flag a line; empty if there is none.

    Bytes and control characters that a page cannot hold are written as bash's $'\\x..'.
    """
    if isinstance(command, str):
        return command
    if not isinstance(command, list):
        return ""
    lines: list[str] = []
    for word in map(str, command):
        quoted = shell_word(word)
        if not lines or word.startswith("--"):
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines)


def shell_word(word: str) -> str:
    """Return `word` so that bash reads it as one word again.

    Half characters that stand for no byte come from damaged records alone; they become question marks.
    """
    word = re.sub("[\ud800-\udc7f\udd00-\udfff]", "?", word)
    plain = word.encode("utf-8", "surrogateescape")
    if any(char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char < "\ue000" for char in word):
        escaped = "".join(
            chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in plain
        )
        return f"$'{escaped}'"
    if word and not _NEEDS_QUOTES.search(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def outcome(run: Mapping[str, object]) -> str:
    """Return how a run ended, in words; empty if it ended well or nothing says how."""
    code = whole(run.get("exit_code"))
    if code is None or code == 0:
        return ""
    if code == 130:
        return "This run was stopped before its last step; the numbers here end there."
    return f"This run failed with exit code {code}; train.log says why."


def seconds_per_step(metrics: Sequence[Metric]) -> float | None:
    """Return the median time of a step, or None if it is unknown; the first steps are often slow."""
    known = [metric.seconds for metric in metrics if metric.seconds is not None]
    return statistics.median(known) if known else None


def _validation(run: Mapping[str, object]) -> str:
    """Return what the validation loss was measured on, in words."""
    plan = run.get("plan")
    plan = plan if isinstance(plan, dict) else {}
    if folder := run.get("validation_folder"):
        return f"the folder {PurePath(str(folder)).name}"
    count = sum(len(dicts(data_set.get("held_out"))) for data_set in dicts(plan.get("data_sets")))
    share = plan.get("validation")
    known = count and isinstance(share, float)
    return f"{counted(count, 'image')} ({percent(share)} of each data set)" if known else ""


def _config_settings(config: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return resolution, batch size and bucketing, each with all values that the data sets have."""
    general = config.get("general")
    fallback = general if isinstance(general, dict) else {}
    rows = []
    for key, label in (
        ("resolution", "resolution"),
        ("batch_size", "batch size"),
        ("enable_bucket", "buckets"),
        ("bucket_no_upscale", "small images kept small"),
        ("bucket_reso_steps", "bucket step"),
        ("min_bucket_reso", "smallest bucket side"),
        ("max_bucket_reso", "largest bucket side"),
        ("caption_extension", "captions' extension"),
    ):
        values = [data_set.get(key, fallback.get(key)) for data_set in dicts(config.get("datasets"))]
        shown = dict.fromkeys(_first(value) for value in values or [fallback.get(key)])
        rows.append((label, ", ".join(value for value in shown if value)))
    return rows


def _first(*values: object) -> str:
    """Return the first value that says something, as text."""
    for value in values:
        if isinstance(value, bool) or str(value) in ("True", "False"):
            return "yes" if str(value) == "True" else "no"
        if isinstance(value, (list, tuple)) and value:
            return " × ".join(map(str, value))
        if value not in (None, "", "None", "null", [], ()):
            return str(value)
    return ""
