"""What the plan says before a run: the table, its warnings with the remedy, memory and time, also as JSON."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from noukii import project
from noukii.dataset.folders import DataSet
from noukii.dataset.plan import Plan, describe, make_plan
from noukii.dataset.wide_text import columns_of, wrapped
from noukii.driver.options import Options, parse
from noukii.driver.repeat import repeat_command
from noukii.errors import InputError


def fill(
    folder: Path, count: int, size: tuple[int, int] = (512, 512), caption: str = "{}, a picture"
) -> Path:
    """Pictures with captions; the keyword is what follows the number in the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", size, (number * 9 % 256, 80, 90)).save(folder / f"{size[0]} {number}.png")
        text = caption.format(folder.name.partition("_")[2])
        (folder / f"{size[0]} {number}.txt").write_text(text)
    return folder


def plan_of(*folders: Path, **wishes: object) -> Plan:
    sets = [
        DataSet(
            folder, folder.name.partition("_")[2], int(folder.name.partition("_")[0]), "the folder's name"
        )
        for folder in folders
    ]
    return make_plan(sets, **wishes)  # type: ignore[arg-type]


def test_a_good_set_is_not_warned_of(tmp_path: Path) -> None:
    plan = plan_of(fill(tmp_path / "10_cat", 20), fill(tmp_path / "10_hat", 16))
    assert plan.advice == () and plan.warnings == ()
    table = describe(plan).split("\n\n")[0].splitlines()
    assert [line.split() for line in (table[0], *table[2:])] == [
        ["data", "set", "images", "repeats", "per", "epoch", "share", "captions"],
        ["10_cat", "20", "10", "200", "56", "%", "all"],
        ["10_hat", "16", "10", "160", "44", "%", "all"],
        ["together", "36", "360", "100", "%"],
    ]


def test_few_images_are_named_with_the_remedy(tmp_path: Path) -> None:
    (said,) = plan_of(fill(tmp_path / "10_cat", 7)).advice
    assert said.startswith("10_cat: 7 images are few") and "add some" in said
    assert plan_of(fill(tmp_path / "10_hat", 8)).advice == ()


def test_repeats_that_drown_a_data_set_are_named_with_repeats_that_do_not(tmp_path: Path) -> None:
    large, small = fill(tmp_path / "20_cat", 20), fill(tmp_path / "1_hat", 10)
    (said,) = plan_of(large, small).advice
    assert (
        said.startswith("1_hat: 10 of 410 samples") and "with 40 repeats it has about as much weight" in said
    )
    sets = [DataSet(large, "cat", 20, "a test"), DataSet(small, "hat", 40, "a test")]
    assert make_plan(sets).advice == ()


def test_the_table_keeps_its_columns_whatever_the_names_and_the_terminal(tmp_path: Path) -> None:
    names = ["10_" + "日本語のデータセット" * 4, "5_" + "w" * 190, "3_cafe\u0301 🐈", "2_cat"]
    plan = plan_of(*(fill(tmp_path / name, 9) for name in names))
    for columns in (100, 80, 60):
        lines = describe(plan, columns).splitlines()
        assert max(map(columns_of, lines)) <= columns
        table = lines[: lines.index("")]
        ends = {columns_of(line[: line.index(" %")]) for line in table[2:]}
        assert len(table) == 2 + 4 + 1 and len(ends) == 1, table
        assert any("…" in line for line in table)
    for columns in (1, 20, 40):  # it ends, and nothing is lost
        flat = "".join(describe(plan, columns).split())
        assert flat.count("日本語のデータセット" * 4) >= 2 and "w" * 190 in flat


@given(st.text(alphabet="ab 日\u0301-", max_size=60), st.integers(1, 30), st.sampled_from(["", "  ", "! "]))
def test_wrapping_keeps_every_letter_and_the_width(text: str, columns: int, indent: str) -> None:
    lines = wrapped(text, columns, indent, "    ")
    assert "".join("".join(lines).split()).removeprefix(indent.strip()) == "".join(text.split())
    widest = max(2 + len("    "), columns)  # a letter goes into every line
    assert all(columns_of(line) <= widest for line in lines)


@pytest.mark.skipif(shutil.which("script") is None, reason="no `script` to make a terminal with")
def test_the_plan_follows_the_width_of_the_terminal(project_home: Path, tmp_path: Path) -> None:
    fill(tmp_path / ("4_" + "日本" * 30), 9)
    words = [sys.executable, str(project.CHECKOUT / "generate_config.py"), "--dry-run"]
    words += ["--dataset", str(tmp_path / ("4_" + "日本" * 30))]
    # readline, which pytest imports, puts COLUMNS into the environment behind Python's back
    command = f"unset COLUMNS LINES; stty cols 70 rows 24; {shlex.join(words)}"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    lines = done.stdout.replace("\r\n", "\n").split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith("data set"))
    assert done.returncode == 0 and 60 < max(map(columns_of, lines[start:])) <= 70, done.stdout


@pytest.mark.skipif(shutil.which("script") is None, reason="no `script` to make a terminal with")
@pytest.mark.parametrize(("size", "columns"), [("rows 0 cols 0", 80), ("rows 0 cols 30", 30)])
def test_a_terminal_that_tells_no_size_has_a_bar_all_the_same(size: str, columns: int) -> None:
    code = (
        "from noukii.progress import Progress\n"
        "with Progress('captioning', 3, 'images') as progress:\n"
        "    for _ in range(3): progress.advance(1, '日本語.png')\n"
    )
    command = f"stty {size}; {shlex.join([sys.executable, '-c', code])}"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=project.CHECKOUT,
    )  # fmt: skip
    shown = [line.strip() for line in re.split("[\r\n]", done.stdout) if line.strip()]
    assert shown and all(line.startswith("captioning: ") for line in shown), done.stdout
    assert "3/3" in shown[-1] and max(map(columns_of, shown)) <= columns


