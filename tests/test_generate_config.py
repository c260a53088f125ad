"""./generate_config.py: what it writes over, what it refuses, and with which Python it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, Run
from PIL import Image

MINE = """[general]
enable_bucket = true
caption_extension = ".txt"

[[datasets]]
resolution = 512
batch_size = 2

  [[datasets.subsets]]
  image_dir = "/home/me/pictures"
  num_repeats = 3
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "10_cat"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    (folder / "a.txt").write_text("cat")
    return folder


@pytest.mark.parametrize("content", ["my notes", MINE, "", "\udcff"])
def test_a_file_that_is_not_its_own_is_never_written_over(
    run: Run, data: Path, tmp_path: Path, project_home: Path, content: str
):
    mine = tmp_path / "my config.toml"
    mine.write_bytes(os.fsencode(content))
    answer = run("generate_config.py", data, "--output", mine)
    assert answer.returncode == 2
    assert "my config.toml: is there already" in answer.stderr
    assert mine.read_bytes() == os.fsencode(content)
    assert list(project_home.iterdir()) == []


def test_its_own_file_is_written_again_until_somebody_edits_it(run: Run, data: Path, tmp_path: Path):
    written = tmp_path / "cat.toml"
    for batch in ("1", "2"):
        answer = run("generate_config.py", data, "--output", written, "--batch-size", batch)
        assert answer.returncode == 0, answer.stderr
        assert f"batch_size = {batch}" in written.read_text()
    written.write_text(written.read_text() + "# my remark\n")
    edited = written.read_bytes()
    assert run("generate_config.py", data, "--output", written).returncode == 2
    assert written.read_bytes() == edited


def test_only_resolutions_that_can_be_trained_are_taken(run: Run, data: Path, project_home: Path):
    for text, hint in (("65", "give --resolution 64"), ("9" * 5000, "64 to 2048"), ("5_12", "64 to 2048")):
        answer = run("generate_config.py", data, "--resolution", text)
        assert answer.returncode == 2
        assert hint in answer.stderr
    assert list(project_home.iterdir()) == []


def test_a_home_that_no_toml_can_name_is_refused_before_anything_is_copied(
    run: Run, data: Path, tmp_path: Path
):
    for name in (b"two\nlines", b"caf\xe9"):
        home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        home.mkdir()
        for command in ("generate_config.py", "run_training.sh"):
            model = [] if command == "generate_config.py" else ["--dry-run"]
            answer = run(command, data, *model, NOUKII_HOME=os.fspath(home))
            assert answer.returncode == 2, answer.stdout
            assert "NOUKII_HOME: has" in answer.stderr
        assert list(home.iterdir()) == []


def test_with_a_python_that_lacks_the_packages_the_other_one_is_used(data: Path, project_home: Path):
    # -S: no site-packages, as a system's Python without them
    script = (
        f"import sys, runpy; sys.argv = {[str(CHECKOUT / 'generate_config.py'), str(data), '--dry-run']!r}"
    )
    code = (
        f"{script}; sys.path.insert(0, {str(CHECKOUT)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "NOUKII_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "1 image" in answer.stdout
