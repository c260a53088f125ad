"""run_captioning.sh with a model: the reference's texts, bad files among good ones, stops and kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from tiny_janus import make_tiny_janus

import janus_pro_caption_core
from noukii.captioning.manifest import MANIFEST
from noukii.command_line import run_command

CORE = Path(janus_pro_caption_core.__file__)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_janus(tmp_path_factory.mktemp("model") / "tiny janus")


def core(*arguments: str | Path) -> int:
    """The command, in this process: importing torch takes seconds each time."""
    return run_command(janus_pro_caption_core.main, [os.fspath(argument) for argument in arguments])


def entries(folder: Path) -> list[dict[str, object]]:
    """captions.jsonl without what differs from run to run."""
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def result(folder: Path) -> dict[str, object]:
    """What a run leaves, but for the seconds it took (in the manifest, and so in the review)."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "review.html"}
    return {**files, MANIFEST: entries(folder)}


def test_the_references_texts_with_any_batch_size(
    run, photos: Path, janus_tiny: Path, reference: Path, tmp_path: Path
) -> None:
    """The issue's own line, through the shell; the greedy answers are upstream's, to the letter."""
    images = json.loads((reference / "janus_expected.json").read_text(encoding="utf-8"))["images"]
    expected = {Path(image["file"]).stem: image["text"] for image in images}
    wishes = ["--model", janus_tiny, "--temperature", "0", "--max-new-tokens", "24", "--raw-captions"]
    wishes += ["--dtype", "float32"]
    out = tmp_path / "with the shell"
    done = run("run_captioning.sh", photos, "sat_demo", *wishes, "--output", out)
    assert done.returncode == 0, done.stderr
    for size in ("1", "2", "4", "6"):
        folder = tmp_path / size
        assert core(photos, "sat_demo", *wishes, "--batch-size", size, "--output", folder) == 0
        texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
        assert texts.pop("prompt_cue-sat_demo")
        assert texts == expected, f"batch size {size}"
        assert result(folder) == result(out)
    assert (out / "review.html").stat().st_size > 1000
    assert "without CUDA" in done.stdout or "on NVIDIA" in done.stdout
    assert (
        "found = 6 used + 0 skipped" in done.stdout and f"./run_training.sh --dataset '{out}'" in done.stdout
    )


def test_sampling_depends_on_image_and_seed_alone(photos: Path, model: Path, tmp_path: Path) -> None:
    wishes = ["--model", model, "--temperature", "1", "--max-new-tokens", "12", "--dtype", "float32"]
    one, six, other = tmp_path / "one", tmp_path / "six", tmp_path / "other"
    assert core(photos, "kw", *wishes, "--batch-size", "1", "--output", one) == 0
    assert core(photos, "kw", *wishes, "--batch-size", "6", "--output", six) == 0
    assert core(photos, "kw", *wishes, "--seed", "7", "--output", other) == 0
    assert entries(one) == entries(six)
    assert [entry["raw"] for entry in entries(one)] != [entry["raw"] for entry in entries(other)]
    assert all(str(entry["caption"]).startswith("kw") for entry in entries(one))


