"""What the training stages share: pictures as tensors, the learning rate, averaged weights, checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noukii import hardware

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "demo"
"""Where unfinished stages lie; not in git."""


def to_tensor(pictures: list[np.ndarray]) -> Tensor:
    """uint8 [64, 64, 3] pictures -> float32 [B, 3, 64, 64] in -1..1."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pictures(pixels: Tensor) -> list[np.ndarray]:
    """float [B, 3, 64, 64] in -1..1 -> uint8 [64, 64, 3] pictures."""
    levels = (pixels.float() / 2 + 0.5).clamp(0, 1).mul(255).round().byte()
    return list(levels.permute(0, 2, 3, 1).cpu().numpy())


def learning_rate(step: int, steps: int, peak: float, warmup: int = 50, tail: float = 0.35) -> float:
    """Rise for `warmup` steps, stay at `peak`, fall in a straight line over the last `tail` of the run."""
    if step < warmup:
        return peak * (step + 1) / warmup
    left = (steps - step) / max(1, steps * tail)
    return peak * max(0.02, min(1.0, left))


def autocast() -> Any:
    """bfloat16 where the processor multiplies it itself: two to three times as fast as float32 there.

    Elsewhere it is emulated, a hundred times slower, so float32 stays.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=hardware.cpu_bfloat16())


class Average:
    """An exponential moving average of a model's weights, kept in float32."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights of `step`; early steps count for more, so that the start is forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                self.values[name].lerp_(value, 1 - decay)
            else:
                self.values[name].copy_(value)


def train(
    name: str,
    models: dict[str, nn.Module],
    groups: list[dict[str, Any]],
    steps: int,
    loss_of: Callable[[int], Tensor],
    *,
    decay: float = 0.998,
    clip: float = 1.0,
    save_every: int = 200,
    report: Callable[[int, dict[str, Average]], None] | None = None,
    report_every: int = 200,
) -> dict[str, Average]:
    """Train until `steps` and return the averaged weights; continue from the checkpoint of an earlier run.

    `groups` are AdamW's, each with `params`, `lr` (the peak) and perhaps `weight_decay`.
    `loss_of(step)` computes the loss of one step and must depend on the step alone, not on what ran before.
    """
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    peaks = [group["lr"] for group in optimizer.param_groups]
    averages = {key: Average(model, decay) for key, model in models.items()}
    path = CACHE / f"{name}.pt"
    first = 0
    if path.is_file():
        saved = torch.load(path, weights_only=True)
        for key, model in models.items():
            model.load_state_dict(saved["models"][key])
            averages[key].values = saved["averages"][key]
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"{name}: continuing at step {first}", flush=True)
    begun, smooth = time.monotonic(), None
    for step in range(first, steps):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = learning_rate(step, steps, peak)
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], clip)
        optimizer.step()
        for key, model in models.items():
            averages[key].update(model, step)
        smooth = loss.item() if smooth is None else smooth + 0.02 * (loss.item() - smooth)
        done = step + 1
        if done % 50 == 0:
            pace = (time.monotonic() - begun) / (done - first)
            print(
                f"{name} {done}/{steps} loss {smooth:.4f} {pace:.2f} s/step, "
                f"{pace * (steps - done) / 60:.0f} min left",
                flush=True,
            )
        if done % save_every == 0 or done == steps:
            save(
                path,
                {
                    "models": {key: model.state_dict() for key, model in models.items()},
                    "averages": {key: average.values for key, average in averages.items()},
                    "optimizer": optimizer.state_dict(),
                    "step": done,
                },
            )
        if report and (done % report_every == 0 or done == steps):
            report(done, averages)
    return averages


def averaged(name: str, key: str) -> dict[str, Tensor] | None:
    """Return the averaged weights of a stage's checkpoint, or None if there is none yet."""
    path = CACHE / f"{name}.pt"
    return torch.load(path, weights_only=True)["averages"][key] if path.is_file() else None


def save(path: Path, value: Any) -> None:
    """Write a torch file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    torch.save(value, temporary)
    os.replace(temporary, path)
