"""Everything a captioning run writes into its output folder, in an order that survives any kill.

For each image: the claim to its name (.noukii.json), the image, the manifest's line, the .txt. So a
file without a line is either claimed, and written again, or the user's, and left alone.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from noukii import files
from noukii.captioning.manifest import HAND, MANIFEST, Entry, Manifest, State, same_text
from noukii.captioning.options import CaptionOptions
from noukii.captioning.output_folder import OutputFolder
from noukii.captioning.wording import finished_part, training_caption
from noukii.captioning.worklist import (
    DESCRIBE,
    KEEP,
    WRITE,
    Item,
    Worklist,
    caption_settings,
)
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.images import UnusableImage, list_images, write_training_copy
from noukii.disk import write_failure

GO_ON = "make room or rights there, then run the same command: it goes on where this one ended"


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

    def begin(self, work: Worklist) -> None:
        """Clear what a killed run left, and claim the names of the images to come."""
        with self._writing(self._folder):
            files.remove_temporaries(self._folder)
            for path in work.leftovers:
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

        Raises:
            UnusableImage: the source is gone or changed, or another file has the copy's name.
            RunError: the copy could not be written.
        """
        path = self._folder / item.file
        if not item.write_copy:
            return path
        ours = item.claim or (item.entry is not None and item.entry.file == item.file)
        if path.exists() and not ours:
            raise UnusableImage(f"the output folder holds another file named {item.file}")
        try:
            return write_training_copy(item.info, self._folder, item.stem)
        except OSError as error:
            if not os.access(item.info.path, os.R_OK):
                raise UnusableImage(f"cannot be read ({error.strerror})") from None
            raise write_failure(path, error, GO_ON) from None

    def describe(self, item: Item, raw: str, finish_reason: str, tokens: int, seconds: float) -> Entry:
        """Record the model's text for an image whose copy is there, and write its .txt."""
        options = self._options
        caption = self._caption(raw, finish_reason)
        entry = Entry(
            **self._image_keys(item),
            model=options.model.resolve().name,
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
        self._write_text(entry)
        return entry

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
            self._write_text(entry)
        return entry

    def abandon(self, items: Sequence[Item]) -> None:
        """Remove the copies that no caption came to (the run ends early); ours by their claim."""
        there = OutputFolder(self._folder)
        for item in items:
            entry = self._manifest.entries.get(item.stem)
            if not item.claim or (entry is not None and entry.file == item.file):
                continue
            if entry is not None or there.caption(item.stem) is None:
                with suppress(OSError):
                    (self._folder / item.file).unlink(missing_ok=True)

    def write_prompt_cue(self) -> tuple[list[str], bool]:
        """Write the key concepts of all captions in the folder; returns them, and whether they were kept.

        A prompt cue that the user edited is kept, and so is one that was there before us.
        """
        from noukii.captioning.prompt_cue import key_concepts

        there = OutputFolder(self._folder)
        captions = []
        for path in list_images(self._folder).images:
            beside = there.caption(os.path.splitext(path.name)[0], path.name)
            if beside is not None and beside.text:
                captions.append(beside.text)
        concepts = key_concepts(captions, self._options.keyword)
        path = self._folder / f"prompt_cue-{self._options.keyword}.txt"
        data = "".join(f"{concept}\n" for concept in concepts).encode()
        digest = hashlib.sha256(data).hexdigest()
        with self._writing(path):
            found = files.sha256_file(path) if path.exists() else ""
            if found and path.read_bytes().strip() and found not in {*self._state.prompt_cue, digest}:
                return concepts, True
            self._state.prompt_cue = list(dict.fromkeys([*self._state.prompt_cue[-1:], digest]))
            self._state.write(self._folder)  # first the hash: what a kill leaves is then known as ours
            if found != digest:
                files.write_bytes(path, data)
            self._state.prompt_cue = [digest]
        return concepts, False

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
        text = finished_part(raw) if finish_reason == "length" else raw
        return training_caption(text, options.keyword, self._tokenizer, options.max_caption_tokens)

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
        if known is not None and not item.write_copy:
            digest = known.file_sha256
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

    def _write_text(self, entry: Entry) -> None:
        path = self._folder / f"{entry.stem}.txt"
        with self._writing(path):
            files.write_text(path, entry.caption)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_failure(path, error, GO_ON) from None
