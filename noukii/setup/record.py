"""What setup.sh brought, noted beside it: where it came from, and what it was when it was checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from noukii import files

JANUS_RECORD = ".noukii-source.json"
BASE_MODEL_RECORD = ".noukii-base-model.json"
UPSTREAM_RECORD = ".noukii-upstream.json"


def read(path: Path) -> dict[str, Any]:
    """Return a record; empty if there is none or it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A path may hold bytes that are not UTF-8; they come back as they were.
    files.write_bytes(path, text.encode("utf-8", "surrogateescape"))
