"""How the demo trains its LoRA: the flags of run_training.sh, in one place for demo.sh and the tests."""

TRAINING_FLAGS = (
    *("--base-model", "demo"),
    *("--trainer", "builtin"),
    *("--resolution", "64"),
    *("--batch-size", "4"),
    *("--steps", "300"),
    *("--learning-rate", "1e-3"),
    *("--rank", "8"),
    *("--alpha", "8"),
    *("--seed", "1"),
)

if __name__ == "__main__":
    print("\n".join(TRAINING_FLAGS))
