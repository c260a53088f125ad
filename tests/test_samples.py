"""What the trainer trains on, from a data set file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from noukii.dataset.buckets import Bucket, BucketRule, Fit
from noukii.dataset.config_file import DatasetConfig, SubsetConfig, TrainConfig
from noukii.dataset.images import ImageInfo
from noukii.dataset.samples import Sample, SampleSet, balance_regularisation, load_samples, steps_per_epoch
from noukii.errors import InputError

OURS = BucketRule((128, 128), True, True, 64, 64, 2048)


def fill(folder: Path, sizes: dict[str, tuple[int, int]]) -> Path:
    folder.mkdir()
    for name, size in sizes.items():
        Image.new("RGB", size).save(folder / name)
    return folder


def load(*subsets: SubsetConfig, batch_size: int = 4) -> SampleSet:
    return load_samples(TrainConfig((DatasetConfig(OURS, batch_size, subsets),)))[0]


def test_captions_by_kohyas_rules(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", {f"{name}.png": (64, 64) for name in "abcd"} | {"a_1_2_3_4.png": (64, 64)})
    (folder / "a.txt").write_text("first line\nsecond")
    (folder / "b.caption").write_text("not looked for")
    (folder / "c.txt").write_bytes("\ufeffcat".encode("utf-16-le"))
    (folder / "d.txt").write_bytes(b"\x94\x4c\x8d\xc0")
    subset = SubsetConfig(folder, 3, "cls", ".txt")
    found = load(subset)
    captions = {sample.image.path.name: sample.caption for sample in found.samples}
    assert captions == {"a.png": "first line second", "b.png": "cls", "c.png": "cat", "a_1_2_3_4.png": "cls"}
    assert [one.path.name for one in found.skipped] == ["d.png"] and "d.txt" in found.skipped[0].reason
    assert all(sample.repeats == 3 for sample in found.samples)
    assert any("2 images without a caption" in note for note in found.notes)
    without = load(replace(subset, class_tokens=None, caption_prefix="photo of"))
    captions = {sample.image.path.name: sample.caption for sample in without.samples}
    assert captions["a.png"] == "photo of first line second" and captions["b.png"] == "photo of "
    other = load(replace(subset, caption_extension=".caption"))
    assert {sample.caption for sample in other.samples} == {"cls", "not looked for"}


def test_found_is_used_and_skipped(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "a", {"a.png": (64, 64), "b.png": (300, 40), "c.png": (1, 1), "d.png": (200, 100)}
    )
    (folder / "e.png").write_text("text")
    found = load(SubsetConfig(folder))
    assert [sample.image.path.name for sample in found.samples] == ["a.png", "d.png"]
    assert {one.path.name for one in found.skipped} == {"b.png", "c.png", "e.png"}
    assert found.samples[1].fit == Fit(Bucket(128, 64), (128, 64))


def test_steps_are_counted_per_bucket_and_data_set(tmp_path: Path) -> None:
    wide = fill(tmp_path / "wide", {f"{n}.png": (128, 64) for n in range(3)})
    mixed = fill(tmp_path / "mixed", {"a.png": (64, 128), "b.png": (128, 64)})
    sets = load_samples(
        TrainConfig(
            (
                DatasetConfig(OURS, 4, (SubsetConfig(wide, 3), SubsetConfig(mixed, 5))),
                DatasetConfig(OURS, 2, (SubsetConfig(wide, 1),)),
            )
        )
    )
    assert sets[0].bucket_counts() == {Bucket(64, 128): 5, Bucket(128, 64): 14}
    assert steps_per_epoch(sets) == (2 + 4) + 2


def test_a_missing_or_useless_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load(SubsetConfig(tmp_path / "none"))
    with pytest.raises(InputError, match="no usable image"):
        load(SubsetConfig(fill(tmp_path / "empty", {})))
    with pytest.raises(InputError, match="1x1"):
        load(SubsetConfig(fill(tmp_path / "tiny", {"a.png": (1, 1)})))
    with pytest.raises(InputError, match="no usable image"):
        load(SubsetConfig(fill(tmp_path / "reg", {"a.png": (64, 64)}), is_reg=True))


def test_regularisation_images_come_up_to_the_training_images(tmp_path: Path) -> None:
    train = fill(tmp_path / "train", {f"{n}.png": (64, 64) for n in range(3)})
    reg = fill(tmp_path / "reg", {"a.png": (64, 64), "b.png": (64, 64)})
    found = load(SubsetConfig(train, 5), SubsetConfig(reg, 2, is_reg=True))
    regular = [sample.repeats for sample in found.samples if sample.subset.is_reg]
    assert regular == [8, 7]
    few = load(SubsetConfig(train, 1), SubsetConfig(reg, 3, is_reg=True))
    assert [sample.repeats for sample in few.samples if sample.subset.is_reg] == [3]
    assert any("1 regularisation images are not used" in note for note in few.notes)


def kohyas_loop(repeats: list[int], trained: int) -> dict[int, int]:
    """The balancing as library/train_util.py, DreamBoothDataset, describes it in its own order."""
    counts: dict[int, int] = {}
    total, first = 0, True
    while repeats and total < trained:
        for index, own in enumerate(repeats):
            counts[index] = own if first else counts[index] + 1
            total += own if first else 1
            if total >= trained:
                break
        first = False
    return counts


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(0, 60))
def test_balancing_agrees_with_kohyas_loop(repeats: list[int], trained: int) -> None:
    info = ImageInfo(Path("a.png"), 64, 64, True, (), "")
    subset = SubsetConfig(Path("reg"), is_reg=True)
    samples = [
        Sample(info, str(n), Fit(Bucket(64, 64), (64, 64)), subset, own) for n, own in enumerate(repeats)
    ]
    balanced, unused = balance_regularisation(samples, trained)
    assert {int(sample.caption): sample.repeats for sample in balanced} == kohyas_loop(repeats, trained)
    assert len(balanced) + unused == len(repeats)
