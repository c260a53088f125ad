"""Training steps: the built-in trainer beside kohya's, through run_training.sh, in turns.

    .venv/bin/python benchmarks/train.py [--kohya KOHYA_SS] [--base-model RANDOM.safetensors] [--steps 6]

KOHYA_SS is a folder as setup.sh makes it (sd-scripts and venv in it). Without it the reference is the
built-in trainer in float32 with gradient checkpointing. All train the same eight drawn photographs on the
same full-size random SD1.5 (made once unless --base-model names a file), rank 4, UNet and text encoder,
256 pixels, batch 1: noukii's defaults, kohya with the flags that noukii gives it by default, kohya at its
best here (no checkpointing; bfloat16 where the processor has it). Printed: seconds per step (the first left
out), start to first step, peak memory beside the estimate, counted operations and their share of the
ceiling.

--start measures the way to the first step instead: nothing cached, then with the latents on disk.
--unet-only measures the UNet alone on embeddings that are made once, beside the default.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from benchmarks import measuring, models  # noqa: E402

DRIVER = CHECKOUT / "run_training.sh"


@dataclass
class Variant:
    """One way to train, and what was measured of it."""

    name: str
    flags: tuple[str, ...]
    steps: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    memory: measuring.Usage = field(default_factory=measuring.Usage)
    estimate: float = 0.0
    losses: list[float] = field(default_factory=list)
    precision: str = ""


def prepare_home(home: Path, kohya: Path | None) -> None:
    """Make a NOUKII_HOME whose kohya_ss has upstream's parts by links; its results are its own."""
    shutil.rmtree(home, ignore_errors=True)
    ours = home / "kohya_ss"
    ours.mkdir(parents=True)
    for name in ("sd-scripts", "venv", "tokenizer") if kohya else ():
        if (kohya / name).exists():
            (ours / name).symlink_to((kohya / name).resolve())


