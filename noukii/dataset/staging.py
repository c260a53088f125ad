"""Training copies of the data sets in kohya_ss/dataset/images/train, one folder each.

A folder of ours holds a marker file that lists what we wrote. It is written before the first copy,
so that a run killed in the middle leaves a folder the next run knows for its own and clears. Folders
without the marker are somebody else's: they are set aside by a rename, never deleted (R2).
"""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from noukii import disk, project
from noukii.dataset.config_file import DatasetConfig, SubsetConfig, TrainConfig
from noukii.dataset.folders import DataSet
from noukii.dataset.images import UnusableImage, write_training_copy
from noukii.dataset.plan import Plan, PlannedImage, PlannedSet
from noukii.dataset.stems import safe_name, unique_name
from noukii.errors import InputError, RunError
from noukii.files import TEMPORARY_PREFIX, write_text
from noukii.hardware import cpu_count
from noukii.names import printable
from noukii.progress import Progress

MARKER = ".noukii-staged.json"
SET_ASIDE = "set-aside"
_CACHE_ENDINGS = (".npz", "metadata_cache.json")
_BLOCK = 4096


@dataclass(frozen=True)
class _Copied:
    image: PlannedImage
    problem: str | None


def stage(plan: Plan, say: Callable[[str], None] = print) -> list[SubsetConfig]:
    """Write the training copies of a plan and return the subsets of its data set file.

    First everything that an earlier run of ours left in the staging folder is removed, including
    latent caches that a trainer put there, and whatever stands in the way is set aside. Each picture
    gets its copy (R6) and a one-line .txt. `say` is told what was set aside or could not be copied.
    While staging and training, hold `folder_lock` on kohya_ss/dataset: a second run would clear
    what the first trains on.

    Raises:
        InputError: a source lies in the staging folder or around it, or there is too little space.
        RunError: the disk refused a write, or no picture of a data set was left.
    """
    staging = project.staging()
    check_staging(plan)
    try:
        staging.mkdir(parents=True, exist_ok=True)
        sources = {os.path.realpath(each.data_set.folder) for each in plan.sets}
        _clear_earlier(staging, sources, say)
        names = _choose_names(staging, [each.data_set for each in plan.sets], sources, say)
        total = sum(len(each.copies) for each in plan.sets)
        with Progress("copying", total, "images") as progress:
            return [
                _stage_set(each, staging / name, progress)
                for each, name in zip(plan.sets, names, strict=True)
            ]
    except OSError as error:
        raise disk.write_failure(
            Path(error.filename) if error.filename else staging,
            error,
            "free some space, then run it again",
            plan.staging_bytes,
        ) from error


def staged_config(plan: Plan, subsets: Sequence[SubsetConfig]) -> TrainConfig:
    """Return the data set file's content for staged folders."""
    return TrainConfig((DatasetConfig(plan.rule, plan.batch_size, tuple(map(plan.trained, subsets))),))


def check_staging(plan: Plan) -> None:
    """Check without writing that the plan can be staged.

    Raises:
        InputError: a source lies in the staging folder or around it, there is too little space, or the
            path of the staging folder cannot stand in a data set file.
    """
    _check_home()
    staging = os.path.realpath(project.staging())
    for each in plan.sets:
        folder = each.data_set.folder
        source = os.path.realpath(folder)
        if source == staging or _inside(staging, source):
            raise InputError(folder, "holds the folder for training copies", "name the data set's own folder")
        if not _inside(source, staging):
            continue
        if os.path.dirname(source) != staging or os.path.lexists(os.path.join(source, MARKER)):
            raise InputError(
                folder,
                "holds training copies, which every run clears",
                "name the folder with the originals, or move this one somewhere else",
            )
    files = sum(2 * len(each.copies) for each in plan.sets)
    disk.require_space(project.staging(), plan.staging_bytes + files * _BLOCK, plan.largest_bytes)


