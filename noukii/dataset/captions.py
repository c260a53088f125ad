"""Caption files: which one belongs to a picture, and its text as one line of UTF-8.

The text is kept letter for letter: brackets, weights, braces and quotes mean nothing special in
training. Only what a trainer would lose or choke on is mended: byte-order marks, other encodings
and line breaks (sd-scripts reads the first line only).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii.dataset.stems import picture_stem

CAPTION_EXTENSIONS = (".txt", ".caption")

MAX_CAPTION_BYTES = 1_000_000

_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_CONTROL = re.compile("[\0-\x08\x0e-\x1b\x1f\x7f]")
_LORA = re.compile(r"<(lora|lyco|hypernet):[^>]*>", re.IGNORECASE)
_NO_CAPTION = re.compile(r"\.|prompt_cue-|(read ?me|licen[cs]e|notice|noukii)\b", re.IGNORECASE)
"""How the names of texts begin that lie beside pictures and are no captions."""
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8", "byte-order mark removed"),
    (b"\xff\xfe\0\0", "utf-32-le", "converted from UTF-32"),
    (b"\0\0\xfe\xff", "utf-32-be", "converted from UTF-32"),
    (b"\xff\xfe", "utf-16-le", "converted from UTF-16"),
    (b"\xfe\xff", "utf-16-be", "converted from UTF-16"),
)


class UnreadableCaption(Exception):
    """A caption file whose text cannot be known; str() is the reason, with the byte position."""


@dataclass(frozen=True)
class Caption:
    """One line of text; `notes` say what was changed to get it."""

    text: str
    path: Path
    notes: tuple[str, ...]


def find_caption(image: Path, extensions: Sequence[str] = CAPTION_EXTENSIONS) -> Path | None:
    """Return the caption file of `image`, or None.

    For `img.png` that is `img.png.txt` (it can mean no other picture), else `img.txt`, in any letter
    case of the extension; the same for each further extension. A caption of any other name is never
    used: sd-scripts takes `trip.txt` for `trip_2024_01_02_03.png`, and it belongs to another picture.
    """
    return find_captions([image], extensions)[image]


def find_captions(
    images: Iterable[Path], extensions: Sequence[str] = CAPTION_EXTENSIONS
) -> dict[Path, Path | None]:
    """Return each image's caption file as `find_caption` does; every folder is read once."""
    folders: dict[Path, dict[str, list[str]]] = {}
    found: dict[Path, Path | None] = {}
    for image in images:
        folder = image.parent
        if folder not in folders:
            folders[folder] = _names_by_lower_extension(folder, extensions)
        found[image] = _find_in(folders[folder], image, extensions)
    return found


@dataclass(frozen=True)
class UnusedCaptions:
    """Caption files of a folder that no picture takes its text from."""

    strays: tuple[Path, ...]
    """No picture, not even one that cannot be used, has this name."""
    seconds: tuple[Path, ...]
    """The picture has another caption file, with another text, that comes first."""


def unused_captions(
    folder: Path, found: Mapping[Path, Path | None], extensions: Sequence[str] = CAPTION_EXTENSIONS
) -> UnusedCaptions:
    """Return the caption files of `folder` that are in none of `found` (what `find_captions` returned).

    The caption of a picture that is skipped is not among them: the picture is named already.
    """
    names = _names_by_lower_extension(folder, extensions)
    captions = {name for same in names.values() for name in same}
    owners = {image.name: source for image, source in found.items()}
    owners |= {picture_stem(image.name): source for image, source in found.items()}
    try:
        others = [entry.name for entry in os.scandir(folder) if entry.name not in captions]
    except OSError:
        others = []
    known = {*others, *map(picture_stem, others)}
    taken = {source.name for source in found.values() if source is not None}
    strays, seconds = [], []
    for name in sorted(captions - taken):
        base = os.path.splitext(name)[0]
        source = owners.get(base)
        if source is not None:
            if not _same_bytes(folder / name, source):
                seconds.append(folder / name)
        elif base not in known and not _NO_CAPTION.match(name):
            strays.append(folder / name)
    return UnusedCaptions(tuple(strays), tuple(seconds))


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _names_by_lower_extension(folder: Path, extensions: Sequence[str]) -> dict[str, list[str]]:
    """Map `stem + extension in lower case` to the real file names, the exact one first."""
    wanted = tuple(extension.lower() for extension in extensions)
    names: dict[str, list[str]] = {}
    try:
        entries = sorted(entry.name for entry in os.scandir(folder) if _is_file(entry))
    except OSError:
        return names
    for name in entries:
        for extension in wanted:
            if name[-len(extension) :].lower() == extension:
                names.setdefault(name[: -len(extension)] + extension, []).append(name)
    for key, same in names.items():
        same.sort(key=lambda name: (name != key, name))
    return names


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _find_in(names: dict[str, list[str]], image: Path, extensions: Sequence[str]) -> Path | None:
    for extension in extensions:
        for stem in (image.name, picture_stem(image.name)):
            if same := names.get(stem + extension.lower()):
                return image.parent / (stem + extension if stem + extension in same else same[0])
    return None


