"""kohya_ss with its sd-scripts at pinned commits, in a folder that may hold files of ours already.

Everything is fetched into `kohya_ss/.noukii-part` and moved in when whole; sd-scripts comes last, by one
rename, so that run_training.sh sees all of the trainer or none. What exists already is never replaced.
A checkout that the user made is left as it is; only a missing sd-scripts is added to it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from noukii import files, project
from noukii.driver import kohya_tokenizer
from noukii.errors import RunError
from noukii.names import printable
from noukii.setup import git, record
from noukii.setup.models import State
from noukii.setup.options import SetupOptions

PART = ".noukii-part"
READY = "noukii-ready"
"""In a repository's .git: all of it is checked out."""
OURS = (
    "/dataset",
    "/models",
    "/tokenizer",
    "/outputs",
    "/venv",
    f"/{PART}",
    f"/{record.UPSTREAM_RECORD}",
)


def _script() -> Path:
    return project.kohya() / "sd-scripts" / "train_network.py"


def _wanted(options: SetupOptions) -> dict[str, str]:
    return {"kohya_ss": options.kohya_commit, "sd-scripts": options.sd_scripts_commit}


def state(options: SetupOptions) -> State:
    """Say which upstream is there."""
    said = record.read(project.kohya() / record.UPSTREAM_RECORD)
    if not _script().is_file():
        return State(False, "not there")
    if not said:
        return State(True, "sd-scripts is there, not from setup.sh; kept as it is")
    if said.get("wanted") != _wanted(options):
        return State(False, f"at other commits ({_commits(said)}) than now wanted")
    return State(True, _commits(said))


def _commits(said: dict) -> str:  # type: ignore[type-arg]
    found = said.get("commits", {})
    return ", ".join(f"{name} {str(found[name])[:8]}" for name in ("sd-scripts", "kohya_ss") if name in found)


def tokenizer_state() -> State:
    folder = kohya_tokenizer.folder() / kohya_tokenizer.NAME
    names = ("vocab.json", "merges.txt", "tokenizer_config.json")
    missing = [name for name in names if not (folder / name).is_file()]
    return State(not missing, "in kohya_ss/tokenizer" if not missing else "not there")


def bring(options: SetupOptions) -> None:
    """Make `kohya_ss/` hold upstream's trainer. An interrupted call is continued by the next."""
    target = project.kohya()
    target.mkdir(parents=True, exist_ok=True)
    said = record.read(target / record.UPSTREAM_RECORD)
    made_by_us = _script().is_file() and said
    commits = _move_to(options, target, said) if made_by_us else _clone(options, target)
    record.write(
        target / record.UPSTREAM_RECORD,
        {"wanted": _wanted(options), "commits": commits, "sources": _sources(options)},
    )
    shutil.rmtree(target / PART, ignore_errors=True)


def _sources(options: SetupOptions) -> dict[str, str]:
    return {"kohya_ss": options.kohya_source, "sd-scripts": options.sd_scripts_source}


def _clone(options: SetupOptions, target: Path) -> dict[str, str]:
    part, scripts = target / PART, target / "sd-scripts"
    if scripts.is_dir() and any(scripts.iterdir()):
        raise RunError(scripts, "is there and holds no train_network.py", "move it away, then run it again")
    part.mkdir(exist_ok=True)
    parent, moving = part / "kohya_ss", part / "moving.json"
    commits = record.read(moving)  # written before the first move: what was begun is finished
    theirs = (target / ".git").exists() and not commits
    if not theirs and not commits:
        commits = {"kohya_ss": _checkout(parent, options.kohya_source, options.kohya_commit)}
    wanted = options.sd_scripts_commit
    if wanted == "submodule":
        wanted = _submodule_commit(parent if parent.exists() else target)
    commits["sd-scripts"] = _checkout(part / "sd-scripts", options.sd_scripts_source, wanted)
    if not theirs:
        record.write(moving, commits)
        if parent.exists():
            _merge(parent, target)
        _settle(target, options.sd_scripts_source)
    if scripts.is_dir():
        scripts.rmdir()
    os.rename(part / "sd-scripts", scripts)
    return commits


