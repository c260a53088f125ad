"""What a person should look at in a folder of captions: pure functions on text and sizes."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CAPTION_TOKENS = 75
"""CLIP tokens of a caption that the trainer sees by default; the rest is dropped silently."""

SMALL_SIDE = 512
"""SD1.5 was trained at 512 pixels; what is smaller is scaled up or trained in a smaller bucket."""

EXTREME_ASPECT = 2.0
COMMON_SHARE = 0.85
"""A word in more than this share of the captions melts into the trigger word."""

FEW_CAPTIONS = 5
"""Below this number of captions a share says nothing about a word."""


@dataclass(frozen=True)
class Flag:
    """One thing that may be wrong with an image or its caption, as the page names it."""

    key: str
    label: str
    meaning: str
    calm: bool = False
    """True where nothing is wrong: worth knowing, not worth a warning colour."""


FLAGS = tuple(
    Flag(*row)
    for row in (
        ("no-caption", "no caption", "the trainer would see this image without words"),
        ("over-limit", "over the limit", "longer than the trainer reads; it drops the end without a word"),
        ("cut-off", "cut off", "the model reached its token limit before its answer ended"),
        ("repetitive", "repetitive", "the same words come back again and again"),
        ("duplicate-caption", "duplicate caption", "another image has the same caption"),
        (
            "near-duplicate",
            "near-duplicate image",
            "another image looks nearly the same; together they weigh twice in training",
        ),
        ("small", "small", f"the short side is under {SMALL_SIDE} pixels"),
        ("extreme-aspect", "extreme aspect", "more than twice as long as wide, or the other way round"),
        ("no-picture", "picture unreadable", "the image is broken, or no longer in the folder"),
        ("hand-edited", "hand-edited", "the caption is not the one that was generated", True),
    )
)

# Words without meaning of their own: in nearly every English caption, and harmless there.
_FUNCTION_WORDS = (
    "a an the this that these those it its he she his her they their them there who which what where "
    "and or but nor so as than then while with without within of in on onto at by for from to into over "
    "under above below behind between beside near around through across against along up down out off "
    "is are was were be been being has have had do does not no some any each all both one two"
)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CLAUSE_END = re.compile(r"[.!?;,:\n。！？，、；]+")


def words(text: str) -> list[str]:
    """Return the words of a text, case folded; punctuation is left out."""
    return _WORD.findall(text.casefold())


def is_repetitive(text: str) -> bool:
    """Say whether a text goes round in circles, as small vision models sometimes do.

    True if a group of words follows itself three times (twice from four words on), if a clause of
    four or more words comes twice (a shorter one three times), or if a long text is mostly made of
    three-word groups that it has used before.
    """
    spoken = words(text)
    for length in range(1, min(12, len(spoken) // 2) + 1):
        wanted = 2 if length >= 4 else 3
        run = 0  # how many words in a row equal the word `length` places before
        for place in range(length, len(spoken)):
            run = run + 1 if spoken[place] == spoken[place - length] else 0
            if run == length * (wanted - 1):
                return True
    clauses = Counter(
        clause for part in _CLAUSE_END.split(text) if (clause := tuple(words(part)))
    )  # fmt: skip
    if any(count >= (2 if len(clause) >= 4 else 3) for clause, count in clauses.items()):
        return True
    groups = list(zip(spoken, spoken[1:], spoken[2:], strict=False))
    return len(groups) >= 30 and len(set(groups)) < 0.6 * len(groups)


def one_line(text: str) -> str:
    """Return a text with every run of white space as one blank: what the trainer makes of it."""
    return " ".join(text.split())


def duplicates(captions: Sequence[str]) -> set[int]:
    """Return the places of the captions that another one equals (case and spacing aside)."""
    plain = [one_line(caption).casefold() for caption in captions]
    seen = Counter(plain)
    return {place for place, caption in enumerate(plain) if caption and seen[caption] > 1}


def size_flags(width: int, height: int) -> list[str]:
    """Return the flags that an image of this upright size in pixels deserves."""
    found = []
    if min(width, height) < SMALL_SIDE:
        found.append("small")
    if max(width, height) > EXTREME_ASPECT * min(width, height):
        found.append("extreme-aspect")
    return found


def text_flags(
    caption: str,
    tokens: int,
    *,
    limit: int = CAPTION_TOKENS,
    raw: str | None,
    generated: str | None,
    finish_reason: str | None,
) -> list[str]:
    """Return the flags of a caption: as it is now, as the model gave it, as it was first written.

    Args:
        caption: the caption in the .txt now, one line.
        tokens: its CLIP tokens.
        limit: how many of them the trainer reads.
        raw: the model's text; None if the image has no entry in the manifest.
        generated: the caption that was written from it; None likewise.
        finish_reason: "stop" or "length".
    """
    found = []
    edited = bool(caption.strip()) and generated is not None and one_line(generated) != one_line(caption)
    if not caption.strip():
        found.append("no-caption")
    if tokens > limit:
        found.append("over-limit")
    if finish_reason == "length":
        found.append("cut-off")
    if is_repetitive(caption) or (raw is not None and not edited and is_repetitive(raw)):
        found.append("repetitive")
    if edited:
        found.append("hand-edited")
    return found


def common_words(captions: Iterable[str], trigger: str) -> list[tuple[str, float]]:
    """Return the words in more than `COMMON_SHARE` of the captions, with their share, largest first.

    The words of the trigger and words such as "the" are left out. With fewer than `FEW_CAPTIONS`
    captions the list is empty.
    """
    spoken = [set(words(caption)) for caption in captions if caption.strip()]
    if len(spoken) < FEW_CAPTIONS:
        return []
    counts = Counter(word for caption in spoken for word in caption)
    left_out = set(words(f"{_FUNCTION_WORDS} {trigger}"))
    found = [
        (word, count / len(spoken))
        for word, count in counts.items()
        if count > COMMON_SHARE * len(spoken) and word not in left_out
    ]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def median_tokens(counts: Iterable[int]) -> int | None:
    """Return the middle one of the token counts that are not 0, or None if there is none."""
    above = [count for count in counts if count]
    return round(statistics.median(above)) if above else None
