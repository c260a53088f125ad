"""Pictures -> Janus' own words, a batch at a time.

A caption depends on picture, model, question and seed, not on its batch: prompts are read one
picture at a time, all are equally long and unpadded, and sampling noise belongs to the picture.
What remains is the rounding of matrix products, whose last bit may differ with the number of rows.
In float32 that decides nothing in practice; in bfloat16, where two tokens can be level to within
rounding, it can. `rows` keeps the number constant, and with it the rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from noukii.captioning.janus import Janus
from noukii.captioning.janus_tokenizer import JanusTokenizer
from noukii.captioning.out_of_memory import OutOfMemory, is_out_of_memory
from noukii.captioning.preprocess import pixel_values
from noukii.captioning.seeded_sampling import choose, uniform
from noukii.errors import InputError
from noukii.hardware import memory_bytes
from noukii.quiet import prepare_libraries

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["OutOfMemory", "RawCaption", "automatic_batch_size", "describe", "steady_rows"]

MAX_BATCH_GPU = 32
MAX_BATCH_CPU = 8
"""Where more rows at a time gain little, and cost the finished part of a batch on Ctrl-C. A step of the
answer reads every weight once, for 8 images as for one; reading the prompt gains nothing."""
STEADY_ROWS = 8
"""Decoding reads all weights for every token, so these many rows cost little more than one."""
PART_MARK = re.compile(r"[.!?…。！？\n]")
"""What a sentence or a line ends in; it is not worth looking closer without one."""
HALF_A_CHARACTER = "\ufffd"
"""Decoded from the first tokens of a character that takes several."""
QUESTION_TOKENS = 256
"""Room for system sentence and question when a batch is sized before the question is known."""


@dataclass(frozen=True)
class RawCaption:
    """The model's text as it is.

    `finish_reason`: stop (it ended), length (cut), enough (no more was wanted), stopped (by the user).
    """

    text: str
    finish_reason: str
    tokens: int


def describe(
    janus: Janus,
    images: Sequence[Image],
    keys: Sequence[str],
    *,
    question: str,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    rows: int | None = None,
    on_step: Callable[[int], bool] | None = None,
    enough: Callable[[str], bool] | None = None,
) -> list[RawCaption]:
    """Return one caption per image, in order.

    `images` are upright RGB; `keys` are the hashes of their content, to which the sampling noise
    belongs. `temperature` 0 is greedy. `rows` (at least the number of images) is the number of rows
    computed: give the same for every batch, a shorter last one too, and rounding is the same.
    `on_step(tokens)` is called after each token; if it returns true, generation ends early.
    `enough(text)` is asked where a sentence or line of an answer has ended; if it returns true, that
    answer ends.

    Raises InputError for a question or length that the model cannot take, RunError if the model
    gives NaN, OutOfMemory if the batch is too large.
    """
    if len(images) != len(keys) or not images:
        raise ValueError(
            f"{len(images)} images and {len(keys)} keys; as many of each are wanted, at least one"
        )
    if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError("wanted: max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1")
    prompt = janus.tokenizer.prompt_ids(question, janus.image_tokens)
    limit = janus.model.config.text_config.max_position_embeddings
    if len(prompt) + max_new_tokens > limit:
        reason = f"prompt and answer would be {len(prompt) + max_new_tokens} tokens; the model takes {limit}"
        raise InputError("--max-new-tokens", reason, f"use at most {max(limit - len(prompt), 0)}")
    prepare_libraries()
    import torch

    from noukii.captioning import decoding

    def choose_tokens(logits: torch.Tensor, step: int) -> torch.Tensor:
        noise = [uniform(seed, key, step) for key in keys] if temperature else ()
        return choose(logits, temperature=temperature, top_p=top_p, noise=noise)

    found = None
    try:
        found = decoding.generate(
            janus.model,
            [torch.from_numpy(pixel_values(image, janus.pixels)) for image in images],
            prompt,
            eos_id=janus.tokenizer.eos_id,
            max_new_tokens=max_new_tokens,
            choose=choose_tokens,
            rows=max(rows or 0, len(images)),
            on_step=on_step,
            enough=None if enough is None else partial(_is_enough, janus.tokenizer, enough),
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if found is None:  # outside of `except`: there the traceback would keep the tensors alive
        if janus.device != "cpu":
            torch.cuda.empty_cache()
        raise OutOfMemory(f"{len(images)} images at a time do not fit into the memory of {janus.device}")
    return [RawCaption(janus.tokenizer.decode(row.ids), row.reason, len(row.ids)) for row in found]


def _is_enough(tokenizer: JanusTokenizer, enough: Callable[[str], bool], ids: Sequence[int]) -> bool:
    """Ask `enough` of an answer's text where a part of it may have ended with the token before the last."""
    if not PART_MARK.search(tokenizer.decode(ids[-2:])):
        return False
    return enough(tokenizer.decode(ids).rstrip(HALF_A_CHARACTER))


def automatic_batch_size(janus: Janus, max_new_tokens: int) -> int:
    """Return how many images at a time fit into the memory that is free now, at least 1."""
    return _free_rows(janus, max_new_tokens, MAX_BATCH_CPU if janus.device == "cpu" else MAX_BATCH_GPU)


def steady_rows(janus: Janus, batch_size: int, max_new_tokens: int) -> int:
    """Return the `rows` for every `describe` of a run, so that captions do not show the batch size.

    In float32 the batch size itself. In bfloat16 and float16 at least STEADY_ROWS, if
    the memory allows: then all batch sizes up to that compute in the same shapes, and give the same
    captions to the last token.
    """
    import torch

    if janus.dtype == torch.float32:
        return batch_size
    fits = _free_rows(janus, max_new_tokens, STEADY_ROWS) >= STEADY_ROWS
    return STEADY_ROWS if fits and batch_size <= STEADY_ROWS else batch_size


def _free_rows(janus: Janus, max_new_tokens: int, most: int) -> int:
    import torch

    text = janus.model.config.text_config
    length = janus.image_tokens + 2 + QUESTION_TOKENS + max_new_tokens
    number_bytes = torch.finfo(janus.dtype).bits // 8
    keys_and_values = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * number_bytes
    # Beside the float32 logits, sampling holds a few float64 rows of the vocabulary's length.
    per_row = length * keys_and_values + text.vocab_size * 64
    # One prompt is read at a time: activations of one layer, attention scores if a kernel needs them.
    reading = length * (4 * text.intermediate_size + 8 * text.hidden_size) * number_bytes
    reading += text.num_attention_heads * length * length * number_bytes
    if janus.device == "cpu":
        return rows_that_fit(memory_bytes(), per_row, reading, most)
    free, _ = torch.cuda.mem_get_info(janus.device)
    free += torch.cuda.memory_reserved(janus.device) - torch.cuda.memory_allocated(janus.device)
    return rows_that_fit(free, per_row, reading, most)


def rows_that_fit(free: int, per_row: int, once: int, most: int) -> int:
    """Return a number of rows from 1 to `most`; a tenth of the free memory stays free.

    `free` 0 means unknown (the system does not say): then a small batch.
    """
    if not free:
        return min(2, most)
    return max(1, min(most, int(free * 0.9 - once) // per_row))
