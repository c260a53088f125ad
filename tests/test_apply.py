"""./run_captioning.sh --apply: what review.html saved comes back into the folder, or is refused whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Run
from test_caption_folder import caption, options, picture, source, tasks, tree  # noqa: F401

import janus_pro_caption_core
from noukii.captioning import apply_edits
from noukii.captioning.manifest import State
from noukii.captioning.own_files import OwnFiles
from noukii.command_line import run_command
from noukii.dataset.images import list_images
from noukii.report.review import write_review


@pytest.fixture
def folder(source: Path) -> Path:  # noqa: F811
    """A captioned folder of three images."""
    wishes = options(source)
    caption(wishes)
    own = OwnFiles(wishes.output, State.read(wishes.output))
    with own.writing("review.html"):
        write_review(wishes.output)
    return wishes.output


def text(folder: Path, name: str) -> str:
    return (folder / f"{name}.txt").read_text(encoding="utf-8")


def saved(path: Path, folder: Path, **captions: str) -> Path:
    """What the page's button downloads: one line per edited caption."""
    lines = [
        json.dumps({"file": f"{name}.png", "caption": new, "before": text(folder, name)})
        for name, new in captions.items()
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def apply(*arguments: str | Path) -> int:
    """The command in this process."""
    words = ["--apply", *map(os.fspath, arguments)]
    return run_command(lambda words: apply_edits.apply(apply_edits.parse(words)), words)


def test_an_edit_comes_back_and_counts_as_edited_by_hand(
    run: Run,
    source: Path,  # noqa: F811
    folder: Path,
    tmp_path: Path,
) -> None:
    before = {name: text(folder, name) for name in "abc"}
    edits = saved(tmp_path / "captions (1).jsonl", folder, a="tomcat, my  own words é\n<b>", b=before["b"])
    done = run("run_captioning.sh", "--apply", edits, folder)
    assert done.returncode == 0, done.stderr
    assert "1 caption written, 1 were so already" in done.stdout
    assert text(folder, "a") == "tomcat, my own words é <b>"
    assert {name: text(folder, name) for name in "bc"} == {name: before[name] for name in "bc"}
    for flags in ((), ("--overwrite",)):
        work = caption(options(source, *flags))
        assert tasks(work)["a.png"] == "keep"
        assert text(folder, "a") == "tomcat, my own words é <b>"
    page = (folder / "review.html").read_text(encoding="utf-8")
    assert "tomcat, my own words é &lt;b&gt;" in page and "hand-edited" in page


def test_a_page_of_the_user_s_own_is_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "review.html").write_text("my notes")
    assert apply(saved(tmp_path / "e.jsonl", folder, a="tomcat, mine"), folder) == 0
    assert (folder / "review.html").read_text() == "my notes"
    assert "review.html" in capsys.readouterr().out


