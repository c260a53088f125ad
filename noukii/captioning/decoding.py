"""The generation loop: pixels and a prompt in, token ids out, for a batch of pictures.

transformers' `generate` is not used because Janus' own version of it drops any logits processor in
text mode, which is where noise per picture would go. The forward passes are transformers'.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, JanusForConditionalGeneration
from transformers.cache_utils import DynamicLayer

from noukii.errors import RunError


class RoomyLayer(DynamicLayer):
    """Keys and values of one layer in tensors that have room for the whole answer from the start.

    transformers' default layer copies everything it holds at every token. This one writes in place
    and returns views: no copy, and no mask over the empty rest as StaticCache needs. While
    `row` is set, what comes in belongs to that one row of the batch.
    """

    def __init__(self, rows: int, length: int) -> None:
        super().__init__()
        self._rows, self._length, self._filled = rows, length, 0
        self.row: int | None = None

    def start_row(self, row: int | None) -> None:
        """Take the prompt of one row next; None ends that, and all rows go on together."""
        if row is not None:
            self._filled = 0
        self.row = row

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        _, heads, _, width = key_states.shape
        # zeros, not empty: rows that only fill up the batch must not hold NaN.
        self.keys = key_states.new_zeros(self._rows, heads, self._length, width)
        self.values = torch.zeros_like(self.keys)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        start, end = self._filled, self._filled + key_states.shape[-2]
        rows = slice(None) if self.row is None else slice(self.row, self.row + 1)
        self.keys[rows, :, start:end] = key_states
        self.values[rows, :, start:end] = value_states
        self._filled = end
        return self.keys[rows, :, :end], self.values[rows, :, :end]

    def get_seq_length(self, *_: object) -> int:
        return self._filled


@dataclass
class Row:
    """What one picture has got so far; `reason` is empty until it has ended."""

    ids: list[int] = field(default_factory=list)
    reason: str = ""


Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""(float32 logits [rows, vocabulary], step) -> token ids [rows]."""
Enough = Callable[[Sequence[int]], bool]
"""Token ids of one answer so far -> whether no more of it is wanted."""


@torch.inference_mode()
def generate(
    model: JanusForConditionalGeneration,
    pixels: Sequence[torch.Tensor],
    prompt: Sequence[int],
    *,
    eos_id: int,
    max_new_tokens: int,
    choose: Choose,
    rows: int,
    on_step: Callable[[int], bool] | None = None,
    enough: Enough | None = None,
) -> list[Row]:
    """Return the tokens of each picture; EOS is not among them.

    `pixels` are float32 [3, side, side]; all rows share `prompt`, so nothing is padded. `rows` is
    the number of rows computed, at least one per picture. Prompts are read one picture at a time:
    hundreds of positions fill the hardware anyway, memory peaks lower, and the first token cannot
    depend on the neighbours.
    """
    device = model.device
    layers = [
        RoomyLayer(rows, len(prompt) + max_new_tokens)
        for _ in range(model.config.text_config.num_hidden_layers)
    ]
    cache = DynamicCache()
    cache.layers, cache.layer_class_to_replicate = layers, None
    cache_argument = {_cache_name(): cache, "use_cache": True}

    prompt_ids = torch.tensor([prompt], device=device)
    logits = []
    for number, picture in enumerate(pixels):
        for layer in layers:
            layer.start_row(number)
        output = model(
            input_ids=prompt_ids,
            pixel_values=picture[None].to(device, model.dtype),
            logits_to_keep=1,  # the other positions' logits would be [prompt, vocabulary] for nothing
            **cache_argument,
        )
        logits.append(output.logits[:, -1].float())
    for layer in layers:
        layer.start_row(None)

    found = [Row() for _ in pixels]
    filler = torch.zeros(rows - len(found), dtype=torch.long, device=device)
    scores = torch.cat(logits)
    for step in range(max_new_tokens):
        if not torch.isfinite(scores.amax(dim=-1)).all():
            reason = f"the model's output became NaN or infinite in {str(model.dtype).removeprefix('torch.')}"
            raise RunError("Janus", reason, "use --dtype float32 (or bfloat16 on a recent GPU)")
        tokens = choose(scores, step)
        for row, token in zip(found, tokens.tolist(), strict=True):
            if row.reason:
                continue
            if token == eos_id:
                row.reason = "stop"
            else:
                row.ids.append(token)
                if enough is not None and enough(row.ids):
                    row.reason = "enough"
        stopping = on_step is not None and on_step(step + 1)
        if stopping or step + 1 == max_new_tokens or all(row.reason for row in found):
            for row in found:
                row.reason = row.reason or ("stopped" if stopping else "length")
            break
        output = model(input_ids=torch.cat([tokens, filler])[:, None], **cache_argument)
        scores = output.logits[: len(found), -1].float()
    return found


def _cache_name() -> str:
    """The argument's name: `cache` in newer transformers, `past_key_values` in older ones."""
    known = inspect.signature(JanusForConditionalGeneration.forward).parameters
    return "cache" if "cache" in known else "past_key_values"
