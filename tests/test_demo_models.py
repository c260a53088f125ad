"""The demo's models do what the demo says they do; the figures are printed (pytest -rP shows them)."""

from __future__ import annotations

import json

import numpy as np

from demo import measure, world

SD, JANUS = measure.MODELS / "sd", measure.MODELS / "janus"


def test_together_the_weights_are_small() -> None:
    weights = [*SD.rglob("*.safetensors"), *JANUS.glob("*.bin")]
    assert len(weights) == 4
    assert sum(path.stat().st_size for path in weights) <= 20_000_000


def test_the_captioner_lies_in_the_original_layout() -> None:
    from noukii.captioning.janus_files import check_model

    files = check_model(JANUS)
    assert files.layout == "original"
    assert files.pixels.image_size == world.SIDE


def test_the_captioner_describes_unseen_pictures() -> None:
    """Figure 1: at least 95 % of the named attributes are right on 200 pictures."""
    totals = measure.captioner(200)
    for kind, (right, named) in totals.items():
        print(f"{kind}: {right} of {named}")
    right, named = (sum(pair[i] for pair in totals.values()) for i in (0, 1))
    print(f"figure 1: {right} of {named} attributes right ({right / named:.1%})")
    assert right >= 0.95 * named


def test_the_base_model_draws_what_the_prompt_names() -> None:
    """Figure 2: at least 80 % of 64 samples show each named shape in its colour."""
    shown, whole, pictures = measure.base(64)
    print(f"figure 2: {shown} of {len(pictures)} ({shown / len(pictures):.0%}); right in all: {whole}")
    assert shown >= 0.8 * len(pictures)


def test_the_base_model_does_not_know_the_concept() -> None:
    """Figure 3, first half: without a LoRA at most 10 % of the samples show a zorb."""
    shown, pictures = measure.concept(32)
    print(f"figure 3 without the LoRA: {shown} of {len(pictures)}")
    assert shown <= 0.1 * len(pictures)


def test_both_tokenizers_read_the_vocabulary_alike() -> None:
    from transformers import CLIPTokenizer

    from noukii.clip_tokens import ClipTokenizer

    ours, theirs = (
        ClipTokenizer.from_folder(SD / "tokenizer"),
        CLIPTokenizer.from_pretrained(SD / "tokenizer"),
    )
    random = np.random.default_rng(1)
    texts = [world.describe(world.random_scene(random)) for _ in range(50)]
    for text in [*texts, "zorb", "zorb, a large purple circle", "Héllo 42 ☃", ""]:
        assert theirs(text)["input_ids"][1:-1] == ours.ids(text)
        assert theirs(text, padding="max_length", max_length=77)["input_ids"] == ours.chunks(text)[0]
    assert len(ours.ids("circle")) == 1
    assert len(ours.ids("zorb")) > 1


def test_the_trainer_takes_the_model_for_what_it_is() -> None:
    from noukii.trainer.checkpoint_header import inspect_base_model

    files = inspect_base_model(SD)
    assert files.kind == "diffusers"
    assert files.default_resolution == world.SIDE
    vae = json.loads((SD / "vae" / "config.json").read_text())
    assert vae["scaling_factor"] == 1.0


def test_no_weight_is_outside_float16() -> None:
    import torch
    from safetensors.torch import load_file

    tensors = {}
    for path in SD.rglob("*.safetensors"):
        tensors |= {f"{path.parent.name}.{name}": value for name, value in load_file(path).items()}
    tensors |= torch.load(JANUS / "pytorch_model.bin", weights_only=True)
    for name, value in tensors.items():
        if value.is_floating_point():
            assert value.dtype == torch.float16, name
            assert torch.isfinite(value).all(), name


def test_a_prompt_of_one_seed_gives_the_same_picture_again() -> None:
    prompt = ["a large red circle in the centre on a white background"]
    first, again = measure.draw(prompt, 5)[0], measure.draw(prompt, 5)[0]
    assert np.array_equal(first, again)
