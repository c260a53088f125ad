"""What a training run will do, worked out before anything is written or any model is loaded (R4).

    plan = make_plan(data_sets, ignored, resolution=512, batch_size=4, steps=400)
    print(describe(plan))

Found is always used + skipped (R3): `PlannedSet.found`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from noukii.dataset.buckets import Bucket, BucketRule
from noukii.dataset.caption_check import CaptionReport, PlannedCaption, check_captions
from noukii.dataset.config_file import DatasetConfig, SubsetConfig, rule_problem
from noukii.dataset.folders import DataSet
from noukii.dataset.held_out import held_out
from noukii.dataset.images import ImageInfo, Skipped, inspect_images, list_images, safe_stems
from noukii.dataset.plan_advice import advice
from noukii.dataset.plan_text import describe, plan_dict, skipped_lines
from noukii.dataset.samples import Sample, SampleSet, fit_samples, steps_per_epoch
from noukii.errors import InputError

__all__ = ["Plan", "PlannedImage", "PlannedSet", "bucket_rule", "describe", "make_plan"]

DEFAULT_STEPS = 400
BUCKET_STEP = 64
MIN_BUCKET = 256
MAX_BUCKET = 2048


@dataclass(frozen=True)
class PlannedImage:
    """A picture that will be trained: the stem of its copy and the caption written beside it."""

    info: ImageInfo
    stem: str
    caption: PlannedCaption


@dataclass(frozen=True)
class PlannedSet:
    """One data set folder as it will be staged."""

    data_set: DataSet
    images: tuple[PlannedImage, ...]
    skipped: tuple[Skipped, ...]
    litter: int
    captions: CaptionReport
    held_out: tuple[PlannedImage, ...] = ()
    """Pictures that the training is measured on and that are not trained."""

    @property
    def copies(self) -> tuple[PlannedImage, ...]:
        """All pictures that are staged."""
        return (*self.images, *self.held_out)

    @property
    def found(self) -> int:
        return len(self.copies) + len(self.skipped)

    @property
    def samples(self) -> int:
        """Samples per epoch: images times repeats."""
        return len(self.images) * self.data_set.repeats


@dataclass(frozen=True)
class Plan:
    """A run. `steps` are optimiser steps; `epochs` those begun; `ignored` lay beside the data sets."""

    sets: tuple[PlannedSet, ...]
    ignored: tuple[Skipped, ...]
    rule: BucketRule
    batch_size: int
    accumulation: int
    buckets: dict[Bucket, int]
    steps_per_epoch: int
    steps: int
    epochs: int
    max_token_length: int
    staging_bytes: int
    largest_bytes: int
    bucket_images: dict[Bucket, int] = field(default_factory=dict)
    """Different pictures in each bucket."""
    lone: tuple[tuple[Bucket, str], ...] = ()
    """Buckets with a single picture, and its name."""
    validation: float | None = None
    """The share of the pictures that is held out."""
    tag_dropout: float = 0.0
    """How often a part of a caption is left out; the first, the trigger word, always stays."""

    @property
    def samples_per_epoch(self) -> int:
        return sum(each.samples for each in self.sets)

    def trained(self, subset: SubsetConfig) -> SubsetConfig:
        """Return the subset as this plan trains it."""
        if not self.tag_dropout:
            return subset
        return replace(subset, keep_tokens=1, caption_tag_dropout_rate=self.tag_dropout)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before a long run, each with its remedy."""
        return tuple(
            f"{each.data_set.name}: {warning}" for each in self.sets for warning in each.captions.warnings()
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """What else is likely to make the LoRA worse, each with its remedy."""
        return tuple(advice(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; paths are text, file names in them as they are on disk."""
        return plan_dict(self)


def bucket_rule(resolution: int) -> BucketRule:
    """Return the buckets of our data set file (DESIGN): pictures are never enlarged.

    sd-scripts insists on min <= resolution <= max even where neither has an effect.
    """
    low = min(MIN_BUCKET, resolution // BUCKET_STEP * BUCKET_STEP)
    return BucketRule((resolution, resolution), True, True, BUCKET_STEP, low, max(MAX_BUCKET, resolution))


def make_plan(
    data_sets: Sequence[DataSet],
    ignored: Sequence[Skipped] = (),
    *,
    resolution: int = 512,
    batch_size: int = 4,
    steps: int | None = None,
    epochs: int | None = None,
    accumulation: int = 1,
    max_token_length: int = 75,
    validation: float | None = None,
    tag_dropout: float = 0.0,
    advance: Callable[[], object] | None = None,
) -> Plan:
    """Look at every file of the data sets and return what training on them comes to.

    `steps` are optimiser steps, `epochs` wins over it, as in sd-scripts; neither means 400 steps.
    `validation`: the share of each data set's pictures that is held out to measure the training on.
    `tag_dropout`: how often each part of a caption but the first is left out of a step.
    `advance` is called once for each picture looked at.

    Raises:
        InputError: a data set has no usable picture or no caption at all, or a setting is impossible.
    """
    if resolution < BUCKET_STEP:
        raise InputError("--resolution", f"{resolution} is too small", f"{BUCKET_STEP} or more is possible")
    rule = bucket_rule(resolution)
    if problem := rule_problem(rule):
        raise InputError("--resolution", *problem)
    planned, samples = [], []
    for data_set in data_sets:
        one, its_samples = _plan_set(data_set, rule, batch_size, max_token_length, validation, advance)
        planned.append(one)
        samples += its_samples
    config = DatasetConfig(rule, batch_size, tuple(_subset(one) for one in data_sets))
    sample_set = SampleSet(config, tuple(samples), (), ())
    batches = steps_per_epoch([sample_set])
    updates = math.ceil(batches / accumulation)
    total = epochs * updates if epochs is not None else steps if steps is not None else DEFAULT_STEPS
    copies = [_copy_bytes(image.info) for each in planned for image in each.copies]
    names: dict[Bucket, list[str]] = {}
    for sample in samples:
        names.setdefault(sample.fit.bucket, []).append(sample.image.path.name)
    return Plan(
        tuple(planned),
        tuple(ignored),
        rule,
        batch_size,
        accumulation,
        sample_set.bucket_counts(),
        updates,
        total,
        math.ceil(total / updates),
        max_token_length,
        sum(copies),
        max(copies),
        {bucket: len(names[bucket]) for bucket in sample_set.bucket_counts()},
        tuple((bucket, one[0]) for bucket, one in _by_size(names) if len(one) == 1),
        validation,
        tag_dropout,
    )


def _by_size(names: dict[Bucket, list[str]]) -> list[tuple[Bucket, list[str]]]:
    return sorted(names.items(), key=lambda item: (item[0].width, item[0].height))


def _subset(data_set: DataSet) -> SubsetConfig:
    return SubsetConfig(data_set.folder, data_set.repeats, data_set.keyword, ".txt")


def _plan_set(
    data_set: DataSet,
    rule: BucketRule,
    batch_size: int,
    max_token_length: int,
    validation: float | None,
    advance: Callable[[], object] | None,
) -> tuple[PlannedSet, list[Sample]]:
    listing = list_images(data_set.folder)
    infos, broken = inspect_images(listing.images, advance)
    report = check_captions(infos, data_set.keyword, max_token_length)
    skipped = [*listing.skipped, *broken, *report.unreadable]
    subset = _subset(data_set)
    config = DatasetConfig(rule, batch_size, (subset,))
    captioned = [(info, report.captions[info.path].text) for info in infos if info.path in report.captions]
    samples, too_small = fit_samples(subset, captioned, config)
    skipped += too_small
    if not samples:
        raise _nothing_usable(data_set, skipped)
    used = [sample.image for sample in samples]
    report = report.only(used)
    if not report.found:
        raise _no_captions(data_set, len(used), report)
    stems = safe_stems([info.path for info in used])
    images = tuple(PlannedImage(info, stems[info.path], report.captions[info.path]) for info in used)
    ordered = sorted(skipped, key=lambda one: one.path.parts)
    apart = held_out([image.stem for image in images], validation) if validation else set()
    trained = tuple(image for place, image in enumerate(images) if place not in apart)
    kept_back = tuple(image for place, image in enumerate(images) if place in apart)
    samples = [sample for place, sample in enumerate(samples) if place not in apart]
    return PlannedSet(data_set, trained, tuple(ordered), listing.litter, report, kept_back), samples


def _nothing_usable(data_set: DataSet, skipped: Sequence[Skipped]) -> InputError:
    listed = "".join(f"\n    {line}" for line in skipped_lines(skipped))
    return InputError(
        data_set.folder, f"has no usable image{listed}", "replace them, or leave the data set out"
    )


def _no_captions(data_set: DataSet, count: int, report: CaptionReport) -> InputError:
    empty = f" ({len(report.empty)} are empty)" if report.empty else ""
    which = f"none of its {count} images has" if count > 1 else "its only image has not"
    return InputError(
        data_set.folder,
        f"no captions: {which} a .txt or .caption file of its own name{empty}",
        "./run_captioning.sh FOLDER KEYWORD writes them; once a few images have one, the others may do"
        f" with the keyword '{data_set.keyword}' alone",
    )


def _copy_bytes(info: ImageInfo) -> int:
    """What a training copy takes on disk; a PNG of a photograph comes to about two thirds of its pixels."""
    return info.size_bytes if info.as_is else info.width * info.height * 2
