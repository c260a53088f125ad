"""captions.jsonl and .noukii.json: what we wrote into an output folder, whole after any kill.

captions.jsonl is a log while a run lasts: one flushed line per caption, a later line of the same
stem replaces an earlier one, and a last line that a kill cut off is dropped. A run that ends well
rewrites it once, one line per image. A caption's line stands before its .txt, so a .txt whose text
is in no line was written by the user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from noukii import files

MANIFEST = "captions.jsonl"
STATE = ".noukii.json"

ENOUGH = "enough"
"""`finish_reason` of an answer that was ended because its caption was full."""
HAND = "hand"
"""`finish_reason` of a caption that the user wrote and that we only took note of."""


@dataclass(frozen=True)
class Entry:
    """One line of captions.jsonl. Fields of the model are None where the user wrote the caption."""

    file: str
    source: str
    sha256: str
    file_sha256: str
    width: int
    height: int
    model: str | None
    prompt: str | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    max_new_tokens: int | None
    max_caption_tokens: int | None
    """CLIP tokens the caption might use; None for --raw-captions and hand-written ones."""
    keyword: str
    raw: str
    caption: str
    clip_tokens: int
    finish_reason: str
    tokens: int
    seconds: float
    model_id: str | None = None
    """Fingerprint of the model's files; None in lines from before there was one."""

    @property
    def stem(self) -> str:
        return os.path.splitext(self.file)[0]

    def to_line(self) -> str:
        """Return the entry as one line of JSON; names that are not UTF-8 become escapes."""
        line = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            line = json.dumps(asdict(self), allow_nan=False)
        return line + "\n"


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}


def parse_entry(line: str) -> Entry | None:
    """Return the entry of one line; None if it is not one of ours (cut off, edited, climbing out)."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    known = {}
    for key in fields(Entry):
        found = value.get(key.name)
        if not isinstance(found, _TYPES[str(key.type)]) or isinstance(found, bool):
            return None
        known[key.name] = found
    entry = Entry(**known)
    climbs = "/" in entry.file or "\0" in entry.file or entry.stem in ("", ".", "..")
    return None if climbs else entry


@dataclass
class Manifest:
    """The log of one output folder, read into memory."""

    folder: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    """The newest entry of each stem."""
    history: dict[str, list[Entry]] = field(default_factory=dict)
    """All entries of each stem, oldest first."""
    places: dict[str, int] = field(default_factory=dict)
    """Where in the log, in bytes, the newest entry of each stem begins."""
    damaged: int = 0
    """Lines that are not entries, the unfinished last one not counted."""
    length: int = 0
    """Bytes up to the end of the last whole line."""
    open_line: bool = False
    """The last line is whole but for its line end (an editor took it off)."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read `folder`/captions.jsonl; a missing file is an empty log."""
        manifest = cls(folder)
        try:
            data = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            return manifest
        for line in data.split(b"\n"):
            text = line.decode("utf-8", "replace")
            entry = parse_entry(text)
            unfinished = manifest.length + len(line) == len(data)  # no line end follows
            if entry is not None:
                manifest._take(entry, manifest.length)
            elif unfinished:
                break
            elif text.strip():
                manifest.damaged += 1
            manifest.length += len(line) + (not unfinished)
        manifest.open_line = manifest.length > 0 and data[manifest.length - 1 : manifest.length] != b"\n"
        return manifest

    def append(self, entry: Entry) -> None:
        """Add a line and flush it to the disk."""
        line = b"\n" * self.open_line + entry.to_line().encode()
        handle = os.open(self.folder / MANIFEST, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(handle, self.length)  # drops the line that a kill cut off
            os.lseek(handle, self.length, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            os.fsync(handle)
        finally:
            os.close(handle)
        self._take(entry, self.length)
        self.length += len(line)
        self.open_line = False

    def wrote(self, stem: str) -> set[str]:
        """Return every caption that we ever wrote for `stem`, in the form `same_text` compares."""
        return {
            same_text(entry.caption) for entry in self.history.get(stem, []) if entry.finish_reason != HAND
        }

    def compact(self, order: Iterable[str]) -> None:
        """Rewrite the log with one line per stem: those of `order` first, the others after them."""
        path = self.folder / MANIFEST
        if self.damaged:
            files.copy_file(path, _free_name(self.folder / f"{MANIFEST}.damaged"))
        stems = dict.fromkeys([*(stem for stem in order if stem in self.entries), *sorted(self.entries)])
        text = "".join(self.entries[stem].to_line() for stem in stems)
        data = text.encode()
        if not path.exists() or path.read_bytes() != data:
            files.write_bytes(path, data)

    def _take(self, entry: Entry, place: int) -> None:
        self.entries[entry.stem] = entry
        self.history.setdefault(entry.stem, []).append(entry)
        self.places[entry.stem] = place


def _free_name(path: Path) -> Path:
    number = 1
    while (free := path if number == 1 else path.with_name(f"{path.name}{number}")).exists():
        number += 1
    return free


def same_text(text: str) -> str:
    """Return `text` so that two captions are equal if only their white space differs."""
    return " ".join(text.replace("\ufeff", "").split())


@dataclass
class State:
    """What a run must know about an output folder and what captions.jsonl has no place for."""

    input: str = ""
    """SHA-256 of the input folder's path: tells an edited image from another folder's namesake."""
    claims: dict[str, str] = field(default_factory=dict)
    """Source -> stem of the images that the running or killed run is about to write."""
    own: dict[str, list[str]] = field(default_factory=dict)
    """Prompt cue, review page, log -> SHA-256 as we wrote it (two while it is being replaced)."""
    overwrite: dict[str, object] | None = None
    """Of an unfinished --overwrite: its settings, and the log's length when it began."""
    skipped: list[list[str]] = field(default_factory=list)
    """[file, reason] of what the last run that ended has skipped, for the page."""

    @classmethod
    def read(cls, folder: Path) -> State:
        """Read `folder`/.noukii.json; a missing or foreign file is an empty state."""
        try:
            value = json.loads((folder / STATE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return cls()
        if not isinstance(value, dict):
            return cls()
        claims, own, overwrite = (value.get(key) for key in ("claims", "own", "overwrite"))
        return cls(
            input=value["input"] if isinstance(value.get("input"), str) else "",
            claims=claims if isinstance(claims, dict) and _plain(claims) else {},
            own={
                name: [text for text in hashes if isinstance(text, str)]
                for name, hashes in (own.items() if isinstance(own, dict) else ())
                if isinstance(hashes, list)
            },
            overwrite=overwrite if isinstance(overwrite, dict) else None,
            skipped=[
                pair
                for pair in (value.get("skipped") if isinstance(value.get("skipped"), list) else [])
                if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            ],
        )

    def write(self, folder: Path) -> None:
        """Write the state, whole or not at all; nothing is touched if it says the same already."""
        data = (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()
        path = folder / STATE
        if not path.exists() or path.read_bytes() != data:
            files.write_bytes(path, data)


def _plain(claims: dict[str, object]) -> bool:
    return all(isinstance(stem, str) and "/" not in stem and "\0" not in stem for stem in claims.values())
