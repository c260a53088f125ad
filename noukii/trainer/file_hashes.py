"""The two hashes by which web interfaces know a base model, remembered from run to run."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from noukii import project
from noukii.files import sha256_file, write_text


def base_model_hashes(path: Path) -> tuple[str, str] | None:
    """Return (legacy 8 hex digits, SHA-256) of a single-file base model; None for a folder.

    The legacy hash is the first 8 digits of the SHA-256 of the 64 KiB at 1 MiB. Reading 4 GB takes
    seconds, so the answer is remembered under the file's path, size and time of change.
    """
    path = Path(path)
    if not path.is_file():
        return None
    facts = path.stat()
    key = json.dumps([os.fsdecode(path.resolve()), facts.st_size, facts.st_mtime_ns])
    remembered = _read_hashes()
    known = remembered.get(key)
    if isinstance(known, list) and len(known) == 2 and all(isinstance(part, str) for part in known):
        return known[0], known[1]
    with open(path, "rb") as stream:
        stream.seek(0x100000)
        legacy = hashlib.sha256(stream.read(0x10000)).hexdigest()[:8]
    hashes = legacy, sha256_file(path)
    kept = dict(list(remembered.items())[-50:])
    try:
        project.cache().mkdir(parents=True, exist_ok=True)
        write_text(_hash_cache(), json.dumps({**kept, key: hashes}, indent=1))
    except OSError:
        pass  # a cache that cannot be written costs seconds at the next run, nothing more
    return hashes


def _hash_cache() -> Path:
    return project.cache() / "base_model_hashes.json"


def _read_hashes() -> dict[str, Any]:
    try:
        found = json.loads(_hash_cache().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
