"""Which caption belongs to a picture, and its text as one line of UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noukii.dataset.captions import (
    UnreadableCaption,
    find_caption,
    find_captions,
    read_caption,
    unused_captions,
)


def text_of(folder: Path, data: bytes) -> str:
    path = folder / "a.txt"
    path.write_bytes(data)
    return read_caption(path).text


@pytest.mark.parametrize(
    ("image", "caption"),
    [
        ("img.png", "img.txt"),
        ("img.png", "img.caption"),
        ("img.png", "img.TXT"),
        ("img.png", "img.Caption"),
        ("img.png", "img.png.txt"),
        ("img.PNG", "img.PNG.txt"),
        ("v1.2 final.jpeg", "v1.2 final.txt"),
        ("no_extension", "no_extension.txt"),
        ("[a](b)*.png", "[a](b)*.txt"),
    ],
)
def test_a_caption_under_any_usual_name(tmp_path: Path, image: str, caption: str) -> None:
    (tmp_path / image).touch()
    (tmp_path / caption).write_text("cat")
    assert find_caption(tmp_path / image) == tmp_path / caption


@pytest.mark.parametrize(
    ("image", "other"),
    [
        ("trip_2024_01_02_03.png", "trip.txt"),
        ("img.png", "img2.txt"),
        ("img.png", "IMG.txt"),
        ("img.png", "img.md"),
        ("img.png", "img .txt"),
        ("img.png", "img.jpg.txt"),
    ],
)
def test_a_neighbours_caption_is_never_used(tmp_path: Path, image: str, other: str) -> None:
    (tmp_path / image).touch()
    (tmp_path / other).write_text("cat")
    assert find_caption(tmp_path / image) is None


def test_which_of_several_captions_wins(tmp_path: Path) -> None:
    for name in ("cat.txt", "cat.TXT", "cat.caption", "cat.png.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "dog.txt").mkdir()
    (tmp_path / "dog.caption").write_text("dog")
    found = find_captions([tmp_path / name for name in ("cat.png", "cat.jpg", "dog.png")])
    assert found[tmp_path / "cat.png"] == tmp_path / "cat.png.txt"
    assert found[tmp_path / "cat.jpg"] == tmp_path / "cat.txt"
    assert found[tmp_path / "dog.png"] == tmp_path / "dog.caption"
    assert find_caption(tmp_path / "cat.jpg", (".caption",)) == tmp_path / "cat.caption"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"cat, it\x92s sitting on a chair", "cat, it\u2019s sitting on a chair"),
        (b"cat,\xa0caf\xe9 table", "cat,\u00a0caf\u00e9 table"),
        (b"\xef\xbb\xbfcat, sitting", "cat, sitting"),
        ("\ufeffcat, sitting".encode("utf-16-le"), "cat, sitting"),
        ("\ufeffcat, sitting".encode("utf-16-be"), "cat, sitting"),
        ("cat, sitting".encode("utf-16-le"), "cat, sitting"),
        ("\ufeffcat, 座っている".encode("utf-16-le"), "cat, 座っている"),
    ],
)
def test_other_encodings_are_converted_with_a_note(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    caption = read_caption(path)
    assert caption.text == text and caption.notes


def test_texts_that_no_picture_takes_are_named(tmp_path: Path) -> None:
    """Not those of a picture that is skipped (it is named itself), and not texts that are no captions."""
    for name in ("a.png", "b.jpg", "broken.webp"):
        (tmp_path / name).write_bytes(b"x")
    for name, text in {
        "a.txt": "one", "a.caption": "another", "b.jpg.txt": "two", "b.TXT": "two", "broken.txt": "three",
        "trip.txt": "of nobody", "c.caption": "of nobody", "prompt_cue-cat.txt": "red", "README.txt": "hello",
        "license.txt": "MIT", "._a.txt": "\0", "notes.md": "no caption",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    found = find_captions([tmp_path / "a.png", tmp_path / "b.jpg"])
    unused = unused_captions(tmp_path, found)
    assert [path.name for path in unused.strays] == ["c.caption", "trip.txt"]
    assert [path.name for path in unused.seconds] == ["a.caption"]  # b.TXT says the same as b.jpg.txt


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"cat, first\nwith a red hat\n\nthird paragraph", "cat, first with a red hat third paragraph"),
        (b"cat, windows line\r\nmore text\r\n", "cat, windows line more text"),
        (b"cat, old mac line\rmore text\r", "cat, old mac line more text"),
        ("cat\u2028dog\x85bird".encode(), "cat dog bird"),
        (b"\t cat, tab\there \t\n", "cat, tab\there"),
        (b"\n\n  \ncat", "cat"),
    ],
)  # fmt: skip
def test_several_lines_become_one_and_nothing_is_lost(tmp_path: Path, data: bytes, text: str) -> None:
    assert text_of(tmp_path, data) == text


@pytest.mark.parametrize(
    "text",
    [
        "(masterpiece:1.2), cat, [blurry]",
        "cat wearing a {red|blue} hat",
        r"zoro \(one piece\), cat",
        '<lora:other:0.8>, cat, # not a comment, "quoted"',
        "two  spaces, trailing,",
        "猫, 😺, café",
    ],
)
def test_text_is_kept_letter_for_letter(tmp_path: Path, text: str) -> None:
    assert text_of(tmp_path, text.encode()) == text


def test_an_empty_caption_says_so(tmp_path: Path) -> None:
    for data in (b"", b"\n", b" \r\n\t", b"\xef\xbb\xbf"):
        path = tmp_path / "a.txt"
        path.write_bytes(data)
        assert read_caption(path).text == "" and "empty" in read_caption(path).notes


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ("猫, 座っている".encode("shift_jis"), "0x94 at position 0"),
        ("кошка сидит".encode("cp1251"), "position 0"),
        ("cat, 坐着的猫".encode("gbk"), "position 5"),
        (b"cat\0dog", "0x00 at position 3"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "position"),
        (b"\xff\xfecat", "position"),
        (b"x" * 2_000_000, "too large"),
    ],
)
def test_what_cannot_be_known_is_refused_with_its_place(tmp_path: Path, data: bytes, where: str) -> None:
    with pytest.raises(UnreadableCaption, match=where):
        text_of(tmp_path, data)


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCaption, match="cannot be read"):
        read_caption(tmp_path / "none.txt")


plain_text = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=60)


@given(plain_text, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str, encoding: str) -> None:
    path = tmp_path_factory.getbasetemp() / "hypothesis.txt"
    path.write_bytes(text.encode(encoding))
    assert (
        read_caption(path).text == text.strip().removeprefix("\ufeff" if encoding == "utf-8" else "").strip()
    )


@given(st.binary(max_size=80))
def test_any_bytes_give_one_line_or_a_reason(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hypothesis.txt"
    path.write_bytes(data)
    try:
        text = read_caption(path).text
    except UnreadableCaption as error:
        assert "0x" in str(error)
        return
    assert text.splitlines() in ([], [text]) and text == text.strip()
    text.encode("utf-8")
