"""The data of a run as its report shows them: each data set's images, captions and what to look at.

Everything comes from the plan that the run has written down; pictures are made small from the files that it
names, as far as they are still there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePath

from noukii.dataset.images import UnusableImage
from noukii.report import caption_checks as checks
from noukii.report.caption_records import whole
from noukii.report.cues import Cue
from noukii.report.run_data import dicts
from noukii.report.run_files import RunFiles
from noukii.report.thumbnails import Thumbnail, ThumbnailSpool

MOST_IMAGES = 200
"""Shown of all data sets together; the review page of a data set has all of them."""


@dataclass(frozen=True)
class ReviewedImage:
    """One trained (or held-out) image."""

    name: str
    caption: str
    size: tuple[int, int] | None
    flags: tuple[str, ...]
    held_out: bool
    thumbnail: Thumbnail | None


@dataclass(frozen=True)
class ReviewedSet:
    """One data set: counts of flags, key concepts with their shares, words in nearly all captions."""

    name: str
    trigger: str
    count: int
    flag_counts: tuple[tuple[checks.Flag, int], ...]
    cues: tuple[Cue, ...]
    common: tuple[tuple[str, float], ...]
    images: tuple[ReviewedImage, ...]

    @property
    def left_out(self) -> int:
        """How many images are not shown."""
        return self.count - len(self.images)


def review_data(
    files: RunFiles, cues: list[tuple[str, list[str]]], spool: ThumbnailSpool
) -> list[ReviewedSet]:
    """Return the data sets of a run's plan; an empty list if it has written none down."""
    plan = files.run.get("plan")
    found, room = [], MOST_IMAGES
    for data_set in dicts(plan.get("data_sets")) if isinstance(plan, dict) else []:
        one = _review_set(data_set, dict(cues), spool, room)
        room -= len(one.images)
        found.append(one)
    return [one for one in found if one.count]


def count_images(files: RunFiles) -> int:
    """Return how many pictures `review_data` will make small."""
    plan = files.run.get("plan")
    sets = dicts(plan.get("data_sets")) if isinstance(plan, dict) else []
    return min(MOST_IMAGES, sum(len(_images(data_set)) for data_set in sets))


def _images(data_set: dict[str, object]) -> list[tuple[dict[str, object], bool]]:
    """Return (image, is it held out) of a data set in the plan."""
    return [
        *((image, False) for image in dicts(data_set.get("images"))),
        *((image, True) for image in dicts(data_set.get("held_out"))),
    ]


def _review_set(
    data_set: dict[str, object], cues: dict[str, list[str]], spool: ThumbnailSpool, room: int
) -> ReviewedSet:
    images = _images(data_set)
    trigger = str(data_set.get("keyword") or "")
    captions = [checks.one_line(str(image.get("caption") or "")) for image, _ in images]
    report = data_set.get("captions")
    report = report if isinstance(report, dict) else {}
    bare = {str(file) for key in ("missing", "empty") for file in _texts(report.get(key))}
    too_long = {PurePath(str(entry.get("file"))).stem for entry in dicts(report.get("over_limit"))}
    twice = checks.duplicates(captions)
    counts: Counter[str] = Counter()
    shown = []
    for place, ((image, held_out), caption) in enumerate(zip(images, captions, strict=True)):
        file = str(image.get("file") or "")
        width, height = whole(image.get("width")), whole(image.get("height"))
        size = (width, height) if width and height else None
        found = set(checks.size_flags(*size)) if size else set()
        if file in bare:
            found.add("no-caption")
        elif place in twice:
            found.add("duplicate-caption")
        if PurePath(file).stem in too_long:
            found.add("over-limit")
        if checks.is_repetitive(caption):
            found.add("repetitive")
        flags = tuple(flag.key for flag in checks.FLAGS if flag.key in found)
        counts.update(flags)
        if len(shown) < room:
            name = PurePath(file).name
            shown.append(ReviewedImage(name, caption, size, flags, held_out, _small(Path(file), spool)))
    concepts = cues.get(trigger, [])
    return ReviewedSet(
        name=PurePath(str(data_set.get("folder") or "")).name,
        trigger=trigger,
        count=len(images),
        flag_counts=tuple((flag, counts[flag.key]) for flag in checks.FLAGS if counts[flag.key]),
        cues=tuple(Cue.of(concept, captions) for concept in concepts),
        common=tuple(checks.common_words(captions, trigger)),
        images=tuple(shown),
    )


def _small(path: Path, spool: ThumbnailSpool) -> Thumbnail | None:
    try:
        return spool.add(path) if path.is_file() else None
    except (UnusableImage, OSError, ValueError):
        return None


def _texts(value: object) -> list[object]:
    return value if isinstance(value, list) else []