def read_caption(path: Path) -> Caption:
    """Return a caption file's text as one line.

    UTF-8 with or without a byte-order mark and UTF-16 are read as they are; text that is not UTF-8 is
    taken as Windows-1252 where it looks like a Western language, with a note.

    Raises:
        UnreadableCaption: naming the first byte that does not fit.
    """
    try:
        size = os.stat(path).st_size
        if size > MAX_CAPTION_BYTES:
            raise UnreadableCaption(f"{size} bytes, too large for a caption")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableCaption(f"cannot be read ({error.strerror})") from None
    text, notes = _decode(data)
    lines = [line.strip() for line in _LINE_END.split(text)]
    lines = [line for line in lines if line]
    if len(lines) > 1:
        notes.append(f"{len(lines)} lines joined into one")
    if not lines:
        notes.append("empty")
    caption = " ".join(lines)
    if control := _CONTROL.search(caption):
        raise UnreadableCaption(_control_reason(data, control.group()))
    if _LORA.search(caption):
        notes.append("<lora:…> has no meaning in training; it is learned as plain words")
    return Caption(caption, path, tuple(notes))


def _control_reason(data: bytes, char: str) -> str:
    position = max(data.find(ord(char)), 0)
    return f"byte 0x{ord(char):02x} at position {position} is no text; save the caption as UTF-8"


def _decode(data: bytes) -> tuple[str, list[str]]:
    for mark, encoding, note in _MARKS:
        if data.startswith(mark):
            return _decode_marked(data, mark, encoding), [note]
    if encoding := _utf16_without_mark(data):
        try:
            return data.decode(encoding), ["converted from UTF-16"]
        except UnicodeDecodeError:
            pass
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError as error:
        text = _western(data)
        if text is None:
            raise UnreadableCaption(
                f"byte 0x{data[error.start]:02x} at position {error.start} is not UTF-8, and the text"
                " does not look like Windows-1252 either; save the caption as UTF-8"
            ) from None
        return text, ["converted from Windows-1252"]


def _decode_marked(data: bytes, mark: bytes, encoding: str) -> str:
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        position = len(mark) + error.start
        raise UnreadableCaption(
            f"byte 0x{data[position]:02x} at position {position} is not {encoding[:6].upper()}, which the"
            " file's first bytes announce; save the caption as UTF-8"
        ) from None


def _utf16_without_mark(data: bytes) -> str | None:
    """Recognise UTF-16 of mostly Latin text: every second byte is zero, and no other."""
    if len(data) < 4 or len(data) % 2:
        return None
    even, odd = data[0::2], data[1::2]
    if odd.count(0) > 0.8 * len(odd) and 0 not in even:
        return "utf-16-le"
    return "utf-16-be" if even.count(0) > 0.8 * len(even) and 0 not in odd else None


def _western(data: bytes) -> str | None:
    """Decode as Windows-1252 where that is likely: accents and curly quotes stand among plain letters.

    Shift-JIS, GBK or Cyrillic code pages have long runs of bytes above 127; turned into Windows-1252
    they would be trained as gibberish.
    """
    high = sum(byte > 127 for byte in data)
    if high > 0.3 * len(data) or re.search(rb"[\x80-\xff]{4}", data):
        return None
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return None
