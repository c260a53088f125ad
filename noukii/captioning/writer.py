"""Everything a captioning run writes into its output folder, in an order that survives any kill.

For each image: the claim to its name (.noukii.json), the image, the manifest's line, the .txt. So a
file without a line is either claimed, and written again, or the user's, and left alone.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from noukii import files
from noukii.captioning.manifest import HAND, MANIFEST, Entry, Manifest, State, same_text
from noukii.captioning.options import CaptionOptions
from noukii.captioning.output_folder import Beside, OutputFolder, Stamp, caption_now, stamp
from noukii.captioning.own_files import OwnFiles
from noukii.captioning.wording import finished_caption
from noukii.captioning.worklist import (
    DESCRIBE,
    KEEP,
    WRITE,
    Item,
    Worklist,
    caption_settings,
)
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.images import ImageInfo, Skipped, UnusableImage, list_images, write_training_copy
from noukii.disk import write_failure
from noukii.names import printable

GO_ON = "make room or rights there, then run the same command: it goes on where this one ended"


TEXT_BYTES = 16_384
"""Room for the texts of one image: caption, line of captions.jsonl, their temporary files."""


def copy_bytes(info: ImageInfo) -> int:
    """Return the bytes that the copy of an image may need."""
    return info.size_bytes if info.as_is else 3 * info.width * info.height


class _TheirsIsThere(Exception):
    """The user has written the caption that we were about to write."""


class Writer:
    """Writes into one output folder, whose lock the caller holds."""

    def __init__(
        self,
        options: CaptionOptions,
        manifest: Manifest,
        state: State,
        input_id: str,
        tokenizer: ClipTokenizer,
    ) -> None:
        self._options = options
        self._folder = options.output
        self._manifest = manifest
        self._state = state
        self._input = input_id
        self._tokenizer = tokenizer
        self._own = OwnFiles(options.output, state)
        self._copied: dict[str, tuple[Stamp | None, str]] = {}
        """Copy written by this run -> its stamp then, and its SHA-256."""
        self._kept: set[str] = set()
        """Copies that the user made or edited while this run went on."""

    @property
    def own(self) -> OwnFiles:
        """The files that belong to the whole folder."""
        return self._own

    def begin(self, work: Worklist) -> None:
        """Clear what a killed run left, and claim the names of the images to come."""
        with self._writing(self._folder):
            files.remove_temporaries(self._folder)
            for path, seen in work.leftovers:
                if stamp(path) == seen and caption_now(self._folder, path.stem, path.name) is None:
                    path.unlink(missing_ok=True)
            for stem in self._manifest.entries:
                self._remove_replaced(stem)
            state = self._state
            state.input = self._input
            state.claims = {item.source: item.stem for item in work.items if item.claim}
            settings = caption_settings(self._options)
            if self._options.overwrite and (state.overwrite or {}).get("settings") != settings:
                state.overwrite = {"settings": settings, "from": self._manifest.length}
            state.write(self._folder)

    def copy_image(self, item: Item) -> Path:
        """Write the training copy if it is wanted, and return the path of the image in the output folder.

        What came to that name since the work was planned is the user's: the copy of a known image that
        was edited meanwhile is used as it is, a new image is skipped.

        Raises:
            UnusableImage: the source is gone or changed, or another file has the copy's name.
            RunError: the copy could not be written.
        """
        path = self._folder / item.file
        if not item.write_copy or item.file in self._copied:
            return path
        replaced = item.entry is not None and item.entry.file == item.file
        now = stamp(path)
        if now is not None and now != item.before and replaced:
            self._kept.add(item.file)
            return path
        if now is not None and (now != item.before or not (replaced or item.claim)):
            raise UnusableImage(f"the output folder holds another file named {printable(item.file)}")
        try:
            path = write_training_copy(item.info, self._folder, item.stem)
            digest = item.info.sha256 if item.info.as_is else files.sha256_file(path)
            self._copied[item.file] = stamp(path), digest
            return path
        except OSError as error:
            if not os.access(item.info.path, os.R_OK):
                raise UnusableImage(f"cannot be read ({error.strerror})") from None
            raise write_failure(path, error, GO_ON, copy_bytes(item.info)) from None

    def describe(self, item: Item, raw: str, finish_reason: str, tokens: int, seconds: float) -> Entry:
        """Record the model's text for an image whose copy is there, and write its .txt.

        A caption that the user wrote since the work was planned is kept; the entry is then of it.
        """
        if theirs := self._theirs(item):
            return self._take_note(item, theirs)
        options = self._options
        caption = self._caption(raw, finish_reason)
        entry = Entry(
            **self._image_keys(item),
            model=options.model.resolve().name,
            model_id=options.model_id,
            prompt=options.prompt,
            seed=options.seed,
            temperature=options.temperature,
            top_p=options.top_p,
            max_new_tokens=options.max_new_tokens,
            max_caption_tokens=None if options.raw_captions else options.max_caption_tokens,
            keyword=options.keyword,
            raw=raw,
            caption=caption,
            clip_tokens=self._tokenizer.count(caption),
            finish_reason=finish_reason,
            tokens=tokens,
            seconds=round(seconds, 3),
        )
        self._append(item, entry)
        return self._write_text(item, entry)

    def without_model(self, item: Item, answer: Entry | None) -> Entry:
        """Do what an item needs that no model is asked for; returns its entry."""
        self.copy_image(item)
        entry = item.entry
        if item.task == DESCRIBE and answer is not None:
            return self.describe(item, answer.raw, answer.finish_reason, answer.tokens, 0.0)
        if entry is None:
            entry = self._by_hand(item)
        else:
            entry = replace(entry, **self._image_keys(item))
            if item.task == KEEP and entry.finish_reason == HAND:
                text = same_text(item.hand_text)
                entry = replace(entry, caption=text, clip_tokens=self._tokenizer.count(text))
        if entry != item.entry:
            self._append(item, entry)
        if item.task == WRITE:
            return self._write_text(item, entry)
        return entry

    def was_kept(self, item: Item) -> bool:
        """Tell whether the user made or edited the item's copy while this run went on."""
        return item.file in self._kept

    def abandon(self, items: Sequence[Item]) -> None:
        """Remove the copies that no caption came to (the run ends early), if they are as we wrote them."""
        there = OutputFolder(self._folder)
        for item in items:
            entry = self._manifest.entries.get(item.stem)
            if not item.claim or (entry is not None and entry.file == item.file):
                continue
            ours = self._copied[item.file][0] if item.file in self._copied else item.before
            if stamp(self._folder / item.file) != ours:
                continue
            if entry is not None or there.caption(item.stem) is None:
                with suppress(OSError):
                    (self._folder / item.file).unlink(missing_ok=True)

    def captions(self) -> dict[str, str]:
        """Return the caption of each image in the folder, whoever wrote it."""
        there = OutputFolder(self._folder)
        found = {}
        for path in list_images(self._folder).images:
            beside = there.caption(os.path.splitext(path.name)[0], path.name)
            if beside is not None and beside.text:
                found[path.name] = beside.text
        return found

    def write_prompt_cue(self, captions: Iterable[str]) -> tuple[list[str], bool]:
        """Write the key concepts of `captions`; returns them, and whether an older file was kept instead.

        A prompt cue that the user edited is kept, and so is one that was there before us.
        """
        from noukii.captioning.prompt_cue import key_concepts

        concepts = key_concepts(list(captions), self._options.keyword)
        name = f"prompt_cue-{self._options.keyword}.txt"
        with self._writing(self._folder / name):
            kept = not self._own.write(name, "".join(f"{concept}\n" for concept in concepts).encode())
        return concepts, kept

    def write_log(self, name: str, lines: Sequence[str]) -> str:
        """Write a log under `name`, or the next free name where the user has a file so called.

        Without lines our log of an earlier run is removed. Returns the name, empty without lines.
        """
        stem, ending = os.path.splitext(name)
        with self._writing(self._folder / name):
            for old in [other for other in self._state.own if other.startswith(stem)]:
                if not lines:
                    self._own.remove(old)
            number, free = 1, name
            while lines and not self._own.write(free, "".join(f"{line}\n" for line in lines).encode()):
                number += 1
                free = f"{stem}-{number}{ending}"
        return free if lines else ""

    def skipped(self, left_out: Sequence[Skipped]) -> list[tuple[str, str]]:
        """Keep and return (file, reason) of what was skipped; names as seen from the input folder."""
        root = self._options.folder
        found = [(printable(os.path.relpath(one.path, root)), one.reason) for one in left_out]
        self._state.skipped = [list(pair) for pair in found]
        return found

    def finish(self, work: Worklist) -> None:
        """Leave one line per image in the manifest, and a state without unfinished business."""
        with self._writing(self._folder / MANIFEST):
            self._manifest.compact(item.stem for item in work.items)
            self._state.claims = {}
            self._state.overwrite = None
            self._state.write(self._folder)

    def _caption(self, raw: str, finish_reason: str) -> str:
        """Return the .txt's text. --raw-captions: the model's own, if it is one line of text (R6).

        Line breaks and control characters, which a trainer stumbles over, become spaces.
        """
        options = self._options
        if options.raw_captions and raw.strip():
            if all(unicodedata.category(char) not in ("Cc", "Zl", "Zp") for char in raw):
                return raw
            text = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in raw)
            return " ".join(text.split())
        return finished_caption(
            raw, finish_reason == "length", options.keyword, self._tokenizer, options.max_caption_tokens
        )

    def _theirs(self, item: Item) -> Beside | None:
        """Look again beside an image that is about to get its caption: is there one that we did not write?"""
        beside = caption_now(self._folder, item.stem, item.file)
        if beside is None or (
            not beside.problem and same_text(beside.text) in self._manifest.wrote(item.stem)
        ):
            return None
        return beside

    def _take_note(self, item: Item, theirs: Beside) -> Entry:
        """Record a caption that the user wrote while this run went on."""
        entry = self._by_hand(replace(item, hand_text=theirs.text))
        self._append(item, entry)
        return entry

    def _by_hand(self, item: Item) -> Entry:
        text = same_text(item.hand_text)
        return Entry(
            **self._image_keys(item),
            model=None,
            prompt=None,
            seed=None,
            temperature=None,
            top_p=None,
            max_new_tokens=None,
            max_caption_tokens=None,
            keyword=self._options.keyword,
            raw="",
            caption=text,
            clip_tokens=self._tokenizer.count(text),
            finish_reason=HAND,
            tokens=0,
            seconds=0.0,
        )

    def _image_keys(self, item: Item) -> dict[str, object]:
        known = item.entry
        if known is not None and (not item.write_copy or item.file in self._kept):
            digest = known.file_sha256
        elif item.file in self._copied:
            digest = self._copied[item.file][1]  # not what lies there now: the user may have edited it
        else:
            digest = item.info.sha256 if item.info.as_is else files.sha256_file(self._folder / item.file)
        return {
            "file": item.file,
            "source": item.source,
            "sha256": item.info.sha256,
            "file_sha256": digest,
            "width": item.info.width,
            "height": item.info.height,
        }

    def _append(self, item: Item, entry: Entry) -> None:
        with self._writing(self._folder / MANIFEST):
            self._manifest.append(entry)
        if item.entry is not None and item.entry.file != entry.file:
            self._remove_replaced(entry.stem)

    def _remove_replaced(self, stem: str) -> None:
        """Remove the copies of a changed image that had another extension, unless they were edited."""
        now = self._manifest.entries[stem].file
        for entry in self._manifest.history[stem]:
            path = self._folder / entry.file
            if entry.file != now and path.is_file() and files.sha256_file(path) == entry.file_sha256:
                path.unlink()

    def _write_text(self, item: Item, entry: Entry) -> Entry:
        """Write the .txt, unless the user wrote one at the last moment; returns the entry that holds."""
        path = self._folder / f"{entry.stem}.txt"
        theirs: Beside | None = None
        with self._writing(path), suppress(_TheirsIsThere), files.whole_file(path) as temporary:
            with open(temporary, "wb") as stream:
                stream.write(entry.caption.encode("utf-8"))
                stream.flush()
                os.fsync(stream.fileno())  # the slow part, before the last look
            theirs = self._theirs(item)
            if theirs is not None:
                raise _TheirsIsThere
        return entry if theirs is None else self._take_note(item, theirs)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_failure(path, error, GO_ON, TEXT_BYTES) from None
