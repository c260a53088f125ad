"""Look at a model folder before anything heavy is imported: is it Janus-Pro, is it whole?

Two layouts are known. The original one (deepseek-ai/Janus-Pro-1B) says `model_type: multi_modality`
and usually holds a pickled `pytorch_model.bin`; the converted one (deepseek-community/Janus-Pro-1B)
says `model_type: janus` and holds safetensors with transformers' names. Either may be sharded.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noukii.captioning.janus_config import check_config, image_token_count, layout_of, longest_text, pixels_of
from noukii.captioning.janus_json import NEXT_STEP, parse_object, read_object, refuse_pointer
from noukii.captioning.janus_tokenizer import JanusTokenizer
from noukii.captioning.preprocess import PixelRule
from noukii.errors import InputError
from noukii.names import name_problem, printable

__all__ = ["NEXT_STEP", "JanusFiles", "check_model", "weight_files"]

WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
MAX_HEADER_BYTES = 100_000_000
"""The safetensors library refuses longer headers too."""


@dataclass(frozen=True)
class JanusFiles:
    """A folder that looks whole: its layout (`original` or `converted`), weight files and settings."""

    folder: Path
    layout: str
    weights: tuple[Path, ...]
    pixels: PixelRule
    longest_text: int
    """Tokens that question, picture and answer may be together."""
    image_tokens: int
    """Tokens that a picture takes in the prompt; 0 where only the weights tell."""
    config: Mapping[str, Any] = field(repr=False, compare=False)
    tokenizer: JanusTokenizer = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The folder's own name, for records."""
        return self.folder.resolve().name

    @property
    def size_bytes(self) -> int:
        """What the weight files take on disk, the unused generation half included."""
        return sum(path.stat().st_size for path in self.weights)


def check_model(folder: Path) -> JanusFiles:
    """Check everything about `folder` that can be known without torch, in well under a second.

    Raises InputError naming the file, what is wrong with it, and how to get a model.
    """
    folder = Path(folder).expanduser()
    _check_folder(folder)
    path = folder / "config.json"
    config = read_object(path)
    layout = layout_of(path, config)
    check_config(path, config, layout)
    weights = weight_files(folder)
    for weight_file in weights:
        _check_weight_file(weight_file)
    tokenizer = JanusTokenizer.from_folder(folder)
    pixels = pixels_of(folder, config, layout)
    return JanusFiles(
        folder,
        layout,
        weights,
        pixels,
        longest_text(path, config, layout),
        image_token_count(path, config, layout, pixels.image_size),
        config,
        tokenizer,
    )


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise InputError(folder, "is a file; a model is a folder", f"name the folder it lies in: {NEXT_STEP}")
    if not folder.is_dir():
        raise InputError(folder, "there is no such model folder", NEXT_STEP)
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise InputError(
            folder, f"cannot be read ({error.strerror})", "check the folder's permissions"
        ) from None
    if not names:
        raise InputError(folder, "the model folder is empty", NEXT_STEP)
    if "config.json" not in names:
        inside = [found.parent for found in folder.glob("snapshots/*/config.json")]
        if inside:
            step = f"--model {printable(shlex.quote(str(inside[0])))}"
            raise InputError(folder, "is a download cache; the model lies deeper inside it", step)
        raise InputError(folder / "config.json", "is missing, so this is not a model folder", NEXT_STEP)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the weights, in order. Raises InputError if there are none."""
    for name in WEIGHT_NAMES:
        if (folder / name).is_file():
            return (folder / name,)
        if (folder / f"{name}.index.json").is_file():
            return _shards(folder / f"{name}.index.json")
    lonely = sorted(folder.glob("*.safetensors"))
    if len(lonely) == 1:
        return (lonely[0],)
    reason = "holds no weights: neither model.safetensors nor pytorch_model.bin, whole or in shards"
    raise InputError(folder, reason, NEXT_STEP)


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(index, "lists no weight files (no weight_map)", NEXT_STEP)
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if problem := name_problem(name):
            raise InputError(
                index, f"lists the weight file {printable(name)!r}, whose name {problem}", NEXT_STEP
            )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        reason = f"is missing; {index.name} lists {len(names)} weight files and {len(missing)} are not here"
        raise InputError(index.parent / missing[0], reason, NEXT_STEP)
    return tuple(index.parent / name for name in names)


def _check_weight_file(path: Path) -> None:
    """Refuse a pointer, a cut-off download or another kind of file; reads a few kilobytes."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(128)
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check the file's permissions") from None
    refuse_pointer(path, start)
    if not start:
        raise InputError(path, "is empty", f"remove it and fetch it again: {NEXT_STEP}")
    if path.suffix == ".safetensors":
        _check_safetensors(path)
    elif start[:2] == b"PK":
        _check_torch_zip(path)
    elif start[:1] != b"\x80":  # an old torch file is a bare pickle, which starts so
        raise InputError(path, "is not a torch file", NEXT_STEP)


def _check_safetensors(path: Path) -> None:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(size, MAX_HEADER_BYTES):
            reason = "is not a safetensors file, or its download was cut off in the header"
            raise InputError(path, reason, NEXT_STEP)
        text = stream.read(length)
    try:
        header = parse_object(path, text)
        wanted = (
            8
            + length
            + max(
                (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"),
                default=0,
            )
        )
    except (InputError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise InputError(path, "has a damaged safetensors header", NEXT_STEP) from None
    if size < wanted:
        _cut_off(path, f"{size:,} of {wanted:,} bytes are there")


def _check_torch_zip(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:  # its table of contents stands at the very end
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        _cut_off(path, f"{path.stat().st_size:,} bytes are there and the end is missing")
    if not any(name.endswith("data.pkl") for name in names):
        raise InputError(path, "is a zip archive but not a torch file", NEXT_STEP)


def _cut_off(path: Path, what: str) -> None:
    raise InputError(path, f"its download was cut off: {what}", f"remove it and fetch it again: {NEXT_STEP}")
