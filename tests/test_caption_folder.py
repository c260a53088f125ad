"""The captioning job without its model: what is refused, what is found, what is kept, what a kill leaves."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import janus_pro_caption_core
import noukii
from noukii.captioning.manifest import MANIFEST, STATE, Manifest, State
from noukii.captioning.options import CaptionOptions, parse
from noukii.captioning.survey import identity, look
from noukii.captioning.worklist import DESCRIBE, DONE, KEEP, WRITE, Worklist, make_worklist
from noukii.captioning.writer import Writer
from noukii.clip_tokens import ClipTokenizer
from noukii.command_line import run_command
from noukii.dataset.images import UnusableImage
from noukii.errors import InputError, RunError
from noukii.lock import LOCK_NAME, folder_lock
from noukii.progress import Progress
from noukii.stop import StopSignal

TOKENIZER = ClipTokenizer.bundled()


def picture(path: Path, colour: int = 0, size: tuple[int, int] = (80, 72)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, ((colour * 53) % 256, (colour * 101) % 256, (colour * 29) % 256)).save(path)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def caption(options: CaptionOptions, said: str = "") -> Worklist:
    """The whole job with texts of our own in the place of the model's."""
    with StopSignal() as stop:
        found = look(options, stop)
    with folder_lock(options.output, "test"):
        manifest, state = Manifest.read(options.output), State.read(options.output)
        work = make_worklist(options, found.infos, manifest, state, identity(options.folder))
        writer = Writer(options, manifest, state, identity(options.folder), TOKENIZER)
        writer.begin(work)
        for item in work.without_model():
            writer.without_model(item, work.answers.get(item.info.sha256))
        for group in work.to_describe():
            for item in group:
                writer.copy_image(item)
                text = f"A red car number {item.info.sha256[:6]} on a street. {said}"
                writer.describe(item, text, "stop", 9, 0.0)
        writer.write_prompt_cue(writer.captions().values())
        writer.finish(work)
    return work


def tasks(work: Worklist) -> dict[str, str]:
    return {item.source: item.task for item in work.items}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "raw photos é"
    for number, name in enumerate(["a.png", "b.png", "c.png"]):
        picture(folder / name, number + 1)
    return folder


def options(source: Path, *flags: str) -> CaptionOptions:
    return parse([str(source), "tomcat", *flags])


# --- what is refused ---------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code = run_command(janus_pro_caption_core.main, list(map(str, arguments)))
    said = capsys.readouterr()
    assert code == 2, said
    assert said.err.count("next: ") == 1, said.err
    return said.err


