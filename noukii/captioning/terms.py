"""Captions as terms: words and short phrases that may stand in a prompt, equal for singular and plural.

A term is one to three neighbouring words between which there is no punctuation and no word without a meaning
of its own. Chinese and Japanese have no spaces: there a term is a run of characters between particles.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from noukii.captioning.word_lists import (
    ALONE,
    BOILERPLATE,
    CONNECTORS,
    FOREIGN_FUNCTION_WORDS,
    FUNCTION_WORDS,
    HAN_BREAKS,
    HAN_STOP,
    IRREGULAR,
    NOT_PLURAL,
    WEAK,
    WEAK_NOUNS,
)

MAX_WORDS = 3
MAX_HAN = 6
MAX_LETTERS = 40
"""A longer word is a text without spaces (Thai), of which no two captions share a term."""

EMPTY = FUNCTION_WORDS | FOREIGN_FUNCTION_WORDS | CONNECTORS | BOILERPLATE


@dataclass(frozen=True)
class Term:
    """`key` (of `words`) is equal for singular and plural; `shown` is the form in the caption."""

    key: str
    shown: str
    words: tuple[str, ...]


def trigger_words(keyword: str) -> frozenset[str]:
    """Return the keys of the keyword and of its parts (`sat_cat`: satcat, sat, cat)."""
    folded = _fold(keyword)
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", unicodedata.normalize("NFKC", keyword))
    parts = {
        word for piece in (folded, _fold(spaced)) for word in re.split(r"[\W\d_]+", piece) if len(word) > 1
    }
    whole = {word for word in re.split(r"\s+", folded) if word} | {re.sub(r"[\W_]+", "", folded)}
    return frozenset(lemma(word) for word in parts | whole)


def lemma(word: str) -> str:
    """Return the singular of an English plural (cars: car), else the word; light, by the ending alone."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word in NOT_PLURAL:
        return word
    if word.endswith(("ss", "us", "is", "'s")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zzes", "oes")):
        return word[:-2]
    return word[:-1]


def terms(caption: str, trigger: frozenset[str] = frozenset()) -> list[Term]:
    """Return every term of a caption, in order, repeats included. Any text is taken."""
    found: list[Term] = []
    for run in _runs(_fold(caption), trigger):
        if len(run) == 1 and _is_han(run[0][0]):
            words = [text for text in _han_terms(run[0]) if not any(part in text for part in trigger)]
            found += [Term(text, text, (text,)) for text in words]
            continue
        for start in range(len(run)):
            for end in range(start + 1, min(start + MAX_WORDS, len(run)) + 1):
                term = _term(run[start:end])
                if term is not None:
                    found.append(term)
    return found


def _term(words: list[str]) -> Term | None:
    keys = tuple(lemma(word) for word in words)
    if "of" in (words[0], words[-1]) or words[-1] in WEAK or keys[-1] in WEAK:
        return None
    if len(words) > 1 and any(word in ALONE for word in words):
        return None
    if len(words) == 1 and (len(words[0]) < 2 or words[0] in WEAK_NOUNS):
        return None
    return Term(" ".join(keys), " ".join(words), keys)


def _fold(text: str) -> str:
    """NFKC, lower case, plain apostrophes, long_hair as two words; <lora:x:0.8> and links left out."""
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"<[^<>\n]{1,80}>|https?://\S+", " , ", text)
    return text.lower().replace("’", "'").replace("_", " ")


def _runs(text: str, trigger: frozenset[str]) -> Iterator[list[str]]:
    """Yield the runs of words that nothing interrupts: no punctuation, number, function word or trigger."""
    run: list[str] = []
    for kind, word in _scan(text):
        if kind == "space":
            continue
        if kind == "han":
            if run:
                yield run
            run = []
            yield [word]
            continue
        word = word.removesuffix("'s").strip("'-") if kind == "word" else ""
        inner_of = word == "of" and run  # a cup of coffee is one thing
        if inner_of or (word and not _is_empty(word) and lemma(word) not in trigger):
            run.append(word)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _is_empty(word: str) -> bool:
    return word in EMPTY or lemma(word) in BOILERPLATE or word.isdigit() or len(word) > MAX_LETTERS


def _scan(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) pieces: word (letters, marks, inner apostrophes and hyphens), han, space, break."""
    at = 0
    while at < len(text):
        kind = _kind(text[at])
        end = at + 1
        while end < len(text):
            following = _kind(text[end])
            inner = (
                kind == "word"
                and text[end] in "'-\u200c\u200d"
                and _kind(text[end + 1 : end + 2] or " ") == "word"
            )
            if following != kind and not inner:
                break
            end += 1
        if kind == "han":
            for piece in _han_pieces(text[at:end]):
                yield "han", piece
                yield "break", ""
        else:
            yield kind, text[at:end]
        at = end


def _kind(char: str) -> str:
    if char.isspace():
        return "space"
    if _is_han(char):
        return "han"
    if "\u3040" <= char <= "\u309f":
        return "break"  # hiragana: particles and endings
    return "word" if char.isalnum() or unicodedata.category(char) in ("Mn", "Mc") else "break"


def _is_han(char: str) -> bool:
    return (
        "\u3400" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff" or "\U00020000" <= char <= "\U0003ffff"
    )


def _han_pieces(text: str) -> list[str]:
    """Cut a run of Chinese characters at particles, numerals, measure words and verbs of posture."""
    return [piece for piece in re.split(f"[{''.join(sorted(HAN_BREAKS))}]", text) if piece]


def _han_terms(piece: str) -> list[str]:
    """Return the substrings of a piece; which of them are words is settled by the whole set of captions."""
    return [
        piece[start:end]
        for start in range(len(piece))
        for end in range(start + 1, min(start + MAX_HAN, len(piece)) + 1)
        if piece[start:end] not in HAN_STOP
    ]


def han_boundaries(caption: str) -> tuple[set[str], set[str]]:
    """Return the Chinese terms that start a piece of `caption`, and those that end one."""
    starts: set[str] = set()
    ends: set[str] = set()
    for kind, piece in _scan(_fold(caption)):
        if kind == "han":
            for length in range(1, min(MAX_HAN, len(piece)) + 1):
                starts.add(piece[:length])
                ends.add(piece[-length:])
    return starts, ends


def is_han_term(text: str) -> bool:
    """Say whether a term is Chinese characters alone."""
    return all(_is_han(char) for char in text)
