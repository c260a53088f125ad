"""setup.sh from end to end: look at what is there, say the plan, bring what is missing, sum up."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noukii import disk, project
from noukii.errors import InputError, NoukiiError, RunError
from noukii.lock import folder_lock
from noukii.names import printable
from noukii.setup import child, environments, git, options, torch_build
from noukii.setup.options import SetupOptions
from noukii.setup.parts import Part, parts
from noukii.setup.report import check_lines, plan_lines, summary_lines

SECOND_STAGE = "NOUKII_SETUP_IN_VENV"


def main(arguments: list[str]) -> int:
    """Prepare the machine; returns the exit status."""
    _check_where_we_stand()
    wanted = options.parse(arguments)
    environments.export(wanted)
    _stop_by_signals()
    everything = parts(wanted)
    if wanted.check:
        print("\n".join(check_lines(everything)))
        return 0 if all(part.state.complete for part in everything) else 1
    missing = [part for part in everything if not part.state.complete]
    if wanted.dry_run:
        print("\n".join(plan_lines(everything, wanted)))
        return 0
    again = shlex.join([options.PROGRAM, *arguments])
    second = bool(os.environ.pop(SECOND_STAGE, ""))
    if not second:
        _check(wanted, missing)
    if missing and missing[0].name == "environment":
        with _alone():
            _bring(missing.pop(0), everything, again)
    if not second:
        _go_on_in_environment(arguments)
    if missing:
        with _alone():
            for part in parts(wanted):  # looked at again: another setup.sh may have brought it meanwhile
                if not part.state.complete:
                    _bring(part, everything, again)
    now = parts(wanted)
    print("\n".join(summary_lines(now, wanted)), flush=True)
    _multiply(now, again)
    return 0


def _check_where_we_stand() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("the folder where you stand", "is not there any more", "cd to another one") from None


def _stop_by_signals() -> None:
    """Let a kill or a closed terminal end us as Ctrl-C does, and our children with us."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, stop)


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of setup.sh; git and pip keep it if we are killed before they end."""
    with folder_lock(project.cache() / "setup", options.PROGRAM) as lock, child.holding(lock):
        yield


def _check_links(missing: list[Part]) -> None:
    """A folder that is a link to a disk which is not there now: nothing can be put into it."""
    for part in missing:
        for folder in (*reversed(part.target.parents), part.target):
            if folder == part.target and part.name not in ("kohya_ss", "tokenizer"):
                continue  # what stands in the way of a file or an environment is set aside
            if folder.is_symlink() and not folder.exists():
                raise InputError(
                    folder,
                    f"is a link to {printable(os.readlink(folder))}, which is not there",
                    "mount that disk or make that folder, or remove the link",
                )


def _check(wanted: SetupOptions, missing: list[Part]) -> None:
    """Refuse what can be known to fail (R4): a source that is not there, no git, no room on the disk."""
    absent = [part for part in missing if part.source_problem]
    if absent:
        told = "\n".join(f"  {part.name}: {printable(part.source_problem)}" for part in absent)
        raise InputError(
            options.PROGRAM,
            f"these sources cannot be used:\n{told}",
            "correct them; docs/setup.md shows what each flag and --offline DIR expect",
        )
    if any(part.name == "kohya_ss" for part in missing) and (problem := git.problem()):
        raise InputError("git", f"{problem}; kohya_ss is fetched with it", git.NO_GIT)
    _check_links(missing)
    if wanted.installer == "uv" and not environments.has_uv():
        place = project.CHECKOUT / ".tools" / "bin" / "uv"
        raise InputError("--uv", "uv is not found", f"install it (PATH or {place}), or give --pip")
    needs: dict[int, tuple[Path, int, int]] = {}
    for part in missing:
        place = disk.existing_parent(part.target if part.target.is_dir() else part.target.parent)
        device = place.stat().st_dev
        folder, total, largest = needs.get(device, (place, 0, 0))
        needs[device] = (folder, total + max(0, part.size - part.begun), max(largest, part.largest))
    for folder, total, largest in needs.values():
        disk.require_space(folder, total, largest)


def _bring(part: Part, everything: list[Part], again: str) -> None:
    number = [one.name for one in everything].index(part.name) + 1
    step = f"step {number} of {len(everything)}, {part.title}"
    print(f"[{number}/{len(everything)}] {part.title}", flush=True)
    try:
        part.bring()
    except NoukiiError as error:
        then = f"{error.next_step}; then go on with: {again}" if error.next_step else again
        raise RunError(step, f"{error.where}: {error.reason}", then) from None
    except OSError as error:
        failed = disk.write_failure(Path(os.fsdecode(error.filename or part.target)), error, "")
        raise RunError(
            step, f"{failed.where}: {failed.reason}", f"mend that; then go on with: {again}"
        ) from None


def _go_on_in_environment(arguments: list[str]) -> None:
    """Continue on .venv's Python, which has huggingface_hub and a progress bar."""
    python = environments.main_python()
    if os.environ.get("NOUKII_PYTHON") or Path(sys.prefix) == environments.main_venv():
        return
    sys.stdout.flush()
    script = os.fspath(Path(__file__).with_name("__main__.py"))
    os.execve(python, [os.fspath(python), script, *arguments], {**os.environ, SECOND_STAGE: "1"})


def _multiply(everything: list[Part], again: str) -> None:
    """The last check: each environment's torch computes on the device that it would use."""
    for part in everything:
        python = part.python
        if python is None or torch_build.installed_in(torch_build.packages_of(python.parent.parent)) is None:
            continue
        try:
            print(f"{part.title}: {environments.multiply(python)}", flush=True)
        except RunError as error:
            raise RunError(
                part.title, f"{error.where}: {error.reason}", f"{error.next_step}: {again}"
            ) from None
