"""review.html: every image of a captioned folder with its caption and what to look at.

Reads what lies in the folder (images, .txt, captions.jsonl, prompt_cue-*.txt) and changes nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from noukii import project
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.captions import UnreadableCaption, find_captions, read_caption
from noukii.dataset.images import UnusableImage, list_images
from noukii.dataset.near_duplicates import near_duplicates
from noukii.errors import InputError
from noukii.names import printable
from noukii.report import caption_checks as checks
from noukii.report.caption_records import HAND, Record, read_manifest
from noukii.report.cues import Cue, mentions, read_cues
from noukii.report.pages import write_page
from noukii.report.run_summary import shell_word
from noukii.report.thumbnails import Thumbnail, ThumbnailSpool

PAGE = "review.html"
_THUMBNAIL_BYTES = 4_600_000
"""For all thumbnails together; a third more as text in the page, which thus stays under 10 MB."""


@dataclass(frozen=True)
class Entry:
    """One card of the page."""

    name: str
    source: str | None
    size: tuple[int, int] | None
    thumbnail: Thumbnail | None
    problem: str
    """Why there is no picture."""
    caption: str
    caption_note: str
    tokens: int
    raw: str | None
    generated: str | None
    """The caption as it was written, where the .txt differs from it now."""
    flags: tuple[str, ...]
    alike: tuple[str, ...] = ()
    """Names of the images that look nearly the same."""

    @property
    def editable(self) -> str:
        """What the page's script knows of the image, as JSON of ASCII letters alone.

        It stands in an attribute, where nothing can end it. Lone surrogates (bytes of a name that are
        not UTF-8) come back from the script as they were.
        """
        return json.dumps({"file": self.name, "caption": self.caption})


def write_review(
    output_folder: Path,
    skipped: Sequence[tuple[str, str]] = (),
    alike: Sequence[Sequence[Path]] | None = None,
) -> Path:
    """Write `review.html` into a captioned folder and return its path.

    Args:
        output_folder: a folder as run_captioning.sh writes it; any folder of images with .txt beside
            them will do. A missing or broken image, caption or manifest becomes a note on the page.
        skipped: (file, reason) of the files of the input folder that were not captioned.
        alike: groups of images that look the same; None: they are looked for.

    Raises:
        InputError: there is no such folder.
    """
    if not output_folder.is_dir():
        raise InputError(output_folder, "is not a folder", "name a folder that run_captioning.sh wrote")
    records, left_out = read_manifest(output_folder / "captions.jsonl")
    listing = list_images(output_folder)
    paths = {path.name: path for path in listing.images}
    names = sorted(paths.keys() | records.keys(), key=lambda name: (name.casefold(), name))
    cue_files = read_cues(output_folder)
    limit = _limit(records.values())
    trigger = _trigger(records.values(), [keyword for keyword, _ in cue_files], output_folder)

    texts = find_captions(listing.images)
    with ThumbnailSpool(_THUMBNAIL_BYTES, max(len(names), 200)) as spool:
        entries = [
            _entry(name, path := paths.get(name), texts.get(path), records.get(name), limit, spool)
            for name in names
        ]
        if alike is None:
            alike = near_duplicates(listing.images)
        entries = _with_duplicates(entries, [[path.name for path in group] for group in alike])
        captions = [entry.caption for entry in entries if entry.caption]
        cues = [Cue.of(concept, captions) for _, concepts in cue_files for concept in concepts]
        common = checks.common_words(captions, trigger)
        not_used = [*left_out, *((skip.path.name, skip.reason) for skip in listing.skipped), *skipped]
        return write_page(
            output_folder / PAGE,
            "review.html",
            title=trigger or output_folder.name,
            folder=output_folder.absolute().name,
            apply_command=_apply_command(output_folder),
            entries=entries,
            picture=spool.data_uri,
            flags={flag.key: flag for flag in checks.FLAGS},
            flag_counts=_flag_counts(entries),
            flagged=sum(any(not _calm(key) for key in entry.flags) for entry in entries),
            captioned=len(captions),
            limit=limit,
            median=checks.median_tokens(entry.tokens for entry in entries),
            cues=cues,
            common=common,
            having=_having(entries, [cue.concept for cue in cues], [word for word, _ in common]),
            common_share=checks.COMMON_SHARE,
            trigger=trigger,
            settings=_settings(records.values()),
            skipped=list(dict.fromkeys((printable(name), reason) for name, reason in not_used)),
        )


def _apply_command(folder: Path) -> str:
    """Return what brings the page's edits back; a folder in the checkout is named as seen from there."""
    path = folder.absolute()
    if path.is_relative_to(project.CHECKOUT):
        path = path.relative_to(project.CHECKOUT)
    return f"./run_captioning.sh --apply ~/Downloads/captions.jsonl {shell_word(os.fspath(path))}"


