"""A run that goes on for too long on the demo's model: the curve rises, the page names what was before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from conftest import CHECKOUT
from PIL import Image
from test_report import Page
from tiny_training import arguments, metrics_of, train_here, write_toml

from demo import world
from noukii.report.report import write_report

BASE = CHECKOUT / "demo" / "models" / "sd"
STEPS, EVERY = 80, 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BASE / "model_index.json").is_file(), reason="the demo's model is not here"),
]


def draw_scenes(folder: Path, count: int) -> Path:
    """Pictures of the demo's world, which its model knows already, with what they show."""
    folder.mkdir()
    numbers = numpy.random.default_rng(5)
    for number in range(count):
        scene = world.random_scene(numbers)
        Image.fromarray(world.draw(scene)).save(folder / f"scene {number}.png")
        (folder / f"scene {number}.txt").write_text(f"sat, {world.describe(scene)}", encoding="utf-8")
    return folder


def test_an_over_long_run_rises_and_the_best_checkpoint_is_before_the_rise(tmp_path: Path) -> None:
    """Few pictures, many steps at a rate that climbs too high: what the base model knew of others is lost."""
    toml = write_toml(tmp_path / "data.toml", draw_scenes(tmp_path / "data", 8), batch_size=2)
    output = tmp_path / "sat"
    flags = ["--validation_split", "0.5", "--validate_every_n_steps", str(EVERY)]
    flags += ["--save_every_n_steps", str(EVERY), "--learning_rate", "6e-3", "--network_dim", "16"]
    flags += ["--network_alpha", "16", "--network_train_unet_only", "--output_name", "sat"]
    flags += ["--lr_scheduler", "constant_with_warmup", "--lr_warmup_steps", str(STEPS)]
    train_here(tmp_path, arguments(BASE, toml, output, *flags, steps=STEPS))
    (output / "run.json").write_text(json.dumps({"output_name": "sat"}))

    lines = metrics_of(output)
    curve = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    assert sorted(curve) == list(range(0, STEPS + 1, EVERY))
    saved = {step: value for step, value in curve.items() if step > 0}
    lowest = min(saved, key=saved.__getitem__)
    assert lowest <= STEPS // 2, curve
    assert curve[STEPS] > 1.25 * saved[lowest], f"the curve rises: {curve}"

    page = Page(write_report(output))
    assert page.definitions["Best checkpoint"].startswith(f"step {lowest} ")
    words = next(text for text in page.all_text["p"] if "lowest validation loss" in text)
    assert f"sat-step{lowest:08d}.safetensors" in words and "From there it rises" in words
    exact = [exact for exact, _ in page.exact]
    assert all(repr(value) in exact for value in curve.values()), "the page has the numbers of metrics.jsonl"
