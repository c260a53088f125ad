"""Make the demo's two models from nothing: `python demo/train_models.py --stage all`.

Seeded; demo/README.md has the times. A stage saves its state under .cache/demo every few minutes and
continues there when it is started again; `captioner` and `vae` are independent and may run side by side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

STAGES = ("sight", "captioner", "vae", "text", "diffusion")
STEPS = {"sight": 3000, "captioner": 3400, "vae": 1000, "text": 1800, "diffusion": 6100}


def main() -> None:
    """Run one stage, or all of them in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument("--steps", type=int, help="train the stage until this step (its own default)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    options = parser.parse_args()

    from noukii.quiet import prepare_libraries

    prepare_libraries()
    import importlib

    import torch

    torch.set_num_threads(options.threads)
    for stage in STAGES if options.stage == "all" else (options.stage,):
        module = importlib.import_module(f"demo.{stage}")
        steps = options.steps or STEPS[stage]
        module.train(steps)
        module.export()


if __name__ == "__main__":
    main()