def test_captions_without_the_trigger_are_named(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", 10)
    (folder / "512 3.txt").write_text("a dog on a sofa")
    (said,) = plan_of(folder).advice
    assert "1 caption without the trigger 'cat' (512 3.txt)" in said


def test_a_bucket_with_one_image_is_named_unless_a_batch_is_one_image(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", 10)
    fill(folder, 1, (768, 512))
    (said,) = plan_of(folder, batch_size=2).advice
    assert "1 bucket with one image: 768 0.png (576x384)" in said and "--batch-size 1" in said
    assert plan_of(folder, batch_size=1).advice == ()


def test_held_out_images_are_counted_apart(tmp_path: Path) -> None:
    plan = plan_of(fill(tmp_path / "10_cat", 20), validation=0.1)
    assert (len(plan.sets[0].images), len(plan.sets[0].held_out), plan.samples_per_epoch) == (18, 2, 180)
    text = describe(plan)
    assert "found 20 = used 18 + held out 2 + skipped 0" in text
    names = [image.info.path.name for image in plan.sets[0].held_out]
    assert f"held out to measure the training on, not trained: {', '.join(names)}" in text
    assert len(plan.as_dict()["data_sets"][0]["held_out"]) == 2


def test_the_plan_as_one_json_document(run: Run, project_home: Path, tiny_base: Path, tmp_path: Path) -> None:
    fill(project_home / "image_datasets" / "10_cat", 5, (64, 64))
    other = fill(tmp_path / "other", 2, (64, 96), "cat")
    wishes = ["--dry-run", "--json", "--base-model", tiny_base, "--seed", "5", "--trainer", "builtin"]
    done = run("run_training.sh", *wishes, "--validation", "20%", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["samples_per_epoch"], plan["validation"], plan["seed"]) == (40, 0.2, 5)
    assert plan["memory_bytes_per_step"] > 0 and plan["seconds_estimated"] > 0
    assert (plan["device"], plan["data_sets"][0]["used"]) == ("CPU", 4)
    assert plan["buckets"] == [{"width": 64, "height": 64, "samples": 40, "images": 4}]
    assert any("few" in warning for warning in plan["warnings"])
    done = run("run_training.sh", *wishes[:1], *wishes[2:], "--validation", other, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "measured on the images of" in done.stdout and "--save-every 40" in done.stdout
    assert "memory: about" in done.stdout and "time: " in done.stdout


@pytest.fixture(scope="module")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import make_tiny_sd

    return make_tiny_sd(tmp_path_factory.mktemp("base") / "tiny sd")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0", "no share"),
        ("1", "no share"),
        ("100%", "no share"),
        ("-0.1", "no share"),
        ("nan", "no share"),
        ("nowhere", "neither a share of the images nor a folder"),
        ("", "neither a share of the images nor a folder"),
    ],
)
def test_a_validation_that_is_none_is_refused(value: str, reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse([f"--validation={value}"])
    assert reason in str(refusal.value) and "next: " in str(refusal.value)


@pytest.mark.parametrize("value", ["1", "-0.1", "nan", "half", ""])
def test_a_tag_dropout_that_is_no_share_is_refused(value: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse([f"--tag-dropout={value}"])
    assert "no share" in str(refusal.value) and "next: " in str(refusal.value)
    assert parse(["--tag-dropout=0.5"]).tag_dropout == 0.5


def test_kohya_s_trainer_refuses_validation_with_the_reason(
    run: Run, project_home: Path, tiny_base: Path
) -> None:
    fill(project_home / "image_datasets" / "10_cat", 5, (64, 64))
    for part in ("sd-scripts/train_network.py", "venv/bin/accelerate"):
        (project_home / "kohya_ss" / part).parent.mkdir(parents=True)
        (project_home / "kohya_ss" / part).touch()
    done = run("run_training.sh", "--base-model", tiny_base, "--dry-run", "--validation", "0.2")
    assert done.returncode == 2
    assert "no best checkpoint could be named" in done.stderr and "--trainer builtin" in done.stderr


def test_the_command_that_repeats_a_run_says_the_same(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_my cat", 1)
    given = [
        *("--dataset", str(folder), "--repeats", "7", "--base-model", str(tmp_path / "base")),
        *("--steps", "30", "--learning-rate", "0.002", "--rank", "8", "--alpha", "4", "--seed", "3"),
        *("--validation", "0.25", "--save-every", "10", "--", "--lr_scheduler", "cosine"),
    ]
    options = parse(given)
    # a new flag belongs into the command as well: the name is taken, and these are no part of a run
    told = {"explicit", "positional", "extra"} | {
        word.removeprefix("--").replace("-", "_")
        for word in re.findall(r'"(--[a-z-]+)"', inspect.getsource(repeat_command))
    }
    assert {one.name for one in fields(Options)} - told == {"output_name", "dry_run", "json", "resume"}
    words = repeat_command(options)
    assert words[0] == "./run_training.sh"
    assert parse(words[1:]) == options
