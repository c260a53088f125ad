"""From the trainer's working folder to the result: checked first, then moved into place by one rename."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noukii import disk, files, project
from noukii.driver import outputs
from noukii.errors import NoukiiError, RunError
from noukii.names import printable
from noukii.trainer.safetensors_header import BadHeader, read_header


@dataclass(frozen=True)
class Loras:
    """The LoRA files of one run: the last one, earlier saves, and saves that are broken."""

    final: Path | None
    """`NAME.safetensors`; after an interrupt it may be missing"""
    earlier: tuple[Path, ...]
    broken: tuple[tuple[Path, str], ...]

    @property
    def all(self) -> tuple[Path, ...]:
        return (*((self.final,) if self.final else ()), *self.earlier)


def fingerprints(run_folder: Path) -> dict[str, tuple[int, int]]:
    """Return what is in the folder of a run that goes on: file name -> (inode, time)."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in run_folder.glob("*.safetensors")
    }


def changed(run_folder: Path, output_name: str, before: dict[str, tuple[int, int]]) -> list[Path]:
    """Return the whole LoRA files that a run has written since `fingerprints`; values are not checked."""
    return [
        run_folder / name
        for name, found in sorted(fingerprints(run_folder).items())
        if before.get(name) != found and _is_whole(run_folder / name) and name.startswith(output_name)
    ]


def _is_whole(lora: Path) -> bool:
    try:
        read_header(lora)
    except (BadHeader, OSError):
        return False
    return True


def find_loras(
    run_folder: Path,
    output_name: str,
    verify: Callable[[Path], object],
    before: dict[str, tuple[int, int]] | None = None,
) -> Loras:
    """Check every LoRA file that this run wrote; `verify` raises a NoukiiError for a broken one.

    The run's folder is its own, so that `cat_v2` or the `cat-000001` of another run cannot be in it.
    `before` are the `fingerprints` of a run that was resumed: its old last file is not the new one.
    """
    final, earlier, broken = None, [], []
    now = fingerprints(run_folder)
    for path in sorted(run_folder.glob("*.safetensors")):
        is_final = path.stem == output_name
        if not is_final and not path.stem.startswith(f"{output_name}-"):
            continue
        if is_final and before and before.get(path.name) == now[path.name]:
            continue
        try:
            verify(path)
        except NoukiiError as error:
            broken.append((path, error.reason))
            continue
        if is_final:
            final = path
        else:
            earlier.append(path)
    return Loras(final, tuple(earlier), tuple(broken))


def require_final(loras: Loras, run_folder: Path, output_name: str, log: Path) -> None:
    """Raise RunError unless the run has ended with a sound `NAME.safetensors`."""
    if loras.final:
        return
    wanted = run_folder / f"{output_name}.safetensors"
    for path, reason in loras.broken:
        if path == wanted:
            raise RunError(wanted, reason, f"nothing was collected; the log: {printable(log)}")
    raise RunError(
        wanted,
        "the trainer ended without an error, but did not write this file",
        f"nothing was collected; the log has what it said: {printable(log)}",
    )


def keep_prompt_cues(folders: Sequence[Path], run_folder: Path) -> list[Path]:
    """Copy the prompt cues of the data sets into the run's folder; a name that comes twice gets a number."""
    for earlier in run_folder.glob("prompt_cue-*.txt"):  # of the run that is resumed
        earlier.unlink()
    kept = []
    for folder in folders:
        for cue in sorted(folder.glob("prompt_cue-*.txt")):
            if not cue.is_file():
                continue
            target, number = run_folder / cue.name, 2
            while target.exists():
                target = run_folder / f"{cue.stem}-{number}{cue.suffix}"
                number += 1
            files.copy_file(cue, target)
            kept.append(target)
    return kept


def assemble(
    run_folder: Path,
    loras: Loras,
    result_name: str,
    facts: dict[str, Any],
    write_report: Callable[[Path], object],
) -> Path:
    """Put the result together in `trained_loras/` and give it its name by one rename.

    Everything is copied: the working folder stays whole for a later --resume.

    Args:
        facts: what `run.json` will hold.
        write_report: makes `report.html` in the folder it gets.

    Raises:
        RunError: a file could not be written; older results are as they were.
    """
    shelf = project.trained_loras()
    set_aside = None
    others = [
        path
        for pattern in ("prompt_cue-*.txt", "sample_prompts.txt", "*.toml", "train.log", "metrics.jsonl")
        for path in sorted(run_folder.glob(pattern))
    ]
    need = disk.size(sum(path.stat().st_size for path in (*loras.all, *others)))
    temporary = None
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(shelf)
        temporary = Path(tempfile.mkdtemp(prefix=files.TEMPORARY_PREFIX, dir=shelf))
        os.chmod(temporary, files.NEW_FILE_MODE | (files.NEW_FILE_MODE & 0o444) >> 2)
        for path in (*loras.all, *others):
            files.copy_file(path, temporary / path.name)
        if (run_folder / "sample").is_dir():
            shutil.copytree(run_folder / "sample", temporary / "sample")
        files.write_text(temporary / "run.json", json.dumps(facts, indent=2) + "\n")
        report_problem = _try_report(write_report, temporary)
        target = shelf / result_name
        outputs.remove_placeholder(target)
        if outputs.was_interrupted(target):  # what this run has completed
            set_aside = shelf / outputs.free_result_name(f"{result_name}-interrupted", resuming=False)
            os.rename(target, set_aside)
        elif os.path.lexists(target):  # came into being while we trained
            target = shelf / outputs.free_result_name(result_name, resuming=False)
        os.rename(temporary, target)
    except OSError as error:
        raise disk.write_failure(
            Path(os.fsdecode(error.filename2 or error.filename or shelf)),
            error,
            f"the result needs {need} there; the LoRA is whole in {printable(run_folder)}, older results are"
            f" as they were. Once there is room: {outputs.resume_command(run_folder.parent.name)}",
        ) from None
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
    if set_aside is not None:
        print(f"what the interrupted run had so far is now {printable(set_aside)}")
    if report_problem:
        print(f"report.html could not be made: {report_problem}")
    return target


def _try_report(write_report: Callable[[Path], object], folder: Path) -> str:
    """Make the report; say what went wrong instead of losing a trained LoRA over it."""
    try:
        write_report(folder)
    except OSError:
        raise
    except Exception as error:  # whatever it is: hours of training are worth more than a page about them
        return str(error) or type(error).__name__
    return ""


def _remove_unfinished(shelf: Path) -> None:
    """Remove what a killed run of ours left half gathered (we hold the lock)."""
    for entry in os.scandir(shelf):
        if entry.name.startswith(files.TEMPORARY_PREFIX) and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                shutil.rmtree(entry.path)
