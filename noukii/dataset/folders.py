"""Data set folders named `{repeats}_{keyword}`: finding them and settling their repeats."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii import project
from noukii.dataset.config_types import MAX_REPEATS
from noukii.dataset.content import is_litter
from noukii.dataset.images import Listing, Skipped, list_images
from noukii.dataset.stems import safe_name
from noukii.errors import InputError
from noukii.files import write_text
from noukii.names import printable

DEFAULT_REPEATS = 30

FROM_COMMAND_LINE = "--repeats on the command line"
FROM_RECORD = "given for this folder in an earlier run"
FROM_NAME = "the folder's name"
FROM_DEFAULT = "the default"

WANTED_FORM = "{repeats}_{keyword}, as in 10_cat"

_NAMED = re.compile(r"(\d+)_(.*\S.*)", re.DOTALL)
_NEARLY = (
    re.compile(r"(\d+)[\s.-]*(\D.*)", re.DOTALL),
    re.compile(r"(?P<word>.+?)[\s_.-]+(?P<n>\d+)", re.DOTALL),
)
_REGULARISATION = re.compile(r"(\d+_)?(reg|regulari[sz]ation)([_ -].*)?", re.IGNORECASE | re.DOTALL)
"""`reg`, `reg_man`, `1_reg`, `5_regularization images`; not `regs`, `reggae` or `vreg`: words like others."""
_DEPTH = 4


@dataclass(frozen=True)
class DataSet:
    """A folder of captioned pictures; `repeats_from` says in words where the number comes from."""

    folder: Path
    keyword: str
    repeats: int
    repeats_from: str

    @property
    def name(self) -> str:
        """The folder's own name, as it may be printed."""
        return printable(self.folder.name)


def find_data_sets(
    explicit: Sequence[tuple[Path, int | None]], positional: Sequence[Path]
) -> tuple[list[DataSet], list[Skipped]]:
    """Return the data sets of a run, and what lies beside them and is not one.

    `explicit` are (folder, repeats or None) of `--dataset [--repeats]`, `positional` plain folders;
    without either, every folder named `{repeats}_{keyword}` in image_datasets/ is taken. Repeats, by
    priority: the command line, the number recorded for that path, the number that starts the name, 30.

    Raises:
        InputError: a named folder is missing, given twice, empty or at the wrong level; repeats out of
            range; nothing was found. Nothing has been written then.
    """
    recorded = _read_record()
    named = [*explicit, *((folder, None) for folder in positional)]
    if not named:
        return _find_all(project.image_datasets(), recorded)
    found: dict[str, DataSet] = {}
    for folder, repeats in named:
        folder = Path(os.path.abspath(os.path.expanduser(folder)))
        real = os.path.realpath(folder)
        if real in found:
            raise InputError(folder, "is given twice", "name each data set once and set its --repeats")
        if _REGULARISATION.fullmatch(folder.name):
            raise InputError(
                folder,
                "regularisation images are not supported",
                "leave the folder out, or rename it if the word is its keyword",
            )
        _require_images(folder)
        found[real] = _data_set(folder, repeats, recorded)
    return list(found.values()), []


def record_repeats(data_sets: Sequence[DataSet]) -> None:
    """Remember the repeats given on the command line, for runs that do not name them again.

    Called once all checks have passed.
    """
    given = {os.path.realpath(one.folder): one.repeats for one in data_sets if _is_given(one)}
    if not given:
        return
    path = _record_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"repeats": {**_read_record(), **given}}
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _is_given(data_set: DataSet) -> bool:
    return data_set.repeats_from.startswith(FROM_COMMAND_LINE)


def _record_path() -> Path:
    return project.kohya() / "dataset" / "noukii_repeats.json"


def _read_record() -> dict[str, int]:
    """Return path -> repeats; a file that is missing, damaged or edited into nonsense counts for nothing."""
    try:
        repeats = json.loads(_record_path().read_text(encoding="utf-8"))["repeats"]
        return {path: n for path, n in repeats.items() if type(n) is int and 1 <= n <= MAX_REPEATS}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _data_set(folder: Path, repeats: int | None, recorded: dict[str, int]) -> DataSet:
    named = _NAMED.fullmatch(folder.name)
    in_name = int(named.group(1)) if named else None
    keyword = " ".join(safe_name(named.group(2) if named else folder.name).split())
    before = recorded.get(os.path.realpath(folder))
    other = "" if in_name is None else f" (the name says {in_name})"
    if repeats is not None:
        if not 1 <= repeats <= MAX_REPEATS:
            raise InputError("--repeats", f"{repeats} is out of range", f"1 to {MAX_REPEATS} are possible")
        return DataSet(folder, keyword, repeats, FROM_COMMAND_LINE + (other if in_name != repeats else ""))
    if before is not None:
        return DataSet(folder, keyword, before, FROM_RECORD + (other if in_name != before else ""))
    if in_name is not None:
        if not 1 <= in_name <= MAX_REPEATS:
            raise InputError(
                folder,
                f"its name asks for {in_name} repeats; 1 to {MAX_REPEATS} are possible",
                f"rename it, or give --dataset {_quoted(folder)} --repeats N",
            )
        return DataSet(folder, keyword, in_name, FROM_NAME)
    return DataSet(folder, keyword, DEFAULT_REPEATS, FROM_DEFAULT)


