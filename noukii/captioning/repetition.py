"""Cut the loops that small vision-language models fall into; repetition with a meaning stays."""

from __future__ import annotations

import re

from noukii.captioning.sentences import split_sentences

LONGEST_PHRASE = 60
"""Words of the longest loop looked for. Janus loops are a clause or two; longer ones are sentences."""
MARKS = ".,;:!?…-–—()[]{}'\"’“”。！？，；：、"
GLUED = re.compile(r"([^\s\d]{1,40}?)\1{2,}")
LIST_SEPARATOR = re.compile(r"((?:[,;](?=\s)|[，、；])\s*)")


def without_loops(text: str) -> str:
    """Return `text` with each loop of words, phrases, sentences or letters cut to its first round.

    A loop is a word or a phrase of up to three words said three times running, a longer phrase said
    twice running, a sentence said before, an item said before in a list of six or more, or letters
    without spaces between them (decdecdecdec).
    """
    text = _glued_loops(text)
    text = _phrase_loops(text)
    return _said_before(text)


def _glued_loops(text: str) -> str:
    """Cut letters that repeat without spaces, and the round that the token limit cut off behind them."""
    kept, start = [], 0
    for loop in GLUED.finditer(text):
        unit, end = loop.group(1), loop.end()
        if len(loop.group(0)) // len(unit) < _rounds_of_a_loop(unit):
            continue
        kept.append(text[start : loop.start()] + unit)
        start = len(text) if unit.startswith(text[end:]) else end
    return "".join([*kept, text[start:]])


def _rounds_of_a_loop(unit: str) -> int:
    if len(unit) == 1 and unit in "()[]{}":
        return 1000  # the weight of a word in a prompt, ((((like this))))
    if ord(unit[0]) >= 0x2E80 and len(unit) > 1:  # two Chinese characters are a word
        return 3
    return {1: 6, 2: 5, 3: 4}.get(len(unit), 3)


def _key(word: str) -> str:
    return word.strip(MARKS).casefold() or word


def _phrase_loops(text: str) -> str:
    words = text.split()
    length = 1
    while length <= min(LONGEST_PHRASE, len(words) // 2):
        shorter = _collapse(words, length)
        if shorter is None:
            length += 1
        else:
            words = shorter
    return " ".join(words)


def _collapse(words: list[str], length: int) -> list[str] | None:
    """Cut the first loop whose round has `length` words; None if there is none."""
    keys = [_key(word) for word in words]
    needed = length * (2 if length <= 3 else 1)
    run = 0
    for at in range(len(words) - length):
        run = run + 1 if keys[at] == keys[at + length] else 0
        last = at == len(words) - length - 1
        if run >= needed and (last or keys[at + 1] != keys[at + 1 + length]):
            start = at - run + 1
            rounds = run // length + 1
            end = start + rounds * length
            rest = words[end:]
            if _is_cut_off_round(keys[end:], keys[start : start + length]):
                rest = []
            first = words[start : start + length]
            if length > 3 and rounds == 2 and rest and _ends_and_goes_on(words, start, length):
                continue
            if rest:
                first[-1] = words[end - 1]  # it carries the full stop that closes the loop
            return words[:start] + first + rest
    return None


def _ends_and_goes_on(words: list[str], start: int, length: int) -> bool:
    """Say whether a phrase ends one sentence and begins the next: `… Keep off. Keep off is written …`."""
    stops = (".", "!", "?", "。")
    begun = start > 0 and not words[start - 1].endswith(stops)
    end = start + length
    return (
        begun and words[end - 1].endswith(stops) and not words[end + length - 1].endswith((*stops, ",", ";"))
    )


def _is_cut_off_round(rest: list[str], first: list[str]) -> bool:
    """Say whether the text's last words begin one more round of the loop."""
    if not rest or len(rest) > len(first):
        return False
    return rest[:-1] == first[: len(rest) - 1] and first[len(rest) - 1].startswith(rest[-1])


def _said_before(text: str) -> str:
    kept, known = [], set()
    for sentence in split_sentences(text):
        key = " ".join(_key(word) for word in sentence.split())
        if key in known and len(key) > 1:
            continue
        known.add(key)
        kept.append(_list_loop(sentence))
    return "".join(kept).rstrip()


def _list_loop(sentence: str) -> str:
    """Drop the items that a long comma-separated list has named before."""
    parts = LIST_SEPARATOR.split(sentence)
    items, marks = parts[::2], [*parts[1::2], ""]
    if len(items) < 6:
        return sentence
    known: set[str] = set()
    kept: list[tuple[str, str]] = []
    for item, mark in zip(items, marks, strict=True):
        key = " ".join(_key(word) for word in item.split())
        if key in known:
            continue
        known.add(key)
        kept.append((item, mark))
    if len(kept) == len(items):
        return sentence
    end = re.search(r"[.!?…。！？]*\s*$", sentence)
    closing = end.group(0) if end else ""
    joined = "".join(item + mark for item, mark in kept).rstrip().rstrip(",，、;；")
    return joined if joined.endswith(closing.strip() or "\0") else joined + closing
