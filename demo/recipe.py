"""How the demo trains its LoRA: the flags of run_training.sh, in one place for demo.sh and the tests."""

import sys

TRAINING_FLAGS = (
    *("--base-model", "demo"),
    *("--trainer", "builtin"),
    *("--resolution", "64"),
    *("--batch-size", "4"),
    *("--steps", "700"),
    *("--learning-rate", "2e-3"),
    *("--rank", "16"),
    *("--alpha", "16"),
    *("--seed", "1"),
    "--",
    "--network_train_unet_only",
    *("--lr_scheduler", "cosine"),
    *("--min_snr_gamma", "5"),
)

if __name__ == "__main__":
    flags = list(TRAINING_FLAGS)
    if len(sys.argv) > 1:  # demo.sh --quick: fewer steps
        flags[flags.index("--steps") + 1] = sys.argv[1]
    print("\n".join(flags))
