"""The captions of one data set, checked before training: missing, empty, too long, keyword cut off."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from noukii.dataset.captions import UnreadableCaption, find_captions, read_caption, unused_captions
from noukii.dataset.images import ImageInfo, Skipped
from noukii.names import printable

_NAMED = 10


def plural(count: int, thing: str) -> str:
    """Return `1 image` or `3 images`."""
    return f"{count} {thing}" + ("" if count == 1 else "s")


@dataclass(frozen=True)
class PlannedCaption:
    """The text that will be trained for one picture.

    `source` is None where there is no caption file; then, and where it is empty, `text` is the
    keyword. `tokens` is the number of CLIP tokens, None where it cannot be over the limit.
    """

    text: str
    source: Path | None
    empty: bool = False
    notes: tuple[str, ...] = ()
    tokens: int | None = None
    keyword_cut: bool = False


@dataclass(frozen=True)
class CaptionReport:
    """All captions of a data set by picture; lists name the caption file, or the picture that has none."""

    keyword: str
    max_token_length: int
    captions: dict[Path, PlannedCaption]
    unreadable: tuple[Skipped, ...]
    strays: tuple[Path, ...] = ()
    """Caption files of no picture."""
    seconds: tuple[Path, ...] = ()
    """Caption files of pictures that have another one, which is used."""

    def only(self, used: Sequence[ImageInfo]) -> CaptionReport:
        """Return the report on these pictures alone."""
        return replace(self, captions={info.path: self.captions[info.path] for info in used})

    @property
    def found(self) -> int:
        """Pictures with a caption of their own."""
        return sum(each.source is not None and not each.empty for each in self.captions.values())

    @property
    def missing(self) -> list[Path]:
        return [image for image, each in self.captions.items() if each.source is None]

    @property
    def empty(self) -> list[Path]:
        return [each.source for each in self.captions.values() if each.empty and each.source]

    @property
    def too_long(self) -> list[tuple[Path, int]]:
        """Caption files over `max_token_length` tokens, with their number of tokens."""
        return [
            (each.source, each.tokens)
            for each in self.captions.values()
            if each.source and each.tokens is not None and each.tokens > self.max_token_length
        ]

    @property
    def keyword_cut(self) -> list[Path]:
        """Caption files whose only mention of the keyword lies behind the last token that counts."""
        return [each.source for each in self.captions.values() if each.keyword_cut and each.source]

    @property
    def without_keyword(self) -> list[Path]:
        return [
            each.source
            for each in self.captions.values()
            if each.source and not each.empty and _position(each.text, self.keyword) is None
        ]

    @property
    def shared(self) -> list[tuple[Path, list[Path]]]:
        """Caption files that several pictures share by name (cat.jpg and cat.png), with the pictures."""
        users: dict[Path, list[Path]] = defaultdict(list)
        for image, each in self.captions.items():
            if each.source is not None:
                users[each.source].append(image)
        return [(source, images) for source, images in users.items() if len(images) > 1]

    @property
    def notes(self) -> list[tuple[Path, str]]:
        """What was changed to read a caption file."""
        seen = {each.source: each.notes for each in self.captions.values() if each.source}
        return [(source, note) for source, notes in seen.items() for note in notes if note != "empty"]

    def warnings(self) -> list[str]:
        """Say what is likely to spoil the training, each with its remedy."""
        said = []
        total = len(self.captions)
        if self.missing or self.empty:
            lacking = len(self.missing) + len(self.empty)
            said.append(
                f"{lacking} of {plural(total, 'image')} without a caption: trained as '{self.keyword}' alone;"
                " ./run_captioning.sh writes captions"
            )
        if self.too_long:
            limit = self.max_token_length
            longest = max(tokens for _, tokens in self.too_long)
            said.append(
                f"{plural(len(self.too_long), 'caption')} over {limit} tokens, the rest is not seen;"
                f" {_longer_remedy(limit, longest)}"
            )
        if self.keyword_cut:
            names = ", ".join(printable(path.name) for path in self.keyword_cut[:5])
            said.append(
                f"the keyword '{self.keyword}' stands behind token {self.max_token_length} and is cut off in"
                f" {names}{' …' if len(self.keyword_cut) > 5 else ''}; move it to the front"
            )
        if self.found and len(self.without_keyword) > self.found / 2:
            said.append(
                f"the keyword '{self.keyword}' is missing from {len(self.without_keyword)} of"
                f" {plural(self.found, 'caption')}; prompts with it will have little effect"
            )
        for source, images in self.shared:
            names = " and ".join(printable(image.name) for image in images)
            said.append(
                f"{printable(source.name)} is the caption of {names}; if they differ, write"
                f" {printable(images[-1].name)}.txt for the second"
            )
        if self.strays:
            one = len(self.strays) == 1
            said.append(
                f"{_names(self.strays)} {'belongs' if one else 'belong'} to no image by"
                f" {'its name' if one else 'their names'} and {'is' if one else 'are'} not used;"
                " the caption of cat.png is cat.txt or cat.png.txt"
            )
        if self.seconds:
            said.append(
                f"{_names(self.seconds)}: not used, since the image has another caption file that comes first"
                " (.png.txt before .txt before .caption)"
            )
        return said


def _names(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(printable(path.name) for path in paths[:_NAMED]) + more


def _longer_remedy(limit: int, longest: int) -> str:
    """Say what helps where captions have up to `longest` tokens and `limit` are seen."""
    for wide in (150, 225):
        if limit < wide and longest <= wide:
            return f"shorten, or train with --max-token-length {wide}"
    if limit < 225:
        return f"--max-token-length 225 sees most of them; shorten what is longer (up to {longest} tokens)"
    return f"shorten (up to {longest} tokens; 225 are the most that a trainer sees)"


def check_captions(infos: Sequence[ImageInfo], keyword: str, max_token_length: int) -> CaptionReport:
    """Read the caption of every picture; those that cannot be read make the picture `unreadable`."""
    files = find_captions([info.path for info in infos])
    captions: dict[Path, PlannedCaption] = {}
    unreadable = []
    for info in infos:
        source = files[info.path]
        if source is None:
            captions[info.path] = PlannedCaption(keyword, None)
            continue
        try:
            caption = read_caption(source)
        except UnreadableCaption as error:
            unreadable.append(Skipped(info.path, f"its caption {printable(source.name)}: {error}"))
            continue
        empty = not caption.text
        tokens, cut = (None, False) if empty else _measure(caption.text, keyword, max_token_length)
        text = caption.text or keyword
        captions[info.path] = PlannedCaption(text, source, empty, caption.notes, tokens, cut)
    unused = [unused_captions(folder, files) for folder in dict.fromkeys(info.path.parent for info in infos)]
    return CaptionReport(
        keyword,
        max_token_length,
        captions,
        tuple(unreadable),
        tuple(path for one in unused for path in one.strays),
        tuple(path for one in unused for path in one.seconds),
    )


def _measure(text: str, keyword: str, limit: int) -> tuple[int | None, bool]:
    """Return the number of CLIP tokens, and whether the keyword lies outside the first `limit`."""
    if len(text.encode("utf-8")) <= limit:
        return None, False  # a token stands for at least one byte: no need for the tokenizer
    from noukii.clip_tokens import ClipTokenizer

    tokenizer = ClipTokenizer.bundled()
    tokens = tokenizer.count(text)
    if tokens <= limit:
        return tokens, False
    end = _position(text, keyword)
    return tokens, end is not None and tokenizer.count(text[:end]) > limit


def _position(text: str, keyword: str) -> int | None:
    """Return where the keyword's first mention ends, letter case ignored; None if there is none.

    Where it stands between commas as a tag of its own, that is the mention that counts.
    """
    word = re.escape(keyword)
    found = re.search(rf"(?:^|,)\s*{word}\s*(?=,|$)", text, re.IGNORECASE) or re.search(
        rf"(?<!\w){word}(?!\w)", text, re.IGNORECASE
    )
    return found.end() if found else None
