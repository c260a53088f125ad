"""The exact command that starts a trainer: one list, for kohya's train_network.py and for ours.

Both take the same flags; what differs is said where it differs. A pure function of its settings.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from noukii import project

BUILTIN_SCRIPT = project.CHECKOUT / "noukii" / "trainer" / "train_network.py"
LAUNCH_MODULE = "accelerate.commands.launch"
"""What `accelerate launch` runs. `accelerate` itself first imports its other commands, for a second."""


@dataclass(frozen=True)
class TrainerCall:
    """Everything the command line of one training run is made of."""

    trainer: str
    """`kohya` or `builtin`"""
    accelerate: tuple[str, ...]
    """What `accelerate launch` is here"""
    script: Path
    accelerate_config: Path
    base_model: Path
    dataset_config: Path
    output_dir: Path
    output_name: str
    learning_rate: float
    seed: int
    precision: str
    """kohya's word: no, fp16 or bf16"""
    gradient_checkpointing: bool
    cpu: bool
    threads: int
    steps: int | None = None
    epochs: int | None = None
    rank: int | None = None
    alpha: float | None = None
    max_token_length: int = 75
    save_every: int | None = None
    sample_every: int | None = None
    sample_prompts: Path | None = None
    validation_split: float | None = None
    """Of the built-in trainer alone, like the next"""
    validation_data_dir: Path | None = None
    resume: Path | None = None
    tokenizer_cache: Path | None = None
    extra: tuple[str, ...] = ()
    """What stood behind `--`; comes last, so that it wins over a flag of ours"""


def command(call: TrainerCall) -> list[str]:
    """Return the argument list of `accelerate launch ... train_network.py ...`."""
    return [*call.accelerate, *_accelerate_flags(call), str(call.script), *trainer_flags(call)]


def _accelerate_flags(call: TrainerCall) -> list[str]:
    # All values are given, and a config file of our own: otherwise accelerate warns about each value that
    # it chose, and a config that the user made for another job (several GPUs, DeepSpeed) would be used.
    flags = ["--config_file", str(call.accelerate_config), "--num_processes", "1", "--num_machines", "1"]
    flags += ["--mixed_precision", call.precision, "--dynamo_backend", "no"]
    flags += ["--num_cpu_threads_per_process", str(call.threads)]
    return [*flags, "--cpu"] if call.cpu else flags


def trainer_flags(call: TrainerCall) -> list[str]:
    """Return the flags of train_network.py itself."""
    flags = [
        *("--pretrained_model_name_or_path", str(call.base_model)),
        *("--dataset_config", str(call.dataset_config)),
        *("--output_dir", str(call.output_dir)),
        *("--output_name", call.output_name),
        *("--save_model_as", "safetensors"),
        *("--prior_loss_weight", "1.0"),
    ]
    if call.epochs is not None:
        flags += ["--max_train_epochs", str(call.epochs)]
    else:  # always given: kohya trains 1600 steps if neither is
        flags += ["--max_train_steps", str(call.steps)]
    flags += ["--learning_rate", repr(call.learning_rate), "--sdpa"]
    if call.gradient_checkpointing:
        flags.append("--gradient_checkpointing")
    flags += ["--cache_latents", "--mixed_precision", call.precision, "--network_module", "networks.lora"]
    flags += ["--seed", str(call.seed)]
    # The latents are in memory: workers would copy them at every epoch, and kohya's would mix up the order.
    if not any("data_loader" in flag for flag in call.extra):
        flags += ["--max_data_loader_n_workers", "0"]
    if call.rank is not None:
        flags += ["--network_dim", str(call.rank)]
    if call.alpha is not None:
        flags += ["--network_alpha", repr(call.alpha)]
    if call.max_token_length > 75:
        flags += ["--max_token_length", str(call.max_token_length)]
    if call.save_every is not None:
        flags += ["--save_every_n_steps", str(call.save_every)]
    if call.trainer == "builtin" or call.save_every is not None:
        flags.append("--save_state")
    if call.sample_every is not None:
        flags += ["--sample_every_n_steps", str(call.sample_every)]
        flags += ["--sample_prompts", str(call.sample_prompts), "--sample_at_first"]
    if call.validation_split is not None:
        flags += ["--validation_split", repr(call.validation_split)]
    if call.validation_data_dir is not None:
        flags += ["--validation_data_dir", str(call.validation_data_dir)]
    if call.resume is not None:
        flags += ["--resume", str(call.resume)]
        if call.trainer == "kohya":  # else it counts from 0 again and sees the first images twice
            flags.append("--skip_until_initial_step")
    if call.tokenizer_cache is not None:
        flags += ["--tokenizer_cache_dir", str(call.tokenizer_cache)]
    return [*flags, *call.extra]


def accelerate_config(cpu: bool, precision: str) -> str:
    """Return accelerate's own config file for one process on this machine."""
    return (
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: 'NO'\n"
        "machine_rank: 0\nmain_training_function: main\n"
        f"mixed_precision: '{precision}'\nnum_machines: 1\nnum_processes: 1\n"
        f"use_cpu: {'true' if cpu else 'false'}\n"
    )


def kohya_accelerate() -> Path:
    """Where setup.sh puts upstream's accelerate."""
    return project.kohya() / "venv" / "bin" / "accelerate"


def kohya_script() -> Path:
    """Upstream's trainer."""
    return project.kohya() / "sd-scripts" / "train_network.py"


def accelerate_program(trainer: str) -> tuple[str, ...]:
    """Return how `accelerate launch` is started for a trainer; NOUKII_ACCELERATE names another accelerate."""
    if named := os.environ.get("NOUKII_ACCELERATE"):
        return named, "launch"
    if trainer == "kohya":
        program = kohya_accelerate()
        python = program.with_name("python")
        # The script's first line names its Python, which fails where the folder's name has a `$`. -I: nothing
        # is imported from the folder where the user stands; the trainer that it starts runs without.
        return (str(python), "-I", "-m", LAUNCH_MODULE) if python.exists() else (str(program), "launch")
    return sys.executable, "-m", LAUNCH_MODULE


def environment(trainer: str) -> dict[str, str]:
    """Return the environment variables for the trainer: its own packages, no network, lines at once."""
    clean = dict(os.environ)
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        clean.pop(name, None)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        clean[name] = "1"
    clean["PYTHONUNBUFFERED"] = "1"
    clean["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    if trainer == "builtin":
        clean["NOUKII_DRIVER"] = "1"  # how a stopped run goes on is ours to say
        clean["NOUKII_DRIVER_PID"] = str(os.getpid())  # it saves and ends if we die
        clean["PYTHONPATH"] = str(project.CHECKOUT)
        clean["PYTHONSAFEPATH"] = "1"  # a torch.py in the folder where the user stands is not imported
    return clean
