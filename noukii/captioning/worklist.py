"""What captioning a folder comes down to: for each image, what is there already and what is to do.

Nothing here writes. The same input folder, output folder and options always give the same list, so
the run of a killed command's successor does exactly what was left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from noukii import files
from noukii.captioning.manifest import ENOUGH, HAND, Entry, Manifest, State, same_text
from noukii.captioning.options import CaptionOptions
from noukii.captioning.output_folder import OutputFolder, Stamp, fold, stamp
from noukii.dataset.images import ImageInfo, UnusableImage, open_image, safe_stems

DONE = "done"
KEEP = "keep"
"""The caption was written or edited by hand: the image and the manifest may need work, never the text."""
WRITE = "write"
"""The manifest holds the caption, the .txt is missing or older (a killed run, a deleted file)."""
DESCRIBE = "describe"

BLANK = "its .txt was empty, which asks for a new one as deleting it does"
RESERVED_STEM = "prompt_cue-"
"""An image so named would share its caption's name with the key concepts."""


@dataclass(frozen=True)
class Item:
    """One image of the input folder and what is to be done for it."""

    info: ImageInfo
    source: str
    file: str
    """Name of the image in the output folder."""
    task: str
    entry: Entry | None
    write_copy: bool
    claim: bool
    """The file in the output folder is new (or a killed run's of ours), and no one else's."""
    before: Stamp | None = None
    """The file of that name in the output folder when this list was made: later ones are the user's."""
    hand_text: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        return os.path.splitext(self.file)[0]


@dataclass(frozen=True)
class Worklist:
    """All of it, in the order of the input folder."""

    items: tuple[Item, ...]
    answers: dict[str, Entry] = field(default_factory=dict)
    """SHA-256 of an image -> an entry whose raw text the same model gave to the same question."""
    gone: tuple[str, ...] = ()
    """Files in the output folder whose source is no longer there."""
    leftovers: tuple[tuple[Path, Stamp | None], ...] = ()
    """Image copies that a killed run made for sources that are gone; they have no caption."""

    def to_describe(self) -> list[list[Item]]:
        """Return the items that need the model, those of the same content together."""
        groups: dict[str, list[Item]] = {}
        for item in self.items:
            if item.task == DESCRIBE and item.info.sha256 not in self.answers:
                groups.setdefault(item.info.sha256, []).append(item)
        return list(groups.values())

    def without_model(self) -> list[Item]:
        """Return the items with work that needs no model."""
        return [item for item in self.items if self._needs_writing(item)]

    def _needs_writing(self, item: Item) -> bool:
        if item.task == DESCRIBE:
            return item.info.sha256 in self.answers
        entry = item.entry
        if entry is None or item.write_copy or item.task == WRITE:
            return True
        moved = entry.source != item.source or entry.sha256 != item.info.sha256
        rewritten = item.task == KEEP and entry.finish_reason == HAND
        return moved or (rewritten and entry.caption != same_text(item.hand_text))


def generation_settings(options: CaptionOptions) -> dict[str, object]:
    """Return what the model's text depends on, apart from the image; keys as in captions.jsonl."""
    return {
        "model": options.model.resolve().name,
        "model_id": options.model_id,
        "prompt": options.prompt,
        "seed": options.seed,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_new_tokens": options.max_new_tokens,
    }


def caption_settings(options: CaptionOptions) -> dict[str, object]:
    """Return what a caption depends on, apart from the image."""
    return {
        **generation_settings(options),
        "max_caption_tokens": None if options.raw_captions else options.max_caption_tokens,
        "keyword": options.keyword,
    }


def made_with(entry: Entry, settings: dict[str, object]) -> bool:
    """Tell whether `entry` was made with these settings.

    Where the model's fingerprint is not known (a line from before there was one; the model's folder is
    not there any more), its name decides.
    """
    ids = entry.model_id, settings.get("model_id")
    return (None in ids or ids[0] == ids[1]) and all(
        getattr(entry, key) == value for key, value in settings.items() if key != "model_id"
    )


