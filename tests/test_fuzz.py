"""A short run of tests/reliability/fuzz.py; the long one (100,000 inputs each) is in docs/reliability.md."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from reliability import fuzz

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about what is damaged on purpose

SHORT = {"header": 1500, "caption": 1500, "toml-write": 300, "toml-read": 500, "folder": 500, "manifest": 400,
         "image": 500}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(project_home: Path) -> None:
    """The fuzzer names a home of its own; afterwards this one's end brings the old back."""


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_no_input_gets_past_a_parser(target: str) -> None:
    outcome = fuzz.fuzz(target, range(SHORT[target]), seed=2)
    assert not outcome.failures, outcome.failures[0]
    assert len(outcome.ends) > 1, "the inputs are all alike: nothing was tried"


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_number_stands_for_one_input_for_ever(target: str, tmp_path: Path) -> None:
    """What failed yesterday can be run again by its number."""
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        check = fuzz.TARGETS[target]
        runs.append([check(random.Random(f"7/{target}/{number}"), tmp_path / name) for number in range(12)])
    assert runs[0] == runs[1]


def test_a_parser_that_breaks_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> object:
        if b"\0" in path.read_bytes():
            raise KeyError("no such thing")
        raise fuzz.UnreadableCaption("not read")

    monkeypatch.setattr(fuzz, "read_caption", broken)
    assert fuzz.main(["caption", "--count", "60"]) == 1
    said = capsys.readouterr().out
    assert "KeyError: 'no such thing'" in said and "20 failures" in said
    number = said.split("number ")[2].split(":")[0]
    assert fuzz.main(["caption", "--only", number]) == 1
