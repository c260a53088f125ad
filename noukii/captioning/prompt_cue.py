"""What a folder's pictures have in common, as words to type into a prompt beside the trigger.

Each caption is a document. A term's score is the share of these captions that have it times its inverse
document frequency in general captions: a picture counts once, and what every picture has ("man", "table")
weighs little.

Two designs that fail: TF-IDF fitted on one joined text has idf = 1 for every term and returns the commonest
words ("image", "shows", "depicts"); TF-IDF fitted on these captions alone gives the lowest weight to just
that which all of them share, the concept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from noukii.captioning.terms import Term, han_boundaries, is_han_term, terms, trigger_words
from noukii.project import ASSETS

GENERAL_CAPTIONS = ASSETS / "general_captions.txt"
COVERS = 0.6
"""A longer term stands for its part ("red car" for "red") if it is in this share of the part's captions."""


@dataclass(frozen=True)
class Concept:
    """A term with the captions that have it."""

    words: tuple[str, ...]
    shown: str
    count: int
    score: float
    shared: bool


def key_concepts(captions: list[str], keyword: str, count: int = 7) -> list[str]:
    """Return up to `count` words and short phrases that many of `captions` share and general ones do not.

    In lower case, best first, always the same for the same captions in any order. What the captions share
    comes first; if that is less than `count`, what single ones say follows. The keyword and its parts,
    function words, numbers and talk about the picture itself are left out. Any text is taken, whatever its
    language.
    """
    return [shown for shown, _ in concept_shares(captions, keyword, count)]


def concept_shares(captions: list[str], keyword: str, count: int = 7) -> list[tuple[str, float]]:
    """Return (concept, share of the captions that have it), as `key_concepts` chooses them.

    A share of 0.85 and more means that the concept melts into the trigger word in training.
    """
    trigger = trigger_words(keyword)
    described = [found for found in (terms(caption, trigger) for caption in captions) if found]
    described = _only_chinese_words(described, captions)
    written = sum(1 for caption in captions if caption.strip())
    if not described or count < 1:
        return []
    return [(concept.shown, concept.count / written) for concept in _chosen(_scored(described), count)]


def _only_chinese_words(described: list[list[Term]], captions: list[str]) -> list[list[Term]]:
    """Drop Chinese fragments: a word starts a piece of text somewhere in the set and ends one somewhere."""
    starts: set[str] = set()
    ends: set[str] = set()
    for caption in captions:
        some_starts, some_ends = han_boundaries(caption)
        starts |= some_starts
        ends |= some_ends
    words = starts & ends
    kept = [[term for term in found if not is_han_term(term.key) or term.key in words] for found in described]
    return [found for found in kept if found]


def _scored(described: list[list[Term]]) -> list[Concept]:
    """Return all terms with share times general idf, marked if enough captions share them."""
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    having: Counter[str] = Counter()
    words: dict[str, tuple[str, ...]] = {}
    for found in described:
        for term in found:
            forms[term.key][term.shown] += 1
            words[term.key] = term.words
        having.update({term.key for term in found})
    least = 1 if len(described) < 3 else max(2, len(described) // 20)
    keys = sorted(having)
    weights = _weights([[term.key for term in found] for found in described], keys)
    return [
        Concept(
            words=words[key],
            shown=min(forms[key], key=lambda form: (-forms[key][form], len(form), form)),
            count=having[key],
            score=weights[key],
            shared=having[key] >= least,
        )
        for key in keys
    ]


def _weights(documents: list[list[str]], vocabulary: list[str]) -> dict[str, float]:
    """Return each term's mean TF-IDF over `documents`: its share there times its idf in general captions."""
    import numpy
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        analyzer=_as_it_is, vocabulary=vocabulary, binary=True, norm=None, smooth_idf=True
    )
    vectorizer.fit(_general_documents())
    sums = numpy.asarray(vectorizer.transform(documents).sum(axis=0)).ravel()
    return {
        term: round(float(total) / len(documents), 9) for term, total in zip(vocabulary, sums, strict=True)
    }


def _as_it_is(document: list[str] | tuple[str, ...]) -> list[str] | tuple[str, ...]:
    return document


@lru_cache(maxsize=1)
def _general_documents() -> tuple[tuple[str, ...], ...]:
    lines = GENERAL_CAPTIONS.read_text(encoding="utf-8").splitlines()
    return tuple(tuple(term.key for term in terms(line)) for line in lines if line.strip())


def _chosen(concepts: list[Concept], count: int) -> list[Concept]:
    """Return the best `count` concepts of which none says what another says already."""
    dropped = _covered(concepts)
    ranked = sorted(
        (concept for concept in concepts if concept.words not in dropped),
        key=lambda concept: (not concept.shared, -concept.score, -len(concept.words), concept.shown),
    )
    chosen: list[Concept] = []
    for concept in ranked:
        if len(chosen) == count:
            break
        if not any(_says_again(concept, other) for other in chosen):
            chosen.append(concept)
    return chosen


def _covered(concepts: list[Concept]) -> set[tuple[str, ...]]:
    """Return the terms that a longer or a shorter one makes needless.

    From the longest on: a phrase that most captions with one of its parts have covers that part; a phrase
    that few of them have is left out, for its parts say it.
    """
    counts = {concept.words: concept.count for concept in concepts}
    dropped: set[tuple[str, ...]] = set()
    for concept in sorted(concepts, key=lambda concept: (-len(concept.words), concept.words)):
        parts = [part for part in _parts(concept.words) if part in counts]
        if any(concept.count < COVERS * counts[part] for part in parts):
            dropped.add(concept.words)
        elif concept.words not in dropped:
            dropped.update(parts)
    return dropped


def _parts(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return every shorter run of words (of characters, in Chinese) inside a term."""
    if len(words) == 1 and is_han_term(words[0]):
        text = words[0]
        return [
            (text[start:end],)
            for start in range(len(text))
            for end in range(start + 1, len(text) + 1)
            if end - start < len(text)
        ]
    return [
        words[start:end]
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if end - start < len(words)
    ]


def _says_again(concept: Concept, other: Concept) -> bool:
    """Say whether a term repeats a better one: two words in common, or all of its only word."""
    common = set(concept.words) & set(other.words)
    return len(common) >= min(2, len(concept.words))
