"""Latents and text embeddings: right, computed once, never taken from a file that is not exactly theirs."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_sd
from tiny_training import arguments, draw_data, metadata_of, tensors_of, train_here, write_toml

from noukii.dataset.config_file import read_config
from noukii.dataset.images import open_image
from noukii.dataset.samples import Sample, load_samples
from noukii.errors import RunError
from noukii.trainer.base_model import load_base_model
from noukii.trainer.cache import LatentSource, TextSource, to_pixels, vae_identity
from noukii.trainer.checkpoint_header import inspect_base_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_sd(tmp_path_factory.mktemp("cache") / "model")


def vae_of(model: Path) -> torch.nn.Module:
    return load_base_model(inspect_base_model(model), dtype=torch.float32, parts=("vae",)).vae


def samples_in(tmp_path: Path, subset: str = "") -> list[Sample]:
    data = tmp_path / "data é"
    if not data.exists():
        draw_data(data)
    config = read_config(write_toml(tmp_path / "c.toml", data, subset=subset))
    return list(load_samples(config)[0].samples)


def source(vae: torch.nn.Module | None, *, on_disk: bool = True, remember: bool = True) -> LatentSource:
    return LatentSource(vae, CPU, remember=remember, on_disk=on_disk, workers=2)


def test_bfloat16_latents_are_near_and_kept_apart(model: Path, tmp_path: Path, project_home: Path) -> None:
    vae, samples = vae_of(model), samples_in(tmp_path)
    exact = source(vae)
    exact.fill(samples)
    exact_files = files_in(project_home)
    mixed = LatentSource(vae, CPU, remember=True, on_disk=True, workers=2, bfloat16=True)
    mixed.fill(samples)
    assert len(files_in(project_home)) == 2 * len(exact_files), (
        "one run's latents would be taken for the other's"
    )
    assert files_in(project_home).items() >= exact_files.items()
    for sample in samples:
        one, other = exact.posterior(sample, False).mean, mixed.posterior(sample, False).mean
        assert not torch.equal(one, other)
        assert (one - other).norm() < 0.03 * one.norm()
        assert other.dtype == torch.float32


def files_in(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*.safetensors")}


def content_of(home: Path) -> dict[Path, object]:
    """Header entries stand in no fixed order, so content is compared, not bytes."""
    return {path: (tensors_of(path), metadata_of(path)) for path in home.rglob("*.safetensors")}


def test_pixels_are_cut_around_the_centre_and_scaled_to_minus_one_to_one(tmp_path: Path) -> None:
    image = Image.new("RGB", (150, 64), (255, 0, 51))
    ImageDraw.Draw(image).rectangle((11, 0, 11, 63), fill="black")  # first column of the bucket's part
    (tmp_path / "data é").mkdir()
    image.save(tmp_path / "data é" / "wide.png")
    (sample,) = samples_in(tmp_path)
    assert (sample.fit.bucket.width, sample.fit.bucket.height) == (128, 64)
    pixels = to_pixels(open_image(sample.image.path), sample)
    assert pixels.shape == (3, 64, 128)
    assert torch.all(pixels[:, :, 0] == -1)
    assert pixels[:, 5, 50].tolist() == pytest.approx([1.0, -1.0, -0.6])
    mirrored = to_pixels(open_image(sample.image.path), sample, flipped=True)
    assert torch.equal(mirrored, pixels.flip(-1))


def test_an_answer_is_the_vaes_own(model: Path, tmp_path: Path) -> None:
    samples, vae = samples_in(tmp_path), vae_of(model)
    latents = source(vae, on_disk=False)
    latents.fill(samples)
    for sample in samples:
        pixels = to_pixels(open_image(sample.image.path), sample)
        with torch.no_grad():
            expected = vae.encode(pixels.unsqueeze(0)).latent_dist
        got = latents.posterior(sample, False)
        assert torch.equal(got.mean, expected.mean[0]) and torch.equal(got.std, expected.std[0])


def test_each_image_is_encoded_once_and_mirrored_only_where_asked(model: Path, tmp_path: Path) -> None:
    vae, calls = vae_of(model), []
    encode = vae.encode
    vae.encode = lambda pixels: calls.append(pixels.shape) or encode(pixels)
    latents = source(vae, on_disk=False)
    latents.fill(samples_in(tmp_path))
    assert len(calls) == 5
    latents.release_vae(keep=False)
    latents.posterior(samples_in(tmp_path)[0], False)
    assert len(calls) == 5
    flipping = samples_in(tmp_path, subset="flip_aug = true")
    source(vae, on_disk=False).fill(flipping)
    assert len(calls) == 15


def test_the_disk_cache_lies_in_the_project_and_saves_the_work(
    model: Path, tmp_path: Path, project_home: Path
) -> None:
    samples = samples_in(tmp_path)
    before = sorted(os.listdir(tmp_path / "data é"))
    first = source(vae_of(model))
    first.fill(samples)
    assert len(files_in(project_home)) == 5
    assert sorted(os.listdir(tmp_path / "data é")) == before
    vae = vae_of(model)
    vae.encode = lambda pixels: pytest.fail("was on disk")
    again = source(vae)
    again.fill(samples)
    for sample in samples:
        assert torch.equal(again.posterior(sample, False).mean, first.posterior(sample, False).mean)


def test_an_edited_image_is_encoded_again(model: Path, tmp_path: Path, project_home: Path) -> None:
    samples = samples_in(tmp_path)
    source(vae_of(model)).fill(samples)
    kept = files_in(project_home)
    Image.new("RGB", (64, 64), "purple").save(samples[0].image.path)
    source(vae_of(model)).fill(samples_in(tmp_path))
    assert len(files_in(project_home)) == 6
    assert kept.items() <= files_in(project_home).items()


def test_another_vae_has_another_cache(model: Path, tmp_path: Path, project_home: Path) -> None:
    samples, vae, other = samples_in(tmp_path), vae_of(model), vae_of(model)
    with torch.no_grad():
        other.encoder.conv_in.bias[0] += 1e-3
    assert vae_identity(vae) != vae_identity(other)
    with torch.no_grad():
        other.decoder.conv_in.bias[0] += 1  # what only decodes does not matter for latents
    source(vae).fill(samples)
    source(other).fill(samples)
    assert len(files_in(project_home)) == 10


@pytest.mark.parametrize("harm", ["cut", "empty", "text", "nan", "shape", "swapped", "no header", "one bit"])
def test_a_cache_file_that_is_not_right_is_computed_again(
    model: Path, tmp_path: Path, project_home: Path, harm: str
) -> None:
    samples = samples_in(tmp_path)
    source(vae_of(model)).fill(samples)
    good, content = files_in(project_home), content_of(project_home)
    paths = sorted(good)
    one, raw = paths[0], good[paths[0]]
    tensors = {name: value.clone() for name, value in load_file(one).items()}
    if harm == "cut":
        one.write_bytes(raw[: len(raw) // 2])
    elif harm == "empty":
        one.write_bytes(b"")
    elif harm == "text":
        one.write_text("latents")
    elif harm == "nan":
        one.write_bytes(raw[:-4] + b"\x00\x00\xc0\x7f")
    elif harm == "one bit":  # of a number's least digits: nothing but a checksum can tell
        one.write_bytes(raw[:-4] + bytes([raw[-4] ^ 1]) + raw[-3:])
        assert not torch.equal(load_file(one)["std"], tensors["std"])
    elif harm == "shape":
        save_file({name: value[:, :1].contiguous() for name, value in tensors.items()}, one)
    elif harm == "swapped":
        one.write_bytes(good[paths[1]])
    else:
        save_file(tensors, one)
    source(vae_of(model)).fill(samples)
    assert content_of(project_home) == content


def test_a_cache_that_cannot_be_written_is_told_once_and_costs_nothing(
    model: Path, tmp_path: Path, project_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    samples, vae = samples_in(tmp_path), vae_of(model)
    (project_home / ".cache").write_text("a file in the way")
    for obstacle in ("file in the way", "full disk"):
        latents = source(vae)
        if obstacle == "full disk":
            (project_home / ".cache").unlink()
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
            try:
                latents.fill(samples)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        else:
            latents.fill(samples)
        assert latents.posterior(samples[4], False).mean.isfinite().all()
        assert capfd.readouterr().err.count("the latents are not kept for later runs") == 1
    assert files_in(project_home) == {}


def test_nan_latents_name_the_image(model: Path, tmp_path: Path) -> None:
    samples, vae = samples_in(tmp_path), vae_of(model)
    with torch.no_grad():
        vae.encoder.conv_in.weight.fill_(float("nan"))
    with pytest.raises(RunError) as caught:
        source(vae, on_disk=False).fill(samples)
    assert "disc 0 é.png" in str(caught.value) and "NaN" in str(caught.value)


def test_an_image_that_vanished_is_named(model: Path, tmp_path: Path) -> None:
    samples = samples_in(tmp_path)
    samples[2].image.path.unlink()
    with pytest.raises(RunError, match=r"disc 2 é\.png"):
        source(vae_of(model), on_disk=False).fill(samples)


def test_captions_are_encoded_once() -> None:
    calls: list[str] = []
    text = TextSource(lambda caption: calls.append(caption) or torch.full((77, 4), float(len(caption))))
    text.fill(["a", "bb", "a"])
    text.forget_encoder()
    assert text.embedding("bb")[0, 0] == 2
    assert calls == ["a", "bb"]


def test_caches_do_not_change_the_result(model: Path, tmp_path: Path) -> None:
    """Cached in memory, on disk (written, then read), not at all; with and without worker threads."""
    toml = write_toml(tmp_path / "c.toml", draw_data(tmp_path / "data"), subset="flip_aug = true")
    unet_only = "--network_train_unet_only"
    variants = {
        "memory": [unet_only],
        "disk": [unet_only, "--cache_latents_to_disk"],
        "disk again": [unet_only, "--cache_latents_to_disk", "--cache_text_encoder_outputs"],
        "no workers": [unet_only, "--max_data_loader_n_workers=0"],
    }
    results = {}
    for name, flags in variants.items():
        train_here(tmp_path, arguments(model, toml, tmp_path / name, *flags, steps=4))
        results[name] = tensors_of(tmp_path / name / "disc.safetensors")
    for name, extra in (("uncached", []), ("kept", ["--persistent_data_loader_workers"]),
                        ("plain", ["--max_data_loader_n_workers=0"])):  # fmt: skip
        flags = arguments(model, toml, tmp_path / name, unet_only, *extra, steps=4)
        flags.remove("--cache_latents")
        train_here(tmp_path, flags)
        results[name] = tensors_of(tmp_path / name / "disc.safetensors")
    for name, tensors in results.items():
        assert tensors == results["memory"], name
