"""Writing files whole or not at all, and small questions about files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".noukii-tmp-"
"""Every unfinished file of ours starts so; a later run may remove what a killed one left."""


def _new_file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


NEW_FILE_MODE = _new_file_mode()
"""What a plain open() would give; read once, since asking changes it for all threads for a moment."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes that name once the block has ended well.

    The data is flushed to disk before the rename, so that a power cut leaves the old file or the
    new one. If the block raises, the temporary file is removed and `path` is untouched.
    """
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, suffix=path.suffix[:16], dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, NEW_FILE_MODE)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with the line ends it has, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of `source` to `target`, whole or not at all."""
    with whole_file(target) as temporary:
        shutil.copyfile(source, temporary)


def remove_temporaries(folder: Path) -> None:
    """Remove the unfinished files that a killed run of ours left in `folder` (one of our own)."""
    for entry in os.scandir(folder):
        if entry.name.startswith(TEMPORARY_PREFIX) and entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
