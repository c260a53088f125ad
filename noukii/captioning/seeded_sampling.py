"""The next token of each caption: the likeliest one, or drawn with noise that belongs to the picture.

The noise is a function of (seed, picture, step). Neither the other pictures of a batch nor the
device's random generator has a say, so a caption comes out the same alone, in any batch, and in a
run that was stopped and continued.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CANDIDATES = 256
"""Sorting 100,000 tokens at every step is slow on a CPU; nearly always these hold the kept ones."""


def uniform(seed: int, key: str, step: int) -> float:
    """Return a number in [0, 1) for one step of one picture; `key` is the hash of its content."""
    digest = hashlib.sha256(f"{seed}/{key}/{step}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # 53 bits: every value is exact


def choose(logits: torch.Tensor, *, temperature: float, top_p: float, noise: Sequence[float]) -> torch.Tensor:
    """Return one token id per row, int64 [rows].

    `logits` is float32 [rows, vocabulary]; `noise` is one number in [0, 1) per row. With a
    temperature of 0 the likeliest token is taken (the one of lowest id where several are equal).
    Else: softmax of logits / temperature, the smallest set of likeliest tokens that holds at least
    `top_p` of the mass (Holtzman et al. 2020), and the token at which the running sum of the kept
    mass passes `noise`.
    """
    import torch

    if temperature == 0:
        return logits.argmax(dim=-1)
    # float64: a running sum over 100,000 tokens in float32 loses the digits that the noise decides by.
    mass = torch.softmax(logits.double() / temperature, dim=-1)
    mass, order = _likeliest_first(mass, top_p)
    running = mass.cumsum(dim=-1)
    mass = mass.masked_fill(running - mass >= top_p, 0.0)  # top_p > 0, so the likeliest token stays
    running = mass.cumsum(dim=-1)
    goal = torch.tensor(noise, dtype=running.dtype, device=running.device) * running[:, -1]
    place = torch.searchsorted(running, goal[:, None], right=True)
    last_kept = (mass > 0).sum(dim=-1, keepdim=True) - 1
    return order.gather(-1, torch.minimum(place, last_kept)).squeeze(-1)


def _likeliest_first(mass: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (mass, token ids), descending, equal ones by id; all tokens, or enough for `top_p`."""
    if mass.shape[-1] > CANDIDATES:
        values, ids = mass.topk(CANDIDATES, dim=-1)
        # Which of several equal tokens topk takes last is open; those above the last are certain.
        certain = (values * (values > values[:, -1:])).sum(dim=-1)
        if bool((certain >= top_p).all()):
            ids = ids.sort(dim=-1).values
            values, order = mass.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
            return values, ids.gather(-1, order)
    return mass.sort(dim=-1, descending=True, stable=True)
