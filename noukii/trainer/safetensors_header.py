"""Read a safetensors file's header: names, dtypes and shapes, without torch and without the weights.

Format: 8 bytes little-endian header length, a JSON header, the data. The header comes from strangers, so
lengths are checked before anything is read, and memory stays bounded whatever the file says.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

MAX_HEADER_BYTES = 8 * 2**20
"""SD1.5's is 0.13 MB, the largest language models' below 2 MB."""

ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class BadHeader(Exception):
    """Not a whole safetensors file; str() says in what way."""


@dataclass(frozen=True)
class TensorInfo:
    """dtype is safetensors' word for it: F32, F16, BF16 …"""

    dtype: str
    shape: tuple[int, ...]
    begin: int = field(default=0, compare=False)
    """Where its bytes begin after the header."""


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    size_bytes: int
    data_begin: int = field(default=0, compare=False)
    """Where the header ends in the file."""


def read_header(path: Path) -> Header:
    """Return the checked header of `path`; raises BadHeader, OSError."""
    with open(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        start = stream.read(8)
        if len(start) < 8:
            raise BadHeader(f"is {size} bytes long, too short for any model")
        length = int.from_bytes(start, "little")
        if length > MAX_HEADER_BYTES or length < 2:
            raise BadHeader(f"is not a safetensors file: its header would be {length:,} bytes long")
        raw = stream.read(length)
    if len(raw) < length:
        raise BadHeader(
            f"is cut off in its header: it has {size:,} bytes, at least {8 + length:,} were expected"
        )
    try:
        parsed = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadHeader("is not a safetensors file: its header is not JSON") from None
    if not isinstance(parsed, dict):
        raise BadHeader("is not a safetensors file: its header is not a table")
    metadata = parsed.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadHeader("is damaged: its metadata is not a table of texts")
    try:
        "".join([*parsed, *metadata, *metadata.values()]).encode("utf-8")
    except UnicodeEncodeError:  # half a character by an escape like \ud800: safetensors refuses it
        raise BadHeader("is damaged: a name in its header is no text") from None
    tensors, end = _check_tensors(parsed)
    expected = 8 + length + end
    if size < expected:
        raise BadHeader(f"is cut off: it has {size:,} bytes, {expected:,} were expected")
    if size > expected:
        raise BadHeader(f"is damaged: it has {size:,} bytes, its header accounts for {expected:,}")
    return Header(tensors, metadata, size, 8 + length)


SCALARS = {
    "F16": "<e",
    "F32": "<f",
    "F64": "<d",
    "I16": "<h",
    "I32": "<i",
    "I64": "<q",
    "U8": "<B",
    "I8": "<b",
}


def read_scalars(path: Path, header: Header, names: list[str]) -> dict[str, float]:
    """Return tensors of one number each (a LoRA's alphas); raises BadHeader if one is not, OSError."""
    found = {}
    with open(path, "rb") as stream:
        for name in names:
            info = header.tensors[name]
            if math.prod(info.shape) != 1 or (info.dtype not in SCALARS and info.dtype != "BF16"):
                raise BadHeader(f"is damaged: {name[:100]} is not one number")
            stream.seek(header.data_begin + info.begin)
            raw = stream.read(ITEM_BITS[info.dtype] // 8)
            if info.dtype == "BF16":  # the upper half of a float32
                raw, form = b"\0\0" + raw, "<f"
            else:
                form = SCALARS[info.dtype]
            if len(raw) != struct.calcsize(form):
                raise BadHeader("was cut off while it was read")
            found[name] = float(struct.unpack(form, raw)[0])
    return found


def _check_tensors(entries: dict[str, object]) -> tuple[dict[str, TensorInfo], int]:
    """Return the tensors and where the data ends; tensors must lie side by side, as safetensors demands."""
    tensors: dict[str, TensorInfo] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in entries.items():
        info, span = _check_entry(entry)
        if info is None:
            raise BadHeader(f"is damaged: its header's entry for {name[:100]!r} makes no sense")
        tensors[name] = info
        spans.append(span)
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise BadHeader("is damaged: tensors overlap or leave a gap")
        end = stop
    return tensors, end


def _check_entry(entry: object) -> tuple[TensorInfo | None, tuple[int, int]]:
    bad = None, (0, 0)
    if not isinstance(entry, dict):
        return bad
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        return bad
    if not _whole_numbers(shape) or not _whole_numbers(span):
        return bad
    if len(shape) > 16 or len(span) != 2:  # type: ignore[arg-type]
        return bad
    begin, stop = span  # type: ignore[misc]
    if (stop - begin) * 8 != math.prod(shape) * ITEM_BITS[dtype]:  # type: ignore[arg-type]
        return bad
    return TensorInfo(dtype, tuple(shape), begin), (begin, stop)  # type: ignore[arg-type]


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
