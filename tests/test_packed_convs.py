"""Convolutions on packed weights: the same numbers, forwards and backwards, for every size that comes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from noukii.trainer import packed_convs
from noukii.trainer.packed_convs import can_pack, pack

needs_onednn = pytest.mark.skipif(not can_pack(torch.float32), reason="this torch has no oneDNN")


def packed_copy(layer: nn.Module, trains: bool = True) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(layer))
    pack(model, trains=trains)
    return model


def answer(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = inputs.clone().requires_grad_(True)
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return y.detach(), x.grad


@needs_onednn
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("channels", [(8, 12), (32, 16), (3, 5)])
def test_the_numbers_are_the_convolutions(stride: int, bias: bool, channels: tuple[int, int]) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(*channels, 3, stride=stride, padding=1, bias=bias).requires_grad_(False)
    model = packed_copy(plain)
    for batch, *size in [(1, 6, 4), (3, 5, 7), (2, 8, 8), (1, 3, 1)]:  # the first decides how it is packed
        inputs = torch.randn(batch, channels[0], *size)
        for found, wanted in zip(answer(model, inputs), answer(plain, inputs), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert model[0].weight.numel() == 0, "the weights as they were are still in memory"
    assert model[0].weight.dtype == torch.float32


@needs_onednn
def test_pictures_drawn_before_training_and_a_first_layer_without_gradient() -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)
    model = packed_copy(plain)
    inputs = torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), plain(inputs), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(inputs), plain(inputs), rtol=1e-5, atol=1e-5)
    for found, wanted in zip(answer(model, inputs), answer(plain, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_a_model_that_only_draws_keeps_one_copy() -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)
    model = packed_copy(plain, trains=False)
    inputs = torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(inputs), plain(inputs), rtol=1e-5, atol=1e-5)
    assert model[0].weight.numel() == 0


@needs_onednn
def test_gradient_checkpointing_computes_the_same() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
    plain.requires_grad_(False)
    model = packed_copy(plain)
    inputs = torch.randn(1, 8, 6, 6)
    x = inputs.clone().requires_grad_(True)
    y = checkpoint(model, x, use_reentrant=False)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    wanted = answer(plain, inputs)
    torch.testing.assert_close(y.detach(), wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="no bfloat16 convolutions on this processor")
def test_bfloat16_under_autocast() -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False).bfloat16()
    model = packed_copy(plain)
    inputs = torch.randn(1, 32, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for found, wanted in zip(answer(model, inputs), answer(plain, inputs), strict=True):
            assert found.dtype == wanted.dtype
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_a_processor_that_refuses_keeps_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> torch.Tensor:
        raise RuntimeError("bf16 path needs the cpu support avx_ne_convert or avx512bw, …")

    can_pack.cache_clear()
    monkeypatch.setattr(packed_convs.Packed, "convolve", refuses)
    layer = nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)
    inputs = torch.randn(1, 8, 4, 4)
    try:
        assert torch.equal(packed_copy(layer)(inputs), layer(inputs))
    finally:
        can_pack.cache_clear()


def test_other_layers_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Linear(4, 4)
    ).requires_grad_(False)
    model.append(nn.Conv2d(4, 4, 3))  # trains
    pack(model, trains=True)
    assert not any("forward" in vars(layer) for layer in model)