def test_bad_files_are_skipped_by_name_and_the_rest_is_captioned(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "phone dump"
    source.mkdir()
    (source / "half.png").write_bytes((photos / "coffee.png").read_bytes()[:20_000])
    (source / "empty.jpg").write_bytes(b"")
    (source / "text.png").write_text("hello")
    (source / "Thumbs.db").write_bytes(b"x")
    (source / "clip.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    shutil.copy(photos / "chelsea.png", source / "good.png")
    shutil.copy(photos / "chelsea.png", source / "twin.PNG")
    (source / "good.txt").write_text("written by the user")
    Image.open(photos / "coffee.png").convert("CMYK").save(source / "cmyk.tif")
    Image.new("RGB", (9, 9)).save(source / "tiny.png")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert core(source, "kw", "--model", model, "--max-new-tokens", "8") == 0
    said = capsys.readouterr().out
    assert "8 image files found = 4 used + 4 skipped" in said
    for words in (
        "half.png: cut off",
        "empty.jpg: 0 bytes",
        "text.png: not an image (text)",
        "clip.mp4: a video",
    ):
        assert words in said
    assert "tiny.png (9x9)" in said and "good.png" in said and "stays there unused" in said
    output = tmp_path / "kw"
    images = {path.name for path in output.iterdir() if path.suffix in (".png", ".jpg")}
    assert images == {"good.png", "twin.png", "cmyk.png", "tiny.png"}
    assert (output / "good.txt").read_bytes() == (output / "twin.txt").read_bytes()
    assert Image.open(output / "cmyk.png").mode == "RGB"
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_second_run_loads_no_model_where_nothing_is_missing(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    shutil.copytree(photos, source)
    (source / "rocket.png").rename(tmp_path / "rocket.png")
    shutil.copytree(model, tmp_path / "model")
    wishes = [source, "kw", "--model", tmp_path / "model", "--max-new-tokens", "8", "--dtype", "float32"]
    assert core(*wishes, "--dry-run") == 0
    assert "5 to caption" in capsys.readouterr().out and not (tmp_path / "kw").exists()
    assert core(*wishes) == 0
    edited = tmp_path / "kw" / "coffee.txt"
    edited.write_text("kw, MINE")
    first = result(tmp_path / "kw")
    shutil.rmtree(tmp_path / "model")
    assert core(*wishes) == 0
    second = result(tmp_path / "kw")
    follows_edits = {"prompt_cue-kw.txt", ".noukii.json"}
    assert {name: second[name] for name in first if name not in follows_edits} == {
        name: data for name, data in first.items() if name not in follows_edits
    }
    said = capsys.readouterr().out
    assert "4 were there, 1 written or edited by hand and kept" in said and "coffee.png" in said
    (tmp_path / "rocket.png").rename(source / "rocket.png")
    assert core(*wishes) == 2 and "setup.sh" in capsys.readouterr().err
    assert result(tmp_path / "kw") == second
    shutil.copytree(model, tmp_path / "model")
    assert core(*wishes, "--overwrite") == 0
    assert edited.read_text() == "kw, MINE" and len(entries(tmp_path / "kw")) == 6


SLOW_WISHES = [
    "kw",
    "--max-new-tokens",
    "400",
    "--temperature",
    "1",
    "--dtype",
    "float32",
    "--batch-size",
    "1",
]


def start(source: Path, model: Path, output: Path) -> subprocess.Popen[str]:
    """Begin a run that takes some seconds: one image at a time, long answers."""
    program = [sys.executable, CORE, source, *SLOW_WISHES, "--model", model, "--output", output]
    return subprocess.Popen(
        list(map(os.fspath, program)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(source: Path, model: Path, output: Path) -> dict[str, object]:
    """Run to the end and return the result."""
    assert core(source, *SLOW_WISHES, "--model", model, "--output", output) == 0
    return result(output)


@pytest.fixture(scope="module")
def undisturbed(photos: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return finished(photos, model, tmp_path_factory.mktemp("undisturbed") / "output")


def lines(output: Path) -> int:
    try:
        return (output / MANIFEST).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_the_next_run_ends_as_an_undisturbed_one(
    which: signal.Signals, undisturbed: dict[str, object], photos: Path, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    process = start(photos, model, output)
    while lines(output) < 2 and process.poll() is None:
        time.sleep(0.01)  # looks for the moment; nothing is measured
    process.send_signal(which)
    said = process.communicate()[1]
    assert 2 <= lines(output) < 6
    if which == signal.SIGINT:
        assert process.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
        images = {path.stem for path in output.glob("*.png")}
        assert images == {path.stem for path in output.glob("*.txt")}, "an image without its caption was left"
    assert finished(photos, model, output) == undisturbed


@pytest.mark.slow
def test_thirty_kills_at_random_moments(
    undisturbed: dict[str, object], photos: Path, model: Path, tmp_path: Path
) -> None:
    chance = random.Random(20)
    output = tmp_path / "output"
    for number in range(30):
        process = start(photos, model, output)
        while not (output / ".noukii.json").exists() and process.poll() is None:
            time.sleep(0.01)  # the model is loaded; now it writes
        time.sleep(chance.uniform(0, 3))
        process.kill()
        process.communicate()
        if number % 3 == 2:  # up to three kills in a row
            assert finished(photos, model, output) == undisturbed
            shutil.rmtree(output)


def test_out_of_memory_halves_the_batch_and_goes_on(
    photos: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory that runs out cannot be had to order: here the model refuses more rows than `room`."""
    from noukii.captioning import describe

    real, room = describe.describe, [2]

    def refuses(janus, images, keys, **wishes):
        if wishes["rows"] > room[0]:
            raise describe.OutOfMemory("full")
        return real(janus, images, keys, **wishes)

    wishes = [
        photos,
        "kw",
        "--model",
        model,
        "--max-new-tokens",
        "8",
        "--batch-size",
        "6",
        "--dtype",
        "float32",
    ]
    assert core(*wishes, "--output", tmp_path / "easy") == 0
    monkeypatch.setattr(describe, "describe", refuses)
    assert core(*wishes, "--output", tmp_path / "tight") == 0
    said = capsys.readouterr().err
    assert "with 6 images at a time; going on with 3" in said and "going on with 1" in said
    assert result(tmp_path / "tight") == result(tmp_path / "easy")
    room[0] = 0
    assert core(*wishes, "--output", tmp_path / "none") == 1
    said = capsys.readouterr().err
    assert "astronaut.png: there is not enough memory" in said and "--device cpu" in said
    assert not list((tmp_path / "none").glob("*.png"))


def test_missing_gpu_is_said_in_plain_words(
    photos: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    wishes = [photos, "kw", "--model", model, "--output", tmp_path / "o"]
    assert core(*wishes, "--dry-run") == 0
    said = capsys.readouterr().out
    assert (
        "on the CPU" in said
        and "CUDA_VISIBLE_DEVICES hides every GPU" in said
        and "less than a minute" in said
    )
    assert core(*wishes, "--device", "cuda") == 2
    assert "--device cpu" in capsys.readouterr().err
    assert core(*wishes, "--max-new-tokens", "4096", "--prompt", "why " * 9000) == 2
    assert "the model takes" in capsys.readouterr().err and not (tmp_path / "o").exists()