def _find_all(parent: Path, recorded: dict[str, int]) -> tuple[list[DataSet], list[Skipped]]:
    data_sets: list[DataSet] = []
    ignored: list[Skipped] = []
    try:
        names = sorted(entry.name for entry in os.scandir(parent))
    except OSError as error:
        raise InputError(
            parent, f"cannot be read ({error.strerror})", "make it, or name folders with --dataset"
        ) from None
    for name in names:
        path = parent / name
        if not path.is_dir():
            continue
        if is_litter(name, folder=True):
            continue
        try:
            data_sets.append(_auto(path, recorded))
        except InputError as error:
            ignored.append(Skipped(path, error.reason))
    loose = list_images(parent)
    ignored += [
        Skipped(path, f"a loose picture; its place is a folder named {WANTED_FORM}") for path in loose.images
    ]
    if not data_sets:
        listed = "".join(f"\n    {printable(one.path.name)}: {one.reason}" for one in ignored)
        raise InputError(
            parent,
            f"holds no data set; one is a folder of images named {WANTED_FORM}{listed}",
            "./run_captioning.sh FOLDER KEYWORD --repeats N makes one, --dataset PATH names one",
        )
    same = _same_folder(data_sets)
    ignored += [Skipped(one.folder, "is the same folder as another data set, by a link") for one in same]
    return [one for one in data_sets if one not in same], ignored


def _same_folder(data_sets: Sequence[DataSet]) -> list[DataSet]:
    seen: set[str] = set()
    same = []
    for one in data_sets:
        real = os.path.realpath(one.folder)
        if real in seen:
            same.append(one)
        seen.add(real)
    return same


def _auto(folder: Path, recorded: dict[str, int]) -> DataSet:
    """Return the data set of a folder found by itself; InputError.reason says why it is none."""
    if _REGULARISATION.fullmatch(folder.name):
        raise InputError(folder, "regularisation images are not supported and not used")
    if not _NAMED.fullmatch(folder.name):
        raise InputError(folder, _naming_hint(folder.name))
    _require_images(folder)
    return _data_set(folder, None, recorded)


def _naming_hint(name: str) -> str:
    """Say what a folder should be called to be a data set."""
    number_first, number_last = (pattern.fullmatch(name) for pattern in _NEARLY)
    if number_first:
        wanted = f"{number_first.group(1)}_{number_first.group(2).strip(' _')}"
    elif number_last:
        wanted = f"{number_last.group('n')}_{number_last.group('word')}"
    else:
        return f"not named {WANTED_FORM}"
    return f"not named {{repeats}}_{{keyword}}; rename it to {printable(wanted)} to use it"


def _require_images(folder: Path) -> None:
    """Raise InputError unless `folder` itself holds pictures; say where they are instead."""
    listing = list_images(folder)
    if listing.images:
        return
    if listing.skipped:
        first = listing.skipped[0]
        raise InputError(
            folder,
            f"none of its {len(listing.skipped)} pictures can be used;"
            f" {printable(first.path.name)}: {first.reason}",
            "convert them, or install what reads them",
        )
    data_sets, deeper = _below(folder, listing)
    if data_sets:
        raise InputError(
            folder,
            f"has no images of its own; the data sets are one level down: {_names(data_sets, folder)}",
            f"name each, as in --dataset {_quoted(data_sets[0])}",
        )
    if deeper:
        raise InputError(
            folder,
            f"has no images of its own; they are in {_names(deeper, folder)}",
            f"move them up, or name that folder: --dataset {_quoted(deeper[0])} --repeats N",
        )
    raise InputError(folder, "holds no images", "put pictures and their captions (.txt) into it")


def _quoted(path: Path) -> str:
    """Return `path` as it is typed in a shell."""
    return shlex.quote(printable(path))


def _names(folders: Sequence[Path], parent: Path) -> str:
    shown = [printable(folder.relative_to(parent)) for folder in folders[:5]]
    more = f" and {len(folders) - 5} more" if len(folders) > 5 else ""
    return ", ".join(shown) + more


def _below(folder: Path, listing: Listing) -> tuple[list[Path], list[Path]]:
    """Return the subfolders that are data sets themselves, and all deeper folders that hold pictures."""
    deeper: list[Path] = []
    level = listing.folders
    seen: set[tuple[int, int]] = set()
    for _ in range(_DEPTH):
        below: list[Path] = []
        for sub in level:
            try:
                status = os.stat(sub)
                inside = list_images(sub)
            except (OSError, InputError):
                continue
            if (status.st_dev, status.st_ino) in seen or not stat.S_ISDIR(status.st_mode):
                continue
            seen.add((status.st_dev, status.st_ino))
            if inside.images:
                deeper.append(sub)
            below += inside.folders
        level = below
    data_sets = [sub for sub in deeper if sub.parent == folder and _NAMED.fullmatch(sub.name)]
    return data_sets, deeper