def test_bad_input_is_named_and_nothing_is_written(
    source: Path, tmp_path: Path, project_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "diary.txt").write_text("dear diary")
    picture(tmp_path / "deep" / "inside it" / "x.png")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "half.png").write_bytes((source / "a.png").read_bytes()[:60])
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = tree(tmp_path)
    cases = [
        ([], "no image folder"),
        ([tmp_path / "raw photo é", "kw"], "did you mean"),
        ([source / "a.png", "kw"], "is a file"),
        ([tmp_path / "empty", "kw"], "is empty"),
        ([tmp_path / "texts", "kw"], "diary.txt"),
        ([tmp_path / "deep", "kw"], "--recursive"),
        ([tmp_path / "broken", "kw"], "half.png: cut off"),
        ([source, "kw", "--recursiv"], "did you mean --recursive?"),
        ([source, "kw", "more"], "more"),
        ([source, "kw", "--keyword", "other"], "twice"),
        ([source, "kw", "--repeats", "0"], "--repeats 0"),
        ([source, "kw", "--repeats", "2.5"], "--repeats 2.5: is not a whole number"),
        (
            [source, "kw", "--repeats", "2", "--output", "o"],
            "image_datasets/2_kw, and --output names another",
        ),
        ([source, "kw", "--temperature", "hot"], "--temperature hot: is not a number"),
        ([source, "kw", "--seed"], "--seed: needs a value"),
        ([source, "kw", "--overwrite=yes"], "--overwrite: takes no value"),
        ([source, "kw", "--batch-size", "0"], "--batch-size 0"),
        ([source, "kw", "--temperature", "-1"], "--temperature -1"),
        ([source, "kw", "--temperature", "nan"], "--temperature nan"),
        ([source, "kw", "--top-p", "0"], "--top-p"),
        ([source, "kw", "--top-p", "1.5"], "--top-p 1.5"),
        ([source, "kw", "--seed", "-3"], "--seed -3"),
        ([source, "kw", "--max-new-tokens", "0"], "--max-new-tokens 0"),
        ([source, "kw", "--max-caption-tokens", "76"], "choose from 75, 150, 225"),
        ([source, "kw", "--prompt", " "], "--prompt"),
        ([source, "kw", "--device", "tpu"], "--device tpu"),
        ([source, "kw", "--dtype", "int8"], "--dtype int8: is not possible"),
        ([source, "kw", "--prompt", "\udcff"], "not UTF-8"),
        ([source, "kw", "--output", tmp_path / "dangling"], "is a link to nowhere, which is not there"),
        ([source, "kw", "--output", "/proc/foo"], "/proc/foo: cannot be written"),
        ([source, "kw", "--model", tmp_path / "no model"], "no model"),
        ([source, "kw", "--output", tmp_path / "taken"], "taken"),
        ([source, "kw", "--output", ""], "--output"),
        ([source, "car " * 40, "--output", "o"], "space"),
        ([source, "猫" * 60], "CLIP tokens"),
        ([source, source.name], "only read"),
        ([source, "kw", "--output", source / "inside"], "only read"),
        ([source, "kw", "--output", tmp_path], "would hold the input"),
        *[
            ([source, word], "keyword")
            for word in ("", "../up", "a/b", "a\\b", ".", "..", "~", " x", ".x", "a,b")
        ],
        ([source, "new\nline"], "new\\nline"),
    ]
    for arguments, words in cases:
        assert words in refused(capsys, *arguments), arguments
    assert tree(tmp_path) == before and not (tmp_path / "kw").exists()


def test_output_that_is_the_input_by_another_name_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(source)
    assert "only read" in refused(capsys, source, "link")
    (tmp_path / "below").symlink_to(source / "sub")
    (source / "sub").mkdir()
    assert "only read" in refused(capsys, source, "kw", "--output", tmp_path / "below")
    assert "only read" in refused(capsys, source / ".." / source.name, source.name)


def test_disk_and_file_size_limits_are_seen_before_a_model_is_looked_for(
    source: Path, tmp_path: Path
) -> None:
    Image.frombytes("RGB", (300, 300), os.urandom(270_000)).save(source / "noise.png")
    program = [str(Path(janus_pro_caption_core.__file__)), str(source), "kw", "--model", "none"]
    limited = 'ulimit -f 64; exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, sys.executable, *program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "ulimit -f" in done.stderr
    assert not (tmp_path / "kw").exists()


