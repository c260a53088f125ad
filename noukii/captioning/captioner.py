"""Images through the model, batch after batch, as many at a time as memory takes.

While the model works on one batch, a second thread prepares the next: it writes the training
copies and shrinks the pictures to the model's size. Only shrunken pictures wait in memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from noukii.captioning.options import CaptionOptions
from noukii.captioning.worklist import Item
from noukii.dataset.images import UnusableImage
from noukii.errors import InputError, RunError
from noukii.stop import StopSignal

if TYPE_CHECKING:
    from PIL.Image import Image

    from noukii.captioning.describe import RawCaption
    from noukii.captioning.janus import Janus
    from noukii.captioning.janus_tokenizer import JanusTokenizer

Prepare = Callable[[Sequence[Item]], "Image"]


@dataclass(frozen=True)
class Described:
    """The model's answer for items of the same content, or why there is none."""

    items: Sequence[Item]
    answer: RawCaption | None
    problem: str
    seconds: float
    """The image's share of its batch's time."""


def describe_all(
    janus: Janus,
    groups: Sequence[Sequence[Item]],
    prepare: Prepare,
    options: CaptionOptions,
    stop: StopSignal,
    say: Callable[[str], None],
    enough: Callable[[str], bool] | None = None,
) -> Iterator[Described]:
    """Yield the answer for each group, in order; ends early, within a token or two, if `stop` asks.

    Args:
        groups: items of the same content; each group is described once.
        prepare: writes what has to lie on the disk before the caption does, and returns the picture.
            Runs in another thread; UnusableImage skips the group.
        enough: tells of an answer so far whether no more of it is wanted.

    Raises:
        RunError: a single image does not fit into memory.
    """
    from noukii.captioning.describe import OutOfMemory, automatic_batch_size, describe, steady_rows

    batch_size = options.batch_size or automatic_batch_size(janus, options.max_new_tokens)
    rows = steady_rows(janus, batch_size, options.max_new_tokens)
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        waiting: deque[tuple[Sequence[Item], Future[Image]]] = deque()
        rest = iter(groups)

        def fill(count: int) -> None:
            while len(waiting) < count and (group := next(rest, None)) is not None:
                waiting.append((group, pool.submit(prepare, group)))

        try:
            fill(batch_size)
            while waiting and not stop.requested:
                batch = [waiting[place] for place in range(min(batch_size, len(waiting)))]
                pictures, ready = [], []
                for group, future in batch:
                    try:
                        pictures.append(future.result())
                        ready.append(group)
                    except UnusableImage:
                        continue
                fill(len(batch) + batch_size)
                began = time.monotonic()
                answers: Sequence[RawCaption] = []
                if ready:
                    try:
                        answers = describe(
                            janus,
                            pictures,
                            [group[0].info.sha256 for group in ready],
                            question=options.prompt,
                            max_new_tokens=options.max_new_tokens,
                            temperature=options.temperature,
                            top_p=options.top_p,
                            seed=options.seed,
                            rows=rows,  # constant, so that a caption's rounding is that of any other run
                            on_step=lambda _: stop.requested,
                            enough=enough,
                        )
                    except OutOfMemory:
                        rows = _halved(rows, ready[0][0], say)
                        batch_size = min(batch_size, rows)
                        continue
                share = (time.monotonic() - began) / max(len(ready), 1)
                found = dict(zip((id(group) for group in ready), answers, strict=True))
                for group, future in batch:
                    waiting.popleft()
                    answer = found.get(id(group))
                    if answer is None or answer.finish_reason != "stopped":
                        yield Described(group, answer, str(future.exception() or ""), share)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def check_length(janus: Janus, options: CaptionOptions) -> None:
    """Refuse a question and an answer that together are longer than the model's memory.

    Raises:
        InputError: with the greatest --max-new-tokens that would do.
    """
    limit = janus.model.config.text_config.max_position_embeddings
    check_question_fits(options, janus.tokenizer, janus.image_tokens, limit)


def check_question_fits(
    options: CaptionOptions, tokenizer: JanusTokenizer, image_tokens: int, limit: int
) -> None:
    """The same from what a model's folder says; `limit` in tokens. Raises InputError."""
    prompt = len(tokenizer.prompt_ids(options.prompt, image_tokens))
    if prompt + options.max_new_tokens > limit:
        reason = (
            f"image, question and answer would be {prompt + options.max_new_tokens} tokens; the model takes"
        )
        fits = limit - prompt
        step = f"use at most {fits}" if fits > 0 else "ask a shorter question with --prompt"
        raise InputError("--max-new-tokens", f"{reason} {limit}", step)


def _halved(tried: int, item: Item, say: Callable[[str], None]) -> int:
    if tried == 1:
        raise RunError(
            item.info.path,
            "there is not enough memory to describe even one image at a time",
            "close other programs that use the GPU, or give --max-new-tokens 200 or --device cpu",
        )
    half = tried // 2
    say(f"out of memory with {tried} images at a time; going on with {half}")
    return half
