"""Captions: noukii in batches beside upstream's loop of one image at a time.

    .venv/bin/python benchmarks/caption.py [--upstream CHECKOUT --upstream-python PYTHON] [--dtype float32]

Both describe the same photographs with the same full-size random Janus-Pro-1B (made once; --model names a
folder for it), greedily, 64 tokens each, in turns: noukii a batch, upstream a few single images, again. Both
models stay in memory between turns; with --reload each turn is a fresh process (half the memory, more time).
Without --upstream the reference is noukii with one image at a time. Printed: seconds per image, images per
minute, the ratio, peak memory, and how many tokens agree.

CHECKOUT is a clone of deepseek-ai/Janus; PYTHON has torch, torchvision, transformers 4.48, timm, einops and
attrdict.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from benchmarks import measuring, models  # noqa: E402

QUESTION = "describe this image in detail"
HERE = Path(__file__).resolve()


class Worker:
    """A process that has the model loaded and describes what it is told to."""

    def __init__(self, command: Sequence[object]) -> None:
        environment = {**os.environ, "PYTHONPATH": ""}
        self.child = measuring.Watched(
            [str(word) for word in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.facts = self._answer()
        self.loaded = time.monotonic() - self.child.began

    def describe(self, images: Sequence[Path], tokens: int) -> dict[str, Any]:
        """Return seconds, processor time, texts and token counts of one turn."""
        before = measuring.cpu_seconds(self.child.process.pid)
        job = {"images": [str(path) for path in images], "tokens": tokens, "question": QUESTION}
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(json.dumps(job) + "\n")
        self.child.process.stdin.flush()
        answer = self._answer()
        return {**answer, "cpu": measuring.cpu_seconds(self.child.process.pid) - before}

    def close(self) -> measuring.Usage:
        """End the process; returns the most memory that it had."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.close()
        self.child.wait(60)
        return self.child.memory

    def _answer(self) -> dict[str, Any]:
        assert self.child.process.stdout is not None
        line = self.child.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended: {self.child.process.args}")
        return dict(json.loads(line))


