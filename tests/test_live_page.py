"""report.html while the run goes on: it is in the result's folder at once, and gives way to the result."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from test_driver import Driver, driver, make_set, stand_in, start, tiny_sd  # noqa: F401

from noukii.driver import live_page, outputs


def test_the_page_is_there_during_the_run_and_the_result_takes_its_place(driver: Driver) -> None:  # noqa: F811
    make_set(driver.home / "image_datasets" / "10_cat")
    shelf = driver.home / "trained_loras"
    process = start(driver, "--output-name", "cat")
    try:
        page = (shelf / "cat" / "report.html").read_text(encoding="utf-8")
        assert "This run is going on" in page and 'http-equiv="refresh"' in page
        assert sorted(path.name for path in (shelf / "cat").iterdir()) == [outputs.PLACEHOLDER, "report.html"]
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, said
    names = driver.result("cat")
    assert "cat.safetensors" in names and outputs.PLACEHOLDER not in names
    page = (shelf / "cat" / "report.html").read_text(encoding="utf-8")
    assert "This run is going on" not in page and "was stopped before its last step" in page
    facts = json.loads((shelf / "cat" / "run.json").read_text())
    assert facts["repeat"][-2:] == ["--seed", str(facts["seed"])]
    assert facts["settings"]["network_module"] == "networks.lora"


def test_a_failed_run_and_a_killed_one_leave_no_name_taken(driver: Driver) -> None:  # noqa: F811
    make_set(driver.home / "image_datasets" / "10_cat")
    shelf = driver.home / "trained_loras"
    killed = outputs_of_a_killed_run(shelf / "cat")
    assert driver("--output-name", "cat", mode="fail").returncode == 1
    assert not killed.exists()
    answer = driver("--output-name", "cat")
    assert answer.returncode == 0, answer.stderr
    assert [path.name for path in shelf.iterdir()] == ["cat"], "not cat-2"


def outputs_of_a_killed_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / outputs.PLACEHOLDER).touch()
    (folder / "report.html").write_text("the page of a run that was killed")
    return folder


def test_a_folder_of_the_user_s_is_never_removed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NOUKII_HOME", os.fspath(tmp_path))
    folder = outputs_of_a_killed_run(tmp_path / "trained_loras" / "cat")
    (folder / "notes.txt").write_text("mine")
    outputs.remove_placeholder(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    plain = tmp_path / "trained_loras" / "dog"
    plain.mkdir()
    (plain / "report.html").write_text("mine")
    outputs.remove_placeholder(plain)
    assert (plain / "report.html").read_text() == "mine"


def test_a_page_that_cannot_be_made_does_not_end_a_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NOUKII_HOME", os.fspath(tmp_path / "home"))
    page = live_page.LivePage(tmp_path / "gone", "cat", {})
    page.tick()
    page.tick()
    page.close()
    assert not (tmp_path / "home" / "trained_loras").exists()
