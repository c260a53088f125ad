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
from noukii.captioning.manifest import MANIFEST, STATE
from noukii.captioning.wording import training_caption
from noukii.clip_tokens import ClipTokenizer
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
    state = json.loads(files[STATE])
    assert len(state["own"].pop("review.html")) == 1
    return {**files, STATE: state, MANIFEST: entries(folder)}


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
    """From outside, at drawn shares of the time that a whole run writes; kill.py counts changes instead."""
    chance = random.Random(20)
    output = tmp_path / "output"

    def begun() -> float:
        while not (output / ".noukii.json").exists() and process.poll() is None:
            time.sleep(0.01)  # the model is loaded; now it writes
        return time.monotonic()

    process = start(photos, model, output)
    first = begun()
    process.communicate()
    lasts = time.monotonic() - first
    shutil.rmtree(output)
    for number in range(30):
        process = start(photos, model, output)
        end = begun() + chance.random() * lasts
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.01)
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


def images_of(count: int, folder: Path) -> Path:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (80, 72), (number * 40, 90, 200 - number)).save(folder / f"{number}.png")
    return folder


QUICK = ["--max-new-tokens", "8", "--dtype", "float32"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_the_user_writes_while_it_runs_is_kept(
    overwrite: bool,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The moment is when the model has answered: later than any look at the folder, bar the last."""
    from noukii.captioning import describe

    source, out = images_of(3, tmp_path / "in"), tmp_path / "kw"
    wishes = [source, "kw", "--model", model, *QUICK]
    if overwrite:
        assert core(*wishes) == 0
        wishes += ["--overwrite", "--seed", "7"]
    real, other = describe.describe, out / ("1.txt" if overwrite else "1.png.txt")

    def with_an_edit(*arguments, **named):
        answers = real(*arguments, **named)
        (out / "0.txt").write_text("kw, WRITTEN MEANWHILE")
        other.write_text("kw, SO WAS THIS")
        return answers

    monkeypatch.setattr(describe, "describe", with_an_edit)
    assert core(*wishes) == 0
    said = capsys.readouterr().out
    assert (out / "0.txt").read_text() == "kw, WRITTEN MEANWHILE"
    assert other.read_text() == "kw, SO WAS THIS"
    assert "0.png: its caption was written while this ran, and is kept" in said
    assert "1 caption made, 2 written or edited by hand and kept" in said
    assert [entry["finish_reason"] == "hand" for entry in entries(out)] == [True, True, False]
    monkeypatch.undo()
    assert core(*wishes) == 0
    assert (out / "0.txt").read_text() == "kw, WRITTEN MEANWHILE"


def test_a_page_and_a_log_of_the_users_are_kept(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = images_of(1, tmp_path / "in"), tmp_path / "kw"
    for number in range(25):
        (source / f"bad{number}.png").write_text("no picture")
    out.mkdir()
    (out / "review.html").write_text("my page")
    (out / "noukii-skipped.log").write_text("my log")
    wishes = [source, "kw", "--model", model, *QUICK]
    assert core(*wishes) == 0
    said = capsys.readouterr().out
    assert "review.html is not as this command writes it and is kept" in said and "look them over" not in said
    ours = out / "noukii-skipped-2.log"
    assert str(ours) in said and len(ours.read_text().splitlines()) == 25
    for path in source.glob("bad*"):
        path.unlink()
    (out / "review.html").unlink()
    for _ in range(2):  # ours is made, and made again
        assert core(*wishes) == 0
        assert (out / "review.html").stat().st_size > 1000 and not ours.exists()
        assert "look them over" in capsys.readouterr().out
    assert (out / "noukii-skipped.log").read_text() == "my log"
    (out / "review.html").write_text("edited")
    assert core(*wishes) == 0 and (out / "review.html").read_text() == "edited"


def test_another_model_of_the_same_name_is_asked_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = images_of(2, tmp_path / "in"), tmp_path / "kw"
    first = tmp_path / "a" / "Janus"
    shutil.copytree(model, first)
    other = make_tiny_janus(tmp_path / "b" / "Janus", seed=5)
    assert core(source, "kw", "--model", first, *QUICK) == 0
    one = entries(out)
    (out / "0.txt").unlink()
    capsys.readouterr()
    assert core(source, "kw", "--model", other, *QUICK) == 0
    said = capsys.readouterr().out
    assert "1 caption made, 1 were there" in said and "1 of them were made with other settings" in said
    two = entries(out)
    assert two[0]["model"] == one[0]["model"] == "Janus" and two[0]["raw"] != one[0]["raw"]
    assert two[0]["model_id"] != one[0]["model_id"] and two[1] == one[1]
    moved = tmp_path / "c" / "Janus"
    shutil.copytree(other, moved)
    (out / "0.txt").unlink()
    assert core(source, "kw", "--model", moved, *QUICK) == 0
    assert "the same settings give the same text" in capsys.readouterr().out and entries(out) == two


def test_the_question_is_checked_before_the_model_is_loaded(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for layout in ("original", "converted"):
        folder = make_tiny_janus(tmp_path / layout, layout=layout)
        wishes = [photos, "kw", "--model", folder, "--output", tmp_path / "o", "--dry-run"]
        for extra, words in (
            (["--prompt", "<|User|> hi"], "<|User|>, which is a signal"),
            (["--prompt", "caf\udce9"], "not UTF-8"),
            (["--prompt", "why " * 9000], "the model takes 16384"),
            (["--device", "cpu", "--dtype", "float16"], "float16: is for GPUs"),
        ):
            assert core(*wishes, *extra) == 2
            said = capsys.readouterr()
            assert words in said.err and "loading" not in said.out


def test_pictures_that_training_will_skip_are_named_by_its_own_rule(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = images_of(1, tmp_path / "in")
    Image.new("RGB", (8000, 100)).save(source / "ribbon.png")
    assert core(source, "kw", "--model", model, "--dry-run") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "skip them" in line)
    assert "ribbon.png (8000x100)" in line and "0.png" not in line


def test_captions_of_another_trigger_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = images_of(2, tmp_path / "in"), tmp_path / "out"
    wishes = ["--model", model, *QUICK, "--output", out]
    assert core(source, "tomcat", *wishes) == 0
    assert "begin with" not in capsys.readouterr().out
    assert core(source, "tom", *wishes) == 0
    assert "2 captions do not begin with tom (--overwrite" in capsys.readouterr().out
    assert core(source, "tom", *wishes, "--overwrite") == 0
    assert "begin with" not in capsys.readouterr().out


def say_to_all(monkeypatch: pytest.MonkeyPatch, model: Path, text: str) -> None:
    """Let the model answer `text` for every picture, token by token, then end."""
    import torch

    from noukii.captioning import describe
    from noukii.captioning.janus_files import check_model

    tokenizer = check_model(model).tokenizer
    ids = [*tokenizer.backend.encode(text, add_special_tokens=False).ids, tokenizer.eos_id]
    places: list[int] = []

    def choose(logits: torch.Tensor, **_: object) -> torch.Tensor:
        places.append(len(places))
        return torch.full((len(logits),), ids[places[-1] % len(ids)])

    monkeypatch.setattr(describe, "choose", choose)


LONG_ANSWER = "This image shows a red car. " + " ".join(
    f"Beside it stands house number {number} — its door is {colour}, its roof is {colour}."
    for number, colour in enumerate(["red", "blue", "green", "white", "black", "grey", "brown", "pink"] * 2)
)


def test_an_answer_ends_when_its_caption_is_full_and_goes_on_for_raw_captions(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, full, raw = images_of(1, tmp_path / "in"), tmp_path / "full", tmp_path / "raw"
    wishes = ["--model", model, "--max-new-tokens", "2000"]
    say_to_all(monkeypatch, model, LONG_ANSWER)
    assert core(source, "kw", *wishes, "--raw-captions", "--output", raw) == 0
    (whole,) = entries(raw)
    assert (whole["raw"], whole["caption"], whole["finish_reason"]) == (LONG_ANSWER, LONG_ANSWER, "stop")
    assert "ended early" not in capsys.readouterr().out

    say_to_all(monkeypatch, model, LONG_ANSWER)
    assert core(source, "kw", *wishes, "--output", full) == 0
    (entry,) = entries(full)
    assert entry["caption"] == training_caption(LONG_ANSWER, "kw", ClipTokenizer.bundled())
    assert entry["finish_reason"] == "enough" and LONG_ANSWER.startswith(str(entry["raw"]))
    assert int(str(entry["tokens"])) < int(str(whole["tokens"])) / 2
    assert (
        f"1 answer ended early, with a full caption: {entry['tokens']} tokens of" in capsys.readouterr().out
    )

    # a longer caption needs more of the answer than was asked for
    (full / "0.txt").unlink()
    say_to_all(monkeypatch, model, LONG_ANSWER)
    assert core(source, "kw", *wishes, "--max-caption-tokens", "150", "--output", full) == 0
    wanted = training_caption(LONG_ANSWER, "kw", ClipTokenizer.bundled(), 150)
    assert (full / "0.txt").read_text(encoding="utf-8") == wanted and len(wanted) > len(str(entry["caption"]))
    # and its own words are not its caption's
    (full / "0.txt").unlink()
    say_to_all(monkeypatch, model, LONG_ANSWER)
    assert core(source, "kw", *wishes, "--raw-captions", "--output", full) == 0
    assert (full / "0.txt").read_text(encoding="utf-8") == LONG_ANSWER


@pytest.mark.parametrize("target", ["closed pipe", "full disk", "closed"])
def test_captioning_goes_on_where_nobody_reads_its_output(target: str, model: Path, tmp_path: Path) -> None:
    source, out = images_of(2, tmp_path / "in"), tmp_path / "kw"
    shell = {"closed pipe": '"$@" | true; exit ${PIPESTATUS[0]}', "full disk": '"$@" > /dev/full'}
    program = [sys.executable, CORE, source, "kw", "--model", model, *QUICK]
    done = subprocess.run(
        ["bash", "-c", shell.get(target, '"$@" >&- 2>&-'), "bash", *map(os.fspath, program)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert len(list(out.glob("[01].txt"))) == 2 and (out / "review.html").exists()
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    if target == "full disk":
        assert done.returncode == 1 and "/dev/full): could not be written: No space" in done.stderr
    else:
        assert done.returncode == 0
