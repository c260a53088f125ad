"""Convolutions as matrix products: the same numbers, forwards and backwards, and only where they pay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from noukii.trainer import small_convs
from noukii.trainer.small_convs import pays, quicken


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(6, 4), (5, 7)])
def test_the_numbers_are_the_convolutions(
    monkeypatch: pytest.MonkeyPatch, batch: int, stride: int, bias: bool, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(8, 12, 3, stride=stride, padding=1, bias=bias).requires_grad_(False)
    quick = nn.Sequential(copy.deepcopy(plain))
    quicken(quick)
    monkeypatch.setattr(small_convs, "WEIGHTS_PER_POSITION", 0)
    calls: list[int] = []
    unfold = small_convs.F.unfold
    monkeypatch.setattr(small_convs.F, "unfold", lambda *a, **k: calls.append(1) or unfold(*a, **k))
    inputs = torch.randn(batch, 8, *size)
    answers = []
    for model in (plain, quick):
        x = inputs.clone().requires_grad_(True)
        y = model(x)
        y.square().sum().backward()
        answers.append((y.detach(), x.grad))
    assert calls == [1]
    torch.testing.assert_close(answers[1][0], answers[0][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(answers[1][1], answers[0][1], rtol=1e-5, atol=1e-5)


def test_only_few_positions_in_float32_on_the_processor_are_done_so() -> None:
    wide = torch.empty(1280, 1280, 3, 3)
    x = torch.empty(1, 1280, 8, 8)
    assert pays(wide, x, 64)
    assert not pays(wide, x, 1024)
    assert not pays(wide.bfloat16(), x.bfloat16(), 64)
    assert not pays(wide.to("meta"), x.to("meta"), 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not pays(wide, x, 64)


def test_other_layers_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Linear(4, 4))
    quicken(model)
    assert not any("forward" in vars(layer) for layer in model)
