"""`run_captioning.sh --apply captions.jsonl FOLDER`: captions that were edited in review.html come back.

The page saves one line of JSON per edited caption: the image's `file`, the new `caption`, and what stood
there `before`; where the page has been saved more than once, also what it had put into `earlier` files. All
lines are checked first; if one is not what the page saves, nothing is written. An edit that cannot be used
(its image is gone since, say) is left out and named, and so is one whose caption was changed on the disk
since the page was made. What is written is the .txt alone: captions.jsonl keeps what the model said, and a
.txt that differs from it counts as edited by hand from then on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noukii import files
from noukii.captioning.manifest import MANIFEST, STATE, Manifest, State, same_text
from noukii.captioning.options import PROGRAM
from noukii.captioning.own_files import OwnFiles
from noukii.clip_tokens import ClipTokenizer
from noukii.command_line import Parser
from noukii.dataset.captions import CAPTION_EXTENSIONS, UnreadableCaption, find_captions, read_caption
from noukii.dataset.images import list_images, picture_stem
from noukii.disk import write_failure
from noukii.errors import InputError
from noukii.lock import folder_lock
from noukii.names import printable

FLAG = "--apply"
KEYS = ("file", "caption", "before")
MAX_FILE_BYTES = 100_000_000
MAX_TOKENS = 225
"""The most CLIP tokens that any SD1.5 trainer reads; a longer text in a caption's place is something else."""

MAX_CHARACTERS = 20_000
LISTED = 10
_NUMBER = re.compile(r" ?\(\d+\)$|[-_ ]\d+$")
"""What a browser puts behind the name of a second download."""


@dataclass(frozen=True)
class ApplyOptions:
    """What is to be applied where. Paths are absolute."""

    edits: Path
    folder: Path
    overwrite: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Edit:
    """One line: the image's name, its new caption in one line, and the caption that the page showed.

    `earlier`: captions that the same page has saved before; one of them may have been applied.
    """

    line: int
    file: str
    caption: str
    before: str
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """An edit with the caption file that it belongs to and what stands there now ("" if nothing)."""

    edit: Edit
    path: Path
    now: str

    @property
    def is_done(self) -> bool:
        return same_text(self.now) == same_text(self.edit.caption)

    @property
    def has_changed(self) -> bool:
        """Whether the caption is not the one any more that the page showed, nor one that it has saved."""
        known = map(same_text, (self.edit.before, *self.edit.earlier))
        return same_text(self.now) not in known


