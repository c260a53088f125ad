"""Janus-Pro and Stable Diffusion 1.5: fetched whole into their places, or linked from where they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from noukii import project
from noukii.errors import InputError, RunError
from noukii.names import printable
from noukii.setup import hub, record, sources, transport
from noukii.setup.download import Wanted, bytes_there, fetch
from noukii.setup.hub import HubFile
from noukii.setup.options import SetupOptions


@dataclass(frozen=True)
class State:
    """How a part stands: complete or not, in words that follow its name."""

    complete: bool
    words: str


# --- Janus-Pro


def janus_model(options: SetupOptions) -> sources.HubModel:
    """Return the model that is wanted; for a linked folder the 1B one, whose default place it takes."""
    return sources.JANUS.get(options.janus, sources.JANUS["1B"])


def janus_folder(options: SetupOptions) -> Path:
    return project.home() / "models" / janus_model(options).name


def janus_origin(options: SetupOptions) -> str:
    """Return where Janus-Pro is taken from: `owner/name@revision` or a folder's path."""
    model = janus_model(options)
    if options.janus not in sources.JANUS:
        return options.janus
    if options.janus_source:
        return options.janus_source
    if options.offline:
        return str(options.offline / model.name)
    return f"{model.repo}@{model.revision}"


def janus_from_hub(options: SetupOptions) -> bool:
    origin = janus_origin(options)
    if options.janus not in sources.JANUS or (options.offline and not options.janus_source):
        return False
    return not origin.startswith(("file://", "/"))  # options.py has made paths absolute


def janus_state(options: SetupOptions) -> State:
    """Look at the model's folder without reading its weights."""
    folder = janus_folder(options)
    if not os.path.lexists(folder):
        begun = janus_begun(options)
        return State(False, f"not there; {begun / 1e6:,.0f} MB of it are fetched" if begun else "not there")
    if problem := janus_problem(folder):
        return State(False, problem)
    said = record.read(folder / record.JANUS_RECORD)
    changed = [
        name
        for name, file in said.get("files", {}).items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != file.get("size")
    ]
    if changed:
        return State(
            False, f"{printable(changed[0])} is missing or has another size than when it was fetched"
        )
    if folder.is_symlink():
        return State(True, f"a link to {printable(folder.resolve())}")
    return State(True, f"from {_short(said['source'])}" if said.get("source") else "not from setup.sh, whole")


def _short(origin: str) -> str:
    name, at, revision = str(origin).rpartition("@")
    return f"{name}@{revision[:8]}" if at else printable(str(origin))


def janus_problem(folder: Path) -> str:
    """Return what is wrong with a model folder as the captioner sees it; empty if nothing is."""
    from noukii.captioning.janus_files import check_model

    try:
        check_model(folder)
    except InputError as error:
        return f"{error.where}: {error.reason}"
    except ModuleNotFoundError:  # no .venv yet: everything before the tokenizer was looked at
        pass
    return ""


def _janus_part(options: SetupOptions) -> Path:
    return janus_folder(options).with_name(f".{janus_model(options).name}.part")


def janus_begun(options: SetupOptions) -> int:
    """Return the bytes that an interrupted download has left."""
    part = _janus_part(options)
    return sum(file.stat().st_size for file in part.iterdir() if file.is_file()) if part.is_dir() else 0


def bring_janus(options: SetupOptions) -> None:
    """Fetch or link Janus-Pro. What stands in its place unfinished is set aside, never deleted."""
    folder = janus_folder(options)
    if options.janus not in sources.JANUS:
        if problem := janus_problem(Path(options.janus)):
            raise RunError(
                options.janus, problem, "name a whole Janus-Pro folder with --janus, or leave it out"
            )
        _link(folder, Path(options.janus))
        return
    part = _janus_part(options)
    part.mkdir(parents=True, exist_ok=True)
    origin = janus_origin(options)
    if janus_from_hub(options):
        repo, _, revision = origin.partition("@")
        commit, listed = hub.list_files(repo, revision or "main")
        origin = f"{repo}@{commit}"
    else:
        listed = _files_in(transport.local_path(origin))
    known = {}
    _keep_only({file.name for file in listed}, part)
    for file in listed:
        known[file.name] = {"size": file.size, "sha256": _fetch_once(file, part)}
    if problem := janus_problem(part):
        raise RunError(janus_origin(options), problem, f"remove {printable(part)} and run it again")
    record.write(part / record.JANUS_RECORD, {"source": origin, "files": known})
    _set_aside(folder)
    os.rename(part, folder)
    for note in folder.glob(".*.done"):
        note.unlink()


def _keep_only(names: set[str], part: Path) -> None:
    """Remove what an interrupted download of another source has left in our own `part` folder."""
    useful = {name for file in names for name in (file, f"{file}.part", f"{file}.part.json", f".{file}.done")}
    for left in part.iterdir():
        if left.name not in useful and left.is_file():
            left.unlink()


