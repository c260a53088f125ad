"""What a training has no more use for is not in memory while it trains."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_sd
from tiny_training import arguments, draw_data, train_here, write_toml

from noukii.trainer import loop


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), {"CLIPTextModel", "UNet2DConditionModel"}),
        (("--network_train_unet_only",), {"UNet2DConditionModel"}),
        (("--network_train_unet_only", "--cache_text_encoder_outputs"), {"UNet2DConditionModel"}),
    ],
)
def test_models_are_let_go_of_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[str, ...], wanted: set[str]
) -> None:
    models = {"CLIPTextModel", "UNet2DConditionModel", "AutoencoderKL"}
    seen: list[set[str]] = []
    before: set[int] = set()

    def loss_and_look(*given: Any) -> Any:
        # Not collected first: what only the collector could free is in memory too.
        found = [one for one in gc.get_objects() if type(one).__name__ in models and id(one) not in before]
        seen.append({type(one).__name__ for one in found})
        return loss(*given)

    loss = loop.batch_loss
    monkeypatch.setattr(loop, "batch_loss", loss_and_look)
    toml = write_toml(tmp_path / "data.toml", draw_data(tmp_path / "data", 2))
    base = make_tiny_sd(tmp_path / "sd")
    gc.collect()
    before = {id(one) for one in gc.get_objects() if type(one).__name__ in models}
    train_here(tmp_path / "home", arguments(base, toml, tmp_path / "out", *flags, steps=2))
    assert seen == [wanted, wanted]
