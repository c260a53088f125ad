"""The text of a vision-language model becomes a training caption: `KEYWORD, what is seen`, one line.

The trainer reads one line of UTF-8 and its 75 (150, 225) CLIP tokens; each one spent on "The image shows"
or on a mood is lost, and what stands in every caption melts into the trigger word.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from noukii.captioning.boilerplate import without_boilerplate
from noukii.captioning.plain_text import plain_line
from noukii.captioning.repetition import without_loops
from noukii.captioning.sentences import (
    character_ends,
    clause_ends,
    longest_that_fits,
    outside_brackets,
    phrase_ends,
    sentence_ends,
    split_sentences,
    trim_end,
    word_ends,
)
from noukii.clip_tokens import ClipTokenizer

LONGEST_TEXT = 8_000
"""Characters read of an answer: more than 225 tokens can spell (CLIP's longest has 32 characters)."""

LONG_SHARE = 0.5
"""A cut at the end of a sentence is taken if it uses this share of the tokens, else one at a clause."""

PART_END = re.compile(r"[.!?…][\"'”’)*_\]]*\s+(?=\S)|[。！？]|\n\s*(?=\S)")
"""Where a sentence or a line of an answer may be over, told by what is there and one character behind it."""

OPEN_MARK = re.compile(r"(?<!\*)\*{1,3}(?=[^\s*])|(?<![\w'’])['‘‚](?=[^\s'’\d])|\[[^\[\]]*$")
"""Markup that has no end yet: with the end it is removed, and so may be the opener behind it."""

STARTERS = {
    *(
        "a",
        "an",
        "the",
        "this",
        "that",
        "these",
        "those",
        "his",
        "her",
        "their",
        "its",
        "some",
        "several",
        "many",
    ),
    *(
        "one",
        "two",
        "three",
        "four",
        "five",
        "both",
        "all",
        "each",
        "another",
        "in",
        "on",
        "at",
        "with",
        "under",
    ),
    *(
        "over",
        "behind",
        "beside",
        "near",
        "inside",
        "outside",
        "from",
        "against",
        "between",
        "among",
        "through",
    ),
    *("around", "across", "above", "below", "next", "close", "as", "while", "he", "she", "they", "it", "no"),
}


def training_caption(raw: str, keyword: str, tokenizer: ClipTokenizer, max_tokens: int = 75) -> str:
    """Return the caption to train on, made of the model's answer `raw`.

    One line of valid UTF-8: `keyword`, a comma, and the description without openers, moods, markdown,
    quotation marks, leaked role tokens and loops. It has at most `max_tokens` CLIP tokens, keyword
    included, and is cut at the end of a sentence, else of a clause; only a word that is longer than a
    caption is cut inside. The description starts in lower case, unless it starts with a name or an
    abbreviation. Without a description the caption is the keyword alone. Making a caption of a caption
    changes nothing. Of `raw` nothing is read behind its `filling_part`.

    Raises ValueError for a keyword that is empty, not one printable line, or longer than `max_tokens`.
    """
    keyword = _checked(keyword, tokenizer, max_tokens)

    def fits(description: str) -> bool:
        return tokenizer.count(f"{keyword}, {description}") <= max_tokens

    text = filling_part(raw, keyword, tokenizer, max_tokens) or raw[:LONGEST_TEXT]
    before = None
    while text != before:
        before = text
        text = _start_in_lower_case(_fitted(_description(text, keyword), fits))
    return f"{keyword}, {text}" if text else keyword


def filling_part(raw: str, keyword: str, tokenizer: ClipTokenizer, max_tokens: int = 75) -> str | None:
    """Return the shortest beginning of `raw`, up to the end of a sentence or line, that overfills a caption.

    None if there is none. Whatever follows behind it, this part stays what it is, and the caption is made
    of it alone: so once a model has written it, more text cannot change the caption.
    """
    parts = (raw[: end.end()] for end in PART_END.finditer(raw[:LONGEST_TEXT]))
    return next((part for part in parts if _overfills(part, keyword, tokenizer, max_tokens)), None)


def is_full(raw: str, keyword: str, tokenizer: ClipTokenizer, max_tokens: int = 75) -> bool:
    """Say whether the last whole sentence or line of `raw` has made it overfill a caption.

    For an answer that grows, asked at each of them: the earlier ones are not looked at again.
    """
    ends = [end.end() for end in PART_END.finditer(raw[:LONGEST_TEXT])]
    return bool(ends) and _overfills(raw[: ends[-1]], keyword, tokenizer, max_tokens)


def _overfills(part: str, keyword: str, tokenizer: ClipTokenizer, max_tokens: int) -> bool:
    if tokenizer.count(part) < max_tokens // 2:  # rules remove much more than they add
        return False
    if part.rstrip().rpartition("\n")[2].lstrip().startswith("|"):  # the next line may say it is a head
        return False
    description = _description(part, keyword)
    return tokenizer.count(f"{keyword}, {description}") > max_tokens and not OPEN_MARK.search(description)


def _description(text: str, keyword: str) -> str:
    """Return what `text` says of the picture: every rule, until none of them finds anything more.

    Each round shortens the text (or turns an odd white space into a space), so it ends.
    """
    before = None
    while text != before:
        before = text
        text = without_loops(_tidy(plain_line(_without_keyword(text.strip(), keyword))))
        text = trim_end(_tidy(without_boilerplate(text)), was_cut=False)
    return text


def finished_caption(
    raw: str, broken_off: bool, keyword: str, tokenizer: ClipTokenizer, max_tokens: int = 75
) -> str:
    """Return the training caption of an answer that the limit of new tokens may have broken off."""
    if broken_off and filling_part(raw, keyword, tokenizer, max_tokens) is None:
        raw = finished_part(raw)
    return training_caption(raw, keyword, tokenizer, max_tokens)


def finished_part(raw: str) -> str:
    """Return `raw` up to its last full sentence: for an answer that the token limit broke off.

    Without one, up to the last clause; without that, up to the last full word.
    """
    text = raw.rstrip()
    for offsets in (sentence_ends(text), clause_ends(text)):
        if offsets:
            return trim_end(text[: offsets[-1]], was_cut=True)
    head, space, _ = text.rpartition(" ")
    return trim_end(head, was_cut=True) if space else text


def _checked(keyword: str, tokenizer: ClipTokenizer, max_tokens: int) -> str:
    if not keyword.isprintable() or not keyword.strip():
        raise ValueError(f"the keyword {keyword!r} is not one line of printable text")
    keyword = " ".join(keyword.split())
    needed = tokenizer.count(keyword)
    if needed > max_tokens:
        raise ValueError(f"the keyword alone has {needed} CLIP tokens; a caption may have {max_tokens}")
    return keyword


def _without_keyword(text: str, keyword: str) -> str:
    """Remove the keyword where the text starts with it already, as a whole word."""
    while text[: len(keyword)].casefold() == keyword.casefold():
        rest = text[len(keyword) :]
        if rest and not re.match(r"[\s,，:;.]", rest):
            return text
        text = re.sub(r"^\s*[,，:;.]?\s*", "", rest)
    return text


def _tidy(text: str) -> str:
    """Mend what removals leave: doubled spaces and commas, empty brackets, a comma in front."""
    text = " ".join(text.split())
    text = re.sub(r"\(\s*\)|\[\s*\]", "", text)
    text = re.sub(r"\s+([,.;!?])(?=\s|$)", r"\1", text)
    text = re.sub(r"([,;])(?:\s*[,;])+(?=\s|$)", r"\1", text)
    text = re.sub(r",\s*([.!?])(?=\s|$)", r"\1", text)
    return re.sub(r"^(?:[\s,;:，；：。、!?…]|\.(?!\d)|[-–—](?=\s))+", "", " ".join(text.split()))


def _fitted(text: str, fits: Callable[[str], bool]) -> str:
    """Cut `text` to the token limit, at the best place there is."""
    if not text or fits(text):
        return text
    whole = longest_that_fits(text, word_ends(text), fits)
    best = ""
    for ends in (sentence_ends(text), clause_ends(text), phrase_ends(text)):
        cut = longest_that_fits(text, outside_brackets(text, ends), fits)
        best = max(best, cut, key=len)
        if len(best) >= LONG_SHARE * len(whole) > 0:
            return best
    return best or whole or _first_words(text, fits)


def _first_words(text: str, fits: Callable[[str], bool]) -> str:
    """Cut where nothing but loose words fits: inside a word only if it is longer than a caption."""
    start = longest_that_fits(text, word_ends(text), fits, trimmed=False)
    following = text[len(start) :].split()
    if following and not fits(following[0]):
        return longest_that_fits(text, character_ends(text), fits)
    return trim_end(start, was_cut=False)


def _start_in_lower_case(text: str) -> str:
    """Lower the first letter as behind a comma, unless it begins a name or an abbreviation.

    CLIP reads lower case only, so this is for people. A name is a capitalised word that is followed by
    another (Eiffel Tower) or is capitalised again inside a sentence.
    """
    first, _, rest = text.partition(" ")
    if not first or not first[0].isupper():
        return text
    word = first.rstrip(",.;:!?")
    lowered = first[0].lower() + text[1:]
    if word.lower() in STARTERS and word[1:] == word[1:].lower():
        return lowered
    if word[1:] != word[1:].lower() or any(char.isdigit() for char in word) or not word[1:2].isalpha():
        return text
    if word == first and rest[:1].isupper() and rest[1:2].islower():
        return text
    again = re.compile(rf"(?<=\w ){re.escape(word)}\b")
    return text if any(again.search(sentence) for sentence in split_sentences(rest)) else lowered
