"""kohya's LoRA file: write it, read it, and make sure that it is worth something.

A file takes its name only after it has been read back and found whole, finite and not without effect.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from noukii.errors import RunError
from noukii.files import whole_file
from noukii.names import printable
from noukii.quiet import prepare_libraries
from noukii.trainer.lora_header import cannot_be_read, inspect_lora
from noukii.trainer.safetensors_header import BadHeader, Header, read_header

prepare_libraries()

import torch  # noqa: E402
from safetensors import SafetensorError, safe_open  # noqa: E402
from safetensors.torch import load_file, save  # noqa: E402
from torch import Tensor  # noqa: E402

SAVE_DTYPES = {"float": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""kohya's words for `--save_precision`; None keeps each tensor's own dtype."""


CHECK_DISK = "check the free space on the disk, then run again"


class UnreadableLora(RunError):
    """A LoRA file that is not whole, or that the disk does not give back."""


@dataclass(frozen=True)
class LoraReport:
    """What a good LoRA file holds. `without_effect` counts modules that change nothing (some may)."""

    modules: int
    without_effect: int
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    dtype: str
    metadata: dict[str, str]
    size_bytes: int


def write_lora(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], dtype: torch.dtype | None = None
) -> LoraReport:
    """Write `tensors` (as from `LoraNetwork.state_dict_kohya`) to `path` and return what was read back.

    dtype: everything is cast to it, alpha too, as kohya does for `--save_precision`. The two sshs hashes
    are added to the metadata. Raises OSError if the disk does not take it, UnreadableLora if it does not
    give it back, RunError for NaN, Inf, no effect or no tensors; `path` is then as it was before.
    """
    path = Path(path)
    data = {
        name: value.detach().to("cpu", dtype or value.dtype).contiguous() for name, value in tensors.items()
    }
    model_hash, legacy_hash = sshs_hashes(data, metadata)
    hashes = {"sshs_model_hash": model_hash, "sshs_legacy_hash": legacy_hash}
    with whole_file(path) as temporary:
        # safetensors' own save_file would hide in an error of its own what the system said
        temporary.write_bytes(save(data, {**metadata, **hashes}))
        return verify_lora(temporary, called=path)


def sshs_hashes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[str, str]:
    """Return (sshs_model_hash, sshs_legacy_hash), by which web interfaces find a LoRA again.

    sd-scripts' rule (`train_util.precalculate_safetensors_hashes`): serialise with the ss_ metadata alone;
    SHA-256 of all bytes after the header, and the first 8 hex digits of the SHA-256 of the 64 KiB at 1 MiB.
    """
    kept = {key: value for key, value in metadata.items() if key.startswith("ss_")}
    whole = memoryview(save(tensors, kept))
    after_header = 8 + int.from_bytes(whole[:8], "little")
    legacy = hashlib.sha256(whole[0x100000 : 0x100000 + 0x10000]).hexdigest()[:8]
    return hashlib.sha256(whole[after_header:]).hexdigest(), legacy


def read_lora(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (tensors, metadata) of a LoRA in kohya's format; raises InputError with what it is instead."""
    path = Path(path)
    header = inspect_lora(path)
    try:
        return load_file(str(path)), header.metadata
    except (OSError, SafetensorError) as error:
        raise cannot_be_read(path, error) from None


def verify_lora(path: Path, called: Path | None = None) -> LoraReport:
    """Read a finished LoRA back and return what it holds; the messages call it `called`.

    Raises RunError if it is cut off, has no tensors, holds NaN or Inf, or changes nothing.
    One tensor is in memory at a time.
    """
    name = printable((called or Path(path)).name)
    try:
        header = read_header(path)
    except BadHeader as error:
        raise UnreadableLora(name, str(error), CHECK_DISK) from None
    except OSError as error:
        raise UnreadableLora(name, f"cannot be read: {error.strerror or error}", CHECK_DISK) from None
    modules: dict[str, list[str]] = {}
    for key in header.tensors:
        modules.setdefault(key.partition(".")[0], []).append(key)
    if not modules:
        raise RunError(name, "the LoRA has no tensors", "train it again; report this if it happens twice")
    try:
        broken, effective, alphas = _look_at(path, modules)
    except (OSError, SafetensorError) as error:
        raise UnreadableLora(name, f"cannot be read: {printable(str(error))}", CHECK_DISK) from None
    if broken:
        raise RunError(
            name,
            f"{len(broken)} of {len(modules)} modules hold NaN or infinite numbers, first {broken[0]}",
            "train with a lower learning rate or without fp16; this LoRA would give black images",
        )
    if not effective:
        raise RunError(
            name,
            f"the LoRA has no effect: in all {len(modules)} modules lora_up, lora_down or alpha is zero",
            "check that the learning rate is not 0 and that steps were made",
        )
    return LoraReport(
        len(modules),
        len(modules) - effective,
        _ranks(header),
        tuple(sorted(alphas)),
        _matrix_dtype(header),
        header.metadata,
        header.size_bytes,
    )


def _look_at(path: Path, modules: dict[str, list[str]]) -> tuple[list[str], int, set[float]]:
    """Return (modules with NaN or Inf, how many have an effect, alphas)."""
    broken, effective = [], 0
    alphas: set[float] = set()
    with safe_open(str(path), framework="pt") as file:
        for module, keys in modules.items():
            values = {key.partition(".")[2]: file.get_tensor(key) for key in keys}
            if not all(bool(torch.isfinite(value).all()) for value in values.values()):
                broken.append(module)
            effective += _has_effect(values)
            if "alpha" in values:
                alphas.add(float(values["alpha"]))
    return broken, effective, alphas


def _has_effect(values: dict[str, Tensor]) -> bool:
    """A module changes its layer only if no factor of up · down · alpha is all zero."""
    matrices = [value for key, value in values.items() if key != "alpha"]
    return bool(matrices) and all(bool(value.any()) for value in values.values())


def _ranks(header: Header) -> tuple[int, ...]:
    return tuple(
        sorted({info.shape[0] for key, info in header.tensors.items() if key.endswith(".lora_down.weight")})
    )


def _matrix_dtype(header: Header) -> str:
    kinds = {info.dtype for key, info in header.tensors.items() if not key.endswith(".alpha")}
    return "/".join(sorted(kinds))