def _files_in(folder: Path) -> list[HubFile]:
    if not folder.is_dir():
        raise RunError(folder, "there is no such folder", "docs/setup.md shows what --offline expects")
    listed = [
        HubFile(path.name, str(path), path.stat().st_size, "")
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]
    return sorted(listed, key=lambda file: file.size)


def _fetch_once(file: HubFile, part: Path) -> str:
    """Fetch one file of a model unless an earlier run has it; returns its SHA-256."""
    note = part / f".{file.name}.done"
    done = record.read(note)
    if (
        (part / file.name).is_file()
        and (part / file.name).stat().st_size == file.size == done.get("size")
        and done.get("url") == file.url
    ):
        return str(done["sha256"])
    fetched = fetch(Wanted(file.url, part / file.name, file.size, file.sha256))
    record.write(note, {"size": fetched.size, "sha256": fetched.sha256, "url": file.url})
    return fetched.sha256


# --- Stable Diffusion 1.5


def base_model_path() -> Path:
    return project.kohya() / "models" / sources.BASE_MODEL_NAME


def base_model_origin(options: SetupOptions) -> str:
    if options.base_model:
        return str(options.base_model)
    return options.base_model_source or f"{hub.endpoint()}/{sources.BASE_MODEL_PATH}"


def base_model_size(options: SetupOptions) -> int:
    """Return the bytes to expect, -1 if they are not known."""
    if options.base_model:
        return 0
    if options.base_model_sha256 == sources.BASE_MODEL_SHA256:
        return sources.BASE_MODEL_SIZE
    return transport.known_size(base_model_origin(options))


def base_model_state(options: SetupOptions) -> State:
    """Look at the base model: what setup.sh noted of it, else its header."""
    path = base_model_path()
    if not os.path.lexists(path):
        begun = bytes_there(path)
        return State(False, f"not there; {begun / 1e6:,.0f} MB of it are fetched" if begun else "not there")
    linked = f"a link to {printable(os.path.realpath(path))}" if path.is_symlink() else ""
    if options.base_model and (not path.exists() or not path.samefile(options.base_model)):
        return State(False, f"is {linked or 'another file'}, not {printable(options.base_model)}")
    said = record.read(path.with_name(record.BASE_MODEL_RECORD))
    if path.is_file() and not path.is_symlink() and said:
        state = path.stat()
        if (state.st_size, state.st_mtime_ns) == (said.get("size"), said.get("mtime_ns")):
            wanted = options.base_model_sha256
            if wanted and said.get("sha256") != wanted:
                return State(True, f"SHA-256 {str(said.get('sha256'))[:10]}…, kept (not the one asked for)")
            return State(True, f"{state.st_size / 1e9:.1f} GB, SHA-256 {str(said['sha256'])[:10]}… checked")
    if problem := base_model_problem(path):
        return State(False, problem)
    return State(True, linked or "not from setup.sh; a whole Stable Diffusion 1.5 by its header")


def base_model_problem(path: Path) -> str:
    from noukii.trainer.checkpoint_header import inspect_base_model

    try:
        inspect_base_model(path)
    except InputError as error:
        return f"{error.where}: {error.reason}"
    return ""


def bring_base_model(options: SetupOptions) -> None:
    """Fetch Stable Diffusion 1.5, or link the one that was named."""
    path = base_model_path()
    if options.base_model:
        if problem := base_model_problem(options.base_model):
            raise RunError(options.base_model, problem, "name a Stable Diffusion 1.5 with --base-model")
        _link(path, options.base_model)
        return
    wanted = Wanted(base_model_origin(options), path, base_model_size(options), options.base_model_sha256)
    if os.path.lexists(path):
        _set_aside(path)
    fetched = fetch(wanted)
    if not wanted.sha256 and (problem := base_model_problem(path)):
        _set_aside(path)
        raise RunError(transport.shown(wanted.location), problem, "name another with --base-model-source")
    state = path.stat()
    record.write(
        path.with_name(record.BASE_MODEL_RECORD),
        {
            "source": transport.shown(wanted.location),
            "sha256": fetched.sha256,
            "size": state.st_size,
            "mtime_ns": state.st_mtime_ns,
        },
    )


# --- both


def _link(place: Path, real: Path) -> None:
    """Put a link to `real` at `place`; a link that is there is exchanged, anything else is kept."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place) and not place.is_symlink():
        raise RunError(
            place,
            "is there already and is no link",
            f"remove or rename it yourself, or use {printable(real)} where it is (--base-model, --model)",
        )
    temporary = place.with_name(f".{place.name}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(real.resolve())
    os.replace(temporary, place)


def _set_aside(path: Path) -> None:
    """Rename what stands in the way, links too: it may lead to a disk that is not there now."""
    if not os.path.lexists(path):
        return
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.set-aside-{number}")):
        number += 1
    os.rename(path, aside)
    print(f"  what was there is now {printable(aside.name)}", flush=True)
