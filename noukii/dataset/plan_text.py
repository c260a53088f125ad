"""A plan as text for a terminal, and as a dictionary for JSON."""

from __future__ import annotations

import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii import disk, project
from noukii.dataset.caption_check import plural
from noukii.dataset.folders import FROM_COMMAND_LINE, FROM_DEFAULT, FROM_NAME
from noukii.dataset.images import Skipped
from noukii.dataset.wide_text import columns_of, padded, shortened, wrapped
from noukii.names import printable

if TYPE_CHECKING:
    from noukii.dataset.plan import Plan, PlannedImage, PlannedSet

MOST_COLUMNS, FEWEST_COLUMNS = 100, 20
"""Longer lines are hard to read; on shorter ones the terminal may break them where it likes."""

LONGEST_NAME = 34
"""Columns of a data set's name in the table."""

_SHOWN = 20


def describe(plan: Plan, columns: int | None = None) -> str:
    """Return the plan in lines without colours.

    Args:
        columns: that a line may take at most; None: those of the terminal, MOST_COLUMNS without one.
    """
    columns = columns or terminal_columns()
    lines: list[str | _Long] = [*_table(plan, columns), ""]
    for each in plan.sets:
        lines += [*_set_lines(each), ""]
    if plan.ignored:
        lines += ["not used, beside the data sets"]
        lines += [line for text in skipped_lines(plan.ignored) for line in _wrap(text, "  ")]
        lines += [""]
    lines += _bucket_lines(plan, columns)
    lines += _step_lines(plan)
    for warning in (*plan.warnings, *plan.advice):
        lines += _wrap(f"! {warning}", "", "  ")
    fitted = ([line] if isinstance(line, str) else line.fitted(columns) for line in lines)
    return "\n".join(line for part in fitted for line in part).rstrip()


@dataclass(frozen=True)
class _Long:
    """A line that is broken where the terminal ends: what stands before it, and before its other lines."""

    text: str
    first: str
    further: str

    def fitted(self, columns: int) -> list[str]:
        return wrapped(self.text, columns, self.first, self.further)


def terminal_columns() -> int:
    """Return how wide what is printed may be."""
    if not sys.stdout.isatty():
        return MOST_COLUMNS
    return min(MOST_COLUMNS, max(FEWEST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 24)).columns))


