"""Tensors of a base model that is one .safetensors file: copied out of it, also ahead of their time."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

GROUP_BYTES = 128_000_000
"""Read from a mapped file before it is mapped anew."""


def read_tensors(path: Path, names: Iterable[str], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return copies of the named tensors in `dtype`. Raises SafetensorError and OSError.

    The file is mapped anew now and then: what was read of it counts as ours while it stays mapped. A copy
    even where the dtype is the same: a mapped file that is moved away would end the process.
    """
    found: dict[str, Tensor] = {}
    left = list(names)
    while left:
        read = 0
        with safe_open(str(path), framework="pt") as file:
            while left and read < GROUP_BYTES:
                name = left.pop(0)
                value = file.get_tensor(name)
                found[name] = value.to(dtype, copy=True)
                read += value.nbytes
                del value
    return found


class ReadAhead:
    """The tensors under some prefixes, read by a thread while libraries are imported; both take as long."""

    def __init__(self, path: Path, prefixes: tuple[str, ...], dtype: torch.dtype) -> None:
        self._found: dict[str, Tensor] = {}
        # A daemon: nobody waits for it where the run ends before it has begun.
        self._thread = threading.Thread(
            target=self._read, args=(path, prefixes, dtype), name="weights", daemon=True
        )
        self._thread.start()

    def wait(self) -> dict[str, Tensor]:
        """Return what could be read, by name in the file; what is missing is named when the model is made."""
        self._thread.join()
        return self._found

    def _read(self, path: Path, prefixes: tuple[str, ...], dtype: torch.dtype) -> None:
        try:
            with safe_open(str(path), framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(prefixes)]  # noqa: SIM118 - no dict
            self._found = read_tensors(path, names, dtype)
        except (SafetensorError, OSError, RuntimeError):
            self._found = {}
