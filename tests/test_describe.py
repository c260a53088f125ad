"""Pictures -> Janus' words: upstream's numbers, and captions that do not show their batch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_janus import make_tiny_janus, tiny_model

from noukii.captioning import janus as loader
from noukii.captioning.describe import (
    RawCaption,
    automatic_batch_size,
    describe,
    rows_that_fit,
    steady_rows,
)
from noukii.captioning.out_of_memory import is_out_of_memory
from noukii.captioning.preprocess import PixelRule, pixel_rule, pixel_values, scaled_size, square
from noukii.captioning.seeded_sampling import choose, uniform
from noukii.errors import InputError, RunError
from noukii.files import sha256_file

CHECKOUT = Path(__file__).resolve().parent.parent
QUESTION = "describe this image in detail"


@pytest.fixture(scope="module")
def expected(reference: Path) -> dict[str, Any]:
    return json.loads((reference / "janus_expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def upstream(janus_tiny: Path) -> loader.Janus:
    """The checkpoint that upstream's code answered for, in float32 as there."""
    return load(janus_tiny)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_janus(tmp_path_factory.mktemp("janus") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> loader.Janus:
    return load(folder)


@pytest.fixture(scope="module")
def pictures(photos: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted(photos.iterdir())]


@pytest.fixture(scope="module")
def keys(photos: Path) -> list[str]:
    return [sha256_file(path) for path in sorted(photos.iterdir())]


def load(folder: Path, dtype: str = "float32") -> loader.Janus:
    return loader.load(loader.check_model(folder), "cpu", loader.choose_dtype("cpu", dtype))


def captions(
    janus: loader.Janus, pictures: Sequence[Image.Image], keys: Sequence[str], batch: int, **changes: Any
) -> list[RawCaption]:
    settings: dict[str, Any] = {
        "question": QUESTION,
        "max_new_tokens": 24,
        "temperature": 0.0,
        "top_p": 0.95,
        "seed": 42,
    } | changes
    found = []
    for start in range(0, len(pictures), batch):
        found += describe(janus, pictures[start : start + batch], keys[start : start + batch], **settings)
    return found


# --- upstream's numbers


@pytest.mark.parametrize("batch", [1, 2, 4, 6])
def test_texts_are_upstreams_at_every_batch_size(
    upstream: loader.Janus, expected: dict[str, Any], photos: Path, batch: int
) -> None:
    pictures = [Image.open(photos / entry["file"]).convert("RGB") for entry in expected["images"]]
    found = captions(upstream, pictures, ["same"] * 6, batch, question=expected["question"])
    assert [caption.text for caption in found] == [entry["text"] for entry in expected["images"]]
    assert {(caption.finish_reason, caption.tokens) for caption in found} == {("length", 24)}


def test_prompt_ids_are_upstreams(upstream: loader.Janus, expected: dict[str, Any]) -> None:
    ids = upstream.tokenizer.prompt_ids(expected["question"], upstream.image_tokens)
    assert ids == expected["prompt_ids"]


def test_pixels_logits_and_tokens_are_upstreams(
    upstream: loader.Janus, expected: dict[str, Any], photos: Path
) -> None:
    import torch

    from noukii.captioning import decoding

    for entry in expected["images"]:
        values = pixel_values(Image.open(photos / entry["file"]).convert("RGB"), upstream.pixels)
        assert values.mean() == pytest.approx(entry["pixel_mean"], abs=1e-6)
        assert values.std(ddof=1) == pytest.approx(entry["pixel_std"], abs=1e-6)
        logits: list[torch.Tensor] = []

        def greedy(scores: torch.Tensor, step: int, logits: list[torch.Tensor] = logits) -> torch.Tensor:
            logits.append(scores)
            return scores.argmax(dim=-1)

        (row,) = decoding.generate(
            upstream.model,
            [torch.from_numpy(values)],
            expected["prompt_ids"],
            eos_id=upstream.tokenizer.eos_id,
            max_new_tokens=24,
            choose=greedy,
            rows=1,
        )
        assert row.ids == entry["generated_ids"]
        assert logits[0][0, :32].tolist() == pytest.approx(entry["first_step_logits_first32"], abs=2e-4)


# --- our loop against transformers' own


def test_greedy_equals_transformers_generate(
    tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]
) -> None:
    import torch

    native = tiny_model(tiny.tokenizer.backend.get_vocab_size())
    prompt = tiny.tokenizer.prompt_ids(QUESTION, tiny.image_tokens)
    answer = native.generate(
        torch.tensor([prompt] * len(pictures)),
        pixel_values=torch.stack([torch.from_numpy(pixel_values(p, tiny.pixels)) for p in pictures]),
        attention_mask=torch.ones(len(pictures), len(prompt), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=tiny.tokenizer.eos_id,
        pad_token_id=tiny.tokenizer.eos_id,
    )
    wanted = [tiny.tokenizer.decode(row[len(prompt) :].tolist()) for row in answer]
    assert len(set(wanted)) == len(pictures)  # else the pictures would not matter
    found = captions(tiny, pictures, keys, 6, max_new_tokens=40)
    assert [caption.text for caption in found] == wanted


# --- never on its batch


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_a_caption_does_not_depend_on_its_batch(
    tiny: loader.Janus, pictures: list[Image.Image], keys: list[str], temperature: float
) -> None:
    alone = captions(tiny, pictures, keys, 1, temperature=temperature)
    assert len({caption.text for caption in alone}) == len(pictures)
    for batch in (2, 4, 6):
        assert captions(tiny, pictures, keys, batch, temperature=temperature) == alone
    backwards = captions(tiny, pictures[::-1], keys[::-1], 4, temperature=temperature)
    assert backwards[::-1] == alone
    assert captions(tiny, pictures, keys, 4, temperature=temperature, rows=9) == alone


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_bfloat16_with_steady_rows(
    folder: Path, pictures: list[Image.Image], keys: list[str], temperature: float
) -> None:
    janus = load(folder, "bfloat16")
    wanted = captions(janus, pictures, keys, 6, temperature=temperature, rows=8)
    for batch in (1, 2, 4, 6, 8):  # 8 is what a processor describes at a time by default
        rows = steady_rows(janus, batch, 24)
        assert rows == 8
        assert captions(janus, pictures, keys, batch, temperature=temperature, rows=rows) == wanted


def test_noise_belongs_to_seed_and_picture(
    tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]
) -> None:
    import torch

    first = captions(tiny, pictures[:1], keys[:1], 1, temperature=1.0)
    torch.manual_seed(123)  # the global generator has no say
    assert captions(tiny, pictures[:1], keys[:1], 1, temperature=1.0) == first
    assert captions(tiny, pictures[:1], keys[:1], 1, temperature=1.0, seed=43) != first
    assert captions(tiny, pictures[:1], keys[1:2], 1, temperature=1.0) != first
    assert captions(tiny, pictures[:1], keys[:1], 1) != first
    assert captions(tiny, pictures[:1], keys[1:2], 1, seed=1) == captions(tiny, pictures[:1], keys[:1], 1)


