"""Matrices packed for few rows: the same answers, in less memory than two copies would take."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_janus import make_tiny_janus
from torch import nn

from noukii.captioning import janus, packed_linears
from noukii.captioning.describe import describe
from noukii.captioning.packed_linears import can_pack, pack


@pytest.fixture
def tried_anew() -> object:
    can_pack.cache_clear()
    yield
    can_pack.cache_clear()


@pytest.mark.skipif(not can_pack(torch.float32), reason="this torch has no oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_every_shape(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(24, 40, bias=bias), nn.Linear(40, 7, bias=bias)).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack(packed)
    for shape in [(1, 1, 24), (8, 1, 24), (1, 631, 24), (3, 24)]:
        x = torch.randn(shape)
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-5)
    every_other = torch.randn(4, 6, 24)[:, ::2]
    torch.testing.assert_close(packed(every_other), plain(every_other), rtol=1e-5, atol=1e-5)
    assert all(layer.weight.numel() == 0 and layer.weight.dtype == torch.float32 for layer in packed)


def test_a_model_that_is_packed_says_the_same(tmp_path: Path, photos: Path) -> None:
    files = janus.check_model(make_tiny_janus(tmp_path / "model"))
    pictures = [Image.open(path).convert("RGB") for path in sorted(photos.iterdir())[:3]]
    found = [
        describe(
            janus.load(files, "cpu", torch.float32, packed=packed), pictures, ["a", "b", "c"],
            question="describe it", max_new_tokens=16, temperature=0.0, top_p=1.0, seed=1,
        )
        for packed in (True, False)
    ]  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.usefixtures("tried_anew")
def test_a_processor_that_refuses_keeps_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> torch.Tensor:
        raise RuntimeError("this processor has no bfloat16")

    monkeypatch.setattr(packed_linears, "_product", refuses)
    layer = nn.Linear(8, 4).requires_grad_(False)
    plain = copy.deepcopy(layer)
    pack(nn.Sequential(layer))
    x = torch.randn(2, 8)
    assert torch.equal(layer(x), plain(x))