def _check_home() -> None:
    """Refuse a home whose path no data set file can name."""
    home = project.home()
    for char in os.fspath(home):
        kind = unicodedata.category(char)
        if kind == "Cs" or (kind in ("Cc", "Zl", "Zp") and char != "\t"):
            what = "bytes that are not UTF-8" if kind == "Cs" else "a line break or control character"
            raise InputError(
                "NOUKII_HOME" if os.environ.get("NOUKII_HOME") else "checkout",
                f"has {what} in its path, which the trainer's data set file cannot hold: {printable(home)}",
                "name another folder with NOUKII_HOME",
            )


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _clear_earlier(staging: Path, sources: set[str], say: Callable[[str], None]) -> None:
    """Remove every folder of ours; what somebody else put into one is set aside."""
    for entry in sorted(os.scandir(staging), key=lambda entry: entry.name):
        folder = Path(entry.path)
        if entry.is_symlink() or not entry.is_dir() or os.path.realpath(folder) in sources:
            continue
        if entry.name.startswith(TEMPORARY_PREFIX):
            shutil.rmtree(folder)  # a killed run of ours got no further
            continue
        written = _read_marker(folder)
        if written is not None:
            _clear(folder, written, staging, say)


def _read_marker(folder: Path) -> set[str] | None:
    """Return the names we wrote into `folder`; None if it is not ours."""
    marker = folder / MARKER
    if marker.is_symlink() or not marker.is_file():
        return None
    try:
        return {name for name in json.loads(marker.read_text(encoding="utf-8"))["files"] if "/" not in name}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _clear(folder: Path, written: set[str], staging: Path, say: Callable[[str], None]) -> None:
    """Remove what we or a trainer wrote; the marker goes last, so that a killed clearing is resumed."""
    foreign = False
    for entry in list(os.scandir(folder)):
        ours = entry.name in written or entry.name.startswith(TEMPORARY_PREFIX)
        if entry.name == MARKER:
            continue
        if entry.is_file(follow_symlinks=False) and (ours or entry.name.endswith(_CACHE_ENDINGS)):
            os.unlink(entry.path)
        else:
            foreign = True
    (folder / MARKER).unlink()
    if foreign:
        _set_aside(folder, staging, say, "holds files that noukii did not write")
    else:
        folder.rmdir()


def _set_aside(folder: Path, staging: Path, say: Callable[[str], None], why: str) -> None:
    number = 1
    while os.path.lexists(aside := staging / f"{folder.name}.{SET_ASIDE}-{number}"):
        number += 1
    os.rename(folder, aside)
    say(f"{printable(folder)} {why}; it is now {printable(aside.name)} and is not trained")


def _choose_names(
    staging: Path, data_sets: Sequence[DataSet], sources: set[str], say: Callable[[str], None]
) -> list[str]:
    """Return a free name in `staging` for each data set; foreign folders of that name are set aside."""
    taken: set[str] = set()
    for entry in os.scandir(staging):
        if os.path.realpath(entry.path) in sources:
            unique_name(entry.name, taken)  # a source itself: never renamed
    names = []
    for data_set in data_sets:
        name = unique_name(safe_name(data_set.folder.name), taken)
        in_the_way = staging / name
        if os.path.lexists(in_the_way):
            _set_aside(in_the_way, staging, say, "was not made by noukii")
        names.append(name)
    return names


def _stage_set(each: PlannedSet, folder: Path, progress: Progress) -> SubsetConfig:
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}")
    temporary.mkdir()
    _write_marker(temporary, each, "staging")
    os.rename(temporary, folder)  # the folder appears with its marker in it
    copied = 0
    with ThreadPoolExecutor(min(cpu_count(), 8)) as pool:
        try:
            for done in pool.map(lambda image: _copy(image, folder), each.copies):
                progress.advance()
                if done.problem is None:
                    copied += 1
                else:
                    progress.say(f"skipped {printable(done.image.info.path)}: {done.problem}")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if not copied:
        raise RunError(
            each.data_set.folder, "none of its images is left", "check the folder and run it again"
        )
    _write_marker(folder, each, "complete")
    data_set = each.data_set
    return SubsetConfig(folder, data_set.repeats, data_set.keyword, ".txt")


def _write_marker(folder: Path, each: PlannedSet, state: str) -> None:
    files = [
        name for image in each.copies for name in (image.stem + image.info.extension, image.stem + ".txt")
    ]
    content = {
        "made_by": "noukii: training copies; the next run removes what is listed here",
        "state": state,
        "source": os.fspath(each.data_set.folder),
        "files": files,
    }
    write_text(folder / MARKER, json.dumps(content, indent=1) + "\n")


def _copy(image: PlannedImage, folder: Path) -> _Copied:
    """Write one picture and its caption; the caption first, so that no picture is ever without one."""
    caption = folder / f"{image.stem}.txt"
    write_text(caption, image.caption.text)
    try:
        write_training_copy(image.info, folder, image.stem)
    except UnusableImage as error:
        caption.unlink()
        return _Copied(image, str(error))
    return _Copied(image, None)