def test_very_small_top_p_is_greedy(tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]) -> None:
    greedy = captions(tiny, pictures, keys, 6)
    assert captions(tiny, pictures, keys, 6, temperature=1.0, top_p=1e-9) == greedy


# --- the end of a caption


def test_rows_end_one_by_one(
    folder: Path, tiny: loader.Janus, pictures: list[Image.Image], keys: list[str], tmp_path: Path
) -> None:
    """Another EOS, one that some rows say early and some never: each ends where it says it."""
    from noukii.captioning import decoding

    full = ids_of(tiny, pictures, decoding)
    counts = Counter(token for row in full for token in set(row))
    eos = next(
        token
        for token, rows in sorted(counts.items())
        if 0 < rows < 6
        and any(token in row[1:-1] for row in full)
        and not any(row[0] == token for row in full)
    )
    copy = Path(shutil.copytree(folder, tmp_path / "other eos"))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((copy / name).read_text(encoding="utf-8"))
        settings["eos_token"] = tiny.tokenizer.backend.id_to_token(eos)
        (copy / name).write_text(json.dumps(settings), encoding="utf-8")
    other = load(copy)
    other_prompt = other.tokenizer.prompt_ids("?", other.image_tokens)
    if other_prompt != tiny.tokenizer.prompt_ids("?", tiny.image_tokens):
        pytest.fail("the new EOS cuts the prompt differently; choose another question")
    found = captions(other, pictures, keys, 6, question="?")
    assert found == captions(other, pictures, keys, 1, question="?")
    for caption, row in zip(found, full, strict=True):
        if eos in row:
            cut = row[: row.index(eos)]
            assert (caption.finish_reason, caption.tokens) == ("stop", len(cut))
        else:
            assert (caption.finish_reason, caption.tokens) == ("length", 24)
    assert {caption.finish_reason for caption in found} == {"stop", "length"}


