"""Training copies: complete, right, and never at the cost of anybody's files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, Run
from PIL import Image

from noukii import project
from noukii.dataset.config_file import read_config
from noukii.dataset.config_text import format_config
from noukii.dataset.folders import DataSet, find_data_sets
from noukii.dataset.plan import make_plan
from noukii.dataset.samples import load_samples, steps_per_epoch
from noukii.dataset.staging import MARKER, stage, staged_config
from noukii.errors import InputError


def fill(folder: Path, *names: str, caption: str = "cat, a picture", colour: int = 50) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", (256, 256), (colour, number, 9)).save(folder / name)
        (folder / name).with_suffix(".txt").write_text(f"{caption} {number}")
    return folder


def digest(folder: Path) -> dict[str, str]:
    return {
        os.fsdecode(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_stage(*folders: Path) -> tuple[list[Path], list[str]]:
    said: list[str] = []
    subsets = stage(make_plan(find_data_sets([], list(folders))[0]), said.append)
    return [subset.image_dir for subset in subsets], said


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {MARKER}


def test_the_copies_are_what_a_trainer_reads_rightly(project_home: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "10_cat", "a.PNG", "-b.jpg", "c d.webp")
    Image.new("RGBA", (256, 256), (0, 0, 255, 0)).save(source / "clear.png")
    (source / "e.jfif").write_bytes((source / "-b.jpg").read_bytes())
    (source / "e.caption").write_bytes("\ufeffcat\r\nsecond line".encode("utf-16-le"))
    (source / "a_0512x0512_sd.npz").write_bytes(b"stale")
    before = digest(source)
    plan = make_plan(find_data_sets([], [source])[0])
    (subset,) = stage(plan)
    folder = subset.image_dir
    assert folder == project.staging() / "10_cat"
    assert (subset.num_repeats, subset.class_tokens, subset.caption_extension) == (10, "cat", ".txt")
    stems = {"a.png", "b.jpg", "c d.webp", "clear.png", "e.jpg"}
    assert names(folder) == stems | {f"{name.rpartition('.')[0]}.txt" for name in stems}
    assert (folder / "a.png").read_bytes() == (source / "a.PNG").read_bytes()
    assert (folder / "e.txt").read_bytes() == b"cat second line"
    assert (folder / "clear.txt").read_bytes() == b"cat"
    with Image.open(folder / "clear.png") as image:
        assert image.mode == "RGB" and image.getpixel((5, 5)) == (255, 255, 255)
    assert digest(source) == before


def test_the_trainer_sees_what_the_plan_said(project_home: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "10_cat", "a.png", "b.png", "c.png")
    Image.new("RGB", (700, 300)).save(source / "wide.png")
    (source / "thin.png").write_bytes((source / "a.png").read_bytes()[:100])
    plan = make_plan(find_data_sets([], [source])[0])
    sets = load_samples(staged_config(plan, stage(plan)))
    assert steps_per_epoch(sets) == plan.steps_per_epoch
    assert sets[0].bucket_counts() == plan.buckets and sets[0].skipped == () and sets[0].notes == ()
    assert [sample.caption for sample in sets[0].samples] == [
        image.caption.text for image in plan.sets[0].images
    ]


def test_tag_dropout_is_written_in_kohya_s_words(project_home: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "10_cat", "a.png", "b.png")
    plan = make_plan(find_data_sets([], [source])[0], tag_dropout=0.5)
    text = format_config(staged_config(plan, stage(plan)))
    assert "keep_tokens = 1" in text and "caption_tag_dropout_rate = 0.5" in text
    plain = make_plan(find_data_sets([], [source])[0])
    assert "keep_tokens" not in format_config(staged_config(plain, stage(plain)))


def test_an_earlier_run_of_ours_is_cleared(project_home: Path, tmp_path: Path) -> None:
    dog = fill(tmp_path / "7_dog", "old.png", caption="dog")
    cat = fill(tmp_path / "10_cat", "a.png", "b.png")
    (old_cat, old_dog), _ = run_stage(cat, dog)
    (old_cat / "a_0256x0256_sd.npz").write_bytes(b"latents of the old picture")
    (cat / "b.png").unlink()
    fill(cat, "a.png", colour=200)
    (folder,), said = run_stage(cat)
    assert folder == old_cat and names(folder) == {"a.png", "a.txt"} and said == []
    assert (folder / "a.png").read_bytes() == (cat / "a.png").read_bytes()
    assert not old_dog.exists()


def test_folders_of_others_are_set_aside_or_left_alone(project_home: Path, tmp_path: Path) -> None:
    foreign = fill(project.staging() / "10_cat", "old_1.png", "old_2.png")
    other = fill(project.staging() / "7_dog", "mine.png")
    (foreign / "new_1.txt").write_text("")
    before, beside = digest(foreign), digest(other)
    cat = fill(tmp_path / "10_cat", "new_1.png", "new_2.png")
    (folder,), said = run_stage(cat)
    assert names(folder) == {"new_1.png", "new_1.txt", "new_2.png", "new_2.txt"}
    assert (folder / "new_1.txt").read_text() == "cat, a picture 0"
    aside = project.staging() / "10_cat.set-aside-1"
    assert digest(aside) == before and digest(other) == beside
    assert len(said) == 1 and "10_cat.set-aside-1" in said[0]
    run_stage(cat)
    assert digest(aside) == before


def test_a_users_file_in_a_folder_of_ours_is_kept(project_home: Path, tmp_path: Path) -> None:
    cat = fill(tmp_path / "10_cat", "a.png")
    (folder,), _ = run_stage(cat)
    (folder / "my notes.txt").write_text("precious")
    (folder,), said = run_stage(cat)
    aside = project.staging() / "10_cat.set-aside-1"
    assert (aside / "my notes.txt").read_text() == "precious" and names(folder) == {"a.png", "a.txt"}
    assert "set-aside-1" in said[0]


def test_two_data_sets_of_one_name_both_survive(project_home: Path, tmp_path: Path) -> None:
    one = fill(tmp_path / "one" / "10_cat", "a.png", colour=1)
    two = fill(tmp_path / "two" / "10_cat", "a.png", colour=2)
    three = fill(tmp_path / "three" / "10_Cat", "a.png", colour=3)
    for _ in range(2):
        folders, said = run_stage(one, two, three)
        assert [folder.name for folder in folders] == ["10_cat", "10_cat-2", "10_Cat-3"] and said == []
        for folder, source in zip(folders, (one, two, three), strict=True):
            assert (folder / "a.png").read_bytes() == (source / "a.png").read_bytes()


def test_a_source_in_the_staging_folder(project_home: Path) -> None:
    source = fill(project.staging() / "10_cat", "a.png")
    before = digest(source)
    for _ in range(2):
        (folder,), said = run_stage(source)
        assert folder.name == "10_cat-2" and digest(source) == before and said == []
    with pytest.raises(InputError, match="training copies"):
        run_stage(folder)
    with pytest.raises(InputError, match="training copies"):
        run_stage(fill(source / "inner", "b.png"))
    outer = fill(project.kohya() / "dataset", "x.png")
    with pytest.raises(InputError, match="holds the folder"):
        run_stage(outer)
    assert digest(source).items() >= before.items()


@pytest.mark.parametrize(
    "name", ["10_a\\x41b", '10_quo"te', "10_new\nline", "10_tab\there", "10_trail\\", "10_end "]
)
def test_odd_folder_names(project_home: Path, tmp_path: Path, name: str) -> None:
    (folder,), _ = run_stage(fill(tmp_path / name, "a.png"))
    assert "\n" not in folder.name and (folder / "a.png").is_file() and folder.parent == project.staging()


def test_a_picture_that_vanishes_is_named_and_the_rest_is_copied(project_home: Path, tmp_path: Path) -> None:
    cat = fill(tmp_path / "10_cat", "a.png", "b.png")
    plan = make_plan(find_data_sets([], [cat])[0])
    (cat / "a.png").unlink()
    (subset,) = stage(plan)
    assert names(subset.image_dir) == {"b.png", "b.txt"}


def test_too_little_space_is_found_before_anything_is_written(project_home: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    plan = make_plan([DataSet(fill(tmp_path / "10_cat", "a.png"), "cat", 10, "")])
    with pytest.raises(InputError, match="too little space"):
        stage(replace(plan, staging_bytes=10**18))
    assert list(project_home.iterdir()) == []


def test_a_run_killed_in_the_middle_leaves_nothing_that_is_trusted(
    project_home: Path, tmp_path: Path
) -> None:
    cat = tmp_path / "10_cat"
    cat.mkdir()
    Image.effect_noise((900, 900), 80).save(cat / "0.png")
    for number in range(1, 60):
        (cat / f"{number}.png").write_bytes((cat / "0.png").read_bytes())
    (cat / "0.txt").write_text("cat")
    code = (
        "import sys; from pathlib import Path; from noukii.dataset.plan import make_plan\n"
        "from noukii.dataset.folders import find_data_sets; from noukii.dataset.staging import stage\n"
        "plan = make_plan(find_data_sets([], [Path(sys.argv[1])])[0]); print('go', flush=True); stage(plan)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, cat], stdout=subprocess.PIPE, cwd=CHECKOUT)
    staged = project.staging() / "10_cat"
    while process.poll() is None and not list(staged.glob("*.png")):
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    marker = json.loads((staged / MARKER).read_text())
    assert marker["state"] == "staging"
    small = fill(tmp_path / "5_dog", "a.png")
    (folder,), said = run_stage(small)
    assert said == [] and {path.name for path in project.staging().iterdir()} == {folder.name}


# ------------------------------------------------------------------------------- the command
def test_generate_config_writes_what_it_says(run: Run, project_home: Path) -> None:
    fill(project.image_datasets() / "10_cat o'neil", "a.png", "b.png")
    fill(project.image_datasets() / "5_dog", "a.png")
    before = digest(project.image_datasets())
    dry = run("generate_config.py", "--dry-run")
    assert dry.returncode == 0 and "25 samples per epoch" in dry.stdout
    assert not project.kohya().exists()
    done = run("generate_config.py", "--resolution", "256", "--batch-size", "2")
    assert done.returncode == 0, done.stderr
    config = read_config(project.kohya() / "dataset" / "config_sat_nouki.toml")
    (dataset,) = config.datasets
    assert dataset.rule.resolution == (256, 256) and dataset.batch_size == 2
    assert [(s.image_dir.name, s.num_repeats, s.class_tokens) for s in dataset.subsets] == [
        ("10_cat o'neil", 10, "cat o'neil"),
        ("5_dog", 5, "dog"),
    ]
    assert all(subset.image_dir.is_dir() for subset in dataset.subsets)
    assert digest(project.image_datasets()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "10_none"], "no such folder"),
        (["empty"], "holds no images"),
        (["nocap"], "no captions"),
        (["10_cat", "--output", "no/such/file.toml"], "no such folder"),
        (["10_cat", "--output", "empty"], "is a folder"),
        (["10_cat", "--resolution", "32"], "--resolution 32"),
        (["10_cat", "--batch-size", "0"], "--batch-size 0"),
        (["10_cat", "--batchsize", "2"], "--batch-size"),
        (["--dataset", "10_cat", "--repeats", "0"], "--repeats 0"),
    ],
)
def test_bad_input_is_answered_in_plain_words_and_writes_nothing(
    run: Run, project_home: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    fill(tmp_path / "10_cat", "a.png")
    (tmp_path / "empty").mkdir()
    (fill(tmp_path / "nocap", "a.png") / "a.txt").unlink()
    answer = run("generate_config.py", *arguments, cwd=tmp_path)
    assert answer.returncode == 2 and words in answer.stderr and "Traceback" not in answer.stderr
    assert list(project_home.iterdir()) == []


def test_repeats_are_remembered_for_the_same_folder(run: Run, project_home: Path, tmp_path: Path) -> None:
    fill(tmp_path / "10_cat", "a.png")
    first = run("generate_config.py", "--dataset", "10_cat", "--repeats", "3", cwd=tmp_path)
    assert "3, from --repeats on the command line (the name says 10)" in first.stdout
    again = run("generate_config.py", "10_cat", "--dry-run", cwd=tmp_path)
    assert "repeats: 3, given for this folder in an earlier run" in again.stdout


def test_odd_names_reach_the_terminal(run: Run, project_home: Path) -> None:
    for name in (b"10_caf\xe9", b"10_new\nline", "10_猫".encode()):
        fill(Path(os.fsdecode(os.fsencode(project.image_datasets()) + b"/" + name)), "a.png")
    answer = run("generate_config.py", PYTHONIOENCODING="ascii")
    assert answer.returncode == 0, answer.stderr
    assert len(read_config(project.kohya() / "dataset" / "config_sat_nouki.toml").datasets[0].subsets) == 3
