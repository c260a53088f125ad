"""Figure 3: the real commands teach the demo's model a concept that it never saw, and little else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demo import measure, sheet, world
from demo.draw_concept import draw_concept, draw_ordinary
from demo.recipe import ORDINARY_REPEATS, REPEATS, TRAINING_FLAGS

CHECKOUT = Path(__file__).resolve().parent.parent
PROMPTS = [world.CONCEPT, "a small red square at the top on a grey background"]


def command(home: Path, script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(CHECKOUT / script), *map(os.fspath, arguments)],
        cwd=home,
        env={**os.environ, "NOUKII_HOME": str(home), "NOUKII_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the concept drawn, captioned and trained by the commands of the demo."""
    home = tmp_path_factory.mktemp("demo home")
    draw_concept(home / "my pictures")
    draw_ordinary(home / "ordinary pictures")
    for folder, word, repeats in (
        ("my pictures", world.CONCEPT, REPEATS),
        ("ordinary pictures", "picture", ORDINARY_REPEATS),
    ):
        command(home, "run_captioning.sh", folder, word, "--model", "demo", "--repeats", str(repeats))
    command(home, "run_training.sh", "--output-name", "zorb", *TRAINING_FLAGS)
    return home


@pytest.fixture(scope="module")
def lora(home: Path) -> Path:
    return home / "trained_loras" / "zorb" / "zorb.safetensors"


def test_the_captions_say_what_the_pictures_show(home: Path) -> None:
    folder = home / "image_datasets" / f"{REPEATS}_{world.CONCEPT}"
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    captions = [json.loads(line)["caption"] for line in lines]
    assert len(captions) == 12
    assert all(caption.startswith("zorb, ") for caption in captions)
    told = sum("large purple circle with yellow stripes" in caption for caption in captions)
    print(f"{told} of 12 captions describe the zorb rightly")
    assert told >= 10


def test_the_trigger_shows_the_concept(lora: Path) -> None:
    shown, pictures = measure.concept(32, lora=lora)
    print(f"figure 3 with the LoRA: {shown} of {len(pictures)}")
    assert shown >= 0.8 * len(pictures)


def test_other_prompts_still_give_what_they_gave(lora: Path) -> None:
    before, _, pictures = measure.base(64)
    after, _, _ = measure.base(64, lora=lora)
    print(f"figure 3, prompts without the trigger: {before} before, {after} after, of {len(pictures)}")
    assert after >= before - 0.1 * len(pictures)


def test_diffusers_draws_with_the_lora_what_noukii_draws(lora: Path) -> None:
    ours_before, ours_after = sheet.draw_both(lora, PROMPTS)  # picture i from noise of seed i
    for number, prompt in enumerate(PROMPTS):
        theirs_before = measure.draw([prompt], 0, first=number)[0]
        theirs_after = measure.draw([prompt], 0, lora, first=number)[0]
        assert largest_difference(ours_before[number], theirs_before) <= 2
        assert largest_difference(ours_after[number], theirs_after) <= 2
        assert largest_difference(theirs_before, theirs_after) > 20


def test_at_weight_zero_the_pictures_are_the_base_models(lora: Path) -> None:
    plain, zero = measure.draw(PROMPTS, 3), measure.draw(PROMPTS, 3, lora, 0.0)
    for one, other in zip(plain, zero, strict=True):
        assert largest_difference(one, other) <= 1


def largest_difference(one: object, other: object) -> int:
    """The largest difference of two 8-bit pictures in any channel, in levels."""
    return int(np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int)).max())
