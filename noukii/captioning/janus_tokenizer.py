"""Janus' prompt as token ids, and token ids as text, straight on the `tokenizers` library.

transformers' classes are left out on purpose: a Llama tokenizer class drops every space of this
byte-level vocabulary, and whether BOS is added depends on the version. Ids are looked up by token
string because they differ between Janus-Pro-1B and 7B. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii.captioning.janus_json import POINTER, read_object, wrong_kind
from noukii.errors import InputError
from noukii.names import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SYSTEM_SENTENCE = (
    "You are a helpful language and vision assistant. "
    "You are able to understand the visual content that the user provides, "
    "and assist the user with a variety of tasks using natural language."
)
"""The sentence that the model was trained with (deepseek-ai/Janus, VLChatProcessor)."""

IMAGE, IMAGE_START, IMAGE_END = "<image_placeholder>", "<begin_of_image>", "<end_of_image>"
NEXT_STEP = "fetch the model's folder whole (./setup.sh --captioning-only does), or name another with --model"


@dataclass(frozen=True)
class JanusTokenizer:
    """The checkpoint's vocabulary and the ids of its special tokens."""

    backend: Tokenizer
    specials: frozenset[str]
    bos_id: int
    eos_id: int
    image_id: int
    image_start_id: int
    image_end_id: int

    @classmethod
    def from_folder(cls, folder: Path) -> JanusTokenizer:
        """Read tokenizer.json and the files that name its special tokens. Raises InputError."""
        from tokenizers import AddedToken, Tokenizer

        path = folder / "tokenizer.json"
        try:
            data = path.read_bytes()
        except OSError:
            raise InputError(path, "is missing", NEXT_STEP) from None
        if data.startswith(POINTER):
            raise InputError(path, "is a Git-LFS pointer, not the file itself", NEXT_STEP)
        try:
            backend = Tokenizer.from_buffer(data)
        except Exception:  # the library raises bare Exception for anything it cannot read
            raise InputError(path, "is damaged, cut off, or not a tokenizer", NEXT_STEP) from None
        backend.no_truncation()
        backend.no_padding()

        settings = _special_tokens(folder)
        specials = [token for token in settings["all"] if backend.token_to_id(token) is not None]
        # As transformers does: what these files call special is special, whatever tokenizer.json says.
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
        ids = {}
        for role, token in (
            ("BOS", settings["bos"]),
            ("EOS", settings["eos"]),
            ("image", IMAGE),
            ("begin of image", IMAGE_START),
            ("end of image", IMAGE_END),
        ):
            if token is None:
                raise InputError(folder / "tokenizer_config.json", f"names no {role} token", NEXT_STEP)
            ids[role] = backend.token_to_id(token)
            if ids[role] is None:
                reason = f"does not know Janus' {role} token '{printable(token)}'"
                raise InputError(path, reason, NEXT_STEP)
        known = frozenset({*specials, IMAGE, IMAGE_START, IMAGE_END, "<|User|>", "<|Assistant|>"})
        tokenizer = cls(backend, known, *ids.values())
        tokenizer._check_round_trip(path)
        return tokenizer

    @property
    def highest_id(self) -> int:
        """The largest id that a prompt's special tokens need; the model's embeddings must reach it."""
        return max(self.bos_id, self.eos_id, self.image_id, self.image_start_id, self.image_end_id)

    def prompt_ids(self, question: str, image_tokens: int) -> list[int]:
        """Return the ids of one conversation: system sentence, picture, question, the answer's start.

        The picture stands as begin + `image_tokens` placeholders + end. Raises InputError if the
        question holds one of the model's special tokens, which would change the conversation.
        """
        check_question(question, self.specials)
        content = f"{IMAGE}\n{question}".strip()
        text = f"{SYSTEM_SENTENCE}\n\n<|User|>: {content}\n\n<|Assistant|>:"
        ids = self.backend.encode(text, add_special_tokens=False).ids
        place = ids.index(self.image_id)
        picture = [self.image_start_id, *[self.image_id] * image_tokens, self.image_end_id]
        return [self.bos_id, *ids[:place], *picture, *ids[place + 1 :]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens; nothing is stripped or cleaned up."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def _check_round_trip(self, path: Path) -> None:
        text = f"{SYSTEM_SENTENCE}\n\nHello,  world: 2 café."
        again = self.backend.decode(self.backend.encode(text, add_special_tokens=False).ids)
        if again != text:
            reason = "does not give back a text that goes through it (a space or a letter is lost)"
            raise InputError(path, reason, NEXT_STEP)


def check_question(question: str, specials: frozenset[str]) -> None:
    """Refuse a question that contains one of the model's special tokens. Raises InputError."""
    if any("\ud800" <= char <= "\udfff" for char in question):  # how Python keeps bytes it cannot read
        raise InputError("--prompt", "holds bytes that are not UTF-8", "write it as UTF-8 text")
    for token in sorted(specials):
        if token in question:
            reason = f"contains {token}, which is a signal to the model and not a word"
            raise InputError("--prompt", reason, "leave it out")


def _special_tokens(folder: Path) -> dict[str, Any]:
    """Collect BOS, EOS and all special tokens; files of transformers 4 and 5 name them differently."""
    found: dict[str, Any] = {"bos": None, "eos": None, "all": []}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if not path.is_file():
            continue
        settings = read_object(path)
        for role in ("bos", "eos"):
            key = f"{role}_token"
            given = settings.get(key)
            found[role] = _content(given) or found[role]
            if given is not None and _content(given) is None:
                raise wrong_kind(path, key, given, "a token, as text or as an object with `content`,")
        found["all"] += _named_specials(path, settings)
    found["all"] = list(dict.fromkeys(found["all"]))
    return found


def _named_specials(path: Path, settings: dict[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if value is None:
            continue
        if key.endswith("_token"):
            entries = [value]
        elif key in ("additional_special_tokens", "extra_special_tokens"):
            if not isinstance(value, (dict, list)):
                raise wrong_kind(path, key, value, "a list of tokens")
            entries = list(value.values()) if isinstance(value, dict) else value
        elif key == "added_tokens_decoder":
            if not isinstance(value, dict):
                raise wrong_kind(path, key, value, "an object of tokens")
            entries = [entry for entry in value.values() if isinstance(entry, dict) and entry.get("special")]
        else:
            continue
        yield from filter(None, map(_content, entries))


def _content(entry: Any) -> str | None:
    """A token is written as a string or as an object with `content`."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    if not isinstance(entry, str) or any("\ud800" <= char <= "\udfff" for char in entry):
        return None  # half a surrogate pair is no text: no vocabulary can hold it
    return entry or None