def make_worklist(
    options: CaptionOptions, infos: Sequence[ImageInfo], manifest: Manifest, state: State, input_id: str
) -> Worklist:
    """Compare the input folder with the output folder.

    Args:
        infos: the usable images, sorted.
        input_id: identity of the input folder, as State.input keeps it.
    """
    sources = {os.path.relpath(info.path, options.folder): info for info in infos}
    same_input = state.input in ("", input_id)
    known = _match(sources, manifest.entries, same_input)
    folder = OutputFolder(options.output)
    claims = state.claims if same_input else {}
    stems = _new_stems(sources, known, manifest, claims, folder)
    redone_from = _redone_from(options, state)
    items = []
    for source, info in sources.items():
        entry = known.get(source)
        if entry is None:
            items.append(_new_item(options, info, source, stems[source], folder, claimed=source in claims))
        else:
            redone = redone_from is not None and manifest.places[entry.stem] >= redone_from
            claimed = source in claims
            items.append(_known_item(options, info, source, entry, manifest, folder, redone, claimed))
    used = {item.stem for item in items}
    left = [
        (path, stamp(path))
        for source, stem in claims.items()
        if source not in sources and stem not in manifest.entries and folder.caption(stem) is None
        for path in folder.images(stem)
    ]
    return Worklist(
        tuple(items),
        _answers(options, manifest, redone_from),
        tuple(
            entry.file
            for stem, entry in manifest.entries.items()
            if stem not in used and (options.output / entry.file).exists()
        ),
        tuple(left),
    )


def _match(sources: dict[str, ImageInfo], entries: dict[str, Entry], same_input: bool) -> dict[str, Entry]:
    """Return the manifest's entry of each source that has one.

    First the same name and content; then the same content under another name (a renamed or moved
    source); then, in the same input folder, the same name with new content (an edited picture).
    """
    found: dict[str, Entry] = {}
    free = dict(entries)

    def take(source: str, fits: list[Entry]) -> None:
        for entry in fits:
            if entry.stem in free and source not in found:
                found[source] = free.pop(entry.stem)

    by_content: dict[str, list[Entry]] = {}
    by_source: dict[str, list[Entry]] = {}
    for entry in entries.values():
        by_content.setdefault(entry.sha256, []).append(entry)
        by_source.setdefault(entry.source, []).append(entry)
    for source, info in sources.items():
        take(source, [entry for entry in by_content.get(info.sha256, []) if entry.source == source])
    for source, info in sources.items():
        renamed = [
            entry
            for entry in by_content.get(info.sha256, [])
            if not same_input or entry.source not in sources
        ]
        take(source, renamed)
    if same_input:
        for source in sources:
            take(source, by_source.get(source, []))
    return found


def _new_stems(
    sources: dict[str, ImageInfo],
    known: dict[str, Entry],
    manifest: Manifest,
    claims: dict[str, str],
    folder: OutputFolder,
) -> dict[str, str]:
    """Choose the file name, without extension, of each image that the manifest does not know.

    The first choice is the source's own name. A name is passed over where the output folder has it
    for another picture; a caption that waits there without a picture is taken as this picture's own.
    """
    wanted = safe_stems([info.path for info in sources.values()])
    taken = {fold(stem) for stem in manifest.entries}
    new = [source for source in sources if source not in known]
    stems = {}
    for source in new:  # what a killed run began is finished under the same names
        if source in claims and fold(claims[source]) not in taken:
            stems[source] = claims[source]
            taken.add(fold(claims[source]))
    for source in new:
        if source in stems:
            continue
        info, first = sources[source], wanted[sources[source].path]
        if first.lower().startswith(RESERVED_STEM):
            first = f"image_{first}"
        number, stem = 1, first
        while fold(stem) in taken or not folder.is_free(stem, info, first_choice=number == 1):
            number += 1
            stem = f"{first}-{number}"
        stems[source] = stem
        taken.add(fold(stem))
    return stems


