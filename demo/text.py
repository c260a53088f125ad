"""The demo's text encoder: CLIP's architecture, taught what a prompt says before the UNet listens to it.

Learned together with the UNet from random numbers, it takes far longer until pictures match prompts. So it
first learns to tell, from the places behind the prompt's end, what stands where: a head that is thrown away
reads each slot's size, colour and shape, and the background.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from demo import prompts, tools, world
from noukii.clip_tokens import ClipTokenizer

FOLDER = Path(__file__).resolve().parent / "models" / "sd"
SEED = 3
BATCH = 64
WIDTH = 128
LAYERS = 2


def new_text_encoder(vocabulary: int) -> CLIPTextModel:
    """Return the untrained model."""
    torch.manual_seed(SEED)
    config = CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=77,
        hidden_act="quick_gelu",
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )
    return CLIPTextModel(config)


class Heads(nn.Module):
    """Reads the classes of all slots, the background and an unknown word from one token's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [len(names) for _ in prompts.SLOTS for names in prompts.CLASSES.values()]
        self.sizes += [len(world.BACKGROUNDS), *[1 + len(prompts.LETTERS)] * 2]
        self.read = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """hidden [..., WIDTH] -> one tensor of scores per question."""
        return list(self.read(hidden).split(self.sizes, dim=-1))


def batch(tokenizer: ClipTokenizer, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids [B, 77], the place of the prompt's end [B], and what is said [B, questions]."""
    random = np.random.default_rng((SEED, step))
    made = [prompts.prompt_of(world.richer_scene(random), random, unknown=0.5) for _ in range(BATCH)]
    ids = torch.tensor([tokenizer.chunks(text)[0] for text, _ in made])
    ends = (ids == tokenizer.eos_id).int().argmax(dim=1)
    return ids, ends, torch.tensor([said for _, said in made])


def loss(model: CLIPTextModel, heads: Heads, tokenizer: ClipTokenizer, step: int) -> Tensor:
    """Cross-entropy of what the place of the end, and one place after it, say."""
    ids, ends, said = batch(tokenizer, step)
    with tools.autocast():
        hidden = model(ids).last_hidden_state
    later = ends + torch.randint(1, 40, ends.shape, generator=torch.Generator().manual_seed(step))
    rows = torch.arange(len(ids))
    total = torch.zeros(())
    for places in (ends, later):
        for number, scores in enumerate(heads(hidden[rows, places].float())):
            total = total + F.cross_entropy(scores, said[:, number], ignore_index=prompts.UNSAID)
    return total / (2 * len(heads.sizes))


def train(steps: int) -> None:
    """Train until `steps`; the weights lie in the stage's checkpoint."""
    tokenizer = prompts.write_tokenizer(FOLDER / "tokenizer")
    model = new_text_encoder(tokenizer.eos_id + 1)
    torch.manual_seed(SEED)
    heads = Heads()
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or "embed" in n]
    matrices = [p for n, p in model.named_parameters() if not (p.ndim <= 1 or "embed" in n)]
    groups = [
        {"params": matrices + list(heads.parameters()), "lr": 2e-3, "weight_decay": 0.02},
        {"params": others, "lr": 2e-3, "weight_decay": 0.0},
    ]

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        model.load_state_dict(averages["text"].values) if step == steps else None
        print(f"text {step}: {accuracy(model, heads, tokenizer):.2%} of what is said", flush=True)

    tools.train(
        "text", {"text": model, "heads": heads}, groups, steps,
        lambda step: loss(model, heads, tokenizer, step), report=report, decay=0.99,
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: CLIPTextModel, heads: Heads, tokenizer: ClipTokenizer) -> float:
    """Return the share of what 256 unseen prompts say that is read rightly behind their end."""
    right = count = 0
    for number in range(4):
        ids, ends, said = batch(tokenizer, 10**6 + number)
        hidden = model(ids).last_hidden_state[torch.arange(len(ids)), ends + 3]
        for question, scores in enumerate(heads(hidden)):
            asked = said[:, question] != prompts.UNSAID
            right += int((scores.argmax(-1) == said[:, question])[asked].sum())
            count += int(asked.sum())
    return right / count


def trained() -> tuple[CLIPTextModel, ClipTokenizer]:
    """Return the model as this stage left it, and its tokenizer."""
    tokenizer = prompts.write_tokenizer(FOLDER / "tokenizer")
    model = new_text_encoder(tokenizer.eos_id + 1)
    weights = tools.averaged("text", "text")
    assert weights is not None, "the stage `text` comes first"
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False), tokenizer


def export() -> None:
    """Write tokenizer/ and text_encoder/, in float16."""
    model, _ = trained()
    model.half().save_pretrained(FOLDER / "text_encoder")
