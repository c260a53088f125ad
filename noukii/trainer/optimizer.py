"""The optimiser and its learning-rate schedule, by kohya's names and rules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from noukii.errors import InputError
from noukii.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from noukii.trainer.lora import LoraNetwork


def parameter_groups(settings: TrainerSettings, network: LoraNetwork) -> list[dict[str, Any]]:
    """Return the groups in kohya's order, text encoder then UNet, each with its learning rate and `name`."""
    groups = [
        {
            "name": "textencoder",
            "params": list(network.text_encoder_parameters()),
            "lr": settings.lr_text_encoder,
        },
        {"name": "unet", "params": list(network.unet_parameters()), "lr": settings.lr_unet},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(
    settings: TrainerSettings, groups: list[dict[str, Any]]
) -> tuple[torch.optim.Optimizer, str]:
    """Return the optimiser and the name that `ss_optimizer` records: its class, then its arguments.

    InputError if the optimiser refuses an entry of --optimizer_args.
    """
    import torch

    options = settings.optimizer_options
    named_options = dict(options)
    learning_rate: float | None = settings.learning_rate
    if settings.optimizer == "AdamW":
        kind: Any = torch.optim.AdamW
        kinds = {p.device.type for group in groups for p in group["params"]}
        if kinds <= {"cuda", "cpu"} and not options.keys() & {"foreach", "capturable", "differentiable"}:
            options = {"fused": True, **options}  # one kernel for all matrices instead of several for each
    elif settings.optimizer == "AdamW8bit":
        import bitsandbytes

        kind = bitsandbytes.optim.AdamW8bit
    elif settings.optimizer == "Prodigy":
        import prodigyopt

        kind = prodigyopt.Prodigy
    else:
        from transformers.optimization import Adafactor

        kind = Adafactor
        options = {"relative_step": True, **options}
        if options.get("warmup_init"):
            options["relative_step"] = True
        if options["relative_step"]:
            # kohya: the optimiser finds its rate itself, the given ones are not used.
            learning_rate = None
            groups = [{**group, "lr": None} for group in groups]
        named_options = dict(options)
    try:
        made = kind(groups, lr=learning_rate, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "--optimizer_args", f"{settings.optimizer} does not take them: {error}", "correct or remove them"
        ) from None
    written = ",".join(f"{key}={value}" for key, value in named_options.items())
    name = f"{kind.__module__}.{kind.__name__}"
    return made, f"{name}({written})" if written else name


def make_scheduler(
    settings: TrainerSettings, optimizer: torch.optim.Optimizer, total_steps: int
) -> LRScheduler:
    """Return the schedule; it is stepped once per optimiser step, whatever the number of processes.

    InputError if the schedule refuses the learning rate.
    """
    try:
        return _scheduler(settings, optimizer, total_steps)
    except ValueError as error:
        raise InputError(
            f"--lr_scheduler {settings.lr_scheduler}", str(error), "give another schedule or learning rate"
        ) from None


def _scheduler(settings: TrainerSettings, optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
    if settings.optimizer == "Adafactor" and optimizer.defaults.get("relative_step"):
        from transformers.optimization import AdafactorSchedule

        return AdafactorSchedule(optimizer, settings.learning_rate)
    from diffusers import optimization  # the same formulas as transformers', imported a second sooner

    warmup = warmup_steps(settings, total_steps)
    if settings.lr_scheduler == "constant":
        return optimization.get_constant_schedule(optimizer)
    if settings.lr_scheduler == "constant_with_warmup":
        return optimization.get_constant_schedule_with_warmup(optimizer, warmup)
    if settings.lr_scheduler == "linear":
        return optimization.get_linear_schedule_with_warmup(optimizer, warmup, total_steps)
    if settings.lr_scheduler == "cosine":
        return optimization.get_cosine_schedule_with_warmup(optimizer, warmup, total_steps)
    if settings.lr_scheduler == "cosine_with_restarts":
        return optimization.get_cosine_with_hard_restarts_schedule_with_warmup(
            optimizer, warmup, total_steps, num_cycles=settings.lr_scheduler_num_cycles
        )
    # kohya's --lr_scheduler_power is 1 unless given, and not among our flags.
    return optimization.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, total_steps, power=1.0)


def warmup_steps(settings: TrainerSettings, total_steps: int) -> int:
    """Return the warm-up in steps; a share is rounded down, as kohya does."""
    given = settings.lr_warmup_steps
    return math.floor(given * total_steps) if isinstance(given, float) else given


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the rate that is set for each group: `unet`, `textencoder`."""
    return {group["name"]: float(group["lr"] or 0.0) for group in optimizer.param_groups}


def adapted_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the rate that each group is trained with: what is set, times the factor Prodigy has found."""
    return {
        group["name"]: float(group["lr"] or 0.0) * float(group.get("d", 1.0))
        for group in optimizer.param_groups
    }
