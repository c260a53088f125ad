"""The arguments that name data sets: `--dataset PATH [--repeats N]` pairs and plain folders."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from noukii.command_line import Parser
from noukii.dataset.config_types import MAX_REPEATS, STEP_MULTIPLE
from noukii.errors import InputError
from noukii.names import printable


def add_data_set_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--dataset`, `--repeats` and the positional folders; read them with `data_sets_from`.

    Folders may stand between flags, so parse with `parse_mixed`.
    """
    group = parser.add_argument_group(
        "data sets", "without any, every {repeats}_{keyword} folder in image_datasets/ is used"
    )
    group.add_argument(
        "--dataset",
        dest="data_sets",
        metavar="PATH",
        action=_AddDataSet,
        default=None,
        help="a folder of images with captions; may be given several times",
    )
    group.add_argument(
        "--repeats",
        dest="data_sets",
        metavar="N",
        action=_SetRepeats,
        type=whole_number("--repeats", 1, MAX_REPEATS),
        default=None,
        help="how often each of its images is seen in an epoch; belongs to the --dataset before it",
    )
    group.add_argument(
        "folders",
        nargs="*",
        metavar="PATH",
        help="more such folders; the number in the name is their repeats",
    )


def data_sets_from(namespace: argparse.Namespace) -> tuple[list[tuple[Path, int | None]], list[Path]]:
    """Return what `find_data_sets` takes: (folder, repeats or None) pairs, and plain folders."""
    pairs = [(folder, repeats) for folder, repeats in namespace.data_sets or []]
    return pairs, [_folder(text) for text in namespace.folders]


def parse_mixed(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments in which folders may stand between flags; unknown flags are refused by name."""
    namespace, unknown = parser.parse_known_intermixed_args(list(arguments))
    if unknown:
        raise parser.unknown_argument(unknown[0])
    return namespace


def whole_number(flag: str, least: int, most: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers in a range, with a message that names the flag."""

    def convert(text: str) -> int:
        possible = f"{least} to {most} are possible"
        if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
            raise InputError(f"{flag} {text}", "is not a whole number", possible)
        digits = len(text.strip().lstrip("+-0"))
        value = int(text) if digits <= 19 else most + 1  # int() refuses thousands of digits
        if not least <= value <= most:
            raise InputError(f"{flag} {text}", "is out of range", possible)
        return value

    return convert


def resolution(text: str) -> int:
    """Read --resolution: pixels of a side, a multiple of 64 as the buckets are."""
    value = whole_number("--resolution", 64, 2048)(text)
    if value % STEP_MULTIPLE:
        near = round(value / STEP_MULTIPLE) * STEP_MULTIPLE
        raise InputError(
            f"--resolution {text}", f"is not a multiple of {STEP_MULTIPLE}", f"give --resolution {near}"
        )
    return value


def _folder(text: str) -> Path:
    if not text.strip():
        raise InputError("data set", "the path is empty", "name a folder of images")
    return Path(text)


class _AddDataSet(argparse.Action):
    def __call__(
        self, parser: Any, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        namespace.data_sets = [*(namespace.data_sets or []), (_folder(value), None)]


class _SetRepeats(argparse.Action):
    def __call__(
        self, parser: Any, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if not namespace.data_sets:
            raise InputError("--repeats", "stands before any --dataset", "write --dataset PATH --repeats N")
        folder, before = namespace.data_sets[-1]
        if before is not None:
            raise InputError(
                "--repeats", f"is given twice for {printable(folder)}", "write --dataset PATH --repeats N"
            )
        namespace.data_sets = [*namespace.data_sets[:-1], (folder, value)]
