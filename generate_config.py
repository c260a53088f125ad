#!/usr/bin/env python3
"""Copy data sets into the trainer's folder and write their TOML file; with --dry-run only show the plan."""

from __future__ import annotations

import sys
from pathlib import Path

from noukii import project
from noukii.command_line import Parser, run_command
from noukii.errors import InputError
from noukii.names import printable


def parser() -> Parser:
    """Return the argument parser of this command."""
    from noukii.dataset.arguments import add_data_set_arguments, whole_number

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
        type=whole_number("--resolution", 64, 2048),
        default=512,
        metavar="PIXELS",
        help="side of the square whose area a training image may have (default: 512)",
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
    """Refuse a place for the TOML that could not be written, before anything is copied."""
    if output.is_dir():
        raise InputError(output, "is a folder", "name a file: --output FILE.toml")
    if not default and not output.parent.is_dir():
        raise InputError(output.parent, "there is no such folder", "make it first, or name another --output")


if __name__ == "__main__":
    sys.exit(run_command(main))
