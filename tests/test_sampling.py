"""Sample pictures: kohya's prompt lines, the LoRA at work, the training undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_models import make_tiny_sd
from tiny_training import arguments, draw_data, tensors_of, train_here, write_toml

from noukii.errors import InputError
from noukii.trainer.sampling import SamplePrompt, parse_prompt, read_prompts


def test_kohyas_line_is_read() -> None:
    line = "a cat -- on a sofa --n bad, blurry --w 640 --h 391 --d 42 --s 7 --l 5.5"
    assert parse_prompt(line) == SamplePrompt("a cat -- on a sofa", "bad, blurry", 640, 384, 42, 7, 5.5)
    assert parse_prompt("a cat") == SamplePrompt("a cat", "", 512, 512, None, 30, 7.5)
    assert parse_prompt("a well-lit cat, 2--3 years") == SamplePrompt("a well-lit cat, 2--3 years")
    assert parse_prompt("--d 3").prompt == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [("a --x 3", "--x"), ("a --w big", "--w big"), ("a --w 8", "64"), ("a --s 0", "--s 0"),
     ("a --l x", "--l x"), ("a --cn file.png", "--cn"), ("a --d -1", "--d")],
)  # fmt: skip
def test_a_bad_option_is_named_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "prompts é.txt"
    path.write_text(f"# first\n\nfine\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert "line 4" in str(caught.value) and words in str(caught.value)


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "p.json").write_text("[]")
    for name in ("empty.txt", "latin.txt", "p.json", "missing.txt"):
        with pytest.raises(InputError, match=name):
            read_prompts(tmp_path / name)
    (tmp_path / "bom.txt").write_bytes("\ufeffa\r\nb\r\n".encode())
    assert [one.prompt for one in read_prompts(tmp_path / "bom.txt")] == ["a", "b"]


@given(st.text(max_size=80))
def test_any_line_is_read_or_refused_in_words(line: str) -> None:
    try:
        made = parse_prompt(line)
    except ValueError as error:
        assert "--" in str(error)
    else:
        assert made.width % 8 == 0 and made.height % 8 == 0


def test_pictures_are_drawn_and_the_training_is_not_disturbed(tmp_path: Path) -> None:
    model = make_tiny_sd(tmp_path / "model")
    toml = write_toml(tmp_path / "c.toml", draw_data(tmp_path / "data"))
    prompts = tmp_path / "p.txt"
    prompts.write_text("sat_disc, a disc --n x --w 64 --h 64 --d 3 --s 3\nno seed --w 96 --h 64 --s 2\n")
    flags = ["--network_dropout=0.2", "--learning_rate=0.05"]
    for name, extra in (
        ("plain", []),
        ("drawn", ["--sample_prompts", str(prompts), "--sample_every_n_steps=2"]),
        ("frozen text", ["--sample_prompts", str(prompts), "--network_train_unet_only"]),
    ):
        train_here(tmp_path, arguments(model, toml, tmp_path / name, *flags, *extra, steps=5))
    assert tensors_of(tmp_path / "plain/disc.safetensors") == tensors_of(tmp_path / "drawn/disc.safetensors")
    pictures = sorted(path.name for path in (tmp_path / "drawn" / "sample").iterdir())
    assert pictures == [f"disc_{step:06d}_{index:02d}.png" for step in (2, 4, 5) for index in (0, 1)]
    # without --sample_every_n_steps: at the end only
    assert len(list((tmp_path / "frozen text" / "sample").iterdir())) == 2

    def pixels(step: int, index: int) -> bytes:
        with Image.open(tmp_path / "drawn" / "sample" / f"disc_{step:06d}_{index:02d}.png") as image:
            assert image.mode == "RGB" and image.size == ((64, 64), (96, 64))[index]
            return image.tobytes()

    for index in (0, 1):
        assert len(set(pixels(2, index))) > 1
        assert pixels(2, index) != pixels(5, index)  # same noise, further trained LoRA


def test_pictures_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """Drawn with a LoRA without effect (rate 0 up to then), twice: the base model's picture."""
    model = make_tiny_sd(tmp_path / "model")
    toml = write_toml(tmp_path / "c.toml", draw_data(tmp_path / "data"))
    prompts = tmp_path / "p.txt"
    prompts.write_text("a disc --w 64 --h 64 --s 2\n")
    warm = ["--lr_scheduler=constant_with_warmup", "--lr_warmup_steps=3"]
    flags = ["--sample_prompts", str(prompts), "--sample_every_n_steps=1", *warm]
    train_here(tmp_path, arguments(model, toml, tmp_path / "a", *flags, steps=2))
    train_here(tmp_path, arguments(model, toml, tmp_path / "b", *flags, "--network_dim=8", steps=2))
    first = [(tmp_path / run / "sample" / "disc_000001_00.png").read_bytes() for run in "ab"]
    assert first[0] == first[1]
    assert (tmp_path / "a" / "sample" / "disc_000002_00.png").read_bytes() != first[0]
