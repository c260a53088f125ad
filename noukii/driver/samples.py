"""Prompts for the sample pictures of a run, where the user gives none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from noukii.names import printable

CONCEPTS = 3
SEED = 42


def default_prompts(keywords: Sequence[str], cues: Sequence[Path], size: int) -> str:
    """Return kohya's prompt file: each keyword alone, and with the first key concepts of its images.

    Args:
        keywords: of the data sets, one prompt for each.
        cues: `prompt_cue-*.txt` files, one key concept a line.
        size: of the pictures in pixels; the seed is fixed, so that pictures of two steps compare.
    """
    prompts = [_plain(keyword) for keyword in keywords]
    for cue in cues:
        keyword = _plain(cue.stem.removeprefix("prompt_cue-"))
        lines = cue.read_text(encoding="utf-8", errors="replace").splitlines()
        concepts = [_plain(line) for line in lines if line.strip()][:CONCEPTS]
        if concepts:
            prompts.append(", ".join([keyword, *concepts]))
    unique = dict.fromkeys(prompt for prompt in prompts if prompt)
    return "".join(f"{prompt} --w {size} --h {size} --d {SEED}\n" for prompt in unique)


def _plain(text: str) -> str:
    """One line that a prompt file takes for text: no comment sign in front, no option inside."""
    return " ".join(printable(text).replace("--", "-").split()).lstrip("#- ")