def _new_item(
    options: CaptionOptions, info: ImageInfo, source: str, stem: str, folder: OutputFolder, claimed: bool
) -> Item:
    there = [] if claimed else folder.images(stem)  # of the same content, or the stem were not free
    file = there[0].name if there else stem + info.extension
    before = stamp(options.output / file)
    beside = folder.caption(stem, file)
    if beside is None:
        notes = (BLANK,) if folder.has_blank_caption(stem, file) else ()
        return Item(info, source, file, DESCRIBE, None, not there, not there, before, notes=notes)
    note = beside.problem or "has a caption already, which is kept"
    return Item(info, source, file, KEEP, None, not there, not there, before, beside.text, (note,))


def _known_item(
    options: CaptionOptions,
    info: ImageInfo,
    source: str,
    entry: Entry,
    manifest: Manifest,
    folder: OutputFolder,
    redone: bool,
    claimed: bool,
) -> Item:
    copy = options.output / entry.file
    changed = entry.sha256 != info.sha256
    notes = []
    write_copy = not copy.is_file()
    if changed and not write_copy:
        # The second: a run that was stopped between the new copy and its line in the manifest.
        if files.sha256_file(copy) == entry.file_sha256 or _is_copy_of(copy, info):
            write_copy = True
        else:
            notes.append("the source changed, but its copy was edited too: the copy is kept")
    file = entry.stem + info.extension if write_copy else entry.file
    claim = file != entry.file and (claimed or not (options.output / file).exists())
    beside = folder.caption(entry.stem, entry.file)
    hand_text = ""
    if folder.has_blank_caption(entry.stem, entry.file):
        notes.append(BLANK)
    if beside is not None and (
        entry.finish_reason == HAND or same_text(beside.text) not in manifest.wrote(entry.stem)
    ):
        task, hand_text = KEEP, beside.text
        if beside.problem:
            notes.append(beside.problem)
        elif changed and write_copy:
            notes.append("the image changed; its caption was edited by hand and is kept")
    elif options.overwrite and not redone:
        task = DESCRIBE
    elif changed:
        task = DESCRIBE
        notes.append("the image changed: captioned again")
    elif beside is None and (entry.finish_reason == HAND or not made_with(entry, caption_settings(options))):
        task = DESCRIBE
    elif beside is None or same_text(beside.text) != same_text(entry.caption):
        task = WRITE
    else:
        task = DONE
    before = stamp(options.output / file)
    return Item(info, source, file, task, entry, write_copy, claim, before, hand_text, tuple(notes))


def _is_copy_of(copy: Path, info: ImageInfo) -> bool:
    """Tell whether `copy` is what write_training_copy makes of an image."""
    if info.as_is:
        return copy.stat().st_size == info.size_bytes and files.sha256_file(copy) == info.sha256
    try:
        made, wanted = open_image(copy), open_image(info.path)
    except UnusableImage:
        return False
    return made.size == wanted.size and made.tobytes() == wanted.tobytes()


def _redone_from(options: CaptionOptions, state: State) -> int | None:
    """Return from where in the log on an unfinished --overwrite has redone captions, or None."""
    began = state.overwrite
    if not options.overwrite or began is None or began.get("settings") != caption_settings(options):
        return None
    place = began.get("from")
    return place if isinstance(place, int) else None


def _answers(options: CaptionOptions, manifest: Manifest, redone_from: int | None) -> dict[str, Entry]:
    settings, every_setting = generation_settings(options), caption_settings(options)
    return {
        entry.sha256: entry
        for entry in manifest.entries.values()
        if entry.finish_reason != HAND
        # an answer that ended with its caption may be too short for another one
        and made_with(entry, every_setting if entry.finish_reason == ENOUGH else settings)
        and (
            not options.overwrite or (redone_from is not None and manifest.places[entry.stem] >= redone_from)
        )
    }
