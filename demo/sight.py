"""Teach the captioner's eyes before its tongue: vision tower and aligner learn what stands where.

Learned through the language model alone, shapes and places take ten times as long. A linear layer that is
thrown away reads each place's size, colour, shape and stripes from the mean of the aligned picture tokens,
so that every token comes to carry what the language model will ask for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo import captioner, prompts, tools, world

BATCH = 64
SEED = 5


class Eyes(nn.Module):
    """Vision tower, aligner and the heads that read them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model, self.aligner = model.model.vision_model, model.model.aligner
        self.sizes = [len(names) for _ in prompts.SLOTS for names in prompts.CLASSES.values()]
        self.sizes.append(len(world.BACKGROUNDS))
        self.read = nn.Linear(captioner.WIDTH, sum(self.sizes))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """pixels [B, 3, 64, 64] -> one tensor of scores per question."""
        seen = self.aligner(self.vision_model(pixel_values=pixels).last_hidden_state)
        return list(self.read(seen.mean(1)).float().split(self.sizes, dim=-1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return pixels [B, 3, 64, 64] and classes [B, questions] of a step."""
    random = np.random.default_rng((SEED, step))
    scenes = [world.richer_scene(random, captioner.STRIPED) for _ in range(BATCH)]
    classes = torch.tensor([prompts.known_classes(scene) for scene in scenes])
    return tools.to_tensor([world.draw(scene) for scene in scenes]), classes


def train(steps: int) -> None:
    """Train until `steps`; the weights lie in the stage's checkpoint."""
    eyes = Eyes(captioner.new_model(captioner.vocabulary()))

    def loss(step: int) -> Tensor:
        pixels, classes = batch(step)
        with tools.autocast():
            scores = eyes(pixels)
        total = sum(F.cross_entropy(one, classes[:, i]) for i, one in enumerate(scores))
        return total / len(scores)

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        with torch.no_grad():
            pixels, classes = batch(10**6 + step)
            guesses = torch.stack([one.argmax(-1) for one in eyes(pixels)], 1)
        whole = (guesses == classes).all(1).float().mean().item()
        print(f"sight {step}: {whole:.0%} of pictures are read without a mistake", flush=True)

    matrices = [p for n, p in eyes.named_parameters() if p.ndim > 1 and "position" not in n]
    others = [p for n, p in eyes.named_parameters() if not (p.ndim > 1 and "position" not in n)]
    groups = [
        {"params": matrices, "lr": 1e-3, "weight_decay": 0.02},
        {"params": others, "lr": 1e-3, "weight_decay": 0.0},
    ]
    tools.train("sight", {"eyes": eyes}, groups, steps, loss, report=report, report_every=200, decay=0.99)


def export() -> None:
    """Nothing to write: the stage `captioner` goes on from here."""
