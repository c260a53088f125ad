#!/usr/bin/env python3
"""Copy data sets into the trainer's folder and write their TOML file; with --dry-run only show the plan."""

from __future__ import annotations

import sys

from noukii.early_stop import stop_quietly_until_started

if __name__ == "__main__":
    stop_quietly_until_started()  # the imports below take a moment

import importlib.util
import os
from pathlib import Path

from noukii import project
from noukii.command_line import Parser, run_command
from noukii.errors import InputError
from noukii.names import printable


def parser() -> Parser:
    """Return the argument parser of this command."""
    from noukii.dataset.arguments import add_data_set_arguments, resolution, whole_number

    made = Parser(prog="generate_config.py", description=__doc__)
    add_data_set_arguments(made)
    made.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the TOML file to write (default: kohya_ss/dataset/config_sat_nouki.toml)",
    )
    made.add_argument(
        "--resolution",
        type=resolution,
        default=512,
        metavar="PIXELS",
        help="side of the square whose area a training image may have, a multiple of 64 (default: 512)",
    )
    made.add_argument(
        "--batch-size",
        type=whole_number("--batch-size", 1, 1024),
        default=4,
        metavar="N",
        help="images per step (default: 4)",
    )
    made.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    return made


def main(arguments: list[str]) -> int:
    """Find, plan, stage, write."""
    from noukii.dataset.arguments import data_sets_from, parse_mixed

    options = parse_mixed(parser(), arguments)
    explicit, positional = data_sets_from(options)
    output = options.output or project.kohya() / "dataset" / "config_sat_nouki.toml"
    check_output(output, default=options.output is None)

    from noukii.dataset.folders import find_data_sets, record_repeats
    from noukii.dataset.plan import describe, make_plan
    from noukii.dataset.staging import check_staging, stage, staged_config

    data_sets, ignored = find_data_sets(explicit, positional)
    plan = make_plan(data_sets, ignored, resolution=options.resolution, batch_size=options.batch_size)
    print(describe(plan))
    check_staging(plan)
    if options.dry_run:
        return 0

    from noukii.dataset.config_file import write_config
    from noukii.lock import folder_lock

    with folder_lock(project.kohya() / "dataset", "generate_config.py"):
        subsets = stage(plan)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_config(output, staged_config(plan, subsets))
        record_repeats(data_sets)
    print(f"\nwritten: {printable(output)}")
    return 0


def check_output(output: Path, default: bool) -> None:
    """Refuse a place for the TOML that could not be written, before anything is copied.

    A file that is there is written over only if this command wrote it.
    """
    if os.path.lexists(output) and not output.is_dir() and not was_written_by_us(output):
        raise InputError(
            output, "is there already, and this command has not written it as it is now",
            "name another --output, or move that file away",
        )  # fmt: skip
    if output.is_dir():
        raise InputError(output, "is a folder", "name a file: --output FILE.toml")
    if not default and not output.parent.is_dir():
        raise InputError(output.parent, "there is no such folder", "make it first, or name another --output")


def was_written_by_us(path: Path) -> bool:
    """Say whether a file is, to the letter, what this command writes about folders of training copies."""
    from noukii.dataset.config_file import format_config, read_config

    try:
        config = read_config(path)
        same = path.read_text(encoding="utf-8") == format_config(config)
    except (InputError, OSError, ValueError):
        return False
    folders = [subset.image_dir for one in config.datasets for subset in one.subsets]
    return same and all(folder.parent == project.staging() for folder in folders)


def use_our_environment() -> None:
    """Start again with the checkout's own Python if this one lacks the packages."""
    ours = project.CHECKOUT / ".venv" / "bin" / "python"
    named = os.environ.get("NOUKII_PYTHON")
    wanted = Path(named) if named else ours
    lacking = any(importlib.util.find_spec(name) is None for name in ("PIL", "tomlkit"))
    if lacking and os.access(wanted, os.X_OK) and not os.environ.get("NOUKII_STARTED_AGAIN"):
        os.environ["NOUKII_STARTED_AGAIN"] = "1"
        os.execv(wanted, [os.fspath(wanted), os.path.abspath(__file__), *sys.argv[1:]])


if __name__ == "__main__":
    use_our_environment()
    sys.exit(run_command(main))
