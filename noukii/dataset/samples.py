"""What a trainer trains on: pictures with their captions, buckets and repeats.

The rules are those of sd-scripts 48d368f (`DreamBoothDataset` and `make_buckets` in
library/train_util.py), except that nothing is dropped silently: see `SampleSet.skipped` and `.notes`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from noukii.dataset.buckets import Bucket, Fit, fit
from noukii.dataset.captions import UnreadableCaption, find_captions, read_caption
from noukii.dataset.config_file import DatasetConfig, SubsetConfig, TrainConfig
from noukii.dataset.images import ImageInfo, Skipped, inspect_images, list_images
from noukii.errors import InputError
from noukii.names import printable


@dataclass(frozen=True)
class Sample:
    """One picture as it is trained: `repeats` times in an epoch, with `caption` (prefix included)."""

    image: ImageInfo
    caption: str
    fit: Fit
    subset: SubsetConfig
    repeats: int


@dataclass(frozen=True)
class SampleSet:
    """The samples of one [[datasets]] entry; found = samples + skipped (+ unused pictures of reg sets)."""

    config: DatasetConfig
    samples: tuple[Sample, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]

    def bucket_counts(self) -> dict[Bucket, int]:
        """Pictures in each bucket, repeats counted, sorted by width, then height."""
        counts: Counter[Bucket] = Counter()
        for sample in self.samples:
            counts[sample.fit.bucket] += sample.repeats
        return dict(sorted(counts.items()))


def load_samples(config: TrainConfig) -> list[SampleSet]:
    """Read the folders a data set file names and return what is trained, one entry per data set.

    Raises:
        InputError: a folder is missing, or a data set has no usable picture.
    """
    return [_load_dataset(dataset) for dataset in config.datasets]


def steps_per_epoch(sets: Sequence[SampleSet]) -> int:
    """Batches of one epoch: a bucket's last batch may be a partial one, data sets never share one."""
    return sum(
        -(-count // each.config.batch_size) for each in sets for count in each.bucket_counts().values()
    )


def fit_samples(
    subset: SubsetConfig, pictures: Sequence[tuple[ImageInfo, str]], config: DatasetConfig
) -> tuple[list[Sample], list[Skipped]]:
    """Put pictures with their captions into buckets; those that fit into none are named."""
    samples, skipped = [], []
    for info, caption in pictures:
        try:
            its_fit = fit(info.width, info.height, config.rule)
        except ValueError as error:
            skipped.append(Skipped(info.path, str(error)))
            continue
        text = f"{subset.caption_prefix} {caption}" if subset.caption_prefix else caption
        samples.append(Sample(info, text, its_fit, subset, subset.num_repeats))
    return samples, skipped


def _load_dataset(config: DatasetConfig) -> SampleSet:
    trained: list[Sample] = []
    regular: list[Sample] = []
    skipped: list[Skipped] = []
    notes: list[str] = []
    for subset in config.subsets:
        samples, missing = _load_subset(subset, config, notes)
        (regular if subset.is_reg else trained).extend(samples)
        skipped += missing
    if not trained:
        folders = ", ".join(printable(subset.image_dir) for subset in config.subsets if not subset.is_reg)
        first = f" (the first of {len(skipped)}: {skipped[0].reason})" if skipped else ""
        raise InputError(folders or "data set", f"has no usable image{first}", "check image_dir")
    balanced, unused = balance_regularisation(regular, sum(sample.repeats for sample in trained))
    if unused:
        notes.append(f"{unused} regularisation images are not used: there are more than training images")
    return SampleSet(config, (*trained, *balanced), tuple(skipped), tuple(notes))


def _load_subset(
    subset: SubsetConfig, config: DatasetConfig, notes: list[str]
) -> tuple[list[Sample], list[Skipped]]:
    listing = list_images(subset.image_dir)
    infos, broken = inspect_images(listing.images)
    captions = find_captions([info.path for info in infos], (subset.caption_extension,))
    skipped = [*listing.skipped, *broken]
    pictures, without = [], 0
    for info in infos:
        path = captions[info.path]
        if path is None:
            without += 1
            pictures.append((info, subset.class_tokens or ""))
            continue
        try:
            caption = read_caption(path)
        except UnreadableCaption as error:
            skipped.append(Skipped(info.path, f"its caption {printable(path.name)}: {error}"))
            continue
        notes += [f"{printable(path)}: {note}" for note in caption.notes]
        pictures.append((info, caption.text))
    if without:
        instead = f"class_tokens {subset.class_tokens!r}" if subset.class_tokens else "an empty caption"
        notes.append(f"{printable(subset.image_dir)}: {without} images without a caption file use {instead}")
    samples, too_small = fit_samples(subset, pictures, config)
    return samples, skipped + too_small


def balance_regularisation(regular: Sequence[Sample], trained: int) -> tuple[list[Sample], int]:
    """Give regularisation pictures as many repeats as `trained` needs; also return how many are unused.

    As sd-scripts does: each is taken with its own repeats until the count is reached; then, if still
    short, one repeat more for each in turn.
    """
    repeats: list[int] = []
    total = 0
    for sample in regular:
        if total >= trained:
            break
        repeats.append(sample.repeats)
        total += sample.repeats
    while repeats and total < trained:
        for index in range(len(repeats)):
            if total >= trained:
                break
            repeats[index] += 1
            total += 1
    balanced = [
        dataclasses.replace(sample, repeats=count)
        for sample, count in zip(regular, repeats, strict=False)  # the rest is unused
    ]
    return balanced, len(regular) - len(balanced)
