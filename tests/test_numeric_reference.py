"""Stable Diffusion 1.5 at full size, in float32, agrees with sd-scripts' own numbers.

Needs about 10 GB of memory and a 4.3 GB file of random weights; run by ./test.sh --slow. NOUKII_RANDOM_SD15
may name that file (make_random_sd15.py, seed 0); else it is made in a temporary folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

OUTPUT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
FIRST_VALUES_TOLERANCE = 1e-4  # relative to the tensor's own spread


@pytest.fixture(scope="module")
def expected(reference: Path) -> dict:
    return json.loads((reference / "numeric_reference.json").read_text())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    named = os.environ.get("NOUKII_RANDOM_SD15")
    if named:
        yield Path(named)
        return
    tool = Path(__file__).resolve().parents[2] / "shared" / "tools" / "make_random_sd15.py"
    if not tool.is_file():
        pytest.skip("make_random_sd15.py lies in ../shared, which is not here")
    path = tmp_path_factory.mktemp("sd15") / "random_sd15.safetensors"
    subprocess.run([sys.executable, str(tool), str(path)], check=True)
    yield path
    path.unlink()


def drawn(name: str, shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    """The reference's rule: values depend on seed 1 and the tensor's name alone."""
    values = np.random.Generator(np.random.PCG64([1, zlib.crc32(name.encode())]))
    return torch.from_numpy(values.standard_normal(shape, dtype=np.float32) * np.float32(scale))


def assert_like(found: torch.Tensor, expected: dict, what: str) -> None:
    found = found.detach().double()
    assert list(found.shape) == expected["shape"], what
    spread = expected["std"]
    errors = {
        "norm": abs(found.norm().item() / expected["norm"] - 1),
        "std": abs(found.std().item() / expected["std"] - 1),
        "mean": abs(found.mean().item() - expected["mean"]) / spread,
    }
    assert max(errors.values()) < OUTPUT_TOLERANCE, (what, errors)
    first = torch.tensor(expected["first8"], dtype=torch.float64)
    error = ((found.flatten()[:8] - first).abs().max() / spread).item()
    print(f"{what}: {errors}, first values {error:.1e}")
    assert error < FIRST_VALUES_TOLERANCE, (what, error)


@pytest.mark.slow
def test_full_size_numbers_agree_with_upstream(checkpoint: Path, expected: dict) -> None:
    from noukii.trainer.base_model import PARTS, encode_prompt, load_base_model, read_ahead
    from noukii.trainer.checkpoint_header import inspect_base_model
    from noukii.trainer.lora import create_network
    from noukii.trainer.objective import add_noise, loss_per_sample, target_of
    from noukii.trainer.packed_convs import pack

    files = inspect_base_model(checkpoint)
    ahead = read_ahead(files, torch.float32, PARTS)
    assert ahead is not None
    early = ahead.wait()
    base = load_base_model(files, dtype=torch.float32, early=early)
    assert not any(name.startswith(("model.diffusion_model", "first_stage_model")) for name in early)
    assert base.tokenizer.chunks(expected["captions"][0]) == [expected["input_ids"][0]]
    for index, value in expected["alphas_cumprod"].items():
        assert base.alphas_cumprod[int(index)].item() == pytest.approx(value, rel=1e-6)

    ids = torch.tensor(expected["input_ids"]).unsqueeze(1)
    height, width = expected["noisy"]["shape"][2:]
    latents, noise = (drawn(name, tuple(expected["noisy"]["shape"])) for name in ("latents", "noise"))
    timesteps = torch.tensor(expected["timesteps"])
    with torch.no_grad():
        image = drawn("image", (1, 3, height * 8, width * 8)).clamp(-1, 1)
        encoded = base.vae.encode(image).latent_dist
        assert_like(encoded.mean, expected["vae_mean"], "VAE mean")
        assert_like(encoded.std, expected["vae_std"], "VAE std")
        text = encode_prompt(base.text_encoder, ids)
        assert_like(text, expected["text_encoder"], "text encoder")
        noisy = add_noise(latents, noise, timesteps, base.alphas_cumprod)
        assert_like(noisy, expected["noisy"], "noisy latents")
        predicted = base.unet(noisy, timesteps, text).sample
        assert_like(predicted, expected["unet_no_lora"], "UNet")
        loss = loss_per_sample(predicted, target_of(latents, noise, timesteps, base.alphas_cumprod)).mean()
        assert loss.item() == pytest.approx(expected["loss_no_lora"], rel=OUTPUT_TOLERANCE)
    base.vae = None
    pack(base.unet, trains=True)  # as training on a processor does

    rule = expected["lora"]
    network = create_network(base.unet, base.text_encoder, rank=rule["rank"], alpha=rule["alpha"]).apply()
    with torch.no_grad():
        for name, value in network.named_parameters():
            value.copy_(drawn(name, tuple(value.shape), 0.05))
    text = encode_prompt(base.text_encoder, ids)
    assert_like(text, expected["text_encoder_lora"], "text encoder with LoRA")
    predicted = base.unet(noisy, timesteps, text).sample
    assert_like(predicted, expected["unet_lora"], "UNet with LoRA")
    losses = loss_per_sample(predicted, target_of(latents, noise, timesteps, base.alphas_cumprod))
    assert losses.tolist() == pytest.approx(expected["loss_lora_per_sample"], rel=OUTPUT_TOLERANCE)

    losses.mean().backward()
    norms = {name: value.grad.double().norm().item() for name, value in network.named_parameters()}
    assert norms.keys() == expected["grad_norms"].keys()
    worst = max(norms, key=lambda name: abs(norms[name] / expected["grad_norms"][name] - 1))
    error = norms[worst] / expected["grad_norms"][worst] - 1
    print(f"worst of {len(norms)} gradient norms: {error:.1e} {worst}")
    assert norms == pytest.approx(expected["grad_norms"], rel=GRADIENT_TOLERANCE)
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    assert total == pytest.approx(expected["grad_norm_total"], rel=GRADIENT_TOLERANCE)
