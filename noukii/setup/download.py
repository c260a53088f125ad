"""Fetch one file: resumed where an earlier run stopped, checked, and under its final name only when whole.

Unfinished bytes lie beside the target as `NAME.part`, with `NAME.part.json` saying what they are part of.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from noukii import files
from noukii.disk import write_failure
from noukii.errors import RunError
from noukii.progress import Progress
from noukii.setup import transport
from noukii.setup.transport import CannotResume, NothingLeft, Passing

BLOCK = 1 << 20
ATTEMPTS = 4
"""In a row without a single new byte; a connection that brings something starts the count again."""
PATIENT_ATTEMPTS = 10
"""The same, once this run has had bytes from there: about a minute and a half."""
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Wanted:
    """A file to fetch. `size` -1 and an empty `sha256` mean: not known beforehand."""

    location: str
    target: Path
    size: int = -1
    sha256: str = ""


@dataclass(frozen=True)
class Fetched:
    """A file that is there now."""

    path: Path
    size: int
    sha256: str


def fetch(wanted: Wanted, sleep: Callable[[float], None] = time.sleep) -> Fetched:
    """Bring a file to its place; an interrupted call is continued by the next.

    Raises:
        RunError: no network, no such file, a wrong size or checksum, a full disk.
    """
    part, note = _part(wanted.target)
    try:
        wanted.target.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        found = _fill(wanted, part, note, sleep)
        if resumed and _wrong(wanted, found):  # what lay there may have been spoilt: once more from the start
            part.unlink(missing_ok=True)
            found = _fill(wanted, part, note, sleep)
        if problem := _wrong(wanted, found):
            part.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
            raise RunError(
                transport.shown(wanted.location),
                problem,
                "run it again to fetch it anew; if it stays so, name another source",
            )
        with open(part, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(part, wanted.target)
        note.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM):
            raise write_failure(part, error, "make room there; what has arrived is kept") from None
        raise
    return Fetched(wanted.target, found[0], found[1])


def bytes_there(target: Path) -> int:
    """Return how much of `target` an interrupted download has left."""
    part = _part(target)[0]
    return part.stat().st_size if part.is_file() else 0


def _part(target: Path) -> tuple[Path, Path]:
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")


def _wrong(wanted: Wanted, found: tuple[int, str]) -> str:
    size, sha256 = found
    if wanted.size >= 0 and size != wanted.size:
        return f"has {size:,} bytes, {wanted.size:,} are expected"
    if wanted.sha256 and sha256 != wanted.sha256:
        return f"has the wrong checksum: SHA-256 {sha256}, expected {wanted.sha256}"
    return ""


def _fill(wanted: Wanted, part: Path, note: Path, sleep: Callable[[float], None]) -> tuple[int, str]:
    """Write the whole source to `part`; returns size and SHA-256."""
    digest, offset, tag = _resume_point(wanted, part, note)
    idle, attempts = 0, ATTEMPTS
    while True:
        before = offset
        try:
            # With a checksum the end tells; a mirror or CDN may tag the same file in another way each day.
            with transport.opened(wanted.location, offset, None if wanted.sha256 else tag) as answer:
                if answer.tag != tag or not note.exists():
                    tag = answer.tag
                    files.write_text(note, json.dumps({"location": wanted.location, "tag": tag}) + "\n")
                offset = _copy(wanted, answer, part, offset, digest)
            if answer.total < 0 or offset >= answer.total:
                return offset, digest.hexdigest()
            problem = "the connection ended early"
        except NothingLeft:  # killed between the last byte and the new name
            if wanted.sha256:
                return offset, digest.hexdigest()
            digest, offset, tag = hashlib.sha256(), 0, ""  # nothing tells whether it is still the same file
            part.unlink(missing_ok=True)
            continue
        except CannotResume:
            digest, offset, tag = hashlib.sha256(), 0, ""
            part.unlink(missing_ok=True)
            continue
        except Passing as passing:
            problem = str(passing)
        except _Broken as broken:
            offset, problem = broken.offset, str(transport.fault(wanted.location, broken.cause))
        idle, attempts = (0, PATIENT_ATTEMPTS) if offset > before else (idle + 1, attempts)
        if idle >= attempts:
            raise RunError(
                transport.shown(wanted.location),
                f"{problem} ({attempts} attempts)",
                "check network and proxy (https_proxy); what has arrived is kept",
            )
        if idle > 1:
            print(f"  {problem}; trying again", flush=True)
        sleep(min(2.0**idle, 64) / 4)


class _Broken(Exception):
    """The connection broke in the middle of a file."""

    def __init__(self, offset: int, cause: BaseException) -> None:
        self.offset, self.cause = offset, cause


def _resume_point(wanted: Wanted, part: Path, note: Path):  # type: ignore[no-untyped-def]
    """Return (SHA-256 so far, bytes so far, tag of the source) of what an earlier run has left."""
    digest = hashlib.sha256()
    try:
        said = json.loads(note.read_text(encoding="utf-8"))
        offset = part.stat().st_size
    except (OSError, ValueError):
        said, offset = {}, 0
    if not isinstance(said, dict) or said.get("location") != wanted.location or not offset:
        part.unlink(missing_ok=True)
        return digest, 0, ""
    print(f"  going on after {offset / MEGABYTE:,.0f} MB", flush=True)
    with open(part, "rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest, offset, str(said.get("tag", ""))


def _copy(wanted: Wanted, answer: transport.Answer, part: Path, offset: int, digest) -> int:  # type: ignore[no-untyped-def]
    total = max(answer.total, wanted.size, offset)
    count = offset // MEGABYTE
    with (
        open(part, "ab") as output,
        Progress(f"  {wanted.target.name}", max(1, total // MEGABYTE), "MB", done=count) as progress,
    ):
        while True:
            try:
                block = answer.stream.read1(BLOCK)  # what has arrived: a stall loses nothing
            except (OSError, http.client.HTTPException) as error:
                raise _Broken(offset, error) from None
            if not block:
                return offset
            output.write(block)
            output.flush()
            digest.update(block)
            offset += len(block)
            if offset // MEGABYTE > count:
                progress.advance(offset // MEGABYTE - count)
                count = offset // MEGABYTE
