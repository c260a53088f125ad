"""How the demo trains its LoRA: the numbers in one place for demo.sh and the tests.

`python demo/recipe.py [--quick]` prints the flags of run_training.sh, one a line.
"""

import sys

STEPS, QUICK_STEPS = 1000, 250
REPEATS, ORDINARY_REPEATS = 50, 15
"""12 zorbs × 50 and 40 ordinary pictures × 15 are trained equally often."""

TRAINING_FLAGS = (
    *("--base-model", "demo"),
    *("--trainer", "builtin"),
    *("--resolution", "64"),
    *("--batch-size", "4"),
    *("--steps", str(STEPS)),
    *("--learning-rate", "1e-3"),
    *("--rank", "16"),
    *("--alpha", "16"),
    *("--tag-dropout", "0.5"),  # half the time the word stands alone, so that it alone is enough
    *("--seed", "1"),
    "--",
    "--network_train_unet_only",
    *("--lr_scheduler", "cosine"),
    *("--min_snr_gamma", "5"),
)


def training_flags(quick: bool = False) -> list[str]:
    """Return the flags; quick: a quarter of the steps."""
    flags = list(TRAINING_FLAGS)
    if quick:
        flags[flags.index("--steps") + 1] = str(QUICK_STEPS)
    return flags


if __name__ == "__main__":
    print("\n".join(training_flags("--quick" in sys.argv)))
