"""The command that repeats a run: ./run_training.sh with every flag that was given, and the seed."""

from __future__ import annotations

import os
from pathlib import Path

from noukii import project
from noukii.driver.options import Options


def repeat_command(options: Options) -> list[str]:
    """Return the words of the command; `options` as the run used them, its seed settled.

    Folders in the checkout are named as seen from there, where the command is typed. The name is left away:
    it is taken, and the new run would get another.
    """
    words = ["./run_training.sh"]
    for folder, repeats in options.explicit:
        words += ["--dataset", _seen(folder)]
        if repeats is not None:
            words += ["--repeats", str(repeats)]
    words += [_seen(folder) for folder in options.positional]
    for flag, value in (
        ("--base-model", None if options.base_model is None else _seen(options.base_model)),
        ("--trainer", options.trainer),
        ("--steps", options.steps),
        ("--epochs", options.epochs),
        ("--learning-rate", options.learning_rate),
        ("--resolution", options.resolution),
        ("--batch-size", options.batch_size),
        ("--rank", options.rank),
        ("--alpha", options.alpha),
        ("--precision", options.precision),
        ("--gradient-checkpointing", options.gradient_checkpointing),
        ("--max-token-length", options.max_token_length),
        ("--tag-dropout", options.tag_dropout or None),
        ("--validation", _validation(options)),
        ("--save-every", options.save_every),
        ("--sample-every", options.sample_every),
        ("--sample-prompts", None if options.sample_prompts is None else _seen(options.sample_prompts)),
        ("--seed", options.seed),
    ):
        if value is not None:
            words += [flag, repr(value) if isinstance(value, float) else str(value)]
    return [*words, "--", *options.extra] if options.extra else words


def _seen(path: Path) -> str:
    """Return a path as seen from the checkout, if it lies in it."""
    return os.fspath(path.relative_to(project.CHECKOUT) if path.is_relative_to(project.CHECKOUT) else path)


def _validation(options: Options) -> str | None:
    return options.validation if options.validation_folder is None else _seen(options.validation_folder)