def is_asked(arguments: Sequence[str]) -> bool:
    """Tell whether a command line asks for --apply."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(word == FLAG or word.startswith(f"{FLAG}=") for word in flags)


def parse(arguments: Sequence[str]) -> ApplyOptions:
    """Read `--apply FILE FOLDER [--overwrite] [--dry-run]`.

    Raises:
        InputError: something else was given, or the file or the folder is not there.
    """
    parser = Parser(prog=PROGRAM, usage=f"{PROGRAM} {FLAG} captions.jsonl FOLDER")
    parser.add_argument(FLAG, metavar="FILE", required=True)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("folder", nargs="*")
    found, others = parser.parse_known_intermixed_args(list(arguments))
    usage = f"{PROGRAM} {FLAG} captions.jsonl FOLDER"
    if others:
        raise InputError(others[0].partition("=")[0], f"has no meaning with {FLAG}", usage)
    if len(found.folder) != 1 or not found.folder[0]:
        what = "which folder?" if not found.folder else "names one folder and nothing else"
        raise InputError(FLAG, what, usage)
    edits, folder = (Path(text).expanduser().absolute() for text in (found.apply, found.folder[0]))
    if not edits.is_file():
        reason = "is a folder, not a file" if edits.is_dir() else "there is no such file"
        raise InputError(edits, reason, "name the file that the page's Save button has downloaded")
    if not folder.is_dir():
        raise InputError(folder, "there is no such folder", "name the folder that holds review.html")
    return ApplyOptions(edits, folder, found.overwrite, found.dry_run)


def apply(options: ApplyOptions) -> int:
    """Write the edited captions; returns 0, or 1 if one was left out or kept as it had changed on the disk.

    Raises:
        InputError: the folder is none of ours, a line is not what the page saves, or no edit at all can be
            used; nothing was written.
        RunError: a caption could not be written; those before it are.
    """
    folder = options.folder
    if not any((folder / name).is_file() for name in (MANIFEST, STATE)):
        raise InputError(
            folder,
            "was not written by this command (it has no captions.jsonl), and your own folders are only read",
            "name the folder that holds review.html",
        )
    with folder_lock(folder, f"{PROGRAM} {FLAG}"):
        edits, left_out = read_edits(options.edits)
        targets, unusable = _targets(folder, edits)
        left_out += unusable
        if not targets:
            raise _refusal(options.edits, left_out)
        changed = [one for one in targets if one.has_changed and not one.is_done]
        kept = [] if options.overwrite else changed
        wanted = [one for one in targets if not one.is_done and one not in kept]
        if not options.dry_run:
            for target in wanted:
                _write(target)
            if wanted:
                _renew(folder)
    _tell(options, targets, wanted, changed, left_out)
    return 1 if kept or left_out else 0


def read_edits(path: Path) -> tuple[list[Edit], list[str]]:
    """Return the edits of a file, and of those that no trainer could use why; every line is looked at.

    Raises:
        InputError: naming the lines that are not what the page saves, and why.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InputError(path, f"{size} bytes are too many for edited captions", "save the page again")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check its permissions") from None
    edits: dict[str, Edit] = {}
    problems: list[str] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            edit = _edit(number, line)
            earlier = edits.setdefault(edit.file, edit)
            if same_text(earlier.caption) != same_text(edit.caption):
                raise ValueError(f"line {earlier.line} has another caption for {printable(edit.file)}")
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        raise _refusal(path, problems)
    if not edits:
        raise InputError(path, "holds no edited caption", "edit one in review.html and save again")
    tokenizer = ClipTokenizer.bundled()
    usable, too_long = [], []
    for edit in edits.values():
        tokens = tokenizer.count(edit.caption)
        if tokens <= MAX_TOKENS:
            usable.append(edit)
        else:
            too_long.append(
                f"{printable(edit.file)}: {tokens} CLIP tokens; no trainer reads more than {MAX_TOKENS},"
                " shorten it"
            )
    return usable, too_long


