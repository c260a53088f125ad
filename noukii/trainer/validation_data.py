"""The images that a run is measured on and does not train: a share of each data set, or a folder.

Without torch, so that all of it is checked before a model is loaded (R4).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from noukii.dataset.config_file import SubsetConfig, TrainConfig
from noukii.dataset.held_out import held_out
from noukii.dataset.samples import Sample, SampleSet, load_samples
from noukii.errors import InputError
from noukii.trainer.settings import TrainerSettings

SPLIT, FOLDER = "--validation_split", "--validation_data_dir"


def split(
    settings: TrainerSettings, sets: Sequence[SampleSet]
) -> tuple[tuple[SampleSet, ...], tuple[Sample, ...]]:
    """Return what is trained, and the samples to measure on (none, if no flag asks for it).

    Raises:
        InputError: no data set has an image to spare, or the folder holds none that can be used.
    """
    if settings.validation_data_dir is not None:
        return tuple(sets), _of_folder(settings, sets)
    if not settings.validation_split:
        return tuple(sets), ()
    trained, apart = [], []
    for one in sets:
        places = _held_out(one, settings.validation_split)
        apart += [one.samples[place] for place in sorted(places)]
        rest = tuple(sample for place, sample in enumerate(one.samples) if place not in places)
        trained.append(replace(one, samples=rest))
    if not apart:
        raise InputError(
            SPLIT, "no data set has an image to spare", f"add images, or name a folder with {FOLDER}"
        )
    return tuple(trained), tuple(apart)


def _held_out(one: SampleSet, share: float) -> set[int]:
    """Return the places of the samples that are held out, of each folder its share."""
    folders: dict[str, list[int]] = {}
    for place, sample in enumerate(one.samples):
        if not sample.subset.is_reg:
            folders.setdefault(os.fspath(sample.subset.image_dir), []).append(place)
    found: set[int] = set()
    for places in folders.values():
        names = [os.path.splitext(one.samples[place].image.path.name)[0] for place in places]
        found |= {places[number] for number in held_out(names, share)}
    return found


def _of_folder(settings: TrainerSettings, sets: Sequence[SampleSet]) -> tuple[Sample, ...]:
    folder, first = settings.validation_data_dir, sets[0].config
    assert folder is not None
    subset = SubsetConfig(folder, 1, None, ".txt")
    config = TrainConfig((replace(first, subsets=(subset,)),))
    samples = load_samples(config)[0].samples
    known = {sample.image.sha256 for one in sets for sample in one.samples}
    if all(sample.image.sha256 in known for sample in samples):
        raise InputError(
            folder, "all of its images are trained on as well, so they cannot show over-fitting",
            "name a folder of other images",
        )  # fmt: skip
    return tuple(sample for sample in samples if sample.image.sha256 not in known)
