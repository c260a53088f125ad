"""Which model made a caption: a fingerprint of a model folder, taken in milliseconds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from noukii.captioning.janus_files import weight_files
from noukii.errors import InputError

SMALL_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
END_BYTES = 1 << 20
SAMPLES, SAMPLE_BYTES = 16, 1 << 16


def model_id(folder: Path) -> str | None:
    """Return 16 hex digits that differ for models that answer differently; None without a whole model.

    Taken from the settings, the tokenizer, and of each weight file the size, the first and the last
    MiB (a safetensors header; the checksums of all tensors in a torch file) and samples between them.
    The folder's name and place do not count, so that a model that was moved stays the same one.
    """
    digest = hashlib.sha256()
    try:
        for name in SMALL_FILES:
            path = folder / name
            data = path.read_bytes() if path.is_file() else b""
            digest.update(f"{name} {len(data)}\n".encode() + data)
        for path in weight_files(folder):
            _add_weights(digest, path)
    except (OSError, InputError):
        return None
    return digest.hexdigest()[:16]


def _add_weights(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"weights {size}\n".encode())
    with open(path, "rb") as stream:
        digest.update(stream.read(END_BYTES))
        for number in range(1, SAMPLES + 1):
            stream.seek(size * number // (SAMPLES + 1))
            digest.update(stream.read(SAMPLE_BYTES))
        stream.seek(max(size - END_BYTES, 0))
        digest.update(stream.read(END_BYTES))
