"""The training objective against diffusers' own schedulers and against the formulas written out."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from noukii.trainer import objective  # noqa: E402
from noukii.trainer.base_model import SD15, noise_schedule  # noqa: E402


@pytest.fixture(scope="module")
def schedule() -> torch.Tensor:
    return noise_schedule(SD15 / "scheduler")[0]


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    draw = lambda: torch.randn(4, 4, 6, 5, generator=random)  # noqa: E731
    return {"latents": draw(), "noise": draw(), "timesteps": torch.tensor([0, 37, 500, 999])}


def scheduler(prediction_type: str):  # type: ignore[no-untyped-def]
    from diffusers import DDPMScheduler

    return DDPMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        prediction_type=prediction_type,
    )


def test_the_schedule_is_sd15s(schedule: torch.Tensor, reference) -> None:  # type: ignore[no-untyped-def]
    import json

    facts = json.loads((reference / "numeric_reference.json").read_text())["alphas_cumprod"]
    assert schedule.shape == (1000,)
    assert {int(t): schedule[int(t)].item() for t in facts} == pytest.approx(
        {int(t): value for t, value in facts.items()}, rel=1e-6
    )


def test_a_folder_without_scheduler_gets_sd15s_schedule(tmp_path, schedule) -> None:  # type: ignore[no-untyped-def]
    found, prediction_type = noise_schedule(tmp_path / "scheduler")
    assert torch.equal(found, schedule)
    assert prediction_type == "epsilon"


def test_a_folders_own_schedule_is_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "scheduler_config.json").write_text(
        '{"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear",'
        ' "prediction_type": "v_prediction"}'
    )
    found, prediction_type = noise_schedule(tmp_path)
    betas = torch.linspace(0.0001, 0.02, 1000, dtype=torch.float64)
    assert torch.allclose(found.double(), (1 - betas).cumprod(0), rtol=1e-4)
    assert prediction_type == "v_prediction"


def test_noise_is_added_as_diffusers_adds_it(batch, schedule) -> None:  # type: ignore[no-untyped-def]
    ours = objective.add_noise(batch["latents"], batch["noise"], batch["timesteps"], schedule)
    theirs = scheduler("epsilon").add_noise(batch["latents"], batch["noise"], batch["timesteps"])
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    assert ours.dtype == torch.float32


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_targets(batch, schedule, prediction_type: str) -> None:  # type: ignore[no-untyped-def]
    ours = objective.target_of(**batch, alphas_cumprod=schedule, prediction_type=prediction_type)
    if prediction_type == "epsilon":
        assert torch.equal(ours, batch["noise"])
    else:
        theirs = scheduler(prediction_type).get_velocity(batch["latents"], batch["noise"], batch["timesteps"])
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_an_unknown_prediction_type_is_an_error(batch, schedule) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="sample"):
        objective.target_of(**batch, alphas_cumprod=schedule, prediction_type="sample")


def test_the_loss_is_the_mean_square_of_each_sample() -> None:
    prediction = torch.zeros(2, 4, 3, 3, dtype=torch.bfloat16)
    target = torch.stack([torch.full((4, 3, 3), 2.0), torch.full((4, 3, 3), -3.0)])
    loss = objective.loss_per_sample(prediction, target)
    assert loss.tolist() == [4.0, 9.0]
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_min_snr_weights_follow_the_paper(schedule, prediction_type: str) -> None:  # type: ignore[no-untyped-def]
    timesteps = torch.tensor([0, 37, 250, 500, 999])
    found = objective.min_snr_weights(timesteps, schedule, 5.0, prediction_type)
    for weight, timestep in zip(found.tolist(), timesteps.tolist(), strict=True):
        alpha_bar = schedule[timestep].item()
        snr = alpha_bar / (1 - alpha_bar)
        divisor = snr if prediction_type == "epsilon" else snr + 1
        assert weight == pytest.approx(min(snr, 5.0) / divisor, rel=1e-4)
    if prediction_type == "epsilon":
        assert found[0] < 0.01  # almost clean pictures count little
        assert found[-1] == 1.0


def test_min_snr_weights_stay_finite_where_only_noise_is_left() -> None:
    assert objective.min_snr_weights(torch.tensor([0]), torch.tensor([0.0]), 5.0).tolist() == [1.0]


def test_noise_offset_moves_whole_channels() -> None:
    noise, shift = torch.zeros(2, 4, 3, 3), torch.randn(2, 4, 1, 1)
    moved = objective.apply_noise_offset(noise, shift, 0.1)
    assert torch.equal(moved, (0.1 * shift).expand(2, 4, 3, 3))


def test_training_loss_puts_the_pieces_together(batch, schedule) -> None:  # type: ignore[no-untyped-def]
    seen = []

    def predict(noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        seen.append((noisy, timesteps))
        return noisy * 0.5

    prior = torch.tensor([1.0, 1.0, 0.25, 1.0])
    found = objective.training_loss(
        predict, **batch, alphas_cumprod=schedule, prior_weights=prior, min_snr_gamma=5.0
    )
    for i, timestep in enumerate(batch["timesteps"].tolist()):
        alpha_bar = schedule[timestep].item()
        noisy = math.sqrt(alpha_bar) * batch["latents"][i] + math.sqrt(1 - alpha_bar) * batch["noise"][i]
        error = ((noisy * 0.5 - batch["noise"][i]) ** 2).mean().item()
        snr = alpha_bar / (1 - alpha_bar)
        assert found[i].item() == pytest.approx(error * prior[i].item() * min(snr, 5) / snr, rel=1e-3)
        assert torch.allclose(seen[0][0][i], noisy, rtol=1e-5, atol=1e-6)
    plain = objective.training_loss(predict, **batch, alphas_cumprod=schedule)
    assert plain[0] > found[0]