def _entry(
    name: str,
    path: Path | None,
    text: Path | None,
    record: Record | None,
    limit: int,
    spool: ThumbnailSpool,
) -> Entry:
    """Look at one image; whatever is wrong with it is said in the entry."""
    thumbnail, problem, caption, note = None, "", "", ""
    size = (record.width, record.height) if record and record.width and record.height else None
    if path is None:
        problem = "captions.jsonl names this image, and it is not in the folder"
        note = "no caption: its image is missing"
    else:
        try:
            thumbnail = spool.add(path)
            size = thumbnail.original
        except (UnusableImage, OSError) as error:
            problem = str(error)
        caption, note = _caption_in(text)
    tokens = _tokenizer().count(caption) if caption else 0
    flags = [] if thumbnail else ["no-picture"]
    by_hand = record is not None and record.finish_reason == HAND
    generated = record.caption if record and not by_hand else None
    raw = record.raw if record and not by_hand else None
    flags += checks.text_flags(
        caption,
        tokens,
        limit=limit,
        raw=raw,
        generated=generated,
        finish_reason=record.finish_reason if record else None,
    )
    if by_hand and caption and "hand-edited" not in flags:
        flags.append("hand-edited")
    if size:
        flags += checks.size_flags(*size)
    return Entry(
        name=name,
        source=record.source if record and record.source != name else None,
        size=size,
        thumbnail=thumbnail,
        problem=problem,
        caption=caption,
        caption_note=note,
        tokens=tokens,
        raw=raw,
        generated=generated if "hand-edited" in flags else None,
        flags=tuple(flags),
    )


def _caption_in(path: Path | None) -> tuple[str, str]:
    """Return a caption as the trainer will read it, and why there is none."""
    if path is None:
        return "", "there is no .txt beside this image"
    try:
        text = checks.one_line(read_caption(path).text)
    except UnreadableCaption as error:
        return "", f"{printable(path.name)}: {error}"
    return text, "" if text else f"{printable(path.name)} is empty"


def _with_duplicates(entries: list[Entry], alike: Sequence[Sequence[str]]) -> list[Entry]:
    """Flag the captions and the pictures that occur twice; put every entry's flags into the page's order."""
    others = {name: tuple(one for one in group if one != name) for group in alike for name in group}
    twice = checks.duplicates([entry.caption for entry in entries])
    order = [flag.key for flag in checks.FLAGS]
    result = []
    for place, entry in enumerate(entries):
        found = {*entry.flags, *(["duplicate-caption"] if place in twice else [])}
        if entry.name in others:
            found.add("near-duplicate")
        flags = tuple(key for key in order if key in found)
        result.append(replace(entry, flags=flags, alike=others.get(entry.name, ())))
    return result


def _having(entries: Sequence[Entry], concepts: Iterable[str], common: Iterable[str]) -> dict[str, list[int]]:
    """Return for each concept and each common word the places of the entries that were counted for it."""
    captions = [(place, entry.caption) for place, entry in enumerate(entries) if entry.caption]
    spoken = [(place, set(checks.words(caption))) for place, caption in captions]
    found = {word: [place for place, said in spoken if word in said] for word in common}
    for concept in concepts:
        found[concept] = [place for place, caption in captions if mentions(caption, concept)]
    return found


def _flag_counts(entries: Iterable[Entry]) -> list[tuple[checks.Flag, int]]:
    counts = Counter(key for entry in entries for key in entry.flags)
    return [(flag, counts[flag.key]) for flag in checks.FLAGS if counts[flag.key]]


def _calm(key: str) -> bool:
    return next(flag.calm for flag in checks.FLAGS if flag.key == key)


def _trigger(records: Iterable[Record], keywords: Sequence[str], folder: Path) -> str:
    """Return the trigger word: of most captions, else of the prompt cue, else the folder's name."""
    named = Counter(record.keyword for record in records if record.keyword)
    if named:
        return named.most_common(1)[0][0]
    return keywords[0] if keywords else folder.absolute().name


def _limit(records: Iterable[Record]) -> int:
    """Return the CLIP tokens that the captions were allowed: what the trainer is meant to read."""
    named = Counter(record.max_caption_tokens for record in records if record.max_caption_tokens)
    return named.most_common(1)[0][0] if named else checks.CAPTION_TOKENS


def _settings(records: Iterable[Record]) -> list[tuple[str, list[str]]]:
    """Return each setting of the captioning with the values it had, most frequent first."""
    values: dict[str, Counter[str]] = {}
    for record in records:
        for label, value in record.settings:
            values.setdefault(label, Counter())[value] += 1
    return [(label, [value for value, _ in counts.most_common(3)]) for label, counts in values.items()]


@cache
def _tokenizer() -> ClipTokenizer:
    return ClipTokenizer.bundled()
