"""The shell commands and the environment they make, in checkouts and folders of odd names."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
CORE = """import importlib.util, json, sys
if sys.argv[1:2] == ["--only-check-arguments"]:
    sys.exit(2 if "--bad" in sys.argv else 0)
print(json.dumps([sys.prefix, importlib.util.find_spec("tinypackage") is not None, sys.argv[1:]]))
"""


def wheel(folder: Path, version: str) -> str:
    """Write a package of one empty module and return its requirement line; no network is needed."""
    name = f"tinypackage-{version}"
    path = folder / f"{name}-py3-none-any.whl"
    texts = {
        "tinypackage.py": f"version = {version!r}\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tinypackage\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{name}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in texts.items():
            archive.writestr(inside, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{inside},sha256={digest},{len(text)}")
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")
    return f"tinypackage @ {path.as_uri()}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the command and its environment script, in the place of the whole checkout."""
    root = tmp_path / "a checkout é $HOME's"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(CHECKOUT / "run_captioning.sh", root)
    shutil.copy(CHECKOUT / "scripts" / "environment.sh", root / "scripts")
    (root / "janus_pro_caption_core.py").write_text(CORE)
    (root / "requirements.txt").write_text(wheel(tmp_path, "1.0"))
    return root


def call(program: Path, *arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NOUKII_PYTHON", "PYTHONPATH")}
    path = f"{Path(sys.executable).resolve().parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "PIP_NO_INDEX": "1", **extra}


def test_the_environment_is_made_once_finished_when_interrupted_and_follows_its_list(
    checkout: Path, tmp_path: Path
) -> None:
    command = checkout / "run_captioning.sh"
    venv = checkout / ".venv"
    for arguments in ([], ["x", "--bad"]):  # what cannot work installs nothing
        assert call(command, *arguments, cwd=tmp_path).returncode == 2
    assert json.loads(call(command, "x", "--help", cwd=tmp_path).stdout)[2] == ["--help"]
    assert not venv.exists()

    good = (checkout / "requirements.txt").read_text()
    (checkout / "requirements.txt").write_text(good + "surely-not-a-package==1\n")
    failed = call(command, "x", cwd=tmp_path)
    assert failed.returncode == 1 and "install.log" in failed.stderr and "next: " in failed.stderr
    assert failed.stdout.count("{") == 0

    (checkout / "requirements.txt").write_text(good)
    link = tmp_path / "link to it"
    link.symlink_to(os.path.relpath(command, tmp_path))
    two = [
        subprocess.Popen(
            [link, "my photos", "kw", "--seed", "3"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate() for process in two]
    for out, _ in said:
        assert json.loads(out.splitlines()[-1]) == [
            str(venv),
            True,
            ["my photos", "--keyword", "kw", "--seed", "3"],
        ]
    assert sum("installing what requirements.txt asks for" in err for _, err in said) == 1

    again = call(command, "x", cwd=tmp_path)
    assert again.stderr == "" and json.loads(again.stdout)[:2] == [str(venv), True]
    (checkout / "requirements.txt").write_text(wheel(tmp_path, "2.0"))
    assert "installing" in call(command, "x", cwd=tmp_path).stderr
    assert list(venv.glob("lib/python3*/site-packages/tinypackage-2.0.dist-info"))


def test_a_python_that_does_not_start_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    """pyenv leaves shims of versions that are installed but not chosen."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("python3.11", "python3.12", "python3.13", "python3.10", "python3"):
        shim = bin_folder / name
        shim.write_text("#!/bin/sh\necho 'pyenv: not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    (bin_folder / "python").symlink_to(Path(sys.executable).resolve())
    script = 'source "$1/scripts/environment.sh"; noukii_find_python; echo "$NOUKII_BASE_PYTHON"'
    path = f"{bin_folder}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euc", script, "test", checkout],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "python\n", done.stderr
    (bin_folder / "python").unlink()
    shutil.copy(bin_folder / "python3", bin_folder / "python")
    done = subprocess.run(
        ["bash", "-euc", script, "test", checkout],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "no Python 3.10" in done.stderr and "next: " in done.stderr


def test_a_named_python_is_used_as_it_is_or_refused(checkout: Path, tmp_path: Path) -> None:
    command = checkout / "run_captioning.sh"
    used = call(command, "--", "-odd name", "k", cwd=tmp_path, NOUKII_PYTHON=sys.executable)
    assert json.loads(used.stdout)[2] == ["--", "-odd name", "k"] and not (checkout / ".venv").exists()
    refused = call(command, "x", cwd=tmp_path, NOUKII_PYTHON="/no/such python")
    assert refused.returncode == 1 and "/no/such python is not a working Python" in refused.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_captioning_answers_in_any_locale_and_hands_names_on_unharmed(
    run, tmp_path: Path, locale: str
) -> None:
    folder = tmp_path / "ünï $(touch pwned) 'x' \n猫"
    folder.mkdir()
    done = run("run_captioning.sh", folder, "tomcat", "--dry-run", LC_ALL=locale)
    assert done.returncode == 2 and "is empty" in done.stderr and "Traceback" not in done.stderr
    assert "ünï $(touch pwned) 'x' \\n猫" in done.stderr
    assert not (tmp_path / "pwned").exists()
    helped = run("run_captioning.sh", "--help", LC_ALL=locale)
    assert helped.returncode == 0 and "--max-caption-tokens" in helped.stdout
