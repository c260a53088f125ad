"""The two Python environments: .venv for noukii, kohya_ss/venv for upstream's trainer.

They are made by scripts/environment.sh, which the other commands share; here it is called, and looked at
what is there. kohya's `accelerate` is installed last: run_training.sh takes it for a whole environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from noukii import project
from noukii.errors import RunError
from noukii.names import printable
from noukii.setup import child, torch_build
from noukii.setup.models import State
from noukii.setup.options import SetupOptions

KOHYA_REQUIREMENTS = "requirements-kohya.txt"
OWN = ".noukii"
"""A file in each environment that we made; another's is not touched."""
DEVICE_CHECK = Path(__file__).with_name("device_check.py")


def main_venv() -> Path:
    return project.CHECKOUT / ".venv"


def kohya_venv() -> Path:
    return project.kohya() / "venv"


def main_python() -> Path:
    """Return the interpreter that noukii's commands run on."""
    named = os.environ.get("NOUKII_PYTHON")
    return Path(named) if named else main_venv() / "bin" / "python"


def main_state(options: SetupOptions) -> State:
    if named := os.environ.get("NOUKII_PYTHON"):
        return State(True, f"NOUKII_PYTHON is {printable(named)}; used as it is")
    return _state(main_venv(), project.CHECKOUT / "requirements.txt")


def kohya_state(options: SetupOptions) -> State:
    venv = kohya_venv()
    if _foreign(venv):
        if (venv / "bin" / "accelerate").exists():
            return State(True, "is there, not from setup.sh; kept as it is")
        return State(False, "is there, not from setup.sh, and lacks accelerate")
    return _state(venv, project.CHECKOUT / KOHYA_REQUIREMENTS)


def _foreign(venv: Path) -> bool:
    """Whether the user made this environment; an empty folder was left by a run that had just begun."""
    return venv.is_dir() and not (venv / OWN).exists() and any(venv.iterdir())


def _lost(venv: Path, requirements: Path) -> list[str]:
    """Return the packages that `requirements` names and `venv` no longer has in any version."""
    folder = torch_build.packages_of(venv)
    there = {
        _plain(path.name.partition("-")[0])
        for path in folder.glob("*.dist-info")
        if (path / "METADATA").exists()
    }
    names = re.findall(
        r"^([A-Za-z0-9][\w.-]*)==[^;\n#]*(?:;(.*))?$", requirements.read_text(encoding="utf-8"), re.MULTILINE
    )
    # A line for another system may be missing; those for other versions of Python name a package twice.
    wanted = [name for name, marker in names if "sys_platform" not in marker or f'"{sys.platform}"' in marker]
    return [name for name in dict.fromkeys(wanted) if _plain(name) not in there]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _state(venv: Path, requirements: Path) -> State:
    if not (venv / "bin" / "python").exists():
        return State(False, "not there")
    if not _bash(_READY, venv, requirements, quiet=True):
        return State(False, f"{requirements.name} is not installed whole")
    if lost := _lost(venv, requirements):
        return State(
            False, f"{', '.join(lost[:3])}{' …' if lost[3:] else ''} of {requirements.name} is missing"
        )
    torch = torch_build.installed_in(torch_build.packages_of(venv))
    if needs_torch(requirements):
        if torch is None:
            return State(False, "torch is missing")
        choice = torch_build.here()
        if torch_build.action(torch, choice) == "replace":
            return State(False, f"torch {torch.version} does not suit this machine ({choice.why})")
    return State(True, f"{_python_version(venv)}, torch {torch.version}" if torch else _python_version(venv))


def needs_torch(requirements: Path) -> bool:
    return bool(re.search(r"^torch\b", requirements.read_text(encoding="utf-8"), re.MULTILINE))


def _python_version(venv: Path) -> str:
    try:
        found = re.search(
            r"^version(?:_info)?\s*=\s*([\d.]+)", (venv / "pyvenv.cfg").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return f"Python {found[1]}" if found else "Python"


def bring_main(options: SetupOptions) -> None:
    """Make .venv, or finish it, or exchange a torch that does not suit this machine."""
    _forget_if_incomplete(main_venv(), project.CHECKOUT / "requirements.txt")
    if not _bash('noukii_environment "$1"', project.CHECKOUT):
        raise RunError(main_venv(), "could not be made whole", "do what the lines above say")


def bring_kohya(options: SetupOptions) -> None:
    """Make upstream's own environment, or finish it."""
    venv, requirements = kohya_venv(), project.CHECKOUT / KOHYA_REQUIREMENTS
    if _foreign(venv):
        raise RunError(
            venv,
            "is an environment that setup.sh did not make, and it lacks accelerate",
            "move it away, or install what upstream needs into it yourself",
        )
    _forget_if_incomplete(venv, requirements)
    if not _bash(_INSTALL_KOHYA, venv, requirements):
        raise RunError(venv, "could not be made whole", "do what the lines above say")


def _forget_if_incomplete(venv: Path, requirements: Path) -> None:
    """Take back the mark of a whole installation where it is none (any more), or torch is the wrong one."""
    torch = torch_build.installed_in(torch_build.packages_of(venv))
    wrong = torch and torch_build.action(torch, torch_build.here()) == "replace"
    if venv.is_dir() and (wrong or _lost(venv, requirements)):
        (venv / f".installed-{requirements.name}").unlink(missing_ok=True)


def multiply(python: Path) -> str:
    """Multiply a matrix with an environment's torch; returns the line that says on what.

    Raises:
        RunError: torch does not start, or computes wrongly.
    """
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [python, "-I", DEVICE_CHECK], env=clean, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        raise RunError(
            python, f"torch does not work: {printable(last[0])}", "remove that environment and run it again"
        )
    return done.stdout.strip()


_READY = 'noukii_ready_in "$1" "$2"'
_INSTALL_KOHYA = 'noukii_install_last accelerate "$1" "$2"'


def _bash(call: str, *arguments: Path, quiet: bool = False) -> bool:
    """Run a function of scripts/environment.sh; its words go to the terminal. True if it succeeds."""
    # When it is stopped it does not go on to explain why pip has failed.
    script = f'set -euo pipefail; trap "exit 130" INT TERM; source "$0"; {call}'
    environment = dict(os.environ)
    if not environment.get("NOUKII_BASE_PYTHON") and Path(sys.executable) != main_python():
        environment["NOUKII_BASE_PYTHON"] = sys.executable
    done = child.run(
        ["bash", "-c", script, project.CHECKOUT / "scripts" / "environment.sh", *arguments],
        env=environment,
        stdout=sys.stderr,
        stderr=subprocess.DEVNULL if quiet else None,
    )
    return done.returncode == 0


def export(options: SetupOptions) -> None:
    """Hand the flags that concern packages to scripts/environment.sh."""
    for name, value in (
        ("NOUKII_INSTALLER", options.installer),
        ("NOUKII_INDEX_URL", options.index_url),
        ("NOUKII_TORCH_INDEX", options.torch_index),
        ("NOUKII_WHEELS", str(options.wheels or "")),
    ):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def has_uv() -> bool:
    """Whether uv is found, on PATH or in .tools/bin."""
    return _bash("noukii_uv", quiet=True)