def _table(plan: Plan, columns: int) -> list[str]:
    """Return the data sets as a table: one line each, and their sum; long names give way."""
    head = ["data set", "images", "repeats", "per epoch", "share", "captions"]
    rows = []
    for each in plan.sets:
        report, count = each.captions, len(each.images)
        captions = (
            "all" if report.found == len(report.captions) else f"{report.found} of {len(report.captions)}"
        )
        rows.append(
            [
                each.data_set.name,
                str(count),
                str(each.data_set.repeats),
                str(each.samples),
                f"{100 * each.samples / plan.samples_per_epoch:.0f} %",
                captions + (f", {len(report.too_long)} too long" if report.too_long else ""),
            ]
        )
    if len(rows) > 1:
        images = sum(len(each.images) for each in plan.sets)
        rows.append(["together", str(images), "", str(plan.samples_per_epoch), "100 %", ""])
    others = sum(max(columns_of(row[place]) for row in (head, *rows)) + 2 for place in range(1, len(head)))
    for row in rows:
        row[0] = shortened(row[0], max(len(head[0]), min(LONGEST_NAME, columns - others)))
    return table_lines(head, rows, right={1, 2, 3, 4})


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    """Return a table in plain text, a rule under its head; the columns in `right` end on one line."""
    widths = [max(columns_of(row[place]) for row in (head, *rows)) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            padded(cell, width, place in right)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    return [line(head), line(["-" * width for width in widths]), *map(line, rows)]


def _set_lines(each: PlannedSet) -> Iterator[_Long]:
    data_set, report = each.data_set, each.captions
    count = len(each.images)
    yield from _wrap(f"{data_set.name}  ({printable(data_set.folder)})", "", "    ")
    yield from _wrap(
        f"{plural(count, 'image')} × {plural(data_set.repeats, 'repeat')} = {each.samples} samples per epoch;"
        f" keyword '{data_set.keyword}'",
        "  ",
    )
    yield from _wrap(f"repeats: {_repeats_words(data_set.repeats, data_set.repeats_from)}", "  ")
    litter = f" (and {each.litter} hidden, cache or system files)" if each.litter else ""
    apart = f" + held out {len(each.held_out)}" if each.held_out else ""
    yield from _wrap(f"found {each.found} = used {count}{apart} + skipped {len(each.skipped)}{litter}", "  ")
    if each.held_out:
        names = _listed(image.info.path.name for image in each.held_out)
        yield from _wrap(f"held out to measure the training on, not trained: {names}", "    ")
    for line in skipped_lines(each.skipped):
        yield from _wrap(f"skipped {line}", "    ")
    yield from _wrap(
        f"captions: {report.found} found, {len(report.missing)} missing, {len(report.empty)} empty,"
        f" {len(report.too_long)} over {report.max_token_length} tokens",
        "  ",
    )
    if report.missing:
        yield from _wrap(f"missing for {_listed(path.name for path in report.missing)}", "    ")
    if report.empty:
        yield from _wrap(f"empty: {_listed(path.name for path in report.empty)}", "    ")
    if report.too_long:
        lengths = (f"{path.name} ({tokens})" for path, tokens in report.too_long)
        yield from _wrap(f"over {report.max_token_length} tokens: {_listed(lengths)}", "    ")
    yield from _grouped((note, path.name) for path, note in report.notes)
    changed = [(note, image.info.path.name) for image in each.images for note in image.info.notes]
    yield from _grouped(changed)


def _grouped(pairs: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Iterator[_Long]:
    names: dict[str, list[str]] = defaultdict(list)
    for note, name in pairs:
        names[note].append(name)
    for note, same in names.items():
        yield from _wrap(f"{note}: {_listed(same)}", "    ")


def _repeats_words(repeats: int, where: str) -> str:
    if where.startswith((FROM_COMMAND_LINE, FROM_NAME)):
        return f"{repeats}, from {where}"
    return f"{repeats}, {where}" + (", as the name gives none" if where == FROM_DEFAULT else "")


def _bucket_lines(plan: Plan, columns: int) -> list[str | _Long]:
    """Return each bucket with its pictures and its samples per epoch, in as many columns as fit."""
    width, height = plan.rule.resolution
    lines: list[str | _Long] = _wrap(
        f"buckets for {width}x{height}, images are never enlarged; images, and samples with repeats", ""
    )
    cells = [
        f"{bucket!s:>9}: {plan.bucket_images[bucket]} ({count})" for bucket, count in plan.buckets.items()
    ]
    size = max(map(len, cells)) + 2
    per_line = max(1, (columns - 2) // size)
    for start in range(0, len(cells), per_line):
        lines.append("  " + "".join(cell.ljust(size) for cell in cells[start : start + per_line]).rstrip())
    return [*lines, ""]


def _step_lines(plan: Plan) -> list[str | _Long]:
    batch = plan.batch_size * plan.accumulation
    gathered = f" ({plan.batch_size} x {plan.accumulation} gathered)" if plan.accumulation > 1 else ""
    lines = [
        *_wrap(
            f"{plan.samples_per_epoch} samples per epoch in batches of {batch}{gathered} ="
            f" {plan.steps_per_epoch} steps per epoch; the last batch of a bucket may be smaller",
            "",
        ),
        *_wrap(
            f"{plan.steps} steps = {plan.steps / plan.steps_per_epoch:.1f} epochs"
            f" (each image is seen about {_seen(plan)} times)",
            "",
        ),
    ]
    place = f"{disk.size(plan.staging_bytes)} of training copies go to {printable(project.staging())}"
    return [*lines, *_wrap(place, "", "  "), ""]


def _seen(plan: Plan) -> str:
    images = sum(len(each.images) for each in plan.sets)
    return f"{plan.samples_per_epoch / images * plan.steps / plan.steps_per_epoch:.0f}"


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """Return one line per reason with the names of what it skipped."""
    names: dict[str, list[str]] = defaultdict(list)
    for one in skipped:
        names[one.reason].append(one.path.name)
    return [f"{_listed(same)}: {reason}" for reason, same in names.items()]


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    shown = [printable(name) for name in names]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _wrap(text: str, indent: str, further: str | None = None) -> list[_Long]:
    return [_Long(text, indent, indent + "  " if further is None else further)]


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Return the whole plan, nothing shortened, as JSON can hold it."""
    width, height = plan.rule.resolution
    return {
        "data_sets": [_set_dict(each) for each in plan.sets],
        "ignored": _skipped_list(plan.ignored),
        "resolution": [width, height],
        "batch_size": plan.batch_size,
        "gradient_accumulation_steps": plan.accumulation,
        "buckets": [
            {
                "width": bucket.width,
                "height": bucket.height,
                "samples": count,
                "images": plan.bucket_images[bucket],
            }
            for bucket, count in plan.buckets.items()
        ],
        "samples_per_epoch": plan.samples_per_epoch,
        "steps_per_epoch": plan.steps_per_epoch,
        "steps": plan.steps,
        "epochs": plan.epochs,
        "max_token_length": plan.max_token_length,
        "staging_bytes": plan.staging_bytes,
        "validation": plan.validation,
        "warnings": [*plan.warnings, *plan.advice],
    }


def _set_dict(each: PlannedSet) -> dict[str, Any]:
    report = each.captions
    return {
        "folder": _text(each.data_set.folder),
        "keyword": each.data_set.keyword,
        "repeats": each.data_set.repeats,
        "repeats_from": each.data_set.repeats_from,
        "found": each.found,
        "used": len(each.images),
        "skipped": _skipped_list(each.skipped),
        "litter": each.litter,
        "samples_per_epoch": each.samples,
        "captions": {
            "found": report.found,
            "missing": [_text(path) for path in report.missing],
            "empty": [_text(path) for path in report.empty],
            "over_limit": [{"file": _text(path), "tokens": tokens} for path, tokens in report.too_long],
            "keyword_cut": [_text(path) for path in report.keyword_cut],
            "without_keyword": [_text(path) for path in report.without_keyword],
            "notes": [{"file": _text(path), "note": note} for path, note in report.notes],
        },
        "images": [_image_dict(image) for image in each.images],
        "held_out": [_image_dict(image) for image in each.held_out],
    }


def _image_dict(image: PlannedImage) -> dict[str, Any]:
    return {
        "file": _text(image.info.path),
        "copy": image.stem + image.info.extension,
        "width": image.info.width,
        "height": image.info.height,
        "as_is": image.info.as_is,
        "notes": list(image.info.notes),
        "caption": image.caption.text,
    }


def _skipped_list(skipped: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"file": _text(one.path), "reason": one.reason} for one in skipped]


def _text(path: Path) -> str:
    return os.fspath(path)
