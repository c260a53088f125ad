"""The order of samples and everything drawn for them: pure functions of (seed, step)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from noukii.dataset.buckets import Bucket, BucketRule, Fit
from noukii.dataset.config_file import DatasetConfig, SubsetConfig
from noukii.dataset.images import ImageInfo
from noukii.dataset.samples import Sample, SampleSet, steps_per_epoch
from noukii.trainer import batches
from noukii.trainer.batches import Schedule, epoch_batches

RULE = BucketRule((512, 512), True, True, 64, 256, 1024)
BUCKETS = (Bucket(512, 512), Bucket(640, 384), Bucket(384, 640))
SUBSET = SubsetConfig(Path("images"))

Shape = list[tuple[int, int]]
shapes = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=12)
"""A data set: for each image its bucket and its repeats."""


def make_set(shape: Shape, batch_size: int, subset: SubsetConfig = SUBSET) -> SampleSet:
    samples = tuple(
        Sample(
            ImageInfo(Path(f"{n}.png"), 512, 512, True, (), f"{n:064x}"),
            f"caption {n}",
            Fit(BUCKETS[bucket], (BUCKETS[bucket].width, BUCKETS[bucket].height)),
            subset,
            repeats,
        )
        for n, (bucket, repeats) in enumerate(shape)
    )
    return SampleSet(DatasetConfig(RULE, batch_size, (subset,)), samples, (), ())


@given(
    st.lists(shapes, min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 9)
)
def test_an_epoch_holds_every_image_exactly_its_repeats(
    data: list[Shape], size: int, seed: int, epoch: int
) -> None:
    sets = [make_set(shape, size) for shape in data]
    made = epoch_batches(sets, seed, epoch)
    seen = Counter((batch.set_index, index) for batch in made for index in batch.sample_indices)
    assert seen == {(s, i): repeats for s, shape in enumerate(data) for i, (_, repeats) in enumerate(shape)}
    for batch in made:
        assert 1 <= len(batch.sample_indices) <= size
        assert len({sets[batch.set_index].samples[i].fit.bucket for i in batch.sample_indices}) == 1


@given(st.lists(shapes, min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 99))
def test_steps_per_epoch_is_the_sum_over_buckets(data: list[Shape], size: int, seed: int) -> None:
    sets = [make_set(shape, size) for shape in data]
    expected = sum(
        math.ceil(sum(r for b, r in shape if b == bucket) / size) for shape in data for bucket in range(3)
    )
    assert len(epoch_batches(sets, seed, 0)) == expected == steps_per_epoch(sets)
    assert Schedule(sets, seed, 1).steps_per_epoch == expected


@given(shapes, st.integers(1, 4), st.integers(0, 99), st.integers(1, 4))
@settings(max_examples=40)
def test_steps_are_consecutive_pieces_of_the_epochs(
    shape: Shape, size: int, seed: int, per_step: int
) -> None:
    sets = [make_set(shape, size)]
    schedule = Schedule(sets, seed, per_step)
    steps = [schedule.step(number) for number in range(2 * schedule.steps_per_epoch)]
    for epoch in (0, 1):
        of_epoch = [step for step in steps if step.epoch == epoch]
        assert [batch for step in of_epoch for batch in step.batches] == epoch_batches(sets, seed, epoch)
        assert [step.ends_epoch for step in of_epoch] == [False] * (len(of_epoch) - 1) + [True]
    # Any step can be asked for alone, in any order: what a resumed run does.
    for number in reversed(range(len(steps))):
        assert Schedule(sets, seed, per_step).step(number) == steps[number]


@given(st.integers(2, 12), st.integers(1, 8), st.integers(2, 4), st.integers(0, 999))
def test_no_batch_holds_an_image_twice_where_that_can_be(
    images: int, repeats: int, size: int, seed: int
) -> None:
    made = epoch_batches([make_set([(0, repeats)] * images, size)], seed, 0)
    twins = [batch for batch in made if len(set(batch.sample_indices)) < len(batch.sample_indices)]
    if images >= size:
        assert not twins


def test_the_order_depends_on_seed_and_epoch() -> None:
    sets = [make_set([(n % 3, 4) for n in range(12)], 2)]
    orders = {tuple(epoch_batches(sets, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_buckets_are_mixed_within_an_epoch() -> None:
    sets = [make_set([(n % 2, 10) for n in range(10)], 2)]
    order = [sets[0].samples[batch.sample_indices[0]].fit.bucket.width for batch in epoch_batches(sets, 1, 0)]
    changes = sum(a != b for a, b in itertools.pairwise(order))
    assert changes > 10  # 49 neighbours; sorted buckets would change once


def test_the_order_is_the_same_on_every_machine() -> None:
    """A changed order would make saved states worthless; a change must be meant and noticed."""
    made = epoch_batches([make_set([(0, 2), (0, 1), (1, 3), (1, 1), (0, 2)], 2)], 42, 1)
    assert [batch.sample_indices for batch in made] == [(2, 2), (0,), (2, 3), (1, 4), (0, 4)]


def test_draws_differ_by_purpose_step_and_batch_only() -> None:
    import torch

    def draw(*place: int, purpose: str = "noise") -> tuple[float, ...]:
        return tuple(torch.randn(4, generator=batches.noise_generator(*place, purpose=purpose)).tolist())

    first = draw(1, 2, 3)
    torch.manual_seed(0)
    torch.randn(100)  # what else was drawn does not matter
    assert draw(1, 2, 3) == first
    others = [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 2, 3, purpose="posterior")]
    assert len({first, *others}) == 5


def test_flips_happen_half_the_time_and_only_where_asked() -> None:
    flipping = make_set([(0, 1)], 1, dataclasses.replace(SUBSET, flip_aug=True)).samples[0]
    plain = make_set([(0, 1)], 1).samples[0]
    flips = [batches.is_flipped(flipping, 5, step, 0, 0) for step in range(400)]
    assert 150 < sum(flips) < 250
    assert not any(batches.is_flipped(plain, 5, step, 0, 0) for step in range(100))


def test_captions_are_dropped_at_the_rate_given() -> None:
    subset = dataclasses.replace(SUBSET, caption_dropout_rate=0.25)
    sample = make_set([(0, 1)], 1, subset).samples[0]
    captions = [batches.caption_of(sample, 5, step, 0, 0) for step in range(800)]
    assert set(captions) == {"", "caption 0"}
    assert 140 < captions.count("") < 260


@given(st.integers(0, 6), st.integers(0, 500))
def test_shuffled_captions_keep_their_heads_and_lose_nothing(keep: int, step: int) -> None:
    subset = dataclasses.replace(SUBSET, shuffle_caption=True, keep_tokens=keep)
    sample = dataclasses.replace(make_set([(0, 1)], 1, subset).samples[0], caption="trigger, a,b , c, a")
    parts = batches.caption_of(sample, 5, step, 0, 0).split(", ")
    whole = ["trigger", "a", "b", "c", "a"]
    assert parts[:keep] == whole[:keep]
    assert sorted(parts) == sorted(whole)


@given(st.integers(0, 4), st.integers(0, 500))
def test_parts_are_left_out_behind_the_head(keep: int, step: int) -> None:
    subset = dataclasses.replace(SUBSET, keep_tokens=keep, caption_tag_dropout_rate=0.5)
    samples = make_set([(0, 1)], 1, subset)
    sample = dataclasses.replace(samples.samples[0], caption="trigger, a,b , c")
    whole = ["trigger", "a", "b", "c"]
    parts = [part for part in batches.caption_of(sample, 5, step, 0, 0).split(", ") if part]
    assert parts[:keep] == whole[:keep]
    assert [part for part in whole if part in parts] == parts  # their order stays


def test_parts_are_left_out_at_the_rate_given() -> None:
    subset = dataclasses.replace(SUBSET, keep_tokens=1, caption_tag_dropout_rate=0.3)
    one = make_set([(0, 1)], 1, subset)
    sample = dataclasses.replace(one.samples[0], caption="zorb, a large circle")
    captions = [batches.caption_of(sample, 5, step, 0, 0) for step in range(1000)]
    assert set(captions) == {"zorb", "zorb, a large circle"}
    assert 240 < captions.count("zorb") < 360
    one = dataclasses.replace(one, samples=(sample,))
    assert set(batches.possible_captions([one]) or ()) == set(captions)


def test_shuffling_changes_from_step_to_step() -> None:
    subset = dataclasses.replace(SUBSET, shuffle_caption=True, keep_tokens=1)
    sample = dataclasses.replace(make_set([(0, 1)], 1, subset).samples[0], caption="t, a, b, c, d")
    assert len({batches.caption_of(sample, 5, step, 0, 0) for step in range(60)}) > 10


def test_possible_captions_are_all_that_a_run_can_use() -> None:
    dropping = make_set([(0, 1)] * 3, 1, dataclasses.replace(SUBSET, caption_dropout_rate=0.1))
    plain = make_set([(0, 1)] * 2, 1)
    shuffled = make_set([(0, 1)], 1, dataclasses.replace(SUBSET, shuffle_caption=True))
    assert set(batches.possible_captions([plain]) or ()) == {"caption 0", "caption 1"}
    assert set(batches.possible_captions([dropping]) or ()) == {"", "caption 0", "caption 1", "caption 2"}
    assert batches.possible_captions([plain, shuffled]) is None
