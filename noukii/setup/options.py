"""setup.sh's flags and environment variables, parsed once into a frozen dataclass."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noukii.command_line import Parser
from noukii.errors import InputError
from noukii.names import printable
from noukii.setup import addresses, sources, torch_build

PROGRAM = "./setup.sh"
OFFLINE_NAMES = {
    "base model": (sources.BASE_MODEL_NAME,),
    "kohya_ss": ("kohya_ss.git", "kohya_ss"),
    "sd-scripts": ("sd-scripts.git", "sd-scripts"),
}
LAYOUT = "check the spelling; docs/setup.md shows the layout"
CONTRADICTIONS = (
    ("captioning_only", "training_only"),
    ("captioning_only", "base_model"),
    ("training_only", "janus"),
    ("no_models", "base_model"),
    ("no_models", "janus"),
    ("uv", "pip"),
    ("check", "dry_run"),
    ("offline", "index_url"),
)
EPILOG = """
It can be run again at any time and does only what is missing. Nothing is written outside the project but
the caches of pip and uv. Every source has an environment variable too: NOUKII_ and the flag's name in
capitals (NOUKII_BASE_MODEL_SOURCE, NOUKII_KOHYA_SOURCE, NOUKII_TORCH_INDEX ...). docs/setup.md says more.

examples:
  ./setup.sh --dry-run                     what would be fetched, from where, how big, where to
  ./setup.sh                               both stages
  ./setup.sh --captioning-only             .venv and Janus-Pro-1B
  ./setup.sh --training-only --base-model ~/models/sd15.safetensors
  ./setup.sh --check                       what is there and what is missing; changes nothing