def _checkout(folder: Path, source: str, wanted: str) -> str:
    """Make `folder` a checkout of one commit of `source`, without its history; returns the commit."""
    ready = folder / ".git" / READY
    said = record.read(ready)
    if said.get("wanted") == wanted and said.get("source") == source:
        return str(said["commit"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"  {printable(folder.name)} from {git.shown(source)} at {wanted[:8]}", flush=True)
    git.run(folder, "init", "--quiet")
    git.run(folder, "remote", "add", "origin", source)
    commit = _fetch(folder, source, wanted)
    git.run(folder, "checkout", "--quiet", "--force", "--detach", commit)
    record.write(ready, {"wanted": wanted, "source": source, "commit": commit})
    return commit


def _fetch(folder: Path, source: str, wanted: str) -> str:
    """Bring one commit; a server that hands out branches alone is asked for all of them."""
    try:
        git.run(folder, "fetch", "--quiet", "--depth", "1", "origin", wanted, source=source)
        return git.run(folder, "rev-parse", "--verify", "FETCH_HEAD^{commit}")
    except RunError as error:
        if not re.search(
            r"not our ref|unadvertised object|dumb http|not support shallow|remote ref", error.reason
        ):
            raise
    git.run(
        folder, "fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*", source=source
    )
    try:
        return git.run(folder, "rev-parse", "--verify", f"{wanted}^{{commit}}")
    except RunError:
        raise RunError(
            git.shown(source),
            f"does not hold the commit {wanted}",
            "name one that it holds with --kohya-commit or --sd-scripts-commit, or another source",
        ) from None


def _submodule_commit(parent: Path) -> str:
    entry = git.run(parent, "ls-tree", "HEAD", "sd-scripts").split()
    if len(entry) < 3 or entry[1] != "commit":
        raise RunError(parent, "names no commit for sd-scripts", "give one with --sd-scripts-commit")
    return entry[2]


def _merge(source: Path, target: Path) -> None:
    """Move all of `source` into `target`, `.git` last. What is there already stays."""
    for entry in sorted(source.iterdir(), key=lambda path: (path.name == ".git", path.name)):
        place = target / entry.name
        if not os.path.lexists(place):
            _move(entry, place)
        elif entry.is_dir() and not entry.is_symlink() and place.is_dir():
            _merge(entry, place)
        else:
            entry.unlink()
    source.rmdir()


def _move(source: Path, place: Path) -> None:
    """Rename, or copy where `place` is on another disk: a folder of the user's may be a link to one."""
    try:
        os.rename(source, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if source.is_symlink():
            place.symlink_to(os.readlink(source))
        elif source.is_dir():
            place.mkdir()
            _merge(source, place)
            return
        else:
            files.copy_file(source, place)
            place.chmod(source.stat().st_mode)
        source.unlink()


def _settle(target: Path, scripts_source: str) -> None:
    """Let upstream's git pass over what is ours: our folders, files under a name of theirs, our pin."""
    git.run(target, "config", "submodule.sd-scripts.url", scripts_source)
    git.run(target, "config", "submodule.sd-scripts.ignore", "all")
    (target / ".git" / READY).unlink(missing_ok=True)
    exclude = target / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    text = exclude.read_text(encoding="utf-8") if exclude.exists() else ""
    if OURS[0] not in text:
        exclude.write_text(text.rstrip("\n") + "\n" + "\n".join(OURS) + "\n", encoding="utf-8")
    changed = set(git.run(target, "ls-files", "--modified", "-z").split("\0"))
    changed |= set(
        git.run(target, "diff-files", "--name-only", "-z").split("\0")
    )  # below a link of the user's
    changed -= {"", "sd-scripts"}
    for name in sorted(changed):
        git.run(target, "update-index", "--skip-worktree", "--", name)


def _move_to(options: SetupOptions, target: Path, said: dict) -> dict[str, str]:  # type: ignore[type-arg]
    """Bring a checkout of ours to other commits, in place; git refuses where the user changed something."""
    commits = dict(said.get("commits", {}))
    wanted = options.sd_scripts_commit
    if "kohya_ss" in commits:
        commits["kohya_ss"] = _fetch(target, options.kohya_source, options.kohya_commit)
        git.run(target, "checkout", "--quiet", "--detach", commits["kohya_ss"])
    if wanted == "submodule":
        wanted = _submodule_commit(target)
    scripts = target / "sd-scripts"
    commits["sd-scripts"] = _fetch(scripts, options.sd_scripts_source, wanted)
    git.run(scripts, "checkout", "--quiet", "--detach", commits["sd-scripts"])
    return commits
