"""Which build of torch a machine gets, and that the environment really gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import setup_stand_ins as stand_ins

from noukii.setup.torch_build import (
    CPU_INDEX,
    CUDA12_INDEX,
    DEFAULT,
    Card,
    Installed,
    action,
    choose,
    read_card,
)


@pytest.mark.parametrize(
    ("name", "driver", "capability", "kind", "index", "usable", "words"),
    [
        ("H100", 580, (9, 0), "cuda13", DEFAULT, True, "CUDA 13 build"),
        ("RTX 5090", 590, (12, 0), "cuda13", DEFAULT, True, "CUDA 13 build"),
        ("GTX 1660", 580, (7, 5), "cuda13", DEFAULT, True, "CUDA 13 build"),
        ("RTX 3060", 535, (8, 6), "cuda12", CUDA12_INDEX, True, "the newest for the driver"),
        ("RTX 4090", 579, (8, 9), "cuda12", CUDA12_INDEX, True, "the newest for the driver"),
        ("Tesla V100", 590, (7, 0), "cuda12", CUDA12_INDEX, True, "the newest for the card"),
        ("GTX 1080", 525, (6, 1), "cuda12", CUDA12_INDEX, True, "the newest for the driver"),
        ("GTX 750", 550, (5, 0), "cuda12", CUDA12_INDEX, True, "CUDA 12.6 build"),
        ("RTX 5090", 575, (12, 0), "cuda13", DEFAULT, False, "needs driver 580 or newer"),
        ("RTX 2080", 470, (7, 5), "cuda13", DEFAULT, False, "update it to 580"),
        ("GTX 1080", 470, (6, 1), "cuda12", CUDA12_INDEX, False, "update it to 525"),
        ("Tesla K80", 470, (3, 7), "cpu", CPU_INDEX, False, "older than torch supports"),
    ],
)
def test_the_build_suits_card_and_driver(
    name: str, driver: int, capability: tuple[int, int], kind: str, index: str, usable: bool, words: str
) -> None:
    choice = choose(Card(name, driver, capability))
    assert (choice.kind, choice.index, choice.usable) == (kind, index, usable)
    assert words in choice.why and name in choice.why


def test_without_a_card_it_is_the_cpu_build_where_there_is_one() -> None:
    assert choose(None).index == CPU_INDEX and "no NVIDIA driver" in choose(None).why
    assert choose(None, "Darwin").index == DEFAULT


@pytest.mark.parametrize(
    ("listing", "visible", "card"),
    [
        ("NVIDIA H200, 570.86.15, 9.0\n", None, Card("NVIDIA H200", 570, (9, 0))),
        ("GTX 1080, 535.1, 6.1\nRTX 4090, 535.1, 8.9\n", "1", Card("RTX 4090", 535, (8, 9))),
        ("GTX 1080, 535.1, 6.1\n", "GPU-5a", Card("GTX 1080", 535, (6, 1))),
        ("A, B, 580.1, 12.0\n", None, Card("A, B", 580, (12, 0))),
        ("No devices were found\n", None, None),
        ("RTX 4090, [N/A], [N/A]\n", None, None),
        ("", None, None),
    ],
)
def test_nvidia_smi_is_read(listing: str, visible: str | None, card: Card | None) -> None:
    assert read_card(listing, visible) == card


def test_a_torch_is_exchanged_only_where_it_cannot_do() -> None:
    cpu, twelve, thirteen = (
        Installed("2.13.0+cpu", ""),
        Installed("2.13.0+cu126", "12.6"),
        Installed("2.13.0", "13.0"),
    )
    none, old, new = choose(None), choose(Card("a", 535, (8, 6))), choose(Card("b", 590, (8, 6)))
    assert action(None, none) == "install"
    assert [action(one, none) for one in (cpu, twelve, thirteen)] == ["keep", "keep", "keep"]
    assert [action(one, old) for one in (cpu, twelve, thirteen)] == ["replace", "keep", "replace"]
    assert [action(one, new) for one in (cpu, twelve, thirteen)] == ["replace", "replace", "keep"]
    assert action(cpu, none, "2.13.0") == "keep" and action(cpu, none, "2.14.0") == "install"


def torch_index(folder: Path, tag: str, cuda: str) -> str:
    """Make a package index with one torch; returns its address."""
    text = f"__version__ = '2.13.0+{tag}'\ncuda: str | None = {cuda!r}\n"
    stand_ins.wheel(
        folder / "torch", "torch", f"2.13.0+{tag}", {"torch/__init__.py": "", "torch/version.py": text}
    )
    name = next((folder / "torch").glob("*.whl")).name
    (folder / "torch" / "index.html").write_text(f'<a href="{name}">{name}</a>')
    return folder.as_uri()


def test_the_environment_gets_that_torch_and_another_one_when_the_card_changes(tmp_path: Path) -> None:
    """The indexes are folders; nvidia-smi is a script that names a card."""
    root = stand_ins.copy_checkout(tmp_path / "a checkout é")
    (root / "requirements.txt").write_text("torch==2.13.0  # a comment\n")
    cpu, cuda = (
        torch_index(tmp_path / "cpu", "cpu", None),
        torch_index(tmp_path / "cu126", "cu126", "12.6"),
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    smi = programs / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)

    def setup(*arguments: str, index: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NOUKII_", "PIP_"))}
        path = f"{programs}:{Path(sys.executable).resolve().parent}:{kept['PATH']}"
        extra = {
            "PATH": path,
            "NOUKII_TORCH_INDEX": index,
            "NOUKII_INSTALLER": "pip",
            "PIP_CONFIG_FILE": os.devnull,
        }
        return subprocess.run(
            [root / "setup.sh", "--captioning-only", "--no-models", *arguments],
            env={**kept, **extra},
            capture_output=True,
            text=True,
            check=False,
        )

    made = setup(index=cpu)
    assert "torch does not work" in made.stderr  # the stand-in cannot multiply; setup.sh notices
    assert "torch: CPU build: the NVIDIA driver does not answer" in made.stderr
    assert "torch 2.13.0+cpu" in setup("--check", index=cpu).stdout, made.stderr

    smi.write_text("#!/bin/sh\necho 'GTX 1080, 535.1, 6.1'\n")
    checked = setup("--check", index=cuda)
    assert checked.returncode == 1 and "torch 2.13.0+cpu does not suit this machine" in checked.stdout
    assert "GTX 1080 (compute capability 6.1, driver 535)" in checked.stdout
    setup(index=cuda)
    checked = setup("--check", index=cuda)
    assert checked.returncode == 0 and "torch 2.13.0+cu126" in checked.stdout


def test_uv_is_used_where_it_is_found(tmp_path: Path) -> None:
    """.tools/bin/uv is a script that does with pip what it was asked, and notes it."""
    root = stand_ins.copy_checkout(tmp_path / "a checkout é")
    stand_ins.wheel(tmp_path / "my wheels", "tinypackage", "1.0", {"tinypackage.py": ""})
    uv = root / ".tools" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(
        f'#!/usr/bin/env bash\nprintf "%s\\n" "$*" >>"{tmp_path}/asked"\n'
        'case "$1 $2" in\n'
        '"venv --quiet") exec "$5" -m venv "${@: -1}" ;;\n'
        '"pip install") exec "$4" -m pip install "${@:5}" ;;\n'
        "esac\n"
    )
    uv.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NOUKII_")}
    path = f"{Path(sys.executable).resolve().parent}:{kept['PATH']}"
    command = [root / "setup.sh", "--captioning-only", "--no-models", "--wheels", tmp_path / "my wheels"]
    done = subprocess.run(command, env={**kept, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text()
    assert (
        f"pip install --python {root}/.venv/bin/python --no-index --find-links {tmp_path}/my wheels" in asked
    )
    assert list((root / ".venv").glob("lib/python3*/site-packages/tinypackage.py"))