"""


@dataclass(frozen=True)
class SetupOptions:
    """What to prepare, and from where. Paths are absolute."""

    captioning: bool = True
    training: bool = True
    kohya: bool = True
    models: bool = True
    check: bool = False
    dry_run: bool = False
    janus: str = "1B"
    """1B, 7B, or the path of a model folder to link"""
    base_model: Path | None = None
    offline: Path | None = None
    installer: str = "auto"
    janus_source: str = ""
    """`owner/name@revision` on the Hub, or a folder (a path or file://); empty: the pinned one"""
    base_model_source: str = ""
    base_model_sha256: str = sources.BASE_MODEL_SHA256
    """64 hex digits; empty: any Stable Diffusion 1.5 will do"""
    kohya_source: str = sources.KOHYA_URL
    kohya_commit: str = sources.KOHYA_COMMIT
    sd_scripts_source: str = sources.SD_SCRIPTS_URL
    sd_scripts_commit: str = sources.SD_SCRIPTS_COMMIT
    """A commit, branch or tag; `submodule`: the one that kohya_ss names"""
    index_url: str = ""
    torch_index: str = ""
    wheels: Path | None = None

    @property
    def janus_wanted(self) -> bool:
        return self.captioning and self.models

    @property
    def base_model_wanted(self) -> bool:
        return self.training and self.models

    @property
    def kohya_wanted(self) -> bool:
        return self.training and self.kohya


def parse(arguments: list[str]) -> SetupOptions:
    """Return what is to be prepared.

    Raises:
        InputError: an unknown flag, flags that exclude each other, a path that is not there.
    """
    found = _parser().parse_args(arguments)
    _refuse_what_contradicts(vars(found))
    offline = found.offline and addresses.existing("--offline", found.offline, folder=True, step=LAYOUT)
    value = _Values(found, offline)
    return SetupOptions(
        captioning=not found.training_only,
        training=not found.captioning_only,
        kohya=not found.no_kohya,
        models=not found.no_models,
        check=found.check,
        dry_run=found.dry_run,
        janus=_janus(found.janus or "1B"),
        base_model=addresses.existing("--base-model", found.base_model) if found.base_model else None,
        offline=value.offline,
        installer=_installer(found.uv, found.pip),
        janus_source=value.checked("janus_source", addresses.hub_model),
        base_model_source=value.source("base_model_source", "base model", "", addresses.file_or_url),
        base_model_sha256=_sha256(value.text("base_model_sha256")),
        kohya_source=value.source("kohya_source", "kohya_ss", sources.KOHYA_URL, addresses.repository),
        kohya_commit=_commit("--kohya-commit", value.text("kohya_commit") or sources.KOHYA_COMMIT),
        sd_scripts_source=value.source(
            "sd_scripts_source", "sd-scripts", sources.SD_SCRIPTS_URL, addresses.repository
        ),
        sd_scripts_commit=_commit(
            "--sd-scripts-commit", value.text("sd_scripts_commit") or sources.SD_SCRIPTS_COMMIT
        ),
        index_url=value.checked("index_url", addresses.index),
        torch_index=value.checked("torch_index", _torch_index),
        wheels=value.wheels(),
    )


def _refuse_what_contradicts(found: dict[str, Any]) -> None:
    for one, other in CONTRADICTIONS:
        if found[one] and found[other]:
            raise InputError(f"{_flag(one)} {_flag(other)}", "exclude each other", "give one of them")
    for name, given in found.items():
        if given == "":  # a variable that is not set, as a rule
            raise InputError(
                _flag(name), "needs a value behind it", f"{PROGRAM} --help shows how it is called"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Values:
    """A flag's value, else its environment variable's, else what --offline holds, else the default."""

    def __init__(self, found: object, offline: Path | None) -> None:
        self._found, self.offline = found, offline

    def text(self, name: str) -> str:
        return self._given(name)[1]

    def _given(self, name: str) -> tuple[str, str]:
        """Return where it was given, and what."""
        variable = f"NOUKII_{name.upper()}"
        if given := getattr(self._found, name):
            return _flag(name), given
        return variable, os.environ.get(variable, "")

    def checked(self, name: str, check: Callable[[str, str], str]) -> str:
        label, given = self._given(name)
        return check(label, given) if given else ""

    def source(self, name: str, kind: str, default: str, check: Callable[[str, str], str]) -> str:
        if given := self.checked(name, check):
            return given
        if self.offline is None:
            return default
        names = OFFLINE_NAMES[kind]
        here = [self.offline / one for one in names if (self.offline / one).exists()]
        return str(here[0] if here else self.offline / names[0])

    def wheels(self) -> Path | None:
        label, given = self._given("wheels")
        if given:
            return addresses.existing(label, given, folder=True)
        return self.offline / "wheels" if self.offline else None


def _installer(uv: bool, pip: bool) -> str:
    if uv or pip:
        return "uv" if uv else "pip"
    given = os.environ.get("NOUKII_INSTALLER") or "auto"
    if given not in ("auto", "uv", "pip"):
        raise InputError(
            f"NOUKII_INSTALLER {printable(given)}", "is not possible", "choose from auto, uv, pip"
        )
    return given


def _torch_index(label: str, text: str) -> str:
    return text if text == torch_build.DEFAULT else addresses.index(label, text)


def _janus(text: str) -> str:
    if text.upper() in sources.JANUS:
        return text.upper()
    path = addresses.absolute(text)
    if not os.path.isdir(path):
        raise InputError(
            f"--janus {printable(text)}", "is neither 1B nor 7B nor a folder", "give 1B, 7B or a model folder"
        )
    return str(path)


def _sha256(text: str) -> str:
    text = text.strip().lower()
    if not text:
        return sources.BASE_MODEL_SHA256
    if text == "any":
        return ""
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise InputError("--base-model-sha256", "is not 64 hex digits", "give the whole SHA-256, or: any")
    return text


def _commit(flag: str, text: str) -> str:
    if text.startswith("-") or not re.fullmatch(r"[\w./-]+", text):
        raise InputError(f"{flag} {printable(text)}", "names no commit", "give a commit, a branch or a tag")
    return text


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [flags]",
        description="Prepare this machine: environments, Janus-Pro, Stable Diffusion 1.5, kohya's trainer.",
        epilog=EPILOG,
    )
    what = parser.add_argument_group("what to prepare")
    add = what.add_argument
    add("--captioning-only", action="store_true", help=".venv and Janus-Pro")
    add("--training-only", action="store_true", help=".venv, Stable Diffusion 1.5 and kohya's trainer")
    add("--no-kohya", action="store_true", help="without kohya's trainer; ours needs nothing of it")
    add("--no-models", action="store_true", help="without Janus-Pro and Stable Diffusion 1.5")
    add("--janus", metavar="1B|7B|DIR", help="which Janus-Pro; a folder is linked (1B, 4.2 GB)")
    add("--base-model", metavar="PATH", help="an SD1.5 that you have: linked, not copied")
    how = parser.add_argument_group("how")
    add = how.add_argument
    add("--check", action="store_true", help="a line per part: there or missing; exit 1 if one is missing")
    add("--dry-run", action="store_true", help="what would be fetched, from where, how big, where to")
    add("--offline", metavar="DIR", help="take every download from DIR (layout: docs/setup.md)")
    add("--uv", action="store_true", help="install with uv (used anyway where it is found)")
    add("--pip", action="store_true", help="install with venv and pip")
    add("--python", metavar="PROGRAM", help="the Python 3.10 to 3.13 that environments are made with")
    where = parser.add_argument_group("other sources: mirrors, local paths, file:// URLs")
    add = where.add_argument
    add("--janus-source", metavar="WHERE", help="owner/name@revision on the Hub, or a folder")
    add("--base-model-source", metavar="WHERE", help="URL or path of the base model")
    add("--base-model-sha256", metavar="HEX", help="what it must have; any: only look at its header")
    add("--kohya-source", metavar="GIT", help=f"({sources.KOHYA_URL})")
    add("--kohya-commit", metavar="REF", help="(v26.0.0)")
    add("--sd-scripts-source", metavar="GIT", help=f"({sources.SD_SCRIPTS_URL})")
    add("--sd-scripts-commit", metavar="REF", help=f"({sources.SD_SCRIPTS_COMMIT[:8]}; submodule: kohya_ss')")
    add("--index-url", metavar="URL", help="package index for pip or uv")
    add("--torch-index", metavar="URL", help="index for torch alone; default: the usual one")
    add("--wheels", metavar="DIR", help="install packages from this folder alone")
    return parser
