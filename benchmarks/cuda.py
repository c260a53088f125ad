"""The same jobs on an NVIDIA card: captions at batch 1, 8, 32; training at 512 px, batch 1, 4, 8.

    .venv/bin/python benchmarks/cuda.py [--upstream CHECKOUT --upstream-python PYTHON] [--kohya KOHYA_SS]

Runs caption.py and train.py (their flags hold) once per batch size. The share of peak arithmetic is taken
against a bfloat16 matrix product of 8192 x 8192 on the same card. Without a card it says so and ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))


def peak_flops() -> float:
    """Return what a large bfloat16 matrix product reaches on the card, in flop/s."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1000)
    return 2 * 8192**3 / best


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag in ("--upstream", "--upstream-python", "--model", "--kohya", "--base-model", "--output"):
        parser.add_argument(flag, type=Path)
    args = parser.parse_args()

    from noukii import hardware

    found = hardware.detect()
    if not found.has_gpu:
        print(f"no CUDA card can be used here ({found.why_no_gpu}): nothing was measured")
        return 0
    peak = peak_flops()
    print(f"{found.gpu_name}: bfloat16 matrix product {peak / 1e12:.0f} TFLOP/s", flush=True)

    def given(*names: str) -> list[str]:
        values = ((name, getattr(args, name.replace("-", "_"))) for name in names)
        return [word for name, value in values if value for word in (f"--{name}", str(value))]

    failed = 0
    for batch in (1, 8, 32):
        words = ["--batch", str(batch), "--device", "cuda", "--tokens", "64"]
        words += given("upstream", "upstream-python", "model", "output")
        failed += subprocess.run([sys.executable, str(HERE / "caption.py"), *words]).returncode != 0
    for batch in (1, 4, 8):
        words = ["--resolution", "512", "--batch", str(batch), "--steps", "40", "--images", "32"]
        words += ["--peak-flops", str(peak), *given("kohya", "base-model", "output")]
        failed += subprocess.run([sys.executable, str(HERE / "train.py"), *words]).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