def test_help_usage_errors_and_dry_runs_load_no_tensor_library(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys; sys.argv[0] = 'x'\n"
        "from noukii.command_line import run_command\nimport janus_pro_caption_core as core\n"
        "try: code = run_command(core.main)\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'numpy'} & set(sys.modules)\n"
        "print('loaded', heavy, code)"
    )
    model = tmp_path / "model"
    for arguments, expected in (
        (["--help"], 0),
        ([str(source), "kw", "--nonsense"], 2),
        ([str(source), "kw"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--dry-run", "--model", str(model)],
            env={**os.environ, "PYTHONPATH": str(Path(janus_pro_caption_core.__file__).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"loaded set() {expected}" in done.stdout, done


# --- names in, names out -----------------------------------------------------------------------------


def test_flags_may_stand_anywhere_and_names_may_look_like_flags(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse(["--recursive", str(source), "--seed", "7", "kw", "--overwrite"]).keyword == "kw"
    assert parse([str(source)]).keyword == "abc"
    assert parse([str(source), "--keyword=kw"]).output == tmp_path / "kw"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-odd").mkdir()
    assert parse(["--seed", "7", "--", "-odd", "kw"]).folder == tmp_path / "-odd"
    with pytest.raises(InputError, match=r"write \./-odd"):
        parse(["-odd", "kw"])


def test_repeats_and_home_decide_where_the_output_goes(source: Path, project_home: Path) -> None:
    assert parse([str(source), "kw", "--repeats", "20"]).output == project_home / "image_datasets" / "20_kw"
    assert parse([str(source), "kw"]).model == project_home / "models" / "Janus-Pro-1B"


def test_every_odd_name_gets_a_copy_and_a_caption_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    names = [b"two words.png", b"-dash.png", b"--help.png", "emoji \U0001f63a.png".encode(), b"new\nline.png"]
    names += ["cafe\u0301.png".encode(), "caf\u00e9.png".encode(), b"$HOME `id` ;ls.png", b"back\\slash.png"]
    names += [b"cat.jpg", b"cat.png", b"cat.webp", b"Dog.png", b"dog.png", b"x" * 251 + b".png"]
    names += [
        b"latin1_caf\xe9.png",
        b"prompt_cue-tomcat.png",
        b"captions.jsonl.png",
        b"review.png",
        b" a .png",
    ]
    for number, name in enumerate(names):
        extension = name.rpartition(b".")[2].decode()
        picture(tmp_path / "new" / f"x.{extension}", number).rename(tmp_path / "one")
        folder.mkdir(exist_ok=True)
        os.rename(tmp_path / "one", os.path.join(os.fsencode(folder), name))
    before = tree(folder)
    work = caption(options(folder))
    assert tree(folder) == before
    output = tmp_path / "tomcat"
    assert len({item.stem.casefold() for item in work.items}) == len(names)
    for item in work.items:
        text = (output / f"{item.stem}.txt").read_text(encoding="utf-8")
        assert text.startswith("tomcat, ") and item.info.sha256[:6] in text and "\n" not in text
        assert Image.open(output / item.file).getpixel((0, 0)) == Image.open(item.info.path).getpixel((0, 0))
    again = caption(options(folder))
    assert {s: t for s, t in tasks(again).items() if t != DONE} == {}
    assert [i.file for i in again.items] == [i.file for i in work.items]
    lines = (output / MANIFEST).read_text(encoding="utf-8").splitlines()
    assert {os.fsencode(json.loads(line)["source"]) for line in lines} == set(names)


# --- the second run ----------------------------------------------------------------------------------


def test_second_run_does_only_what_is_missing(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    output = tmp_path / "tomcat"
    first = tree(output)
    assert set(first) == {f"{stem}.{end}" for stem in "abc" for end in ("png", "txt")} | {
        MANIFEST,
        STATE,
        "prompt_cue-tomcat.txt",
    }
    stamps = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    assert set(tasks(caption(options(source))).values()) == {DONE}
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == stamps

    (output / "b.txt").unlink()
    (output / "c.png").unlink()
    picture(source / "d.png", 9)
    assert tasks(caption(options(source))) == {
        "a.png": DONE,
        "b.png": WRITE,
        "c.png": DONE,
        "d.png": DESCRIBE,
    }
    assert {
        name: data for name, data in tree(output).items() if name in first and name[1:] in (".png", ".txt")
    } == {name: data for name, data in first.items() if name[1:] in (".png", ".txt")}
    assert set(tasks(caption(options(source))).values()) == {DONE}


def test_edited_captions_survive_everything(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    output = tmp_path / "tomcat"
    (output / "a.txt").write_text("tomcat, HAND EDITED\r\n", encoding="utf-16")
    (output / "b.txt").write_text(
        " " + (output / "b.txt").read_text() + "\n"
    )  # an editor's line end is no edit
    (output / "prompt_cue-tomcat.txt").write_text("my own cue\n")
    edited = (output / "a.txt").read_bytes()
    for said, flags in ("", []), ("new", ["--overwrite"]), ("newer", ["--overwrite", "--seed", "1"]):
        work = caption(options(source, *flags), said)
        assert tasks(work)["a.png"] == KEEP and tasks(work)["b.png"] == (DESCRIBE if said else DONE)
        assert (output / "a.txt").read_bytes() == edited
        assert said in (output / "c.txt").read_text()
        assert (output / "prompt_cue-tomcat.txt").read_text() == "my own cue\n"
    picture(source / "a.png", 77)
    work = caption(options(source))
    assert tasks(work) == {"a.png": KEEP, "b.png": DONE, "c.png": DONE}
    assert (output / "a.txt").read_bytes() == edited and "edited by hand" in work.items[0].notes[0]
    assert (output / "a.png").read_bytes() == (source / "a.png").read_bytes()

    (output / "a.txt").unlink()  # how a user asks for a new one
    caption(options(source))
    assert (output / "a.txt").read_text().startswith("tomcat, ")


def test_a_changed_image_is_captioned_again_and_leaves_no_old_copy(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    output = tmp_path / "tomcat"
    Image.new("RGB", (90, 90), (1, 2, 3)).save(source / "b.png", "JPEG")
    old = (output / "b.txt").read_text()
    assert tasks(caption(options(source)))["b.png"] == DESCRIBE
    assert not (output / "b.png").exists() and (output / "b.jpg").exists()
    assert (output / "b.txt").read_text() != old
    assert len((output / MANIFEST).read_text().splitlines()) == 3

    Image.new("RGB", (40, 40)).save(output / "c.png")  # the user cropped the copy
    cropped = (output / "c.png").read_bytes()
    picture(source / "c.png", 55)
    caption(options(source))
    assert (output / "c.png").read_bytes() == cropped


def test_renamed_removed_and_equal_sources(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    output = tmp_path / "tomcat"
    first = tree(output)
    (source / "a.png").rename(source / "renamed.png")
    (source / "b.png").unlink()
    shutil.copy(source / "c.png", source / "twin.png")
    work = caption(options(source))
    assert {item.source: item.file for item in work.items} == {
        "c.png": "c.png",
        "renamed.png": "a.png",
        "twin.png": "twin.png",
    }
    assert work.to_describe() == [] and work.gone == ("b.png",)
    assert (output / "twin.txt").read_bytes() == (output / "c.txt").read_bytes() == first["c.txt"]
    assert (output / "b.txt").read_bytes() == first["b.txt"] and (output / "a.txt").read_bytes() == first[
        "a.txt"
    ]


def test_another_folder_into_the_same_output_replaces_nothing(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    first = tree(tmp_path / "tomcat")
    other = tmp_path / "other"
    picture(other / "a.png", 200)
    work = caption(options(other))
    assert [item.file for item in work.items] == ["a-2.png"] and set(work.gone) == {"a.png", "b.png", "c.png"}
    now = tree(tmp_path / "tomcat")
    assert all(now[name] == first[name] for name in first if name[1:] in (".png", ".txt"))


def test_foreign_files_in_the_output_are_never_replaced(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "tomcat"
    output.mkdir()
    shutil.copy(source / "a.png", output)  # captioned by hand, the same picture
    (output / "a.txt").write_text("tomcat, HAND ONE")
    picture(output / "b.png", 99)  # another picture of that name
    (output / "b.txt").write_text("tomcat, another picture")
    (output / "c.txt").write_text("tomcat, HAND THREE")  # a caption that waits for its picture
    (output / "notes.md").write_text("mine")
    (output / MANIFEST).write_text('{"somebody": "else"}\nnot json\n')
    (output / "prompt_cue-tomcat.txt").write_text("HAND CUE")
    before = tree(output)
    work = caption(options(source))
    assert {item.source: (item.file, item.task) for item in work.items} == {
        "a.png": ("a.png", KEEP),
        "b.png": ("b-2.png", DESCRIBE),
        "c.png": ("c.png", KEEP),
    }
    after = tree(output)
    assert {name: after[name] for name in before if name != MANIFEST} == {
        name: data for name, data in before.items() if name != MANIFEST
    }
    assert after[f"{MANIFEST}.damaged"].startswith(before[MANIFEST])
    assert (output / "b-2.txt").read_text().startswith("tomcat, a red car")
    assert set(tasks(caption(options(source))).values()) == {KEEP, DONE}


def test_new_wording_wishes_need_no_model(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    (tmp_path / "tomcat" / "a.txt").unlink()
    work = caption(options(source, "--raw-captions"))
    assert tasks(work)["a.png"] == DESCRIBE and work.to_describe() == []
    text = (tmp_path / "tomcat" / "a.txt").read_text()
    assert text == json.loads((tmp_path / "tomcat" / MANIFEST).read_text().splitlines()[0])["raw"]


@pytest.mark.parametrize("raw", [" leading", "two\nlines\r\n\n more", "a\x00b\x07", "\ufeffmark", "  "])
def test_raw_captions_are_the_models_text_as_one_readable_line(
    source: Path, tmp_path: Path, raw: str
) -> None:
    wishes = options(source, "--raw-captions")
    with StopSignal() as stop:
        found = look(wishes, stop)
    wishes.output.mkdir()
    writer = Writer(wishes, Manifest(wishes.output), State(), "", TOKENIZER)
    work = make_worklist(wishes, found.infos[:1], Manifest(wishes.output), State(), "")
    writer.copy_image(work.items[0])
    entry = writer.describe(work.items[0], raw, "stop", 3, 0.0)
    text = (wishes.output / "a.txt").read_text(encoding="utf-8")
    assert entry.raw == raw and text == entry.caption
    if raw in (" leading", "\ufeffmark"):
        assert text == raw
    elif raw.strip():
        assert text == re.sub(r"[\s\x00\x07]+", " ", raw).strip()
    else:
        assert text == "tomcat"  # an empty .txt would stop kohya's trainer
    again = make_worklist(wishes, found.infos[:1], Manifest.read(wishes.output), State(), "")
    assert tasks(again) == {"a.png": DONE}


# --- kills -------------------------------------------------------------------------------------------


def killed_at(moment: int, job: Callable[[], object]) -> bool:
    """Run `job` in a child that ends like kill -9 before its `moment`-th call that changes a disk."""
    child = os.fork()
    if child == 0:
        left = [moment]

        def counted(name: str) -> None:
            real = getattr(os, name)

            def call(*arguments: object, **named: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return real(*arguments, **named)

            setattr(os, name, call)

        for name in ("replace", "write", "unlink", "fsync", "ftruncate"):
            counted(name)
        try:
            job()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def _stage(name: str, source: Path, tmp_path: Path) -> tuple[CaptionOptions, str]:
    """Prepare the input and output folders of one kind of run."""
    if name == "first":
        return options(source), ""
    caption(options(source))
    output = tmp_path / "tomcat"
    (output / "a.txt").write_text("tomcat, HAND EDITED")
    if name == "changes":
        Image.new("RGB", (90, 90), (1, 2, 3)).save(source / "b.png", "JPEG")
        shutil.copy(source / "c.png", source / "twin.png")
        return options(source), "changed"
    if name == "edited pictures":  # the copies keep their names: as it is, converted, with a caption by hand
        picture(source / "b.png", 7)
        Image.new("L", (90, 90), 40).save(source / "c.png")
        picture(source / "a.png", 8)
        return options(source), "changed"
    return options(source, "--overwrite"), "redone"


@pytest.mark.parametrize("kind", ["first", "changes", "edited pictures", "overwrite"])
def test_after_a_kill_at_any_moment_the_next_run_ends_as_an_undisturbed_one(
    kind: str, source: Path, tmp_path: Path
) -> None:
    wishes, said = _stage(kind, source, tmp_path)
    start = tmp_path / "start"
    wishes.output.mkdir(exist_ok=True)
    shutil.copytree(wishes.output, start)
    caption(wishes, said)
    expected = tree(wishes.output)
    moment = 0
    while True:
        moment += 1
        shutil.rmtree(wishes.output)
        shutil.copytree(start, wishes.output)
        if not killed_at(moment, lambda: caption(wishes, said)):
            break
        for path in wishes.output.iterdir():  # whole or not at all, at every moment
            if path.suffix in (".png", ".jpg") and not path.name.startswith("."):
                Image.open(path).load()
        caption(wishes, said)
        assert tree(wishes.output) == expected, f"killed before call {moment}"
    assert moment > 20


def test_a_line_cut_off_or_spoilt_costs_no_other(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    log = tmp_path / "tomcat" / MANIFEST
    whole = log.read_bytes()
    for cut in (1, 40, 300):
        log.write_bytes(whole[:-cut])
        read = Manifest.read(log.parent)
        assert set(read.entries) == ({"a", "b", "c"} if cut == 1 else {"a", "b"}) and not read.damaged
        captions = {path: path.read_bytes() for path in log.parent.glob("?.txt")}
        caption(options(source))
        assert log.read_bytes().splitlines()[:2] == whole.splitlines()[:2]
        assert {path: path.read_bytes() for path in log.parent.glob("?.txt")} == captions
    climbing = whole.replace(b'"file": "b.png"', b'"file": "../../b.png"')
    log.write_bytes(climbing)
    assert set(Manifest.read(log.parent).entries) == {"a", "c"}


# --- one at a time -----------------------------------------------------------------------------------


def test_a_second_copy_refuses_with_the_firsts_process_number(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from noukii.lock import folder_lock\n"
        "with folder_lock(Path(sys.argv[1]), 'captioning'): print('held', flush=True); sys.stdin.read()"
    )
    root = Path(janus_pro_caption_core.__file__).parent
    folder = tmp_path / "new" / "folder"
    first = subprocess.Popen(
        [sys.executable, "-c", program, folder],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdout is not None and first.stdin is not None
    assert first.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match=rf"process {first.pid} .*captioning"), folder_lock(folder, "other"):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    with folder_lock(folder, "other"):
        assert (folder / LOCK_NAME).read_text().startswith(str(os.getpid()))
    assert not (folder / LOCK_NAME).exists() and folder.is_dir()  # it was there before this lock
    with folder_lock(tmp_path / "x" / "y", "other"):
        pass
    assert not (tmp_path / "x").exists()


def test_a_write_that_fails_names_the_file_and_keeps_everything_older(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    output = tmp_path / "tomcat"
    before = tree(output)
    picture(source / "d.png", 9)
    limit = len(before[MANIFEST]) + 50  # room for the copy, not for the next line

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(RunError, match=rf"{MANIFEST}: could not be written: .*larger"):
            caption(options(source))

    assert not killed_at(0, limited)
    after = tree(output)
    assert all(after[name] == before[name] for name in before if name not in (MANIFEST, STATE))
    assert after[MANIFEST].startswith(before[MANIFEST])
    caption(options(source))
    assert (output / "d.txt").exists() and len((output / MANIFEST).read_text().splitlines()) == 4


# --- while it runs -----------------------------------------------------------------------------------


def begun(wishes: CaptionOptions) -> tuple[Worklist, Writer]:
    """A run up to the moment when the model has its first answer."""
    with StopSignal() as stop:
        found = look(wishes, stop)
    wishes.output.mkdir(exist_ok=True)
    manifest, state = Manifest.read(wishes.output), State.read(wishes.output)
    work = make_worklist(wishes, found.infos, manifest, state, identity(wishes.folder))
    return work, Writer(wishes, manifest, state, identity(wishes.folder), TOKENIZER)


def test_pictures_that_come_into_the_output_while_it_runs_are_the_users(source: Path, tmp_path: Path) -> None:
    work, writer = begun(options(source))
    writer.begin(work)
    output = tmp_path / "tomcat"
    theirs = picture(output / "a.png", 200).read_bytes()
    with pytest.raises(UnusableImage, match=r"holds another file named a\.png"):
        writer.copy_image(work.items[0])
    writer.copy_image(work.items[1])
    edited = picture(output / "b.png", 201).read_bytes()
    writer.copy_image(work.items[2])
    writer.abandon(work.items)
    assert tree(output).keys() == {"a.png", "b.png", STATE}
    assert (output / "a.png").read_bytes() == theirs and (output / "b.png").read_bytes() == edited


def test_a_copy_edited_while_its_source_is_captioned_again_is_kept(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    picture(source / "a.png", 70)
    work, writer = begun(options(source))
    writer.begin(work)
    edited = picture(tmp_path / "tomcat" / "a.png", 71).read_bytes()
    item = work.items[0]
    assert item.task == DESCRIBE and item.write_copy
    writer.copy_image(item)
    writer.describe(item, "A dog.", "stop", 2, 0.0)
    writer.finish(work)
    picture(source / "a.png", 72)
    caption(options(source))  # and is still known as the user's by the next runs
    assert writer.was_kept(item) and (tmp_path / "tomcat" / "a.png").read_bytes() == edited


def test_an_emptied_caption_is_written_again_as_a_deleted_one_is(source: Path, tmp_path: Path) -> None:
    caption(options(source))
    path = tmp_path / "tomcat" / "a.txt"
    whole = path.read_bytes()
    path.write_text(" \n")
    work = caption(options(source))
    assert tasks(work)["a.png"] == WRITE and "was empty" in work.items[0].notes[0]
    assert path.read_bytes() == whole


def test_lines_without_a_fingerprint_go_by_the_models_name(source: Path, tmp_path: Path) -> None:
    wishes = replace(options(source), model_id="1" * 16)
    caption(wishes)
    log = tmp_path / "tomcat" / MANIFEST
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["model_id"] for line in lines} == {"1" * 16}
    for other, task in (("2" * 16, DESCRIBE), (None, WRITE)):
        (tmp_path / "tomcat" / "a.txt").unlink(missing_ok=True)
        assert tasks(begun(replace(wishes, model_id=other))[0])["a.png"] == task
    log.write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "model_id"}) + "\n" for line in lines)
    )
    assert tasks(begun(replace(wishes, model_id="2" * 16))[0])["a.png"] == WRITE


# --- streams and signals -----------------------------------------------------------------------------

COMMANDS = [  # the trainer says a line, see test_stopping.py
    "janus_pro_caption_core.py",
    "generate_config.py",
    "noukii/driver/__main__.py",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_during_the_imports_ends_quietly(command: str, tmp_path: Path) -> None:
    """The signal comes when the module of our command line is about to be imported."""
    root = Path(janus_pro_caption_core.__file__).parent
    program = f"""
import builtins, os, runpy, signal, sys
real = builtins.__import__
def at_the_moment(name, *rest):
    if name in ("noukii.command_line", "noukii.captioning.options"):
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest)
builtins.__import__ = at_the_moment
sys.path.insert(0, {str(root)!r})
sys.argv = [{command!r}]
runpy.run_path(os.path.join({str(root)!r}, {command!r}), run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(janus_pro_caption_core.main, ["--version"]) == 0
    assert capsys.readouterr().out == f"noukii {noukii.__version__}\n"


def test_a_slow_rate_is_per_one_thing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("noukii.progress.time.monotonic", lambda: now[0])
    with Progress("captioning", 4, "images") as progress:
        now[0] = 20.0
        progress.advance(2)
    assert capsys.readouterr().err == "captioning: 2/4 images, 10.00 s/image, 20 s left\n"
