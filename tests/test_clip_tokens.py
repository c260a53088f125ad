"""CLIP tokens as kohya counts them: its own numbers, an independent encoder, folders good and bad."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noukii.clip_tokens import ClipTokenizer
from noukii.errors import InputError
from noukii.project import ASSETS, CHECKOUT

VOCABULARY = ASSETS / "clip_vocab"
CLIP = ClipTokenizer.bundled()


def test_every_reference_row_of_kohya(reference: Path) -> None:
    rows = json.loads((reference / "tokens.json").read_text())
    assert len(rows) == 13
    for row in rows:
        assert CLIP.chunks(row["caption"], 75) == row["ids_75"], row["caption"]
        assert CLIP.chunks(row["caption"], 225) == row["ids_225"], row["caption"]


def test_known_ids_and_special_tokens() -> None:
    assert (CLIP.bos_id, CLIP.eos_id, CLIP.pad_id, CLIP.model_max_length) == (49406, 49407, 49407, 77)
    assert CLIP.ids("sat_cat") == [3279, 318, 2368]
    assert CLIP.ids("") == CLIP.ids(" \n\t") == []
    assert CLIP.ids("A  Cat") == CLIP.ids("a cat\n")
    # kohya's tokenizer reads a special token in a caption as that token, in any case
    assert CLIP.ids("<|endoftext|> <|ENDOFTEXT|>") == [49407, 49407]


def test_ids_are_never_cut_and_chunks_are() -> None:
    text = "word " * 300
    assert CLIP.count(text) == 300
    word = CLIP.ids("word")[0]
    one, two, three = CLIP.chunks(text, 225)
    assert one == two == three == [49406, *[word] * 75, 49407]
    assert CLIP.chunks(text, 150) == [one, two]
    assert CLIP.chunks("word " * 80, 150)[1] == [49406, *[word] * 5, *[49407] * 71]


@pytest.mark.parametrize("length", [0, 74, 77, 100, 300])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="75, 150 or 225"):
        CLIP.chunks("a cat", length)


@pytest.mark.parametrize(
    "text", ["\ud800", "a\udc80b", "\x00\x1b[0m", "\ufffd", "\u202e", "e\u0301", "\U0001f600" * 40]
)
def test_odd_characters_do_not_crash(text: str) -> None:
    assert len(CLIP.chunks(text)[0]) == 77
    assert CLIP.count(text) == len(CLIP.ids(text))


def test_ftfy_repairs_first() -> None:
    assert CLIP.ids("cafÃ© “x” ﬁt") == CLIP.ids('café "x" fit')
    assert CLIP.ids("a\x1b[31mred") == CLIP.ids("ared")  # a terminal's colour code is removed


@lru_cache(maxsize=1)
def _ranks() -> tuple[dict[str, int], dict[tuple[str, ...], int]]:
    vocab = json.loads((VOCABULARY / "vocab.json").read_text(encoding="utf-8"))
    lines = (VOCABULARY / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    return vocab, {tuple(line.split()): rank for rank, line in enumerate(lines) if line}


@lru_cache(maxsize=1)
def _byte_letters() -> dict[int, str]:
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in letters]
    return {byte: chr(byte) for byte in letters} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _slow_ids(text: str) -> list[int]:
    """The textbook encoder (byte pairs by rank), with nothing in common with the library's."""
    import ftfy
    import regex

    vocab, ranks = _ranks()
    pattern = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
    ids = []
    for word in regex.findall(pattern, regex.sub(r"\s+", " ", ftfy.fix_text(text)).lower()):
        if word in vocab and word.startswith("<|"):
            ids.append(vocab[word])
            continue
        parts = [_byte_letters()[byte] for byte in word.encode("utf-8")]
        parts[-1] += "</w>"
        while len(parts) > 1:
            rank, at = min((ranks.get((a, b), 10**9), i) for i, (a, b) in enumerate(pairwise(parts)))
            if rank == 10**9:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [vocab[part] for part in parts]
    return ids


# The libraries hold different versions of Unicode; letters of version 3.2 are the same to all of them.
ASSIGNED = st.characters(max_codepoint=0xFFFF, exclude_categories=("Cn",)).filter(
    lambda char: unicodedata.ucd_3_2_0.category(char) == unicodedata.category(char)
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(ASSIGNED, max_size=60), st.text("abcdeÄéß 'st.,!?-_0123猫кот\u0301ς", max_size=60)))
def test_agrees_with_a_textbook_encoder(text: str) -> None:
    ids = CLIP.ids(text)
    assert ids == _slow_ids(text)
    assert CLIP.count(text) == len(ids)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400), st.sampled_from([75, 150, 225]))
