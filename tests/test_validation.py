"""The validation loss: measured on images that are not trained, always the same way, disturbing nothing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_models import make_tiny_sd
from tiny_training import (
    arguments,
    draw_data,
    metadata_of,
    metrics_of,
    tensors_of,
    train_here,
    write_toml,
)

from noukii.dataset.folders import DataSet
from noukii.dataset.held_out import held_out
from noukii.dataset.plan import make_plan
from noukii.driver import compare
from noukii.errors import InputError
from noukii.report.checkpoints import best, checkpoints
from noukii.report.run_files import read_run
from noukii.trainer.validation import PAIRS, make_pairs

STEPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base model, five pictures to train, two others, and prompts."""
    folder = tmp_path_factory.mktemp("validation")
    make_tiny_sd(folder / "sd")
    write_toml(folder / "data.toml", draw_data(folder / "data"))
    draw_data(folder / "others", 2)
    for number, image in enumerate(sorted((folder / "others").glob("*.png"))):
        Image.new("RGB", (64, 64), (90 * number, 20, 90)).save(image)
    (folder / "prompts.txt").write_text("sat_disc --w 64 --h 64 --s 2\na box --w 64 --h 64 --s 2 --d 7\n")
    return folder


def flags(place: Path, output: Path, *more: str) -> list[str]:
    return arguments(place / "sd", place / "data.toml", output, *more, steps=STEPS)


@pytest.fixture(scope="module")
def measured(place: Path) -> Path:
    """A run of twelve steps with one image held out, two saves on the way, pictures at each."""
    output = place / "home" / "trained_loras" / "disc"
    more = ["--validation_split", "0.2", "--validate_every_n_steps", "3", "--save_every_n_steps", "4"]
    more += ["--sample_prompts", str(place / "prompts.txt"), "--sample_every_n_steps", "4"]
    return train_here(place, flags(place, output, *more, "--sample_at_first"))


def values(output: Path) -> dict[int, float]:
    return {line["step"]: line["validation_loss"] for line in metrics_of(output) if "validation_loss" in line}


def test_it_is_measured_before_on_the_way_at_each_save_and_at_the_end(measured: Path) -> None:
    assert list(values(measured)) == [0, 3, 4, 6, 8, 9, 12]
    assert len(set(values(measured).values())) == 7
    assert [line["step"] for line in metrics_of(measured)] == list(range(STEPS + 1))


def test_what_is_held_out_is_not_trained(measured: Path) -> None:
    metadata = metadata_of(measured / "disc.safetensors")
    assert metadata["ss_num_train_images"] == "8", "four of the five images, twice each"
    lines = metrics_of(measured)[1:]
    assert sum(line["samples"] for line in lines[:4]) <= 8
    assert (
        sum(subset["img_count"] for one in json.loads(metadata["ss_datasets"]) for subset in one["subsets"])
        == 4
    )


def test_the_plan_and_the_trainer_hold_the_same_images_out(place: Path, measured: Path) -> None:
    plan = make_plan([DataSet(place / "data", "sat_disc", 2, "a test")], resolution=128, validation=0.2)
    (apart,) = plan.sets[0].held_out
    assert plan.sets[0].found == 5 == len(plan.sets[0].images) + 1
    tags = json.loads(metadata_of(measured / "disc.safetensors")["ss_tag_frequency"])
    trained = {tag.strip() for folder in tags.values() for tag in folder}
    colours = {re.search(r"a (\w+) disc", image.caption.text)[0] for image in plan.sets[0].images}
    assert colours <= trained
    assert re.search(r"a (\w+) disc", apart.caption.text)[0] not in trained


def test_two_runs_are_measured_alike_and_the_base_model_does_not_depend_on_the_seed(
    place: Path, measured: Path, tmp_path: Path
) -> None:
    more = ["--validation_split", "0.2", "--validate_every_n_steps", "12", "--seed", "99"]
    other = train_here(place, flags(place, tmp_path / "out", *more))
    assert list(values(other)) == [0, 12]
    assert values(other)[0] == values(measured)[0]
    assert values(other)[12] != values(measured)[12]


