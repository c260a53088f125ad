"""What each optimiser takes as --optimizer_args: a table, so that a mistake is told before torch is loaded.

Read from the constructors of torch 2.13, transformers 5.24, prodigyopt 1.1 and bitsandbytes 0.4x. The values'
ranges are checked by the optimisers themselves.
"""

from __future__ import annotations

from typing import Any

from noukii.command_line import nearest
from noukii.errors import InputError
from noukii.names import printable

NUMBER, WHETHER, PAIR, WHOLE = "a number", "True or False", "two numbers, as (0.9,0.999)", "a whole number"

ARGUMENTS: dict[str, dict[str, str]] = {
    "AdamW": {
        "betas": PAIR, "eps": NUMBER, "weight_decay": NUMBER, "amsgrad": WHETHER, "maximize": WHETHER,
        "foreach": WHETHER, "capturable": WHETHER, "differentiable": WHETHER, "fused": WHETHER,
    },
    "AdamW8bit": {
        "betas": PAIR, "eps": NUMBER, "weight_decay": NUMBER, "amsgrad": WHETHER, "optim_bits": WHOLE,
        "min_8bit_size": WHOLE, "percentile_clipping": WHOLE, "block_wise": WHETHER, "is_paged": WHETHER,
    },
    "Prodigy": {
        "betas": PAIR, "beta3": NUMBER, "eps": NUMBER, "weight_decay": NUMBER, "decouple": WHETHER,
        "use_bias_correction": WHETHER, "safeguard_warmup": WHETHER, "d0": NUMBER, "d_coef": NUMBER,
        "growth_rate": NUMBER, "fsdp_in_use": WHETHER, "slice_p": WHOLE,
    },
    "Adafactor": {
        "eps": PAIR, "clip_threshold": NUMBER, "decay_rate": NUMBER, "beta1": NUMBER, "weight_decay": NUMBER,
        "scale_parameter": WHETHER, "relative_step": WHETHER, "warmup_init": WHETHER,
    },
}  # fmt: skip

MAY_BE_NONE = {("AdamW", "foreach"), ("AdamW", "fused"), ("Prodigy", "beta3"), ("Adafactor", "beta1")}


def check_arguments(optimizer: str, options: dict[str, Any]) -> None:
    """Refuse arguments that `optimizer` does not have, and values of another kind; InputError names them."""
    known = ARGUMENTS[optimizer]
    for name, value in options.items():
        if name == "lr":
            raise InputError("--optimizer_args", "the rate is not given here", "give --learning_rate")
        if name not in known:
            near = nearest(name, list(known))
            raise InputError(
                "--optimizer_args",
                f"{optimizer} has no argument {printable(name)}; it has {', '.join(sorted(known))}",
                f"did you mean {near}?" if near else "correct or remove it",
            )
        if not _suits(value, known[name]) and not (value is None and (optimizer, name) in MAY_BE_NONE):
            raise InputError(
                "--optimizer_args",
                f"{name} of {optimizer} is {known[name]}, not {printable(repr(value))}",
                "correct or remove it",
            )


def _suits(value: Any, kind: str) -> bool:
    if kind == WHETHER:
        return isinstance(value, bool)
    if kind == PAIR:
        return isinstance(value, (tuple, list)) and len(value) == 2 and all(_suits(v, NUMBER) for v in value)
    return isinstance(value, int if kind == WHOLE else (int, float)) and not isinstance(value, bool)