def ids_of(janus: loader.Janus, pictures: list[Image.Image], decoding: Any) -> list[list[int]]:
    import torch

    rows = decoding.generate(
        janus.model,
        [torch.from_numpy(pixel_values(picture, janus.pixels)) for picture in pictures],
        janus.tokenizer.prompt_ids("?", janus.image_tokens),
        eos_id=-1,
        max_new_tokens=24,
        choose=lambda scores, step: scores.argmax(dim=-1),
        rows=len(pictures),
    )
    return [row.ids for row in rows]


def test_a_step_may_end_it(tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]) -> None:
    steps = []

    def on_step(tokens: int) -> bool:
        steps.append(tokens)
        return tokens == 5

    found = captions(tiny, pictures, keys, 6, on_step=on_step)
    assert steps == [1, 2, 3, 4, 5]
    assert {(caption.finish_reason, caption.tokens) for caption in found} == {("stopped", 5)}
    whole = captions(tiny, pictures, keys, 6)
    assert all(full.text.startswith(part.text.rstrip("�")) for full, part in zip(whole, found, strict=True))


def test_one_token(tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]) -> None:
    assert [c.tokens for c in captions(tiny, pictures, keys, 3, max_new_tokens=1)] == [1] * 6


# --- what cannot be done


def test_too_long_for_the_model(tiny: loader.Janus, pictures: list[Image.Image], keys: list[str]) -> None:
    with pytest.raises(InputError, match="the model takes 16384") as caught:
        captions(tiny, pictures[:1], keys[:1], 1, max_new_tokens=16384)
    assert caught.value.where == "--max-new-tokens"


def test_nan_is_an_error_and_not_a_caption(
    folder: Path, pictures: list[Image.Image], keys: list[str], tmp_path: Path
) -> None:
    import torch

    copy = Path(shutil.copytree(folder, tmp_path / "nan"))
    tensors = torch.load(copy / "pytorch_model.bin", weights_only=True)
    tensors["language_model.model.norm.weight"][3] = float("nan")
    torch.save(tensors, copy / "pytorch_model.bin")
    with pytest.raises(RunError, match="NaN or infinite in float32"):
        captions(load(copy), pictures[:2], keys[:2], 2)


