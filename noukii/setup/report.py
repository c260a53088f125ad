"""What setup.sh says: the plan of --dry-run, the lines of --check, the summary at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from noukii import disk, project
from noukii.names import printable
from noukii.setup import torch_build
from noukii.setup.options import SetupOptions
from noukii.setup.parts import Part


def place(path: Path) -> str:
    """Return a path as the user would write it: relative to where they stand, if it lies below."""
    here = Path.cwd()
    return printable(os.path.relpath(path, here) if path.is_relative_to(here) else path)


def plan_lines(parts: Sequence[Part], options: SetupOptions) -> list[str]:
    """What would be fetched, from where, how big, where to."""
    lines = ["nothing is changed (--dry-run)"]
    for part in parts:
        if part.state.complete:
            lines.append(f"  there    {part.title}: {part.state.words}")
            continue
        amount = f"{disk.size(part.size)}, " if part.size else ""
        lines += [
            f"  to bring {part.title} ({amount}{part.state.words})",
            f"             from {printable(part.origin)}",
            f"             to   {place(part.target)}",
        ]
        if part.source_problem:
            lines.append(f"             which cannot be: {printable(part.source_problem)}")
    lines.append(f"torch: {printable(torch_build.here().why)}")
    total = sum(part.size for part in parts if not part.state.complete)
    free = shutil.disk_usage(disk.existing_parent(project.home())).free
    lines.append(f"in all about {disk.size(total)} on disk; {disk.size(free)} are free")
    return lines


def check_lines(parts: Sequence[Part]) -> list[str]:
    """One line per part: there or missing, version, whole or not."""
    lines = [
        f"{'ok' if part.state.complete else 'MISSING':8}{part.title}: {printable(part.state.words)}"
        for part in parts
    ]
    lines.append(f"        torch for this machine: {printable(torch_build.here().why)}")
    missing = [part.title for part in parts if not part.state.complete]
    if missing:
        lines.append(f"{len(missing)} of {len(parts)} parts are missing; ./setup.sh brings them")
    return lines


def summary_lines(parts: Sequence[Part], options: SetupOptions) -> list[str]:
    """What there is now, and what to do with it."""
    lines = ["", "ready:"]
    lines += [f"  {part.title}: {printable(part.state.words)} ({place(part.target)})" for part in parts]
    lines.append(f"  torch: {printable(torch_build.here().why)}")
    if options.janus_wanted:
        lines.append("next: ./run_captioning.sh FOLDER KEYWORD --repeats 20")
    if options.base_model_wanted:
        lines.append("next: ./run_training.sh --output-name NAME")
    if not options.models:
        lines.append("next: ./setup.sh brings the models too")
    return lines
