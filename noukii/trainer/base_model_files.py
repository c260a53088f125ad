"""What the rest of the trainer knows of a base model before it is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from noukii.errors import InputError
from noukii.trainer.safetensors_header import Header

NEXT_STEP = "give a Stable Diffusion 1.5 model: one .safetensors file (about 2 or 4 GB) or a diffusers folder"

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class BaseModelFiles:
    """A base model that can be trained on.

    kind: "single-file" or "diffusers". dtype: that of most UNet weights. size_bytes: of all weight files.
    default_resolution: side in pixels the model was made for. variant: "fp16" where a diffusers folder
    holds `….fp16.safetensors` only.
    """

    path: Path
    kind: str
    dtype: str
    size_bytes: int
    default_resolution: int
    weights: tuple[Path, ...]
    variant: str | None = None


def weights_dtype(path: Path, header: Header, prefix: str) -> str:
    """Return the dtype of most tensors named `prefix…`; InputError if there is none that we train on."""
    kinds = Counter(info.dtype for name, info in header.tensors.items() if name.startswith(prefix))
    kind = kinds.most_common(1)[0][0] if kinds else "nothing"
    if kind not in DTYPES:
        raise InputError(path, f"its weights are stored as {kind}", "give a float16 or float32 version of it")
    return DTYPES[kind]
