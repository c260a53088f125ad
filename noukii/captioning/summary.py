"""What run_captioning.sh says before and after the work: every file accounted for (R3)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from noukii.captioning.options import CaptionOptions
from noukii.dataset.images import Skipped
from noukii.names import printable

NAMED = 20
"""This many files are named on the terminal; the log in the output folder names all."""

FEW = 5
"""So many names are enough to show what is meant."""

SKIPPED_LOG = "noukii-skipped.log"


@dataclass
class Tally:
    """Counts of one run, for its summary."""

    found: int = 0
    made: int = 0
    restored: int = 0
    rewritten: int = 0
    """Of those restored, the captions whose .txt was gone."""
    unchanged: int = 0
    by_hand: list[str] = field(default_factory=list)
    older_settings: int = 0
    over_limit: list[str] = field(default_factory=list)
    ended_early: int = 0
    """Answers that were ended because their caption was full, and below the tokens they took."""
    early_tokens: int = 0
    cut_off: list[str] = field(default_factory=list)
    wordless: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    gone: Sequence[str] = ()
    concepts: Sequence[str] = ()
    alike: Sequence[Sequence[str]] = ()
    """Groups of images that look nearly the same."""
    without_keyword: Sequence[str] = ()
    log: str = ""
    """Name of the log of skipped files, where one was written."""
    page: str = ""
    """Name of the review page, where it was written."""

    @property
    def used(self) -> int:
        return self.made + self.restored + self.unchanged + len(self.by_hand)


def counted(count: int, thing: str) -> str:
    """Return `1 image`, `2 images`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def found_line(tally: Tally, used: int, litter: int) -> str:
    """Return the line that adds up: found = used + skipped."""
    line = f"{counted(tally.found, 'image file')} found = {used} used + {len(tally.skipped)} skipped"
    if litter:
        line += f" ({litter} system files and caches ignored)"
    return line


def skipped_lines(skipped: Sequence[Skipped], root: Path, limit: int = NAMED) -> list[str]:
    """Return one line for each skipped file, at most `limit` of them."""
    lines = [f"  skipped {relative(entry.path, root)}: {entry.reason}" for entry in skipped[:limit]]
    if len(skipped) > limit:
        lines.append(f"  … and {len(skipped) - limit} more")
    return lines


def begins_with(caption: str, keyword: str) -> bool:
    """Tell whether a caption begins with the trigger word, as a word of its own, in any letter case."""
    return re.match(rf"\s*{re.escape(keyword)}(?!\w)", caption, re.IGNORECASE) is not None


def relative(path: Path, root: Path) -> str:
    """Return `path` as seen from `root`, printable."""
    return printable(os.path.relpath(path, root))


def names(title: str, files: Iterable[str], limit: int = NAMED) -> list[str]:
    """Return `title: a, b, c` with at most `limit` names, or nothing where there are none."""
    every = [printable(name) for name in files]
    if not every:
        return []
    more = f" … and {len(every) - limit} more" if len(every) > limit else ""
    return [f"{title}: {', '.join(every[:limit])}{more}"]


def end_lines(tally: Tally, options: CaptionOptions, litter: int) -> list[str]:
    """Return the summary of a run that came to its end."""
    lines = [found_line(tally, tally.used, litter)]
    lines += skipped_lines(tally.skipped, options.folder)
    if tally.log:
        lines.append(f"  all of them: {printable(options.output / tally.log)}")
    parts = [f"{counted(tally.made, 'caption')} made"]
    if tally.restored:
        parts.append(f"{tally.restored} restored from captions.jsonl and your folder")
    if tally.unchanged:
        parts.append(f"{tally.unchanged} were there")
    if tally.by_hand:
        parts.append(f"{len(tally.by_hand)} written or edited by hand and kept")
    lines.append(", ".join(parts))
    if tally.rewritten:
        lines.append(
            "  the same settings give the same text; for another one delete the .txt and add another --seed "
            "or --prompt"
        )
    lines += names("  kept as you wrote them (delete the .txt for the model's caption)", tally.by_hand)
    if tally.older_settings:
        lines.append(
            f"  {tally.older_settings} of them were made with other settings; --overwrite makes them again"
        )
    if tally.ended_early:
        most = tally.ended_early * options.max_new_tokens
        lines.append(
            f"  {counted(tally.ended_early, 'answer')} ended early, with a full caption: "
            f"{tally.early_tokens:,} tokens of at most {most:,} ({1 - tally.early_tokens / most:.0%} saved)"
        )
    limit = options.max_caption_tokens
    lines += names(f"  over {limit} CLIP tokens, the trainer would cut them", tally.over_limit)
    lines += names(
        f"  the model was stopped after {options.max_new_tokens} tokens (--max-new-tokens)", tally.cut_off
    )
    lines += names("  the model said nothing of use, the caption is the keyword alone", tally.wordless)
    if tally.without_keyword:
        count = counted(len(tally.without_keyword), "caption")
        verb = "does" if len(tally.without_keyword) == 1 else "do"
        lines += names(
            f"  {count} {verb} not begin with {printable(options.keyword)} (--overwrite writes anew what "
            "the model wrote)",
            tally.without_keyword,
            FEW,
        )
    lines += [f"  {note}" for note in tally.notes[:NAMED]]
    if len(tally.notes) > NAMED:
        lines.append(f"  … and {len(tally.notes) - NAMED} more notes")
    lines += names("  no longer in the input folder, their copies and captions stay", tally.gone)
    if tally.alike:
        shown = [" = ".join(printable(name) for name in group[:FEW]) for group in tally.alike[:FEW]]
        more = f" … and {len(tally.alike) - FEW} more groups" if len(tally.alike) > FEW else ""
        lines.append(
            f"  look nearly the same and weigh more together (all are kept): {'; '.join(shown)}{more}"
        )
    lines += names("key concepts", tally.concepts)
    lines.append(f"captions and images: {printable(options.output)}")
    if tally.page:
        lines.append(f"look them over:      {printable(options.output / tally.page)}")
    lines.append(f"then train:          ./run_training.sh --dataset {shlex.quote(printable(options.output))}")
    return lines
