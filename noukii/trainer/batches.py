"""Which samples make up step N, and what is drawn for them: pure functions of (seed, step).

Nothing here depends on the device, on worker threads, on how many processes share the work, or on what was
drawn before; so a resumed run sees what the uninterrupted one would have seen.

An epoch is a list of batches. Every sample of every data set is in it exactly `repeats` times; a batch holds
samples of one bucket of one data set; a bucket may end in a smaller batch, so an epoch has
Σ ⌈samples of the bucket, with repeats / batch size⌉ batches, as kohya's has. The batches of all buckets are
shuffled together. Step N takes the next `gradient_accumulation_steps × processes` batches; the last step of
an epoch takes what is left.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from noukii.dataset.config_types import SubsetConfig
from noukii.dataset.samples import Sample, SampleSet

if TYPE_CHECKING:
    import torch

Thing = TypeVar("Thing")

MOST_LOOSE_PARTS = 4
"""Of a caption whose parts are left out: 16 texts are computed beforehand, more would be many."""


@dataclass(frozen=True)
class Batch:
    """Samples of one size: numbers of `SampleSet.samples` in data set number `set_index`."""

    set_index: int
    sample_indices: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """What optimiser step `number` (from 0) works on; `epoch` counts from 0."""

    number: int
    epoch: int
    batches: tuple[Batch, ...]
    ends_epoch: bool


class Schedule:
    """The batches of every step of a run."""

    def __init__(self, sets: Sequence[SampleSet], seed: int, batches_per_step: int) -> None:
        self._sets, self._seed, self._batches_per_step = tuple(sets), seed, batches_per_step
        self.batches_per_epoch = len(epoch_batches(self._sets, seed, 0))
        self.steps_per_epoch = math.ceil(self.batches_per_epoch / batches_per_step)
        self._epoch = lru_cache(maxsize=2)(lambda epoch: epoch_batches(self._sets, seed, epoch))

    def step(self, number: int) -> Step:
        """Return step `number`, counted from 0."""
        epoch, position = divmod(number, self.steps_per_epoch)
        first = position * self._batches_per_step
        batches = self._epoch(epoch)[first : first + self._batches_per_step]
        return Step(number, epoch, tuple(batches), position == self.steps_per_epoch - 1)


def epoch_batches(sets: Sequence[SampleSet], seed: int, epoch: int) -> list[Batch]:
    """Return the batches of one epoch (from 0) in their order."""
    batches: list[Batch] = []
    for set_index, one in enumerate(sets):
        buckets: dict[tuple[int, int], list[int]] = {}
        for index, sample in enumerate(one.samples):
            bucket = sample.fit.bucket
            buckets.setdefault((bucket.width, bucket.height), []).append(index)
        for size in sorted(buckets):
            numbers = random.Random(derived_seed(seed, "order", epoch, set_index, *size))
            copies = [(index, one.samples[index].repeats) for index in buckets[size]]
            order = _spread(copies, numbers)
            for chosen in _without_twins(order, one.config.batch_size):
                batches.append(Batch(set_index, tuple(chosen)))
    numbers = random.Random(derived_seed(seed, "interleave", epoch))
    return _shuffled(batches, numbers)


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed of 63 bits for one purpose: the same words give the same seed, others another."""
    words = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1


def noise_generator(seed: int, step: int, batch: int = 0, purpose: str = "noise") -> torch.Generator:
    """Return torch's CPU generator for one purpose of batch number `batch` of step `step` (from 0)."""
    import torch

    return torch.Generator().manual_seed(derived_seed(seed, purpose, step, batch))


def is_flipped(sample: Sample, seed: int, step: int, batch: int, place: int) -> bool:
    """Say whether the sample at `place` of the batch is mirrored in this step (half the time)."""
    return sample.subset.flip_aug and _numbers(seed, "flip", step, batch, place).random() < 0.5


def caption_of(sample: Sample, seed: int, step: int, batch: int, place: int) -> str:
    """Return the sample's caption in this step: dropped or shuffled as its subset asks.

    kohya's rules: a dropped caption is empty; shuffling moves the comma-separated parts after the first
    `keep_tokens` ones, and `caption_tag_dropout_rate` is the chance of each of them to be left out.
    `caption_prefix` is part of `sample.caption` already.
    """
    subset = sample.subset
    if subset.caption_dropout_rate > 0:
        numbers = _numbers(seed, "caption dropout", step, batch, place)
        if numbers.random() < subset.caption_dropout_rate:
            return ""
    if not _changes_parts(subset):
        return sample.caption
    kept, loose = _parts(sample)
    if subset.shuffle_caption:
        loose = _shuffled(loose, _numbers(seed, "caption shuffle", step, batch, place))
    if subset.caption_tag_dropout_rate > 0:
        numbers = _numbers(seed, "caption tag dropout", step, batch, place)
        loose = [part for part in loose if numbers.random() >= subset.caption_tag_dropout_rate]
    return ", ".join(kept + loose)


def possible_captions(sets: Sequence[SampleSet]) -> list[str] | None:
    """Return every caption that a run can use, without doubles; None if that would be too many."""
    texts: dict[str, None] = {}
    for one in sets:
        for sample in one.samples:
            if not _changes_parts(sample.subset):
                texts[sample.caption] = None
            else:
                kept, loose = _parts(sample)
                if sample.subset.shuffle_caption or len(loose) > MOST_LOOSE_PARTS:
                    return None
                for count in range(len(loose) + 1):
                    texts.update(
                        dict.fromkeys(", ".join([*kept, *some]) for some in combinations(loose, count))
                    )
            if sample.subset.caption_dropout_rate > 0:
                texts[""] = None
    return list(texts)


def _changes_parts(subset: SubsetConfig) -> bool:
    return subset.shuffle_caption or subset.caption_tag_dropout_rate > 0


def _parts(sample: Sample) -> tuple[list[str], list[str]]:
    """The comma-separated parts of a caption: those that always stand first, and the others."""
    parts = [part.strip() for part in sample.caption.strip().split(",")]
    return parts[: sample.subset.keep_tokens], parts[sample.subset.keep_tokens :]


def _numbers(seed: int, purpose: str, *place: int) -> random.Random:
    return random.Random(derived_seed(seed, purpose, *place))


def _shuffled(things: list[Thing], numbers: random.Random) -> list[Thing]:
    keyed = [(numbers.random(), place) for place in range(len(things))]
    return [things[place] for _, place in sorted(keyed)]


def _spread(copies: list[tuple[int, int]], numbers: random.Random) -> list[int]:
    """Return each index as often as it repeats, its copies spread evenly over a random order."""
    keyed = [
        ((turn + numbers.random()) / repeats, index) for index, repeats in copies for turn in range(repeats)
    ]
    return [index for _, index in sorted(keyed)]


def _without_twins(order: list[int], size: int) -> list[list[int]]:
    """Cut `order` into batches, then exchange the second copy of an image in a batch for one from another.

    Where too few different images exist, twins stay.
    """
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    for batch in batches:
        for place, index in enumerate(batch):
            if index in batch[:place]:
                _exchange(batches, batch, place)
    return batches


def _exchange(batches: list[list[int]], batch: list[int], place: int) -> None:
    index = batch[place]
    for other in batches:
        if index in other:
            continue
        for there, candidate in enumerate(other):
            if candidate not in batch:
                batch[place], other[there] = candidate, index
                return