def test_memory_that_runs_out_is_told_apart(folder: Path, photos: Path) -> None:
    """A real shortage: the process may not map enough for the keys and values of 64 long answers."""
    code = """
import resource, sys
from pathlib import Path
from PIL import Image
from noukii.captioning import janus
from noukii.captioning.describe import OutOfMemory, describe
model = janus.load(janus.check_model(Path(sys.argv[1])), "cpu", janus.choose_dtype("cpu", "float32"))
picture = Image.open(sys.argv[2]).convert("RGB")
ask = dict(question="?", temperature=0, top_p=1.0, seed=1)
describe(model, [picture], ["a"], max_new_tokens=2, **ask)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, resource.RLIM_INFINITY))
try:
    describe(model, [picture] * 64, ["a"] * 64, max_new_tokens=16000, **ask)
except OutOfMemory as error:
    print(error)
print(describe(model, [picture], ["a"], max_new_tokens=2, **ask)[0].tokens)
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux to limit a process's memory")
    done = subprocess.run(
        [sys.executable, "-c", code, folder, photos / "coffee.png"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.splitlines() == ["64 images at a time do not fit into the memory of cpu", "2"], (
        done.stderr
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_which_errors_are_a_shortage(message: str, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) is expected


def test_batch_size_from_memory(tiny: loader.Janus) -> None:
    assert rows_that_fit(free=1000, per_row=100, once=100, most=32) == 8
    assert rows_that_fit(free=10_000_000, per_row=100, once=100, most=32) == 32
    assert rows_that_fit(free=50, per_row=100, once=100, most=32) == 1
    assert rows_that_fit(free=0, per_row=100, once=100, most=32) == 2
    assert automatic_batch_size(tiny, 512) == 8  # tiny: the most that a CPU gets
    assert steady_rows(tiny, 3, 512) == 3  # float32 needs no filling up


# --- pixels


def test_sides_round_down_as_upstream() -> None:
    rule = PixelRule(384)
    assert scaled_size(640, 427, rule) == (384, 256)  # 256.2
    assert scaled_size(500, 333, rule) == (384, 255)  # 255.7; rounding to nearest would give 256
    assert scaled_size(10, 10_000, rule) == (14, 384)
    assert scaled_size(1, 1, rule) == (384, 384)


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_longest_side_fills_the_square(width: int, height: int) -> None:
    rule = PixelRule(384)
    size = scaled_size(width, height, rule)
    assert max(size) == 384
    assert min(size) >= 14
    assert (size[0] >= size[1]) or width <= height


def test_padding_is_centred_grey() -> None:
    rule = PixelRule(96, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    wide = square(Image.new("RGB", (200, 67), (255, 0, 0)), rule)  # 96 x 32
    assert wide.size == (96, 96)
    column = [wide.getpixel((48, y)) for y in range(96)]
    assert column[:32] == [(127, 127, 127)] * 32
    assert set(column[32:64]) == {(255, 0, 0)}
    assert column[64:] == [(127, 127, 127)] * 32
    tall = pixel_values(Image.new("RGB", (67, 200), (255, 0, 0)), rule)
    assert tall.shape == (3, 96, 96)
    assert tall[:, 0, 48].tolist() == [1.0, -1.0, -1.0]
    assert tall[0, 0, 0] == pytest.approx(127 / 255 * 2 - 1)


def test_processor_settings_of_both_layouts() -> None:
    shared = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.5], "min_size": 10}
    original = pixel_rule({**shared, "image_size": 384, "background_color": [1, 2, 3]}, 384)
    converted = pixel_rule({**shared, "size": {"height": 384, "width": 384}, "do_pad": True}, 384)
    assert original == converted
    assert original.background == (127, 102, 76)
    with pytest.raises(ValueError, match="three numbers"):
        pixel_rule({"image_mean": [0.5]}, 384)


# --- sampling


@given(st.integers(0, 2**63), st.text(max_size=8), st.integers(0, 4000))
def test_noise_is_a_function(seed: int, key: str, step: int) -> None:
    assert 0.0 <= uniform(seed, key, step) < 1.0
    assert uniform(seed, key, step) == uniform(seed, key, step)


def test_noise_is_even_and_unrelated_between_steps() -> None:
    values = [uniform(42, "picture", step) for step in range(4000)]
    shares = Counter(int(value * 10) for value in values)
    assert all(320 < shares[tenth] < 480 for tenth in range(10))
    assert len(set(values)) == 4000
    assert not set(values) & {uniform(43, "picture", step) for step in range(4000)}


def test_sampling_takes_the_kept_share() -> None:
    """Masses .5 .3 .15 .05 and top_p .9: the first three, in these proportions."""
    import torch

    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    noise = [(step + 0.5) / 950 for step in range(950)]
    ids = choose(logits.repeat(950, 1), temperature=1.0, top_p=0.9, noise=noise)
    assert Counter(ids.tolist()) == {1: 500, 3: 300, 0: 150}


def test_temperature_sharpens() -> None:
    import torch

    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    assert choose(logits, temperature=1.0, top_p=1.0, noise=[0.999]).item() == 2
    assert choose(logits, temperature=0.05, top_p=1.0, noise=[0.999]).item() == 1
    assert choose(logits, temperature=0, top_p=1.0, noise=[]).item() == 1


def test_level_tokens_are_taken_in_order_of_their_ids() -> None:
    import torch

    logits = torch.zeros(1, 1000)
    for noise, wanted in ((0.0, 0), (0.4999, 499), (0.9999, 999)):
        assert choose(logits, temperature=1.0, top_p=1.0, noise=[noise]).item() == wanted


def test_large_vocabulary_is_cut_without_changing_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from noukii.captioning import seeded_sampling

    generator = torch.Generator().manual_seed(0)
    # bfloat16 logits hold many equal values: where order could go wrong
    logits = (torch.randn(8, 5000, generator=generator) * 3).bfloat16().float()
    noise = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999]
    for temperature in (0.1, 0.5, 1.0, 2.0):
        for top_p in (0.3, 0.95, 1.0):
            short = choose(logits, temperature=temperature, top_p=top_p, noise=noise)
            with monkeypatch.context() as patch:
                patch.setattr(seeded_sampling, "CANDIDATES", 10**9)
                assert choose(logits, temperature=temperature, top_p=top_p, noise=noise).equal(short)
