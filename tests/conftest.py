"""Fixtures that several test files share. Everything runs the real commands in folders of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("noukii", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("noukii")

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = CHECKOUT.parent / "shared"

sys.path.insert(0, str(CHECKOUT))
sys.path.insert(0, str(CHECKOUT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two tests run side by side, each on a core of its own
os.environ["NOUKII_PYTHON"] = sys.executable  # the commands use this environment instead of making one

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def reference() -> Path:
    """Facts computed with upstream's own code."""
    return CHECKOUT / "tests" / "reference"


@pytest.fixture(scope="session")
def photos(reference: Path) -> Path:
    """Six small photographs."""
    return reference / "photos"


@pytest.fixture(scope="session")
def janus_tiny() -> Path:
    """The tiny Janus-Pro checkpoint in the original layout whose answers upstream's code computed."""
    folder = SHARED / "reference" / "janus_tiny" / "model"
    if not folder.is_dir():
        pytest.skip("the tiny Janus checkpoint lies in ../shared, which is not here")
    return folder


@pytest.fixture
def project_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the checkout for everything that the commands write."""
    home = tmp_path / "my home é"
    home.mkdir()
    monkeypatch.setenv("NOUKII_HOME", str(home))
    return home


@pytest.fixture
def run(project_home: Path, tmp_path: Path) -> Iterator[Run]:
    """Run a command of the checkout: `run("run_training.sh", "--dry-run")`; the text is captured."""

    def command(
        script: str, *arguments: str | Path, cwd: Path | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        program = [str(CHECKOUT / script), *map(os.fspath, arguments)]
        if script.endswith(".py"):
            program.insert(0, sys.executable)
        return subprocess.run(
            program,
            cwd=cwd or tmp_path,
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            check=False,
        )

    yield command
