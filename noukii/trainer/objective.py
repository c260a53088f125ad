"""The training objective of Stable Diffusion: the method in one place, as pure tensor functions.

    x_t    = √ᾱ_t · x_0 + √(1 − ᾱ_t) · ε                      (noise is added; DDPM, arXiv:2006.11239)
    target = ε                          for an epsilon model
             √ᾱ_t · ε − √(1 − ᾱ_t) · x_0  for a v model       (arXiv:2202.00512)
    loss_i = w_i · mean((model(x_t, t, text) − target)²)      (one number per sample i)

where w_i is the sample's prior weight (`--prior_loss_weight` for regularisation images) times its
min-SNR weight (`--min_snr_gamma`, arXiv:2303.09556). Everything agrees with kohya's train_network.py;
timesteps are looked up on the device they lie on, so nothing here waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EPSILON, V_PREDICTION = "epsilon", "v_prediction"


def _at(table: Tensor, timesteps: Tensor) -> Tensor:
    """Return table[timesteps] as [B, 1, 1, 1], to be multiplied with latents."""
    return table[timesteps].reshape(-1, 1, 1, 1)


def add_noise(latents: Tensor, noise: Tensor, timesteps: Tensor, alphas_cumprod: Tensor) -> Tensor:
    """Return the noisy latents x_t.

    latents, noise: [B, 4, H, W]; timesteps: [B] whole numbers; alphas_cumprod: [1000] float32, all on one
    device.
    """
    alpha_bar = _at(alphas_cumprod, timesteps)
    return (alpha_bar.sqrt() * latents + (1 - alpha_bar).sqrt() * noise).to(latents.dtype)


def target_of(
    latents: Tensor, noise: Tensor, timesteps: Tensor, alphas_cumprod: Tensor, prediction_type: str = EPSILON
) -> Tensor:
    """Return what the model should predict; shapes as in `add_noise`."""
    if prediction_type == EPSILON:
        return noise
    if prediction_type == V_PREDICTION:
        alpha_bar = _at(alphas_cumprod, timesteps)
        return (alpha_bar.sqrt() * noise - (1 - alpha_bar).sqrt() * latents).to(latents.dtype)
    raise ValueError(f"unknown prediction type {prediction_type!r}")


def loss_per_sample(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of each sample, [B] in float32."""
    return (prediction.float() - target.float()).square().mean(dim=(1, 2, 3))


def min_snr_weights(
    timesteps: Tensor, alphas_cumprod: Tensor, gamma: float, prediction_type: str = EPSILON
) -> Tensor:
    """Return min(SNR, γ)/SNR for an epsilon model, min(SNR, γ)/(SNR + 1) for a v model; [B].

    SNR = ᾱ/(1 − ᾱ). For ᾱ = 0 (a schedule that ends in pure noise) the first form tends to 1.
    """
    alpha_bar = alphas_cumprod[timesteps]
    snr = alpha_bar / (1 - alpha_bar)
    clipped = snr.clamp(max=gamma)
    if prediction_type == V_PREDICTION:
        return clipped / (snr + 1)
    return torch.where(snr > 0, clipped / snr, torch.ones_like(snr))


def apply_noise_offset(noise: Tensor, shift: Tensor, strength: float) -> Tensor:
    """Return noise + strength · shift: every channel of a sample moves as one (`--noise_offset`).

    shift: standard normal, [B, C, 1, 1]; the caller draws it, so that it depends on (seed, step) alone.
    """
    return noise + strength * shift


def training_loss(
    predict: Callable[[Tensor, Tensor], Tensor],
    latents: Tensor,
    noise: Tensor,
    timesteps: Tensor,
    alphas_cumprod: Tensor,
    *,
    prediction_type: str = EPSILON,
    prior_weights: Tensor | None = None,
    min_snr_gamma: float | None = None,
) -> Tensor:
    """Return the weighted loss of each sample, [B]; the loss of the batch is its mean.

    predict(noisy latents, timesteps) -> [B, 4, H, W] is the model with its text already given.
    prior_weights: [B], 1 for a normal image.
    """
    noisy = add_noise(latents, noise, timesteps, alphas_cumprod)
    target = target_of(latents, noise, timesteps, alphas_cumprod, prediction_type)
    loss = loss_per_sample(predict(noisy, timesteps), target)
    if prior_weights is not None:
        loss = loss * prior_weights
    if min_snr_gamma:
        loss = loss * min_snr_weights(timesteps, alphas_cumprod, min_snr_gamma, prediction_type)
    return loss