def run(variant: Variant, home: Path, common: Sequence[str], steps: int) -> None:
    """Train once and note when each step ended."""
    name = f"bench{time.monotonic_ns()}"
    ended: dict[int, float] = {}
    used: dict[int, float] = {}
    outputs = home / "kohya_ss" / "outputs" / name
    shown = re.compile(rf"steps:[^\r\n]*?\b(\d+)/{steps} \[")

    def saw(number: int, now: float) -> None:
        if number and number not in ended:
            ended[number], used[number] = now, measuring.cpu_seconds(child.process.pid)

    def look() -> None:
        now = time.monotonic()
        for path in outputs.glob("**/metrics.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    saw(int(json.loads(line)["step"]), now)
                except ValueError:  # half a line
                    break
        for path in outputs.glob("**/train.log"):
            for number in shown.findall(path.read_text(encoding="utf-8", errors="replace")):
                saw(int(number), now)

    log = home / "last.log"
    with open(log, "wb") as stream:
        child = measuring.Watched(
            [*common, "--steps", str(steps), "--output-name", name, *variant.flags],
            env={**os.environ, "NOUKII_HOME": str(home), "NOUKII_PYTHON": sys.executable},
            stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        code = child.wait(tick=look)
    if code:
        raise SystemExit(f"{variant.name} ended with {code}:\n{log.read_text(errors='replace')[-3000:]}")
    times = [ended[number] for number in sorted(ended)]
    if len(times) != steps:
        raise SystemExit(f"{variant.name}: {len(times)} of {steps} steps were seen; see {log}")
    each = [later - earlier for earlier, later in pairwise(times)]
    variant.steps += each
    variant.cpu += [later - earlier for earlier, later in pairwise(used[number] for number in sorted(used))]
    variant.starts.append(times[0] - child.began - measuring.median(each))
    variant.memory.own = max(variant.memory.own, child.memory.own)
    variant.memory.resident = max(variant.memory.resident, child.memory.resident)
    for path in (home / "trained_loras" / name).glob("metrics.jsonl"):
        variant.losses = [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def counted_step(resolution: int, batch: int, text_encoder: bool = True) -> float:
    """Return the operations of one step, forward and backward to the inputs, counted without computing."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from noukii.trainer.base_model import _empty_model
    from noukii.trainer.lora import create_network

    shapes_only = FakeTensorMode(allow_non_fake_inputs=True)
    with shapes_only:
        unet, clip = (_empty_model(part).requires_grad_(False) for part in ("unet", "text_encoder"))
    network = create_network(unet, clip if text_encoder else None)
    network.apply()
    side = resolution // 8
    with FlopCounterMode(display=False) as counter, shapes_only:
        text = torch.empty(batch, 77, 768)
        if text_encoder:
            text = clip(torch.zeros(batch, 77, dtype=torch.long)).last_hidden_state
        times = torch.zeros(batch, dtype=torch.long)
        answer = unet(torch.empty(batch, 4, side, side), times, encoder_hidden_states=text)
        answer.sample.square().mean().backward()
    return float(counter.get_total_flops())


def plan_of(variant: Variant, home: Path, common: Sequence[str]) -> dict[str, Any]:
    """Return what a dry run says of memory and precision."""
    answer = subprocess.run(
        [*common, "--dry-run", "--json", *variant.flags], capture_output=True, text=True, check=True,
        env={**os.environ, "NOUKII_HOME": str(home), "NOUKII_PYTHON": sys.executable},
    )  # fmt: skip
    return dict(json.loads(answer.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kohya", type=Path, help="folder kohya_ss with sd-scripts and venv")
    parser.add_argument("--base-model", type=Path, help="a full-size SD1.5 (default: random weights)")
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6, help="of one turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--home", type=Path, default=measuring.CACHE / "train", help="is emptied")
    parser.add_argument("--only", help="comma-separated words; variants whose name has none are left out")
    parser.add_argument("--start", action="store_true", help="measure the way to the first step")
    parser.add_argument("--unet-only", action="store_true")
    parser.add_argument("--peak-flops", type=float, help="the ceiling, where it is not this processor's")
    parser.add_argument("--output", type=Path, help="append the JSON to this file")
    args = parser.parse_args()

    from noukii import hardware

    facts = measuring.machine()
    base = models.random_sd15(args.base_model)
    home = args.home.resolve()
    prepare_home(home, args.kohya)
    models.photographs(home / "data" / "1_photo", args.images, args.resolution * 2, args.resolution * 2)
    common = [
        str(DRIVER), "--dataset", str(home / "data" / "1_photo"), "--base-model", str(base.resolve()),
        "--resolution", str(args.resolution), "--batch-size", str(args.batch), "--seed", "42",
    ]  # fmt: skip
    best = hardware.detect().precision
    if args.start:
        on_disk = ("--trainer", "builtin", "--", "--cache_latents_to_disk")
        variants = [
            Variant("nothing cached", ("--trainer", "builtin")),
            Variant("latents on disk", on_disk),
        ]
        args.steps = 2
        run(Variant("fills the cache", on_disk), home, common, args.steps)
    else:
        variants = [Variant("noukii, defaults", ("--trainer", "builtin"))]
        if args.unet_only:
            unet = ("--trainer", "builtin", "--", "--network_train_unet_only")
            variants.append(Variant("noukii, UNet only", unet))
        elif args.kohya:
            off = ("--trainer", "kohya", "--precision", best, "--gradient-checkpointing", "off")
            variants.append(Variant("kohya, noukii's default flags", ("--trainer", "kohya")))
            variants.append(Variant(f"kohya at its best ({best}, no checkpointing)", off))
        else:
            plain = ("--trainer", "builtin", "--precision", "no", "--gradient-checkpointing", "on")
            variants.append(Variant("noukii, float32, checkpointing", plain))
    if args.only:
        variants = [one for one in variants if any(word in one.name for word in args.only.split(","))]
    for variant in variants:
        plan = plan_of(variant, home, common)
        variant.estimate, variant.precision = plan["memory_bytes_per_step"], plan["precision"]
    for turn in range(args.rounds):
        for variant in variants:
            run(variant, home, common, args.steps)
            each = measuring.median(variant.steps[-args.steps + 1 :])
            first = f"first after {variant.starts[-1]:.1f} s"
            print(f"turn {turn + 1}: {variant.name}: {each:.2f} s a step, {first}", flush=True)

    reference = measuring.median(variants[-1].steps)
    rows = []
    for variant in variants:
        dtype = {"bf16": "bfloat16", "no": "float32"}.get(variant.precision, "float32")
        work = counted_step(args.resolution, args.batch, "UNet only" not in variant.name)
        peak = {"flops": args.peak_flops} if args.peak_flops else measuring.ceiling(dtype)
        each = measuring.median(variant.steps)
        share = f"{work / each / peak['flops']:.0%} of {peak['flops'] / 1e9:.0f} GFLOP/s"
        rows.append(
            {
                "": variant.name,
                "precision": variant.precision,
                "s/step": measuring.spread(variant.steps),
                "speed": f"{reference / each:.2f}",
                "CPU s/step": measuring.spread(variant.cpu),
                "start to first step, s": measuring.spread(variant.starts, 1),
                "TFLOP/step": f"{work / 1e12:.3f}",
                "share of the ceiling": share,
                "own memory": measuring.gigabytes(variant.memory.own),
                "resident": measuring.gigabytes(variant.memory.resident),
                "estimated": measuring.gigabytes(variant.estimate),
            }
        )
    more: dict[str, Any] = {"losses": {one.name: one.losses for one in variants}}
    if args.kohya:
        more["kohya_versions"] = measuring.versions(str(args.kohya / "venv" / "bin" / "python"))
    title = f"Training, SD1.5 full size, {args.resolution} px, batch {args.batch}"
    measuring.show(title, rows, {**facts, **more}, args.output)


if __name__ == "__main__":
    main()
