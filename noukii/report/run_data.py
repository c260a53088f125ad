"""The data sets of a run, as its report shows them: pure functions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath

from noukii.report.caption_records import whole
from noukii.report.run_files import RunFiles


@dataclass(frozen=True)
class DataSetRow:
    """One folder of images, as trained. None where nothing says it."""

    name: str
    images: int | None
    repeats: int | None
    trigger: str
    regularisation: bool
    note: str = ""
    """How many files of the folder were used, and who set the repeats."""

    @property
    def per_epoch(self) -> int | None:
        return self.images * self.repeats if self.images is not None and self.repeats is not None else None


@dataclass(frozen=True)
class BucketRow:
    """A size in pixels and how many samples (images times repeats) of an epoch have it."""

    width: int
    height: int
    count: int


def data_set_rows(files: RunFiles) -> list[DataSetRow]:
    """Return the data sets of the plan, else of the TOML with image counts from the LoRA's metadata.

    Without either the metadata alone is used. Folders are shown by name, not by path.
    """
    if planned := dicts(_plan(files).get("data_sets")):
        return [_planned_row(data_set) for data_set in planned]
    counted = {
        _base_name(subset.get("image_dir")): subset
        for data_set in _json_list(files, "ss_datasets")
        for subset in dicts(data_set.get("subsets"))
    }
    for name, entry in _json_object(files, "ss_dataset_dirs").items():
        if isinstance(entry, dict):
            counted.setdefault(
                str(name), {"img_count": entry.get("img_count"), "num_repeats": entry.get("n_repeats")}
            )
    configured = [
        subset
        for data_set in dicts(files.config.get("datasets"))
        for subset in dicts(data_set.get("subsets"))
    ]
    rows = []
    for subset in configured or [{**value, "image_dir": name} for name, value in counted.items()]:
        name = _base_name(subset.get("image_dir"))
        known = counted.get(name, {})
        rows.append(
            DataSetRow(
                name=name,
                images=whole(known.get("img_count")),
                repeats=whole(subset.get("num_repeats", known.get("num_repeats"))),
                trigger=str(subset.get("class_tokens") or known.get("class_tokens") or ""),
                regularisation=bool(subset.get("is_reg", known.get("is_reg", False))),
            )
        )
    return rows


def bucket_rows(files: RunFiles) -> list[BucketRow]:
    """Return the buckets of all data sets by plan, else by the LoRA's metadata, largest count first."""
    if planned := dicts(_plan(files).get("buckets")):
        rows = [
            BucketRow(
                whole(row.get("width")) or 0, whole(row.get("height")) or 0, whole(row.get("samples")) or 0
            )
            for row in planned
        ]
        return sorted((row for row in rows if row.count > 0), key=_bucket_order)
    counts: dict[tuple[int, int], int] = {}
    sources = _json_list(files, "ss_datasets") or [{"bucket_info": _json_object(files, "ss_bucket_info")}]
    for data_set in sources:
        info = data_set.get("bucket_info")
        buckets = info.get("buckets") if isinstance(info, dict) else None
        for bucket in buckets.values() if isinstance(buckets, dict) else ():
            sides = bucket.get("resolution") if isinstance(bucket, dict) else None
            if not isinstance(sides, list) or len(sides) != 2:
                continue
            width, height, count = whole(sides[0]), whole(sides[1]), whole(bucket.get("count"))
            if width and height and count:
                counts[width, height] = counts.get((width, height), 0) + count
    rows = [BucketRow(width, height, count) for (width, height), count in counts.items()]
    return sorted(rows, key=_bucket_order)


def warnings(files: RunFiles) -> list[str]:
    """Return what the plan warned of before the run."""
    found = _plan(files).get("warnings")
    return [str(warning) for warning in found] if isinstance(found, list) else []


def skipped_files(files: RunFiles) -> list[tuple[str, str]]:
    """Return (data set/file, reason) of the files that the plan left out."""
    found = []
    for data_set in dicts(_plan(files).get("data_sets")):
        folder = _base_name(data_set.get("folder"))
        for entry in dicts(data_set.get("skipped")):
            found.append((f"{folder}/{_base_name(entry.get('file'))}", str(entry.get("reason") or "")))
    return found


def _planned_row(data_set: dict[str, object]) -> DataSetRow:
    found, used = whole(data_set.get("found")), whole(data_set.get("used"))
    held_out = len(dicts(data_set.get("held_out")))
    notes = []
    if found is not None and used is not None and found != used + held_out:
        notes.append(f"{used + held_out} of {found} files used")
    if held_out:
        notes.append(f"{held_out} more held out")
    if source := data_set.get("repeats_from"):
        notes.append(f"repeats: {source}")
    return DataSetRow(
        name=_base_name(data_set.get("folder")),
        images=used,
        repeats=whole(data_set.get("repeats")),
        trigger=str(data_set.get("keyword") or ""),
        regularisation=False,
        note=", ".join(notes),
    )


def _bucket_order(row: BucketRow) -> tuple[int, int, int]:
    return -row.count, row.width, row.height


def _plan(files: RunFiles) -> dict[str, object]:
    plan = files.run.get("plan")
    return plan if isinstance(plan, dict) else {}


def _base_name(path: object) -> str:
    return PurePath(str(path or "")).name


def dicts(value: object) -> list[dict[str, object]]:
    """Return the objects of a list that came from a file; an empty list for anything else."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _json_list(files: RunFiles, key: str) -> list[dict[str, object]]:
    return dicts(_parsed(files, key))


def _json_object(files: RunFiles, key: str) -> dict[str, object]:
    value = _parsed(files, key)
    return value if isinstance(value, dict) else {}


def _parsed(files: RunFiles, key: str) -> object:
    try:
        return json.loads(files.lora.metadata.get(key, "null")) if files.lora else None
    except (ValueError, RecursionError):
        return None