def test_applying_twice_changes_nothing_more(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine")
    assert apply(edits, folder) == 0
    after = tree(folder)
    assert apply(edits, folder) == 0
    assert tree(folder) == after
    assert "0 captions written, 1 were so already" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine")
    before = tree(folder)
    assert apply(edits, folder, "--dry-run") == 0
    assert tree(folder) == before
    assert "1 caption would be written" in capsys.readouterr().out


def test_what_changed_on_the_disk_meanwhile_is_kept_and_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, from the page", b="tomcat, fine")
    (folder / "a.txt").write_text("tomcat, from my editor", encoding="utf-8")
    assert apply(edits, folder) == 1
    said = capsys.readouterr().out
    assert text(folder, "a") == "tomcat, from my editor"
    assert text(folder, "b") == "tomcat, fine", "the others are written"
    assert "a.txt was changed since the page was made, and is kept" in said
    assert "tomcat, from my editor" in said and "tomcat, from the page" in said and "--overwrite" in said
    assert apply(edits, folder, "--overwrite") == 0
    assert text(folder, "a") == "tomcat, from the page"
    assert "tomcat, from my editor" in capsys.readouterr().out, "what is replaced is shown"


def test_a_deleted_caption_has_changed_too(folder: Path, tmp_path: Path) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine")
    (folder / "a.txt").unlink()
    assert apply(edits, folder) == 1
    assert not (folder / "a.txt").exists()


def test_an_image_without_a_caption_gets_one(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").unlink()
    edits = tmp_path / "e.jsonl"
    edits.write_text('{"file": "a.png", "caption": "tomcat, mine", "before": ""}')
    assert apply(edits, folder) == 0
    assert text(folder, "a") == "tomcat, mine"


GOOD = {"file": "a.png", "caption": "tomcat, fine", "before": "x"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is not an edited caption"),
        ("null", "line 2: is not an edited caption"),
        ("[" * 100_000, "line 2: is not JSON"),
        ('{"file": "b.png", "caption": "no before"}', "line 2: lacks before"),
        (json.dumps({**GOOD, "file": 7}), "line 2: lacks file"),
        (json.dumps({**GOOD, "file": "../../etc/passwd"}), "'../../etc/passwd' is not the name of an image"),
        (json.dumps({**GOOD, "file": "/tmp/x.png"}), "'/tmp/x.png' is not the name of an image"),
        (json.dumps({**GOOD, "file": ".."}), "'..' is not the name of an image"),
        (json.dumps({**GOOD, "file": "b.png\0"}), "is not the name of an image"),
        (json.dumps({**GOOD, "file": "b.png", "caption": " \n"}), "b.png: the caption is empty"),
        (json.dumps({**GOOD, "file": "b.png", "earlier": "x"}), "line 2: is not an edited caption"),
        (json.dumps({**GOOD, "file": "b.png", "caption": "x" * 10**6}), "b.png: 1000000 characters"),
        (json.dumps({**GOOD, "file": "b.png", "caption": "bell \a"}), "'\\x07' is no text"),
        (json.dumps({**GOOD, "file": "b.png", "caption": "half \ud800"}), "'\\ud800' is no text"),
        (json.dumps({**GOOD, "caption": "tomcat, another"}), "line 1 has another caption for a.png"),
    ],
    ids=range(16),
)
def test_a_bad_line_is_named_and_nothing_is_written(
    folder: Path, tmp_path: Path, line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = tmp_path / "e.jsonl"
    good = {**GOOD, "before": text(folder, "a")}
    edits.write_text(json.dumps(good) + "\n" + line + "\n", encoding="utf-8")
    before = tree(tmp_path)
    assert apply(edits, folder) == 2
    said = capsys.readouterr().err
    assert reason in said and "nothing was written" in said and said.count("next: ") == 1, said
    assert tree(tmp_path) == before


def test_an_edit_that_cannot_be_used_is_left_out_and_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine", b="tomcat, too", c="word " * 300)
    (folder / "b.png").rename(folder / "z.png")
    assert apply(edits, folder) == 1
    assert text(folder, "a") == "tomcat, mine", "the others are written"
    said = capsys.readouterr().out
    assert "1 caption written" in said and "left out, 2:" in said
    assert "there is no image b.png in the folder" in said and "c.png: 300 CLIP tokens" in said
    edits.write_text("".join(edits.read_text().splitlines(keepends=True)[1:]))
    before = tree(folder)
    assert apply(edits, folder) == 2
    assert "nothing was written" in capsys.readouterr().err and tree(folder) == before


def test_what_one_page_has_saved_twice_is_applied_twice(folder: Path, tmp_path: Path) -> None:
    first = {"file": "a.png", "caption": "tomcat, first", "before": text(folder, "a")}
    second = {**first, "caption": "tomcat, second", "earlier": ["tomcat, first"]}
    for number, edit in enumerate((first, second)):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(edit))
        assert apply(tmp_path / f"{number}.jsonl", folder) == 0
        assert text(folder, "a") == edit["caption"]
    (folder / "a.txt").write_text("tomcat, from my editor")
    assert apply(tmp_path / "1.jsonl", folder) == 1
    assert text(folder, "a") == "tomcat, from my editor"


def test_the_browser_s_second_download_is_pointed_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = saved(tmp_path / "captions.jsonl", folder, a="tomcat, first")
    assert apply(edits, folder) == 0
    again = saved(tmp_path / "captions (1).jsonl", folder, a="tomcat, second")
    os.utime(edits, (1_000_000_000, 1_000_000_000))
    assert apply(edits, folder) == 0
    assert "captions (1).jsonl beside it is newer" in capsys.readouterr().out
    assert apply(again, folder) == 0
    assert "newer" not in capsys.readouterr().out


def test_foreign_files_and_folders_are_refused(
    run: Run,
    folder: Path,
    source: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"file": "caf\xe9"}\n')
    before = tree(tmp_path)
    for arguments, reason in (
        ((edits, source), "your own folders are only read"),
        ((edits, tmp_path / "none"), "there is no such folder"),
        ((tmp_path / "none.jsonl", folder), "there is no such file"),
        ((folder, folder), "is a folder, not a file"),
        ((tmp_path / "empty.jsonl", folder), "holds no edited caption"),
        ((tmp_path / "latin.jsonl", folder), "is not UTF-8 text"),
        ((folder / "captions.jsonl", folder), "only what review.html saves can be applied"),
        ((edits,), "which folder?"),
        ((edits, folder, "--seed", "7"), "--seed: has no meaning with --apply"),
    ):
        done = run("run_captioning.sh", "--apply", *arguments)
        assert done.returncode == 2 and reason in done.stderr, done.stderr
        assert "next: " in done.stderr and "Traceback" not in done.stderr
    assert tree(tmp_path) == before


def test_odd_names_come_back_as_they_are(source: Path, tmp_path: Path) -> None:  # noqa: F811
    for number, name in enumerate(("-x y.png", "日本.png", os.fsdecode(b"caf\xe9.png")), 10):
        try:
            picture(source / name, number)
        except OSError:
            pytest.skip("this file system refuses such names")
    wishes = options(source)
    caption(wishes)
    images = list_images(wishes.output).images
    edits = tmp_path / "e.jsonl"
    edits.write_text(
        "".join(
            json.dumps(
                {
                    "file": image.name,
                    "caption": f"tomcat, number {number}",
                    "before": image.with_suffix(".txt").read_text(encoding="utf-8"),
                }
            )
            + "\n"
            for number, image in enumerate(images)
        )
    )
    assert apply(edits, wishes.output) == 0
    assert [image.with_suffix(".txt").read_text() for image in images] == [
        f"tomcat, number {number}" for number in range(len(images))
    ]


def test_a_folder_that_is_being_captioned_is_left_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from noukii.lock import folder_lock

    edits = saved(tmp_path / "e.jsonl", folder, a="tomcat, mine")
    with folder_lock(folder, "run_captioning.sh"):
        assert apply(edits, folder) == 2
    assert "works in" in capsys.readouterr().err
    assert text(folder, "a") != "tomcat, mine"


def test_images_that_look_the_same_are_named_after_captioning_and_kept(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image
    from tiny_janus import make_tiny_janus

    raw = tmp_path / "raw"
    raw.mkdir()
    cat = Image.open(photos / "chelsea.png").convert("RGB")
    cat.save(raw / "cat.png")
    cat.resize((cat.width // 2, cat.height // 2)).save(raw / "cat small.jpg", quality=50)
    Image.open(photos / "coffee.png").save(raw / "coffee.png")
    model = make_tiny_janus(tmp_path / "tiny janus")
    words = [raw, "tom", "--model", model, "--max-new-tokens", "4", "--device", "cpu"]
    assert janus_pro_caption_core.main([*map(str, words)]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "look nearly the same" in line]
    assert "cat.png" in line and "cat small.jpg" in line and "coffee" not in line
    assert len(list_images(tmp_path / "tom").images) == 3, "nothing is dropped"
    assert "looks like" in (tmp_path / "tom" / "review.html").read_text(encoding="utf-8")