def test_measuring_on_a_folder_changes_nothing_in_the_training_and_a_resume_goes_on(
    place: Path, tmp_path: Path
) -> None:
    plain = train_here(place, flags(place, tmp_path / "plain"))
    more = ["--validation_data_dir", str(place / "others"), "--validate_every_n_steps", "2"]
    whole = train_here(place, flags(place, tmp_path / "whole", *more))
    assert tensors_of(plain / "disc.safetensors") == tensors_of(whole / "disc.safetensors")
    assert list(values(whole)) == [0, 2, 4, 6, 8, 10, 12]
    half = train_here(place, flags(place, tmp_path / "half", *more, "--save_state", "--max_train_steps", "6"))
    train_here(place, flags(place, tmp_path / "half", *more, "--resume", str(half / "disc-state")))
    assert values(half) == values(whole)
    assert [line.get("loss") for line in metrics_of(half)] == [line.get("loss") for line in metrics_of(whole)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--validation_split", "1"], "no share"),
        (["--validation_split", "-0.1"], "no share"),
        (["--validation_split", "nan"], "not a finite number"),
        (["--validation_split", "0.1", "--validation_data_dir", "x"], "give one of them"),
        (["--validate_every_n_steps", "5"], "no images to measure on"),
        (["--validation_split", "0.1", "--validate_every_n_steps", "0"], "less than 1"),
        (["--validation_data_dir", "DATA"], "trained on as well"),
        (["--validation_data_dir", "NONE"], "there is no such folder"),
        (["--sample_at_first"], "no prompts"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    place: Path, tmp_path: Path, more: list[str], reason: str
) -> None:
    named = {"DATA": str(place / "data"), "NONE": str(tmp_path / "none")}
    with pytest.raises(InputError) as refusal:
        train_here(place, flags(place, tmp_path / "out", *(named.get(word, word) for word in more)))
    assert reason in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_a_single_image_cannot_be_spared(place: Path, tmp_path: Path) -> None:
    toml = write_toml(tmp_path / "one.toml", draw_data(tmp_path / "one", 1))
    with pytest.raises(InputError, match="has an image to spare"):
        train_here(place, arguments(place / "sd", toml, tmp_path / "out", "--validation_split", "0.5"))


@given(st.integers(1, 200))
def test_timesteps_fill_the_whole_range_evenly(count: int) -> None:
    pairs = make_pairs(count)
    assert min(count, PAIRS) <= len(pairs) <= PAIRS
    assert {pair.sample for pair in pairs} == set(range(min(count, PAIRS)))
    steps = sorted(pair.timestep for pair in pairs)
    assert steps[0] >= 0 and steps[-1] <= 999
    quarters = [sum(250 * q <= step < 250 * q + 250 for step in steps) for q in range(4)]
    assert max(quarters) - min(quarters) <= max(2, len(pairs) // 8)
    assert len({pair.seed for pair in pairs}) == len(pairs)


@settings(deadline=None)
@given(st.lists(st.text(max_size=8), unique=True, max_size=40), st.floats(0.01, 0.99))
def test_a_share_is_held_out_whatever_the_order(names: list[str], share: float) -> None:
    apart = held_out(names, share)
    again = held_out(names[::-1], share)
    assert {names[place] for place in apart} == {names[::-1][place] for place in again}
    assert len(apart) == (min(max(1, round(share * len(names))), len(names) - 1) if len(names) > 1 else 0)


# --- the best checkpoint, and the sheet -------------------------------------------------------------


def test_the_best_is_the_lowest_among_the_saved(measured: Path) -> None:
    files = read_run(measured)
    saved = checkpoints(files)
    assert {one.name: one.step for one in saved} == {
        "disc-step00000004.safetensors": 4,
        "disc-step00000008.safetensors": 8,
        "disc-step00000012.safetensors": 12,
        "disc.safetensors": 12,
    }
    found = values(measured)
    assert all(one.validation_loss == found[one.step] for one in saved if one.step is not None)
    lowest = min((4, 8, 12), key=found.get)
    named = best(saved)
    assert named is not None and named.step == lowest
    assert named.is_final == (lowest == 12)


def test_a_sheet_shows_the_base_model_and_each_checkpoint_at_each_strength(
    place: Path, measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOUKII_HOME", str(place / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (measured / "run.json").write_text(json.dumps({"output_name": "disc", "seed": 11}))
    seen: dict[str, object] = {}
    from noukii.report import sheet

    def keep(folder, title, rows, columns, pictures, best):
        seen.update(rows=rows, columns=columns, pictures=pictures)
        return real(folder, title, rows, columns, pictures, best)

    real = sheet.write_sheet
    monkeypatch.setattr(sheet, "write_sheet", keep)
    words = ["--compare", "disc", "--strengths", "0,1", "--base-model", str(place / "sd")]
    assert compare.compare(compare.parse([*words, "--sample-prompts", str(place / "prompts.txt")])) == 0
    assert seen["rows"] == [
        "base model",
        *("step 4, strength 0", "step 4, strength 1"),
        *("step 8, strength 0", "step 8, strength 1"),
        *("finished, strength 0", "finished, strength 1"),
    ]
    assert seen["columns"] == ["sat_disc", "a box"]
    pixels = [[picture.tobytes() for picture in row] for row in seen["pictures"]]
    assert pixels[0] == pixels[1] == pixels[3] == pixels[5], "at strength 0 it is the base model"
    for row, step in ((0, 0), (2, 4), (4, 8), (6, 12)):
        drawn = [Image.open(measured / "sample" / f"disc_{step:06d}_{n:02d}.png").tobytes() for n in (0, 1)]
        assert pixels[row] == drawn, f"what was drawn during the run after step {step}"
    page = (measured / "compare.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 14
    assert Image.open(measured / "compare.png").width > 2 * 192
    assert "compare.html" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_left_out_and_pictures_are_as_large_as_the_run_s(
    place: Path, measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOUKII_HOME", str(place / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = measured.with_name("half a run")
    shutil.copytree(measured, run)
    broken = run / "disc-step00000004.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    (run / "run.json").write_text(json.dumps({"seed": 11, "plan": {"resolution": [64, 64]}}))
    (place / "plain.txt").write_text("a box --s 2\n")
    words = ["--compare", run.name, "--strengths", "1", "--base-model", str(place / "sd")]
    assert compare.compare(compare.parse([*words, "--sample-prompts", str(place / "plain.txt")])) == 0
    said = capsys.readouterr().out
    assert f"left out: {broken.name}: " in said and "2 of 2 checkpoints, 1 prompt," in said
    assert 64 <= Image.open(run / "compare.png").width < 512
    for path in run.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none of its LoRAs can be drawn with"):
        compare.compare(compare.parse(words))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["disk"], "did you mean disc?"),
        (["../disc"], "contains a slash"),
        (["disc", "--strengths", "much"], "no list of strengths"),
        (["disc", "--steps", "5"], "--steps: has no meaning with --compare"),
        (["disc", "--sample-prompts", "nowhere.txt"], "there is no such file"),
        (["disc", "--base-model", "nowhere"], "nowhere"),
    ],
)
def test_a_sheet_that_cannot_be_drawn_is_refused(
    place: Path, measured: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.setenv("NOUKII_HOME", str(place / "home"))
    before = sorted(measured.iterdir())
    with pytest.raises(InputError) as refusal:
        compare.compare(compare.parse(["--compare", *words]))
    assert reason in str(refusal.value)
    assert sorted(measured.iterdir()) == before
