"""Where sentences, clauses and words end, in any script, and where a text may be cut."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

STOP = re.compile(
    r"(?P<spaced>[.!?…]+|[؟۔।॥։።]+)(?P<close>[\"'”’»)\]]*)(?=\s|$)|[。！？｡][。！？｡…]*[”’」』）》]*"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABBREVIATIONS = _words(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e no nr fig approx inc ltd co u.s u.k a.m p.m ca gen sen rev"
)
CLAUSE = re.compile(r"[,;:](?=\s)|\s[-–—](?=\s)|—|[，；：、،؛]")
PHRASE = re.compile(
    r"\s(?=[(（])|\s(?=(?:and|or|but|while|with|without|which|that|who|whose|where|when|as|because|so|"
    r"in|on|at|under|over|"
    r"near|behind|beside|beneath|above|below|against|along|across|around|through|between|among|next|"
    r"surrounded|wearing|holding|standing|sitting|featuring|including|showing)\s)"
)
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff]"
)
"""Scripts that write words without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""

ALWAYS_DANGLING = _words(
    "and or nor but with without a an the of while which whose whom into onto from than its their his her my "
    "your our is are was were be including featuring wearing because although and/or e.g i.e such"
)
DANGLING = ALWAYS_DANGLING | _words(
    "in on at to for by as that who where when this these those some any several many very quite more most "
    "near behind beside beneath under over above below against along across around through between among "
    "toward towards upon within inside outside next front has have had being also not both each another "
    "other one two three about like so if it there then just up holding showing surrounded possibly"
)
BARE_ADJECTIVES = _words(
    "large small big little tall short long wide narrow old new young bright dark light deep soft hard red "
    "blue green yellow orange purple pink brown black white grey gray golden silver beautiful "
    "colorful wooden thick thin single few different various clear blurred blurry modern round square plain"
)
DETERMINERS = _words("a an the his her their its this that some several many")
LOOSE_END = " \t,;:-–—/&|(<[{，；：、،؛（「"


def sentence_ends(text: str) -> list[int]:
    """Return the offset behind each sentence of `text` (behind its full stop and closing bracket)."""
    ends = []
    for stop in STOP.finditer(text):
        spaced = stop.group("spaced")
        if spaced is not None and not _ends_sentence(text, stop.start(), stop.end(), spaced):
            continue
        ends.append(stop.end())
    return ends


def split_sentences(text: str) -> list[str]:
    """Cut `text` behind each sentence; white space stays at the end of a piece, so joining restores it."""
    pieces, start = [], 0
    for end in sentence_ends(text):
        while end < len(text) and text[end].isspace():
            end += 1
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]] if start < len(text) else pieces


def _ends_sentence(text: str, start: int, end: int, mark: str) -> bool:
    before = text[:start].rsplit(None, 1)[-1] if start and not text[start - 1].isspace() else ""
    word = before.strip("\"'“”‘’([").casefold()
    behind = text[end:].lstrip()[:1]
    if mark == ".":
        if not behind:
            return True
        initial = len(word) == 1 and word.isalpha() and word.isascii() and before[-1:].isupper()
        return not (word in ABBREVIATIONS or initial or (word.isdigit() and start == len(before)))
    return not (mark in ("...", "…", "..") and behind.islower())


def clause_ends(text: str) -> list[int]:
    """Return the offset before each comma, semicolon, colon or dash that closes a clause."""
    return [found.start() for found in CLAUSE.finditer(text)]


def phrase_ends(text: str) -> list[int]:
    """Return the offset before each conjunction, relative pronoun and preposition."""
    return [found.start() for found in PHRASE.finditer(text)]


def word_ends(text: str) -> list[int]:
    """Return the offset behind each word; in scripts without spaces, behind each character."""
    return [
        at
        for at in range(1, len(text) + 1)
        if at == len(text)
        or (text[at].isspace() and not text[at - 1].isspace())
        or (
            (UNSPACED.match(text[at]) or UNSPACED.match(text[at - 1]))
            and not text[at].isspace()
            and not _joined(text, at)
        )
    ]


def character_ends(text: str) -> list[int]:
    """Return the offset behind each character as a reader sees it: accents and joined emoji stay whole."""
    return [at for at in range(1, len(text) + 1) if at == len(text) or not _joined(text, at)]


def _joined(text: str, at: int) -> bool:
    """Say whether the characters before and behind offset `at` are one to the reader."""
    behind, before = text[at], text[at - 1]
    if unicodedata.category(behind) in ("Mn", "Me", "Mc") or behind in "\u200c\u200d" or before == "\u200d":
        return True
    if "\U0001f3fb" <= behind <= "\U0001f3ff":  # skin tone
        return True
    flags = 0
    while at - 1 - flags >= 0 and "\U0001f1e6" <= text[at - 1 - flags] <= "\U0001f1ff":
        flags += 1
    return flags % 2 == 1 and "\U0001f1e6" <= behind <= "\U0001f1ff"


def outside_brackets(text: str, offsets: list[int]) -> list[int]:
    """Return those offsets at which every bracket that was opened is closed."""
    depth, level = 0, [0]
    for char in text:
        depth += (char in "([{（") - (char in ")]}）")
        level.append(max(depth, 0))
    return [at for at in offsets if level[at] == 0]


def trim_end(text: str, was_cut: bool) -> str:
    """Remove the loose end of a text: commas, and words that want another behind them ("with a").

    What a cut left is trimmed more strictly: prepositions ("looking at") and a bare adjective behind an
    article ("a large") go as well. Text that ends in a full stop is left alone.
    """
    words = DANGLING if was_cut else ALWAYS_DANGLING
    while True:
        shorter = text.rstrip(LOOSE_END)
        head, _, last = shorter.rpartition(" ")
        bare = was_cut and last in BARE_ADJECTIVES and head.rpartition(" ")[2].lower() in DETERMINERS
        if bare or (last.lower() if was_cut else last) in words:
            shorter = head
        if shorter == text:
            return text
        text = shorter


def longest_that_fits(
    text: str, offsets: list[int], fits: Callable[[str], bool], trimmed: bool = True
) -> str:
    """Return the longest `text[:offset]` that fits, its loose end trimmed; "" if none does.

    Token counts grow with the text, but not strictly (the end of a word has tokens of its own), so the
    neighbourhood of the binary search's answer is tried one by one.
    """
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        if fits(text[: offsets[middle]]):
            low = middle + 1
        else:
            high = middle
    for at in reversed(offsets[: low + 2]):
        candidate = trim_end(text[:at], was_cut=True) if trimmed else text[:at]
        if candidate and fits(candidate):
            return candidate
    return ""
