"""CLIP's byte-pair tokens as kohya counts them, on the `tokenizers` library, without torch or transformers.

kohya uses transformers' original CLIPTokenizer with ftfy installed: text is repaired by ftfy, white space
collapsed, lower-cased, split into words and byte-pair encoded. tests/reference/tokens.json was computed
with it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii.errors import InputError
from noukii.project import ASSETS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
MAX_TOKEN_LENGTHS = (75, 150, 225)
WORDS = (
    rf"{re.escape(START)}|{re.escape(END)}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"
)
"""How CLIP splits text into words before the byte pairs: OpenAI's simple_tokenizer.py, a regular expression
of the `tokenizers` library (Oniguruma)."""


class ClipTokenizer:
    """Text to CLIP token ids. `bos_id`, `eos_id` and `pad_id` are the ids that frame a chunk of 77."""

    model_max_length = 77

    def __init__(self, backend: Tokenizer, bos_id: int, eos_id: int, pad_id: int) -> None:
        self._backend = backend
        self.bos_id, self.eos_id, self.pad_id = bos_id, eos_id, pad_id

    @classmethod
    def bundled(cls) -> ClipTokenizer:
        """Return the tokenizer of SD1.5 (49408 tokens), from noukii's own copy of CLIP's vocabulary."""
        return _bundled()

    @classmethod
    def from_folder(cls, folder: Path) -> ClipTokenizer:
        """Read a diffusers `tokenizer/` folder with a vocabulary of any size.

        vocab.json and merges.txt are read, else tokenizer.json. The names of the special tokens come from
        special_tokens_map.json, then tokenizer_config.json, else they are CLIP's own. Raises InputError.
        """
        folder = Path(folder)
        vocab, merges, added = _read_vocabulary(folder)
        names = _special_names(folder)
        vocab = {**vocab, **added}
        for role, name in names.items():
            if name not in vocab:
                raise InputError(
                    folder, f"the {role} {name!r} is not in its vocabulary of {len(vocab)} tokens", _NEXT_STEP
                )
        backend = _backend(vocab, merges, names, list(added), folder)
        return cls(backend, *(vocab[names[role]] for role in ("bos_token", "eos_token", "pad_token")))

    def ids(self, text: str) -> list[int]:
        """Return the ids of the text itself: no start, end or padding, never cut."""
        return self._backend.encode(_repair(text), add_special_tokens=False).ids

    def count(self, text: str) -> int:
        """Return how many of the 75 (150, 225) places of a caption `text` takes."""
        return len(self.ids(text))

    def chunks(self, text: str, max_token_length: int = 75) -> list[list[int]]:
        """Return the model input as kohya makes it: 1, 2 or 3 chunks of 77 ids for 75, 150 or 225.

        Each chunk is start, 75 places, end. Ids beyond `max_token_length` are dropped; free places hold the
        padding. Where padding is not the end token (SD2), a chunk's text closes with one end token (kohya:
        library/strategy_base.py, _get_input_ids). Raises ValueError for another length.
        """
        if max_token_length not in MAX_TOKEN_LENGTHS:
            raise ValueError(f"a caption has room for 75, 150 or 225 tokens, not {max_token_length}")
        content = self.ids(text)[:max_token_length]
        content.append(self.eos_id)
        content += [self.pad_id] * (max_token_length + 1 - len(content))
        last = content.pop()
        room = self.model_max_length - 2
        rows = [
            [self.bos_id, *content[start : start + room], last] for start in range(0, max_token_length, room)
        ]
        if self.pad_id != self.eos_id and len(rows) > 1:
            for row in rows:
                if row[-2] not in (self.eos_id, self.pad_id):
                    row[-1] = self.eos_id
                if row[1] == self.pad_id:
                    row[1] = self.eos_id
        return rows


_NEXT_STEP = "give the tokenizer/ folder of an SD1.5 model in diffusers' layout: vocab.json and merges.txt"


def _repair(text: str) -> str:
    """Do what kohya's tokenizer does before it looks for words.

    Lower case is Python's, because the `tokenizers` normaliser treats a final sigma otherwise.
    """
    import ftfy  # 0.1 s, and `--help` needs no tokens

    return re.sub(r"\s+", " ", ftfy.fix_text(text)).strip().lower()


@lru_cache(maxsize=1)
def _bundled() -> ClipTokenizer:
    return ClipTokenizer.from_folder(ASSETS / "clip_vocab")


def _backend(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    names: dict[str, str],
    added: list[str],
    folder: Path,
) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    try:
        model = models.BPE(
            vocab=vocab,
            merges=merges,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=names["unk_token"],
        )
    except Exception as error:  # the library raises bare Exception for a merge that the vocabulary lacks
        raise InputError(
            folder, f"its merges do not belong to its vocabulary ({error})", _NEXT_STEP
        ) from error
    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # A special token written in a caption is that token, as in kohya.
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in dict.fromkeys(names.values())])
    backend.add_tokens([AddedToken(name, normalized=True) for name in added if name not in names.values()])
    return backend


def _read_vocabulary(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]], dict[str, int]]:
    """Return (vocabulary, merges, tokens added later) of a tokenizer folder."""
    if not folder.is_dir():
        raise InputError(folder, "is not a folder" if folder.exists() else "does not exist", _NEXT_STEP)
    added = _read_json(folder / "added_tokens.json") if (folder / "added_tokens.json").is_file() else {}
    vocab_file, merges_file, whole = folder / "vocab.json", folder / "merges.txt", folder / "tokenizer.json"
    if vocab_file.is_file() and merges_file.is_file():
        vocab = _read_json(vocab_file)
        where: Path = vocab_file
        lines = _read_text(merges_file).split("\n")
        pairs = [line.rstrip("\r").split(" ") for line in lines if line.strip() and not _is_header(line)]
        broken = next((pair for pair in pairs if len(pair) != 2 or not all(pair)), None)
        if broken is not None:
            raise InputError(merges_file, f"the line {' '.join(broken)!r} is not a pair", _NEXT_STEP)
    elif whole.is_file():
        where = whole
        vocab, pairs, more = _from_tokenizer_json(whole)
        added = {**more, **added}
    else:
        missing = "vocab.json" if not vocab_file.is_file() else "merges.txt"
        raise InputError(folder, f"has neither {missing} nor tokenizer.json", _NEXT_STEP)
    for table in (vocab, added):
        if not all(isinstance(number, int) and 0 <= number < 2**31 for number in table.values()):
            raise InputError(where, "gives a token an id that is not a whole number", _NEXT_STEP)
    if not vocab:
        raise InputError(where, "holds an empty vocabulary", _NEXT_STEP)
    return vocab, [(pair[0], pair[1]) for pair in pairs], {k: v for k, v in added.items() if k not in vocab}


def _from_tokenizer_json(path: Path) -> tuple[dict[str, int], list[list[str]], dict[str, int]]:
    content = _read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or "merges" not in model:
        raise InputError(path, "is not a byte-pair tokenizer", _NEXT_STEP)
    if model.get("end_of_word_suffix") != "</w>":
        raise InputError(path, "is not CLIP's kind of tokenizer (no </w> at the end of a word)", _NEXT_STEP)
    try:
        pairs = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
        added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or []}
    except (TypeError, KeyError) as error:
        raise InputError(path, "its merges or added tokens cannot be read", _NEXT_STEP) from error
    if any(len(pair) != 2 or not all(isinstance(part, str) for part in pair) for pair in pairs):
        raise InputError(path, "one of its merges is not a pair", _NEXT_STEP)
    return model["vocab"], pairs, added


def _special_names(folder: Path) -> dict[str, str]:
    """Return {bos_token, eos_token, pad_token, unk_token: its text}."""
    names = {"bos_token": START, "eos_token": END}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):  # the later one wins
        if not (folder / name).is_file():
            continue
        content = _read_json(folder / name)
        for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = content.get(role)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str) and value:
                names[role] = value
    names.setdefault("pad_token", names["eos_token"])
    names.setdefault("unk_token", names["eos_token"])
    return names


def _is_header(line: str) -> bool:
    return line.startswith("#version")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, "is not UTF-8 text", _NEXT_STEP) from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", _NEXT_STEP) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is not JSON ({error})", _NEXT_STEP) from error
    if not isinstance(content, dict):
        raise InputError(path, "is not a JSON object", _NEXT_STEP)
    return content