def serve(folder: Path, dtype: str, device: str) -> None:
    """Noukii's worker: the model as run_captioning.sh loads it, `describe` as it calls it."""
    from noukii.captioning import janus as room
    from noukii.captioning.describe import describe, steady_rows
    from noukii.dataset.images import open_image

    device = room.choose_device(device)
    janus = room.load(room.check_model(folder), device, room.choose_dtype(device, dtype))
    import torch

    prompt = len(janus.tokenizer.prompt_ids(QUESTION, janus.image_tokens))
    facts = {
        **measuring.versions(),
        "threads": torch.get_num_threads(),
        "prompt": prompt,
        "dtype": str(janus.dtype),
    }
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        found = describe(
            janus,
            [open_image(Path(path)) for path in job["images"]],
            job["images"],
            question=job["question"],
            max_new_tokens=job["tokens"],
            temperature=0.0,
            top_p=0.95,
            seed=42,
            rows=steady_rows(janus, len(job["images"]), job["tokens"]),
        )
        seconds = time.perf_counter() - began
        answer: dict[str, Any] = {
            "seconds": seconds, "texts": [one.text for one in found], "tokens": [one.tokens for one in found]
        }  # fmt: skip
        if device != "cpu":
            answer["gpu_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(answer), flush=True)


def agreement(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return how many tokens are equal up to the first that differs, over all images."""
    equal = count = 0
    for mine, other in zip(ours, theirs, strict=False):
        a, b = (re.findall(r"w\d+|.", text) for text in (mine, other))
        count += len(b)
        equal += next(
            (place for place, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]),
            min(len(a), len(b)),
        )
    return f"{equal} of {count}"


def arithmetic(prompt: int, tokens: int, batch: int, number_bytes: int) -> dict[str, float]:
    """Return what one image costs by counting: operations of each part, bytes that a decode step must read.

    Two operations per weight and position; attention 4 x width x positions seen. The prompt's logits are
    taken for its last position only. A step reads all weights but the embedding table once for the whole
    batch, and each row's keys and values.
    """
    width, inner, layers = models.WIDTH, models.INNER, models.LAYERS
    block = 4 * width * width + 3 * width * inner
    head = models.VOCABULARY * width
    sight_positions = (models.SIDE // models.PATCH) ** 2
    sight_block = 12 * models.SIGHT**2
    vision = sight_positions * models.SIGHT_LAYERS * (2 * sight_block + 4 * sight_positions * models.SIGHT)
    vision += 2 * sight_positions * (models.SIGHT * width + width * width)
    prefill = prompt * layers * (2 * block + 2 * prompt * width) + 2 * head
    seen = prompt + tokens / 2
    keys = 2 * layers * width * number_bytes * seen
    return {
        "vision_tflop": vision / 1e12,
        "prefill_tflop": prefill / 1e12,
        "decode_tflop": tokens * (2 * layers * block + 2 * head + 4 * layers * width * seen) / 1e12,
        "decode_gb_per_step": ((layers * block + head) * number_bytes + batch * keys) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, help="folder of a Janus-Pro-1B; made with random weights if not there"
    )
    parser.add_argument("--upstream", type=Path, help="clone of deepseek-ai/Janus")
    parser.add_argument("--upstream-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16; auto: what noukii chooses here")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--singles", type=int, default=2, help="images of the reference in a turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--photos", type=Path, help="folder of images (default: drawn ones)")
    parser.add_argument("--reload", action="store_true", help="a fresh process each turn")
    parser.add_argument("--output", type=Path, help="append the JSON to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.model, args.dtype, args.device)
        return

    from noukii.captioning import janus as room
    from noukii.dataset.images import list_images

    facts = measuring.machine()
    folder = models.random_janus(args.model)
    if args.photos:
        photos = list(list_images(args.photos).images)
    else:
        photos = models.photographs(measuring.CACHE / "photos_768", args.batch, 1024, 768)
    photos = [photos[place % len(photos)] for place in range(args.batch)]
    device = room.choose_device(args.device)
    dtype = str(room.choose_dtype(device, args.dtype)).removeprefix("torch.")
    ours = [sys.executable, HERE, "--worker", "--model", folder, "--dtype", dtype, "--device", device]
    theirs = ours
    if args.upstream:
        script = HERE.with_name("janus_upstream.py")
        theirs = [args.upstream_python, script, args.upstream.resolve(), folder, dtype, device]
    name = "upstream" if args.upstream else "noukii, one at a time"
    peak = measuring.ceiling(dtype) if device == "cpu" else {}

    seconds: dict[str, list[float]] = {"noukii": [], name: []}
    cpu: dict[str, list[float]] = {"noukii": [], name: []}
    memory: dict[str, measuring.Usage] = {}
    workers: dict[str, Worker] = {}
    found: dict[str, dict[str, Any]] = {}
    known: dict[str, dict[str, Any]] = {}
    for turn in range(args.rounds):
        for label, command, images in (("noukii", ours, photos), (name, theirs, photos[: args.singles])):
            if label not in workers:
                workers[label] = Worker(command)
                known[label] = workers[label].facts
                workers[label].describe(images[:1], 2)  # warm-up: kernels are chosen, pages are touched
            if label == "noukii" or args.upstream:
                answers = [workers[label].describe(images, args.tokens)]
            else:
                answers = [workers[label].describe([image], args.tokens) for image in images]
            answer = {
                "seconds": sum(one["seconds"] for one in answers),
                "cpu": sum(one["cpu"] for one in answers),
                "texts": [text for one in answers for text in one["texts"]],
                "tokens": [count for one in answers for count in one["tokens"]],
                **{key: one[key] for one in answers for key in ("prompt", "gpu_bytes") if key in one},
            }
            found[label] = answer
            if set(answer["tokens"]) != {args.tokens}:
                print(f"! {label}: {answer['tokens']} tokens; the comparison wants {args.tokens} of each")
            seconds[label].append(answer["seconds"] / len(images))
            cpu[label].append(answer["cpu"] / len(images))
            print(f"turn {turn + 1}: {label}: {seconds[label][-1]:.2f} s an image", flush=True)
            if args.reload:
                memory[label] = workers.pop(label).close()
    for label, worker in workers.items():
        memory[label] = worker.close()

    number_bytes = 4 if dtype == "float32" else 2
    counted = arithmetic(known["noukii"]["prompt"], args.tokens, args.batch, number_bytes)
    reference = measuring.median(seconds[name])
    rows = []
    for label, times in seconds.items():
        each = measuring.median(times)
        work = counted["vision_tflop"] + counted["prefill_tflop"] + counted["decode_tflop"]
        rows.append(
            {
                "": f"{label}, batch {args.batch}" if label == "noukii" else label,
                "s/image": measuring.spread(times),
                "images/min": f"{60 / each:.2f}",
                "ratio": f"{reference / each:.2f}",
                "CPU s/image": measuring.spread(cpu[label]),
                "share of the ceiling": f"{work * 1e12 / each / peak['flops']:.0%}" if peak else "",
                "own memory": measuring.gigabytes(memory[label].own),
                "resident": measuring.gigabytes(memory[label].resident),
            }
        )
    same = agreement(found["noukii"]["texts"][: args.singles], found[name]["texts"])
    print(f"equal tokens: {same}")
    measuring.show(
        f"Captions, {dtype}, {args.tokens} tokens, prompt of {known['noukii']['prompt']}",
        rows,
        {**facts, "ceiling": peak, "counted_per_image": counted, "equal_tokens": same, "workers": known},
        args.output,
    )


if __name__ == "__main__":
    main()
