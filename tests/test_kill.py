"""kill -9: a few of the moments of tests/reliability/kill.py; --slow runs thirty of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT


def kill(job: str, moments: int, tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, CHECKOUT / "tests" / "reliability" / "kill.py", job, "--moments", str(moments),
         "--seed", str(seed)],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(rf"{job}: {moments} moments, (\d+) kills, 0 failures", done.stdout)
    assert found, done.stdout
    # a moment in the last thousandths of a run may find it ended
    assert int(found[1]) >= (moments * 9) // 10


@pytest.mark.parametrize(("job", "moments"), [("captioning", 3), ("staging", 4), ("trainer", 4)])
def test_after_a_kill_the_next_run_ends_as_an_undisturbed_one(job: str, moments: int, tmp_path: Path) -> None:
    kill(job, moments, tmp_path, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["captioning", "staging", "trainer", "training"])
def test_thirty_kills_at_drawn_moments(job: str, tmp_path: Path) -> None:
    kill(job, 30, tmp_path, seed=5)
