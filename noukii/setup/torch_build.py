"""Which build of torch suits this machine: a CUDA build that driver and card can run, or the CPU build.

Facts (pytorch/pytorch RELEASE.md and issues 172663, 178665, 190355): torch 2.13 and 2.14 come as
CUDA 12.6 (compute capability 5.0 to 9.0) and CUDA 13 builds (7.5 to 12.0); PyPI has a CUDA 13 build.
NVIDIA's compatibility rules: any CUDA 12 build runs on driver 525 and newer, any CUDA 13 build on 580
and newer.

Also a program of its own, on the standard library alone, for scripts/environment.sh:
`python torch_build.py torch==2.13.0` prints three lines: index (a URL or `default`), what to do with the
torch that this interpreter has (`install`, `keep` or `replace`), and why.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DEFAULT = "default"
"""The registry that pip or uv is configured for, PyPI as a rule."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA12_INDEX = "https://download.pytorch.org/whl/cu126"
CUDA12_DRIVER, CUDA13_DRIVER = 525, 580
CUDA12_CAPABILITIES = ((5, 0), (9, 0))
CUDA13_OLDEST = (7, 5)
QUERY = ("--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
WSL_PROGRAM = "/usr/lib/wsl/lib/nvidia-smi"

Capability = tuple[int, int]


@dataclass(frozen=True)
class Card:
    """The first NVIDIA card and its driver's major version."""

    name: str
    driver: int
    capability: Capability


@dataclass(frozen=True)
class Choice:
    """`kind` is cpu, cuda12 or cuda13; `index` says where it is had; `usable`: the card will be used."""

    kind: str
    index: str
    usable: bool
    why: str


@dataclass(frozen=True)
class Installed:
    """A torch that is there: its version (with `+cpu`, `+cu126`) and CUDA version, empty for a CPU build."""

    version: str
    cuda: str

    @property
    def kind(self) -> str:
        return f"cuda{self.cuda.partition('.')[0]}" if self.cuda else "cpu"


def choose(
    card: Card | None, system: str = "Linux", why_no_card: str = "no NVIDIA driver was found"
) -> Choice:
    """Return the build for a machine. A pure function; `system` is platform.system()'s word."""
    if system != "Linux":
        return Choice("cpu", DEFAULT, False, f"{system} has one build of torch")
    if card is None:
        return Choice("cpu", CPU_INDEX, False, f"CPU build: {why_no_card}")
    level = f"{card.capability[0]}.{card.capability[1]}"
    what = f"{card.name} (compute capability {level}, driver {card.driver})"
    oldest, newest = CUDA12_CAPABILITIES
    if card.capability < oldest:
        return Choice("cpu", CPU_INDEX, False, f"CPU build: {what} is older than torch supports (5.0)")
    if card.driver >= CUDA13_DRIVER and card.capability >= CUDA13_OLDEST:
        return Choice("cuda13", DEFAULT, True, f"CUDA 13 build: {what}")
    if card.driver < CUDA12_DRIVER:
        wanted = CUDA13_DRIVER if card.capability >= CUDA13_OLDEST else CUDA12_DRIVER
        kind, index = ("cuda13", DEFAULT) if wanted == CUDA13_DRIVER else ("cuda12", CUDA12_INDEX)
        return Choice(kind, index, False, f"{what}: the driver is too old; update it to {wanted} or newer")
    if card.capability > newest:
        return Choice(
            "cuda13", DEFAULT, False, f"{what}: this card needs driver {CUDA13_DRIVER} or newer; update it"
        )
    reason = "the card" if card.driver >= CUDA13_DRIVER else "the driver"
    return Choice("cuda12", CUDA12_INDEX, True, f"CUDA 12.6 build, the newest for {reason}: {what}")


def action(installed: Installed | None, choice: Choice, version: str = "") -> str:
    """Say what to do with the torch that is there (`version` is wanted): install, keep or replace.

    A CUDA build on a machine without a card works too and is kept; so is a CUDA 12 build on one that
    could have CUDA 13, if its code runs there.
    """
    if installed is None or (version and installed.version.partition("+")[0] != version):
        return "install"
    if choice.kind == "cpu" or installed.kind == choice.kind:
        return "keep"
    return "replace"


def read_card(listing: str, visible: str | None = None) -> Card | None:
    """Read nvidia-smi's answer to QUERY; `visible` is CUDA_VISIBLE_DEVICES. None if it names no card."""
    cards = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) != 3:
            continue
        driver, level = re.match(r"\d+", parts[1]), re.fullmatch(r"(\d+)\.(\d+)", parts[2])
        if driver and level:
            cards.append(Card(parts[0], int(driver.group()), (int(level[1]), int(level[2]))))
    first = (visible or "0").split(",")[0].strip()
    if first.isdigit() and int(first) < len(cards):
        return cards[int(first)]
    return cards[0] if cards else None


@lru_cache(maxsize=1)  # it is asked for in many places, and takes seconds where the driver is asleep
def detect() -> tuple[Card | None, str]:
    """Ask nvidia-smi; returns the card, or None and why there is none."""
    failed = ""
    for program in ("nvidia-smi", WSL_PROGRAM):
        try:
            done = subprocess.run([program, *QUERY], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and (card := read_card(done.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))):
            return card, ""
        failed = "the NVIDIA driver does not answer (nvidia-smi fails)"
    return None, failed or "no NVIDIA driver was found"


def here() -> Choice:
    """Return the choice for this machine; NOUKII_TORCH_INDEX names another index (or `default`)."""
    card, why = detect()
    choice = choose(card, platform.system(), why)
    if named := os.environ.get("NOUKII_TORCH_INDEX"):
        return Choice(choice.kind, named, choice.usable, f"{choice.why}; torch from {named}, as asked")
    return choice


def installed_in(packages: Path) -> Installed | None:
    """Return the torch in a site-packages folder, read from its version.py without importing it."""
    try:
        text = (packages / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^__version__[^=]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda[^=]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return Installed(version[1] if version else "?", cuda[1] if cuda else "")


def packages_of(venv: Path) -> Path:
    """Return the site-packages folder of an environment, whatever its Python version."""
    found = sorted(venv.glob("lib/python3*/site-packages"))
    return found[-1] if found else venv / "lib" / "site-packages"


def main(requirements: list[str]) -> None:
    choice = here()
    version = next((text.partition("==")[2] for text in requirements if text.startswith("torch==")), "")
    print(choice.index)
    print(action(installed_in(Path(sysconfig.get_paths()["purelib"])), choice, version))
    print(choice.why)


if __name__ == "__main__":
    main(sys.argv[1:])
