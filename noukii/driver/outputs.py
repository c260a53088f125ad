"""Folders and names of runs: where a run works, what its result is called, what it can go on from."""

from __future__ import annotations

import contextlib
import filecmp
import glob
import json
import os
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noukii import disk, files, project
from noukii.errors import InputError
from noukii.names import printable

RECORD_NAME = "noukii_run.json"
LOG_NAME = "train.log"
"""In a run's working folder: the options that it was started with, for --resume."""
INTERRUPTED = 130
PLACEHOLDER = ".noukii-running"
"""In `trained_loras/NAME/` while that run goes on: the folder holds its page and nothing else."""
PAGE = "report.html"


def timestamp() -> str:
    """Return the local time as it stands in folder names."""
    return time.strftime("%Y%m%d_%H%M%S")


def runs_of(output_name: str) -> Path:
    """Where the working folders of all runs with that output name are."""
    return project.kohya() / "outputs" / output_name


def new_run_folder(output_name: str) -> Path:
    """Make and return a working folder that no other run has used."""
    parent = runs_of(output_name)
    parent.mkdir(parents=True, exist_ok=True)
    stamp = timestamp()
    for candidate in _numbered(stamp):
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        return parent / candidate
    raise AssertionError("the numbers have no end")


def free_result_name(output_name: str, *, resuming: bool) -> str:
    """Return `output_name`, or `output_name-2` and so on if a finished LoRA has that name already.

    A resumed run takes the name of the interrupted result that it completes.
    """
    for left in project.trained_loras().glob(f"*/{PLACEHOLDER}"):
        remove_placeholder(left.parent)  # a killed run's: the caller holds the lock, so none goes on
    for candidate in _numbered(output_name):
        folder = project.trained_loras() / candidate
        if not os.path.lexists(folder) or (resuming and was_interrupted(folder)):
            return candidate
    raise AssertionError("the numbers have no end")


def was_interrupted(result: Path) -> bool:
    """Say whether a result folder is ours and holds what an interrupted run had so far."""
    try:
        return json.loads((result / "run.json").read_text(encoding="utf-8"))["exit_code"] == INTERRUPTED
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def open_placeholder(name: str) -> Path | None:
    """Make the result's folder for the page of a run that goes on; None if something is there already."""
    folder = project.trained_loras() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        (folder / PLACEHOLDER).touch()
    except OSError:
        return None
    return folder


def remove_placeholder(folder: Path) -> None:
    """Remove what `open_placeholder` made and the page in it; what else somebody has put there stays."""
    if not (folder / PLACEHOLDER).is_file():
        return
    with contextlib.suppress(OSError):
        files.remove_temporaries(folder)
        (folder / PAGE).unlink(missing_ok=True)
        (folder / PLACEHOLDER).unlink()
        folder.rmdir()


def _numbered(name: str) -> Iterable[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def write_record(run_folder: Path, options: dict[str, Any]) -> None:
    """Keep the options of a run for a later --resume."""
    files.write_text(run_folder / RECORD_NAME, json.dumps(options, indent=2) + "\n")


def read_record(run_folder: Path) -> dict[str, Any]:
    """Return the options of an earlier run; empty if it left none."""
    try:
        found = json.loads((run_folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def newest_state(output_name: str) -> Path:
    """Return the newest saved state of the runs with that output name.

    Raises:
        InputError: there is none.
    """
    states = [path for path in runs_of(output_name).glob("*/*-state") if _is_whole(path)]
    if not states:
        others = sorted(
            {path.parent.parent.name for path in (project.kohya() / "outputs").glob("*/*/*-state")}
        )
        known = f"; states are there for {', '.join(map(printable, others[-5:]))}" if others else ""
        raise InputError(
            "--resume",
            f"no run named {printable(output_name)} has left a state to go on from{known}",
            "leave --resume away to start from the beginning",
        )
    return max(states, key=lambda path: (path.parent.stat().st_mtime_ns, step_of(path) or 0, path.name))


def _is_whole(state: Path) -> bool:
    # A state of ours is renamed when it is whole. kohya's is made in place; train_state.json comes with
    # its first files, so that a state of a killed kohya run may lack parts; its own error says so then.
    return not state.name.startswith(files.TEMPORARY_PREFIX) and step_of(state) is not None


def step_of(state: Path) -> int | None:
    """Return the step of a saved state (ours, or kohya's); None if the folder is none."""
    for name, key in (("state.json", "step"), ("train_state.json", "current_step")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return int(json.loads((state / name).read_text(encoding="utf-8"))[key])
    return None


def working_folder(output_name: str, state: Path | None) -> Path | None:
    """Return the working folder of the newest run of that name that can be gone on with or gathered.

    `state` is the newest state of that name. Newer may be a run that has ended without one (kohya's
    trainer saves none unless it is asked to); its LoRA is all that is needed to gather it.
    """
    folders = [path.parent for path in runs_of(output_name).glob(f"*/{glob.escape(output_name)}.safetensors")]
    if state is not None:
        folders.append(state.parent)
    return max(folders, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def result_with(lora: Path) -> Path | None:
    """Return the finished result that holds this very LoRA file, or None: then it was not gathered."""
    for found in sorted(project.trained_loras().glob(f"*/{glob.escape(lora.name)}")):
        if not was_interrupted(found.parent) and filecmp.cmp(found, lora, shallow=False):
            return found.parent
    return None


def resume_command(output_name: str) -> str:
    """Return what the user types to go on with a run."""
    return f"./run_training.sh --output-name {shlex.quote(printable(output_name))} --resume"


def check_space(needs: Iterable[tuple[Path, int, int]]) -> None:
    """Refuse a run whose files would not fit; folders on one disk are counted together.

    Args:
        needs: (folder, bytes that will be written there, the largest file); the folder need not exist yet.

    Raises:
        InputError: naming the place, what is free there and what is needed.
    """
    by_device: dict[int, list[tuple[Path, int, int]]] = {}
    for need in needs:
        by_device.setdefault(disk.existing_parent(need[0]).stat().st_dev, []).append(need)
    for group in by_device.values():
        for folder, _, largest in group:
            disk.require_space(folder, sum(total for _, total, _ in group), largest)
