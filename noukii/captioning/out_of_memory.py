"""Memory that ran out, told apart from every other error of torch."""

from __future__ import annotations


class OutOfMemory(Exception):
    """The device's memory does not suffice for this many pictures at a time; fewer may fit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether `error` means that memory ran out; torch has several ways to say so."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    signs = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return any(sign in text for sign in (*signs, "bad_alloc", "alloc_failed"))
