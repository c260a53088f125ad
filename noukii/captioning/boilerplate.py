"""Remove what a vision-language model says that is not in the picture: openers, moods, guesses, apologies."""

from __future__ import annotations

import re

from noukii.captioning.boilerplate_rules import (
    ABSTRACT,
    CONTENT,
    EFFECTS,
    GENERIC,
    HEDGES,
    IN_THE_IMAGE,
    NOTHING_SEEN,
    OPENERS,
    PLAIN,
    RENAMED,
    SUMMARIES,
    TAIL,
    UP_TO_THE_PICTURE,
)
from noukii.captioning.sentences import split_sentences, trim_end

DETERMINER = re.compile(
    r"^(?:(?:the|an?|this|that|these|those|his|her|its|their|both|such) )+", re.IGNORECASE
)
HEAD_END = re.compile(
    r"\s(?:of|in|on|at|with|and|from|that|which|who|is|are|was|were|for|to|through|during|by|[a-z]+ing)\s|,",
    re.IGNORECASE,
)
WITHOUT_A_PICTURE = re.compile(rf"\b(?:{ABSTRACT})$", re.IGNORECASE)
BEHIND_A_COMMA = re.compile(rf"[,;] (?={CONTENT})", re.IGNORECASE)
JOINT = re.compile(r"^(?:with|while|as|but|and) ", re.IGNORECASE)
LONG_ENOUGH = 3
"""Words that a subject must have to stand as a fragment: `the red curtains and golden lamps`."""


def without_boilerplate(text: str) -> str:
    """Return `text` (one line, single spaces) with only what describes the picture.

    Openers are removed from every sentence; moods, summaries, remarks on quality, negations and apologies
    are left out up to the clause that shows something; hedges are made plain. Where nothing would be left,
    summaries, effects and guesses are only made plain. A sentence that has lost its opener starts with a
    capital unless it is the first.
    """
    return _without(text, strictly=True) or _without(text, strictly=False)


def _without(text: str, strictly: bool) -> str:
    kept: list[str] = []
    for piece in split_sentences(text):
        sentence = _plain_sentence(piece.strip(), strictly)
        if sentence:
            if kept and sentence[0] != piece.strip()[0]:
                sentence = sentence[0].upper() + sentence[1:]
            kept.append(sentence + (" " if piece[-1:].isspace() else ""))
    return "".join(kept).strip()


def _plain_sentence(sentence: str, strictly: bool) -> str:
    before = None
    while sentence and sentence != before:
        before = sentence
        sentence = TAIL.sub("", sentence)
        for rule in UP_TO_THE_PICTURE:
            sentence = rule.sub("", sentence, count=1)
        shorter = _seen_in(sentence, strictly)
        if shorter != sentence:
            sentence = shorter
            continue
        renamed = RENAMED.match(sentence)
        if renamed and not re.fullmatch(GENERIC + PLAIN, renamed["name"], re.IGNORECASE):
            name = renamed["name"]
            article = "an" if name[0].lower() in "aeiou" else "a"
            sentence = f"{article} {name} of {sentence[renamed.end() :]}"
        for rule in OPENERS:
            sentence = rule.sub("", sentence, count=1).lstrip(" ,;:")
        sentence = IN_THE_IMAGE.sub("", sentence)
        for rule, instead in HEDGES:
            sentence = rule.sub(instead, sentence)
    return sentence if any(char.isalnum() or char > "\u2000" for char in sentence) else ""


def _seen_in(sentence: str, strictly: bool) -> str:
    """Return `sentence` as it is, or what is left of one about moods, effects, quality or guesses."""
    if any(rule.search(sentence) for rule in NOTHING_SEEN):
        return _clause_behind(sentence)
    for rule in EFFECTS:
        found = rule.search(sentence)
        if found:
            subject = _thing(found["subject"], strictly)
            if not subject:
                return _clause_behind(sentence)
            behind = BEHIND_A_COMMA.search(sentence)
            return subject + (sentence[behind.start() :] if behind else ".")
    for rule in SUMMARIES:
        found = rule.search(sentence)
        if found:
            return "" if strictly else sentence[found.end() :]
    return sentence


def _clause_behind(sentence: str) -> str:
    """Return the first clause behind a comma that holds something to see, without its joining word."""
    found = BEHIND_A_COMMA.search(sentence)
    return JOINT.sub("", sentence[found.end() :]) if found else ""


def _thing(subject: str, strictly: bool) -> str:
    """Return the subject of a sentence about an effect if it names a thing to see, else nothing."""
    subject = trim_end(subject, was_cut=False)
    bare = DETERMINER.sub("", subject)
    head = HEAD_END.split(bare, maxsplit=1)[0]
    if subject.endswith(" to"):
        return ""
    if WITHOUT_A_PICTURE.search(head) and (strictly or len(bare.split()) <= LONG_ENOUGH):
        return ""
    return subject if len(bare.split()) >= (LONG_ENOUGH if strictly else 2) else ""
