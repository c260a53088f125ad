"""The prompt cues of a folder, and how many of its captions have each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii.report.caption_checks import words

_PREFIX = "prompt_cue-"


@dataclass(frozen=True)
class Cue:
    """A concept and the share (0 to 1) of captions that mention it."""

    concept: str
    share: float

    @classmethod
    def of(cls, concept: str, captions: Sequence[str]) -> Cue:
        """Count the captions that have the words of `concept` one after the other, plural or not."""
        having = sum(mentions(caption, concept) for caption in captions)
        return cls(concept, having / len(captions) if captions else 0.0)


def read_cues(folder: Path) -> list[tuple[str, list[str]]]:
    """Return (keyword, concepts) of each prompt_cue-KEYWORD.txt in a folder, by name."""
    found = []
    for path in sorted(folder.glob(f"{_PREFIX}*.txt")):
        try:
            text = path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue
        concepts = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        found.append((path.stem.removeprefix(_PREFIX), concepts))
    return found


def mentions(caption: str, concept: str) -> bool:
    """Say whether a caption has the words of a concept in a row; "car" and "cars" are one word."""
    wanted = [_singular(word) for word in words(concept)]
    spoken = [_singular(word) for word in words(caption)]
    if not wanted:
        return concept.casefold() in caption.casefold()
    last = len(spoken) - len(wanted)
    return any(spoken[place : place + len(wanted)] == wanted for place in range(last + 1))


def _singular(word: str) -> str:
    """Return an English noun without its plural ending; both forms meet, which is all that is asked."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