def _edit(number: int, line: bytes) -> Edit:
    """Return one line's edit; ValueError says what is wrong with it."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise ValueError("is not JSON (cut off?)") from None
    if not isinstance(value, dict):
        raise ValueError("is not an edited caption")
    texts = [value.get(key) for key in KEYS]
    if not all(isinstance(text, str) for text in texts):
        missing = ", ".join(key for key, text in zip(KEYS, texts, strict=True) if not isinstance(text, str))
        raise ValueError(f"lacks {missing}; only what review.html saves can be applied")
    name, caption, before = texts
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"'{printable(name[:100])}' is not the name of an image in the folder")
    if not caption.strip():
        raise ValueError(
            f"{printable(name)}: the caption is empty (to have it written anew, delete its .txt and caption"
            " the folder again)"
        )
    if len(caption) > MAX_CHARACTERS:
        raise ValueError(f"{printable(name)}: {len(caption)} characters are no caption")
    caption = same_text(caption)
    if bad := next((char for char in caption if not _is_text(char)), None):
        raise ValueError(f"{printable(name)}: the character {bad!a} is no text")
    earlier = value.get("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(text, str) for text in earlier):
        raise ValueError("is not an edited caption")
    return Edit(number, name, caption, before, tuple(earlier))


def _is_text(char: str) -> bool:
    return char >= " " and not "\x7f" <= char < "\xa0" and not "\ud800" <= char < "\ue000"


def _targets(folder: Path, edits: Sequence[Edit]) -> tuple[list[Target], list[str]]:
    """Find the caption file of each edit; of those that have none, say why."""
    images = {path.name: path for path in list_images(folder).images}
    captions = find_captions(images.values(), CAPTION_EXTENSIONS)
    targets, problems = [], []
    for edit in edits:
        image = images.get(edit.file)
        if image is None:
            problems.append(f"there is no image {printable(edit.file)} in the folder (renamed, deleted?)")
            continue
        path = captions[image]
        now = ""
        if path is not None:
            try:
                now = read_caption(path).text
            except UnreadableCaption as error:
                problems.append(f"{printable(path.name)}: {error}")
                continue
        targets.append(Target(edit, path or folder / f"{picture_stem(image.name)}.txt", now))
    return targets, problems


def _listed(problems: Sequence[str]) -> list[str]:
    more = [f"… and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
    return [*problems[:LISTED], *more]


def _refusal(where: Path, problems: Sequence[str]) -> InputError:
    listed = "".join(f"\n  {line}" for line in _listed(problems))
    return InputError(
        where,
        f"nothing was written, as something is wrong with it:{listed}",
        "open the folder's review.html, edit and save again",
    )


def _write(target: Target) -> None:
    try:
        files.write_text(target.path, target.edit.caption)
    except OSError as error:
        raise write_failure(target.path, error, "make room or rights there, then apply it again") from None


def _renew(folder: Path) -> None:
    """Write our page and our prompt cues anew, so that they show the captions as they are now."""
    from noukii.captioning.prompt_cue import key_concepts
    from noukii.report.review import PAGE, write_review

    manifest, state = Manifest.read(folder), State.read(folder)
    own = OwnFiles(folder, state)
    texts = _captions(folder)
    for keyword in sorted({entry.keyword for entry in manifest.entries.values()}):
        name = f"prompt_cue-{keyword}.txt"
        if name in state.own and own.is_free(name):
            concepts = key_concepts(texts, keyword)
            own.write(name, "".join(f"{concept}\n" for concept in concepts).encode())
    if not own.is_free(PAGE):
        print(f"{PAGE} is not as this command wrote it and is kept; it does not show these edits")
        return
    with own.writing(PAGE):
        write_review(folder, [(name, reason) for name, reason in state.skipped])


def _captions(folder: Path) -> list[str]:
    """Return every caption of the folder that can be read and is not empty."""
    texts = []
    for path in find_captions(list_images(folder).images, CAPTION_EXTENSIONS).values():
        with suppress(UnreadableCaption):
            if path is not None and (text := read_caption(path).text):
                texts.append(text)
    return texts


def _tell(
    options: ApplyOptions,
    targets: Sequence[Target],
    wanted: Sequence[Target],
    changed: Sequence[Target],
    left_out: Sequence[str],
) -> None:
    done = sum(target.is_done for target in targets)
    would = "would be written" if options.dry_run else "written"
    count = f"{len(wanted)} caption" + ("" if len(wanted) == 1 else "s")
    print(f"{count} {would}" + (f", {done} were so already" if done else ""))
    limit = _token_limit(options.folder)
    tokenizer = ClipTokenizer.bundled()
    for target in wanted:
        tokens = tokenizer.count(target.edit.caption)
        if tokens > limit:
            print(f"  {printable(target.path.name)}: {tokens} CLIP tokens, the trainer reads {limit}")
    for target in changed:
        fate = "replaced as --overwrite asks" if options.overwrite else "kept"
        print(f"  {printable(target.path.name)} was changed since the page was made, and is {fate}:")
        print(f"    in the folder: {printable(target.now) or '(no caption)'}")
        print(f"    in the page:   {printable(target.edit.caption)}")
    if changed and not options.overwrite:
        print("  to take the page's captions all the same: the same command with --overwrite")
    if left_out:
        print(f"  left out, {len(left_out)}:")
        for line in _listed(left_out):
            print(f"    {line}")
    if done == len(targets) and (newer := _newer_download(options.edits)):
        print(f"  {printable(newer.name)} beside it is newer: if you saved again, apply that one")
    print(f"captions and images: {printable(os.fspath(options.folder))}")


def _newer_download(edits: Path) -> Path | None:
    """Return the newest file beside `edits` that is the same download again, as browsers number them."""
    plain = _NUMBER.sub("", edits.stem)
    try:
        beside = [
            path
            for path in edits.parent.iterdir()
            if path.suffix == edits.suffix and _NUMBER.sub("", path.stem) == plain and path.is_file()
        ]
        newest = max(beside, key=lambda path: path.stat().st_mtime_ns)
        return newest if newest.stat().st_mtime_ns > edits.stat().st_mtime_ns else None
    except (OSError, ValueError):
        return None


def _token_limit(folder: Path) -> int:
    """Return how many CLIP tokens the folder's captions may have."""
    known = [entry.max_caption_tokens for entry in Manifest.read(folder).entries.values()]
    return max((limit for limit in known if limit), default=75)
