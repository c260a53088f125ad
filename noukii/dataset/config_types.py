"""The settings in a data set file: kohya's keys, defaults and limits.

Source: sd-scripts 48d368f, library/config_util.py and `BaseDataset` in library/train_util.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noukii.dataset.buckets import BucketRule

STEP_MULTIPLE = 64
"""SD 1.x halves its latents (an eighth of the picture) three times: sides must divide by this."""


MAX_REPEATS = 10_000
"""A larger number at the start of a folder's name is a date (20240131_trip), not a wish."""


@dataclass(frozen=True)
class SubsetConfig:
    """One folder of pictures; the fields are kohya's keys with kohya's defaults."""

    image_dir: Path
    num_repeats: int = 1
    class_tokens: str | None = None
    caption_extension: str = ".caption"
    caption_prefix: str | None = None
    shuffle_caption: bool = False
    keep_tokens: int = 0
    caption_dropout_rate: float = 0.0
    caption_tag_dropout_rate: float = 0.0
    flip_aug: bool = False
    is_reg: bool = False


@dataclass(frozen=True)
class DatasetConfig:
    """Folders that share a resolution, a batch size and their buckets."""

    rule: BucketRule
    batch_size: int
    subsets: tuple[SubsetConfig, ...]


@dataclass(frozen=True)
class TrainConfig:
    """A whole file."""

    datasets: tuple[DatasetConfig, ...]


DATASET_DEFAULTS: dict[str, Any] = {
    "resolution": None,
    "batch_size": 1,
    "enable_bucket": False,
    "bucket_no_upscale": False,
    "bucket_reso_steps": 64,
    "min_bucket_reso": 256,
    "max_bucket_reso": 1024,
}
SUBSET_DEFAULTS: dict[str, Any] = {
    "num_repeats": 1,
    "class_tokens": None,
    "caption_extension": ".caption",
    "caption_prefix": None,
    "shuffle_caption": False,
    "keep_tokens": 0,
    "caption_dropout_rate": 0.0,
    "caption_tag_dropout_rate": 0.0,
    "flip_aug": False,
}
SUBSET_ONLY: dict[str, Any] = {"image_dir": None, "is_reg": False}


def rule_problem(rule: BucketRule) -> tuple[str, str] | None:
    """Say why SD 1.5 cannot be trained with a rule, as (reason, next step); None if it can.

    sd-scripts stops with an assertion in the same cases.
    """
    if not rule.enable:
        if any(side % STEP_MULTIPLE for side in rule.resolution):
            return (
                f"resolution {rule.resolution[0]}x{rule.resolution[1]} is no multiple of {STEP_MULTIPLE}",
                "choose one, or set enable_bucket = true",
            )
        return None
    if rule.step % STEP_MULTIPLE:
        return f"bucket_reso_steps is {rule.step}", f"SD 1.5 wants a multiple of {STEP_MULTIPLE}"
    if rule.min_size - rule.min_size % rule.step > min(rule.resolution):
        return (
            f"min_bucket_reso {rule.min_size} is over the resolution {min(rule.resolution)}",
            "lower it or raise the resolution",
        )
    if -(-rule.max_size // rule.step) * rule.step < max(rule.resolution):
        return (
            f"max_bucket_reso {rule.max_size} is under the resolution {max(rule.resolution)}",
            "raise it or lower the resolution",
        )
    return None
