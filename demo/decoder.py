"""Train the autoencoder's decoder alone, longer than the whole: the encoder, and so the latents, stay.

The UNet needs only the encoder, so this stage may run beside `diffusion`. The decoder also sees latents
that are a little off, as a UNet's are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from demo import tools, vae

FIRST_STEP = 10**6
"""The pictures of this stage are others than those of the stage before."""
BLUR = 0.06
"""Extra noise, as a share of the latents' own spread."""


def train(steps: int) -> None:
    """Train until `steps`; the weights lie in the stage's checkpoint."""
    whole = vae.trained(decoder=False).train()
    for part in (whole.decoder, whole.post_quant_conv):
        part.requires_grad_(True)

    def loss(step: int) -> Tensor:
        pixels, weight = vae.batch(FIRST_STEP + step)
        with torch.no_grad(), tools.autocast():
            posterior = whole.encode(pixels).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=torch.Generator().manual_seed(step))
        latents = posterior.mean + (posterior.std + BLUR * posterior.mean.std()) * noise
        with tools.autocast():
            again = whole.decode(latents).sample.float()
        difference = again - pixels
        return ((difference.abs() + 2 * difference**2) * weight).mean()

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        decibels, passed, total = vae.quality(vae.trained())
        print(f"decoder {step}: {decibels:.1f} dB, judge passes {passed} of {total}", flush=True)

    parts = torch.nn.ModuleDict({"decoder": whole.decoder, "post_quant_conv": whole.post_quant_conv})
    groups = [{"params": list(parts.parameters()), "lr": 1.5e-3}]
    tools.train("decoder", {"decoder": parts}, groups, steps, loss, report=report, report_every=200)


def export() -> None:
    """Write the whole vae/ again, with the new decoder."""
    vae.export()