def test_chunks_hold_the_ids_in_order(text: str, length: int) -> None:
    chunks = CLIP.chunks(text, length)
    assert [len(chunk) for chunk in chunks] == [77] * (length // 75)
    assert all(chunk[0] == CLIP.bos_id and chunk[-1] == CLIP.eos_id for chunk in chunks)
    content = [number for chunk in chunks for number in chunk[1:-1]]
    expected = CLIP.ids(text)[:length]
    assert content == expected + [CLIP.eos_id] * (length - len(expected))


SMALL = {"a": 0, "b": 1, "a</w>": 2, "b</w>": 3, "ab</w>": 4, "<|startoftext|>": 5, "<|endoftext|>": 6}


def _small(folder: Path, **files: object) -> Path:
    folder.mkdir()
    files = {"vocab.json": SMALL, "merges.txt": "#version: 0.2\na b</w>\n"} | files
    for name, content in files.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_small_vocabulary(tmp_path: Path) -> None:
    small = ClipTokenizer.from_folder(_small(tmp_path / "my tokenizer é"))
    assert small.ids("ab a b ba") == [4, 2, 3, 1, 2]
    assert small.ids("x") == [6]  # unknown: the end token, as CLIP's
    assert (small.bos_id, small.eos_id, small.pad_id) == (5, 6, 6)


def test_special_token_files_are_honoured(tmp_path: Path) -> None:
    folder = _small(
        tmp_path / "t",
        **{
            "vocab.json": {**SMALL, "!</w>": 7, "<s>": 8},
            "tokenizer_config.json": {
                "bos_token": {"content": "<s>"},
                "pad_token": "a",
                "model_max_length": 77,
            },
            "special_tokens_map.json": {"pad_token": "b"},
            "added_tokens.json": {"<new>": 9},
        },
    )
    small = ClipTokenizer.from_folder(folder)
    assert (small.bos_id, small.eos_id, small.pad_id) == (8, 6, 1)
    assert small.ids("a <new> a") == [2, 9, 2]
    # SD2's way: one end token after the text, then padding, in each chunk
    assert small.chunks("a " * 75, 150) == [[8, *[2] * 75, 6], [8, 6, *[1] * 75]]
    assert small.chunks("a a", 75) == [[8, 2, 2, 6, *[1] * 73]]


def test_tokenizer_json_alone(tmp_path: Path) -> None:
    CLIP._backend.save(str(tmp_path / "tokenizer.json"))
    whole = ClipTokenizer.from_folder(tmp_path)
    text = "A cat's 2nd café, sat_cat <|endoftext|>"
    assert whole.ids(text) == CLIP.ids(text)
    assert whole.bos_id == 49406


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"vocab.json": None}, "has neither vocab.json nor tokenizer.json"),
        ({"merges.txt": None}, "has neither merges.txt nor tokenizer.json"),
        ({"vocab.json": "{"}, "is not JSON"),
        ({"vocab.json": "[]"}, "is not a JSON object"),
        ({"vocab.json": "{}"}, "holds an empty vocabulary"),
        ({"vocab.json": {"a": "1"}}, "an id that is not a whole number"),
        ({"vocab.json": {"a": 0}}, "'<|startoftext|>' is not in its vocabulary"),
        ({"merges.txt": "a b c\n"}, "'a b c' is not a pair"),
        ({"merges.txt": "a x\n"}, "do not belong to its vocabulary"),
        ({"vocab.json": None, "tokenizer.json": {"model": {"type": "Unigram"}}}, "not a byte-pair tokenizer"),
        (
            {"vocab.json": None, "tokenizer.json": {"model": {"vocab": SMALL, "merges": []}}},
            "not CLIP's kind of tokenizer",
        ),
    ],
)
def test_a_bad_folder_is_named(tmp_path: Path, files: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        ClipTokenizer.from_folder(_small(tmp_path / "t", **files))
    assert said in str(caught.value)
    assert str(tmp_path / "t") in caught.value.where


def test_missing_folder_file_and_broken_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        ClipTokenizer.from_folder(tmp_path / "none")
    shutil.copy(VOCABULARY / "merges.txt", tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        ClipTokenizer.from_folder(tmp_path / "merges.txt")
    (tmp_path / "vocab.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="is not UTF-8"):
        ClipTokenizer.from_folder(tmp_path)


def test_counting_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from noukii.clip_tokens import ClipTokenizer; late = 'tokenizers' not in sys.modules;"
        "n = ClipTokenizer.bundled().count('a cup of coffee');"
        "print(late, n, [m for m in ('torch', 'transformers', 'sklearn', 'numpy') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "True 4 []"
