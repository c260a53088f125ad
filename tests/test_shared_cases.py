"""The cases of ../shared/cases, where they are: what MANIFEST.json expects of pictures, captions and folders.

The cases of models, runs, outputs and steps need a trainer's stand-in; tests/test_driver.py has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SHARED, Run
from PIL import Image

from noukii.dataset.folders import find_data_sets
from noukii.dataset.images import inspect_images, list_images, safe_stems, write_training_copy
from noukii.dataset.plan import describe, make_plan
from noukii.dataset.staging import MARKER, stage
from noukii.errors import InputError

GENERATOR = SHARED / "cases" / "make_cases.py"
PICTURES = ["I01", "I02", "I03", "I04", "I06", "I07", "I09", "I10", "I11", "I15", "I16", "I18", "I19"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not GENERATOR.is_file():
        pytest.skip("the shared cases are not here")
    folder = tmp_path_factory.mktemp("cases")
    subprocess.run([sys.executable, GENERATOR, folder], check=True, capture_output=True)
    return folder


def expected(cases: Path, name: str) -> dict[str, Any]:
    return json.loads((cases / "MANIFEST.json").read_text(encoding="utf-8"))[name]["expect"]


def near(pixel: Any, wanted: list[int], tolerance: int) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, wanted, strict=True))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(cases: Path, name: str, tmp_path: Path) -> None:
    wanted = expected(cases, name)
    listing = list_images(cases / name / "images")
    infos, broken = inspect_images(listing.images)
    skipped = {one.path.name for one in [*listing.skipped, *broken]}
    assert len(infos) >= wanted.get("usable_at_least", 0)
    if "usable" in wanted:
        assert len(infos) == wanted["usable"]
    if "skipped" in wanted:
        assert skipped == set(wanted["skipped"])
    assert skipped <= {*wanted.get("skipped", []), *wanted.get("may_skip", []), "broken.jpg"}
    stems = safe_stems([info.path for info in infos])
    assert len({stem.casefold() for stem in stems.values()}) == len(infos)
    for info in infos:
        if max(info.width, info.height) > 9000:
            continue  # large ones have a test of their own
        copy = write_training_copy(info, tmp_path, stems[info.path])
        with Image.open(copy) as image:
            image.load()
            assert image.mode == "RGB" and image.getexif().get(0x0112, 1) not in range(2, 9)
            stem = os.path.splitext(info.path.name)[0]
            assert list(image.size) == wanted.get("sizes", {}).get(stem, list(image.size))
            for place, colour in wanted.get("pixels", {}).get(stem, {}).items():
                at = tuple(map(int, place.split(",")))
                assert near(image.getpixel(at), colour, wanted.get("tolerance", 3)), (info.path.name, place)


def staged(folder: Path) -> dict[str, str]:
    """The captions of the training copies."""
    (subset,) = stage(make_plan(find_data_sets([], [folder])[0]), lambda _: None)
    texts = {path.name: path.read_bytes().decode("utf-8") for path in subset.image_dir.glob("*.txt")}
    assert len(texts) == len({*os.listdir(subset.image_dir)} - {*texts, MARKER})
    return texts


@pytest.mark.parametrize("name", ["C01", "C02", "C04", "C05", "C06", "C07"])
def test_captions(cases: Path, name: str, project_home: Path) -> None:
    wanted, folder = expected(cases, name), cases / name / "image_datasets" / "10_cat"
    said = describe(make_plan(find_data_sets([], [folder])[0]))
    texts = staged(folder)
    exact = {key: wanted.get(key, {}) for key in ("if_converted", "training_copy", "training_copy_verbatim")}
    for file, text in (pair for each in exact.values() for pair in each.items()):
        assert texts[file] == text
    for file, part in wanted.get("must_contain", {}).items():
        assert part in texts[file]
    assert all("\n" not in text and "\r" not in text and text for text in texts.values())
    lists = ("detected_before_training", "over_75_tokens", "keyword_beyond_first_75")
    named = [file for each in lists for file in wanted.get(each, [])] + [
        *wanted.get("not_used_for", {}).values()
    ]
    for file in named:
        assert file in said, f"{file} is not named"


def test_a_folder_without_any_caption_is_refused(cases: Path, project_home: Path) -> None:
    with pytest.raises(InputError, match="no captions"):
        make_plan(find_data_sets([], [cases / "C05" / "image_datasets_nocap" / "10_dog"])[0])


def dry_run(run: Run, cases: Path, name: str) -> str:
    """The plan for all of a case's data sets, or the refusal."""
    home = cases / name
    done = run("run_training.sh", "--dry-run", "--trainer", "builtin", NOUKII_HOME=str(home))
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_folders(cases: Path, run: Run) -> None:
    said = dry_run(run, cases, "F01")
    assert "holds no data set" in said and all(
        name in said for name in expected(cases, "F01")["message_names"]
    )
    said = dry_run(run, cases, "F02")
    assert "3 images × 10 repeats = 30 samples" in said
    assert all(name in said for name in expected(cases, "F02")["ignored_and_listed"])
    said = dry_run(run, cases, "F05")
    assert "3 images × 10 repeats = 30 samples" in said and "4 images" not in said
    assert "1_reg, reg, reg_1_animal: regularisation images are not supported" in said
    assert dry_run(run, cases, "F07").count("2 images × 10 repeats") == 5
    assert dry_run(run, cases, "T01").count("1 image × 10 repeats") == 8
