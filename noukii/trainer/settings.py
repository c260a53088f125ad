"""The trainer's flags: kohya's names, types, defaults and meanings, parsed once into a frozen dataclass.

Each field of TrainerSettings is one flag. Names and defaults are those of sd-scripts
(`library/train_util.py`, `train_network.py` at 48d368f).
"""

# ruff: noqa: RUF009  (_flag returns a dataclass field)

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noukii.command_line import Parser
from noukii.errors import InputError
from noukii.names import name_problem, printable
from noukii.trainer.optimizer_arguments import check_arguments

PROGRAM = "train_network.py"

SCHEDULERS = ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup")
OPTIMIZERS = ("AdamW", "AdamW8bit", "Prodigy", "Adafactor")

DEFAULT_OUTPUT_NAME = "last"
DEFAULT_NETWORK_DIM = 4

IN_TOML = {
    "train_batch_size": "batch_size",
    "resolution": "resolution",
    "enable_bucket": "enable_bucket",
    "bucket_no_upscale": "bucket_no_upscale",
    "bucket_reso_steps": "bucket_reso_steps",
    "min_bucket_reso": "min_bucket_reso",
    "max_bucket_reso": "max_bucket_reso",
    "train_data_dir": "image_dir",
    "caption_extension": "caption_extension",
    "caption_prefix": "caption_prefix",
    "shuffle_caption": "shuffle_caption",
    "keep_tokens": "keep_tokens",
    "caption_dropout_rate": "caption_dropout_rate",
    "caption_tag_dropout_rate": "caption_tag_dropout_rate",
    "flip_aug": "flip_aug",
    "reg_data_dir": "is_reg",
    "dataset_repeats": "num_repeats",
}
"""kohya's flags whose place here is the TOML file alone, with the key's name."""

SHORT_NAMES = {"--lr": "--learning_rate", "--steps": "--max_train_steps", "--epochs": "--max_train_epochs"}
"""What people write, and the flag they mean."""


def _flag(default: Any, what: str, **options: Any) -> Any:
    """One flag: its default, its help text and argparse's options (`type` str unless given)."""
    if default is False:
        options["action"] = "store_true"
    elif "type" not in options:
        options["type"] = str
    return field(default=default, metadata={"help": what, **options})


def _text(value: str) -> str:
    if "\x00" in value or any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise argparse.ArgumentTypeError(f"'{printable(value)}' is not plain text")
    return value


def _finite(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"'{value}' is not a finite number")
    return number


_finite.__name__ = "number"


def _steps_or_ratio(value: str) -> int | float:
    """A count of steps, or a share of all steps as 0.05 or 5% (kohya's rule: under 1 is a share)."""
    try:
        if value.endswith("%"):
            return _finite(value[:-1]) / 100.0
        number = _finite(value)
        return int(value) if number >= 1 or number == 0 else number
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{value}' is neither a number of steps nor a share") from None


@dataclass(frozen=True)
class TrainerSettings:
    """One run's settings, one field per flag, as the user gave them (None: not given)."""

    # model, data, output
    pretrained_model_name_or_path: Path | None = _flag(
        None, "SD1.5 base model: one .safetensors file or a diffusers folder", type=Path
    )
    dataset_config: Path | None = _flag(None, "TOML file that describes the data sets", type=Path)
    output_dir: Path | None = _flag(None, "folder for the LoRA and everything else of the run", type=Path)
    output_name: str | None = _flag(None, "the LoRA's name, without extension (default: last)")
    save_model_as: str = _flag("safetensors", "safetensors")
    save_precision: str | None = _flag(
        None, "precision of the file: float, fp16, bf16", choices=("float", "fp16", "bf16")
    )
    no_metadata: bool = _flag(False, "write only the metadata that programs need to load the LoRA")
    training_comment: str | None = _flag(None, "any text, kept in the metadata", type=_text)
    # length
    max_train_steps: int = _flag(1600, "optimiser steps", type=int)
    max_train_epochs: int | None = _flag(None, "epochs; overrides --max_train_steps", type=int)
    gradient_accumulation_steps: int = _flag(1, "batches per optimiser step", type=int)
    seed: int | None = _flag(None, "seed of everything that is random (default: drawn, and told)", type=int)
    # optimiser
    learning_rate: float = _flag(2.0e-6, "learning rate", type=_finite)
    unet_lr: float | None = _flag(None, "the UNet's, if it differs", type=_finite)
    text_encoder_lr: tuple[float, ...] | None = _flag(
        None, "the text encoder's, if it differs", type=_finite, nargs="*"
    )
    optimizer_type: str = _flag("", "AdamW (default), AdamW8bit, Prodigy, Adafactor")
    optimizer_args: tuple[str, ...] | None = _flag(
        None, 'further arguments of the optimiser: "weight_decay=0.01" "betas=(0.9,0.99)"', nargs="*"
    )
    lr_scheduler: str = _flag("constant", ", ".join(SCHEDULERS))
    lr_warmup_steps: int | float = _flag(
        0, "warm-up: steps, or a share of all steps (0.05, 5%%)", type=_steps_or_ratio
    )
    lr_scheduler_num_cycles: int = _flag(1, "restarts of cosine_with_restarts", type=int)
    max_grad_norm: float = _flag(1.0, "largest norm of the gradient; 0 switches clipping off", type=_finite)
    # network
    network_module: str | None = _flag(None, "networks.lora")
    network_dim: int | None = _flag(None, f"rank (default: {DEFAULT_NETWORK_DIM})", type=int)
    network_alpha: float = _flag(1, "alpha; the LoRA is scaled by alpha/dim", type=_finite)
    network_dropout: float | None = _flag(None, "share of the LoRA's inner values to drop", type=_finite)
    network_weights: Path | None = _flag(None, "LoRA file to start from", type=Path)
    network_train_unet_only: bool = _flag(False, "train the UNet's part alone")
    network_train_text_encoder_only: bool = _flag(False, "train the text encoder's part alone")
    # objective
    min_snr_gamma: float | None = _flag(None, "min-SNR weighting of the loss; 5 is usual", type=_finite)
    noise_offset: float | None = _flag(None, "noise offset; about 0.1 where wanted", type=_finite)
    prior_loss_weight: float = _flag(1.0, "weight of regularisation images", type=_finite)
    clip_skip: int | None = _flag(None, "use the text encoder's n-th layer from the end", type=int)
    max_token_length: int | None = _flag(None, "caption length in tokens: 75 (default), 150, 225", type=int)
    # speed and memory
    mixed_precision: str = _flag("no", "no, fp16 or bf16", choices=("no", "fp16", "bf16"))
    gradient_checkpointing: bool = _flag(False, "less memory, about a third more time")
    sdpa: bool = _flag(False, "PyTorch's fused attention; used in any case, accepted for kohya's sake")
    cache_latents: bool = _flag(False, "encode each image once instead of at each step")
    cache_latents_to_disk: bool = _flag(False, "and keep the latents for later runs")
    cache_text_encoder_outputs: bool = _flag(
        False, "encode each caption once and unload the text encoder (done anyway where it changes nothing)"
    )
    max_data_loader_n_workers: int = _flag(
        8, "threads that decode images ahead; cached latents need none", type=int
    )
    persistent_data_loader_workers: bool = _flag(
        False, "keep those threads between epochs instead of starting new ones"
    )
    # during the run
    save_every_n_steps: int | None = _flag(None, "also save the LoRA every n steps", type=int)
    save_every_n_epochs: int | None = _flag(None, "also save the LoRA every n epochs", type=int)
    save_last_n_steps: int | None = _flag(
        None, "of the files saved every n steps, keep those of the last n steps", type=int
    )
    save_state: bool = _flag(False, "with each save and at the end, save all that --resume needs")
    resume: Path | None = _flag(None, "folder of a saved state to go on from", type=Path)
    sample_prompts: Path | None = _flag(None, "text file with prompts for sample pictures", type=Path)
    sample_every_n_steps: int | None = _flag(None, "draw them every n steps", type=int)
    sample_at_first: bool = _flag(False, "also draw them before the first step: the base model's own")
    validation_split: float = _flag(
        0.0, "share of each data set's images that is not trained but measured on", type=_finite
    )
    validation_data_dir: Path | None = _flag(
        None, "folder of captioned images to measure on instead", type=Path
    )
    validate_every_n_steps: int | None = _flag(
        None, "measure the loss on them every n steps (default: about 20 times in a run)", type=int
    )
    logging_dir: Path | None = _flag(None, "folder for TensorBoard logs", type=Path)
    log_with: str | None = _flag(None, "tensorboard")

    @property
    def name(self) -> str:
        """The LoRA's name, without extension."""
        return self.output_name or DEFAULT_OUTPUT_NAME

    @property
    def rank(self) -> int:
        return DEFAULT_NETWORK_DIM if self.network_dim is None else self.network_dim

    @property
    def optimizer(self) -> str:
        """The optimiser's name as OPTIMIZERS spells it."""
        return next((o for o in OPTIMIZERS if o.lower() == self.optimizer_type.lower()), OPTIMIZERS[0])

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """--optimizer_args as keyword arguments."""
        return dict(_option(text) for text in self.optimizer_args or ())

    @property
    def trains_unet(self) -> bool:
        return not self.network_train_text_encoder_only

    @property
    def trains_text_encoder(self) -> bool:
        return not self.network_train_unet_only

    @property
    def lr_unet(self) -> float:
        return self.learning_rate if self.unet_lr is None else self.unet_lr

    @property
    def lr_text_encoder(self) -> float:
        return self.text_encoder_lr[0] if self.text_encoder_lr else self.learning_rate

    @property
    def caches_latents(self) -> bool:
        return self.cache_latents or self.cache_latents_to_disk

    @property
    def token_length(self) -> int:
        return self.max_token_length or 75

    @property
    def uses_tensorboard(self) -> bool:
        """As kohya: a logging_dir alone means TensorBoard."""
        return self.logging_dir is not None


class _TrainerParser(Parser):
    def unknown_argument(self, argument: str) -> InputError:
        """Refuse an unknown flag; one that belongs into the TOML is sent there."""
        flag = argument.split("=")[0]
        key = IN_TOML.get(flag.removeprefix("--"))
        if key:
            return InputError(
                flag, "is not a flag of this trainer", f"write {key} into the TOML of --dataset_config"
            )
        if flag in ("--lr", "--steps", "--epochs"):
            near = {"--lr": "learning_rate", "--steps": "max_train_steps", "--epochs": "max_train_epochs"}[
                flag
            ]
            return InputError(flag, "is not a flag of this trainer", f"did you mean --{near}?")
        return super().unknown_argument(argument)


def parser() -> Parser:
    """The command's argument parser; every flag of TrainerSettings and no other."""
    made = _TrainerParser(
        prog=PROGRAM,
        description="Train a LoRA for Stable Diffusion 1.5. Start it with: accelerate launch "
        "--num_cpu_threads_per_process 1 noukii/trainer/train_network.py FLAGS",
    )
    for one in dataclasses.fields(TrainerSettings):
        options = dict(one.metadata)
        if options.get("action") != "store_true":
            options["default"] = one.default
            options["metavar"] = options.get("metavar", one.name.rsplit("_", 1)[-1].upper())
            if "choices" in options:
                options.pop("metavar")
        made.add_argument(f"--{one.name}", **options)
    return made


def parse(argv: list[str]) -> TrainerSettings:
    """Read the command line; InputError (exit 2) for unknown flags, bad values, senseless combinations."""
    values = vars(parser().parse_args(argv))
    for name in ("text_encoder_lr", "optimizer_args"):
        if values[name] is not None:
            values[name] = tuple(values[name]) or None
    if values["max_token_length"] == 75:
        values["max_token_length"] = None
    settings = TrainerSettings(**values)
    _check_values(settings)
    _check_combinations(settings)
    return settings


def check_hardware(settings: TrainerSettings, *, has_gpu: bool, gpu_capability: tuple[int, int]) -> None:
    """Refuse what this machine cannot do; InputError says so in plain words."""
    if settings.mixed_precision == "fp16" and not has_gpu:
        raise InputError(
            "--mixed_precision fp16", "half precision needs an NVIDIA GPU, and the CPU is used here",
            "give --mixed_precision no or bf16",
        )  # fmt: skip
    if settings.mixed_precision == "bf16" and has_gpu and gpu_capability < (8, 0):
        raise InputError(
            "--mixed_precision bf16", "this GPU is older than NVIDIA Ampere and has no bfloat16",
            "give --mixed_precision fp16",
        )  # fmt: skip
    if settings.optimizer == "AdamW8bit" and not has_gpu:
        raise InputError(
            "--optimizer_type AdamW8bit", "bitsandbytes needs an NVIDIA GPU, and the CPU is used here",
            "give --optimizer_type AdamW",
        )  # fmt: skip


def _check_values(s: TrainerSettings) -> None:
    needed = ("pretrained_model_name_or_path", "dataset_config", "output_dir", "network_module")
    for name in needed:
        if getattr(s, name) is None:
            example = "networks.lora" if name == "network_module" else "PATH"
            raise InputError(f"--{name}", "is needed", f"give --{name} {example}")
    if s.network_module != "networks.lora":
        raise InputError(
            "--network_module",
            f"{printable(str(s.network_module))} is not a network of this trainer",
            "give --network_module networks.lora",
        )
    if s.output_name is not None and (problem := name_problem(s.output_name)):
        raise InputError("--output_name", f"'{printable(s.output_name)}' {problem}", "give another name")
    if s.save_model_as != "safetensors":
        raise InputError(
            "--save_model_as", f"{printable(s.save_model_as)} is not written; a pickle may run code",
            "give --save_model_as safetensors",
        )  # fmt: skip
    if s.log_with not in (None, "tensorboard"):
        raise InputError("--log_with", f"{printable(s.log_with)} is not known", "give --log_with tensorboard")
    if s.optimizer_type and s.optimizer_type.lower() not in [name.lower() for name in OPTIMIZERS]:
        raise InputError(
            "--optimizer_type",
            f"{printable(s.optimizer_type)} is not an optimiser of this trainer",
            f"give one of {', '.join(OPTIMIZERS)}",
        )
    if s.lr_scheduler not in SCHEDULERS:
        raise InputError(
            "--lr_scheduler",
            f"{printable(s.lr_scheduler)} is not a schedule of this trainer",
            f"give one of {', '.join(SCHEDULERS)}",
        )
    for name in (
        "max_train_steps", "max_train_epochs", "gradient_accumulation_steps", "network_dim", "clip_skip",
        "lr_scheduler_num_cycles", "save_every_n_steps", "save_every_n_epochs", "save_last_n_steps",
        "sample_every_n_steps", "validate_every_n_steps",
    ):  # fmt: skip
        value = getattr(s, name)
        if value is not None and value < 1:
            raise InputError(f"--{name}", f"{value} is less than 1", "give a whole number of 1 or more")
    for name in (
        "learning_rate", "unet_lr", "lr_warmup_steps", "max_grad_norm", "network_alpha",
        "noise_offset", "prior_loss_weight", "max_data_loader_n_workers",
    ):  # fmt: skip
        value = getattr(s, name)
        if value is not None and value < 0:
            raise InputError(f"--{name}", f"{value} is negative", "give 0 or more")
    if s.text_encoder_lr and (len(s.text_encoder_lr) > 1 or s.text_encoder_lr[0] < 0):
        raise InputError(
            "--text_encoder_lr", "SD1.5 has one text encoder; one rate of 0 or more is wanted",
            "give one number",
        )  # fmt: skip
    if s.seed is not None and not 0 <= s.seed < 2**32:
        raise InputError("--seed", f"{s.seed} is out of range", f"give a number from 0 to {2**32 - 1}")
    if s.max_token_length not in (None, 150, 225):
        raise InputError("--max_token_length", f"{s.max_token_length} is not offered", "give 75, 150 or 225")
    if s.network_dropout is not None and not 0 <= s.network_dropout < 1:
        raise InputError(
            "--network_dropout",
            f"{s.network_dropout} would drop everything or is no share",
            "give 0 or more and less than 1",
        )
    if not 0 <= s.validation_split < 1:
        raise InputError(
            "--validation_split", f"{s.validation_split:g} is no share of the images",
            "give more than 0 and less than 1; 0.1 is usual",
        )  # fmt: skip
    if s.min_snr_gamma is not None and s.min_snr_gamma <= 0:
        raise InputError(
            "--min_snr_gamma", f"{s.min_snr_gamma} would leave no loss", "give a positive number; 5 is usual"
        )
    check_arguments(s.optimizer, s.optimizer_options)
    _check_rates(s)


def _check_rates(s: TrainerSettings) -> None:
    if s.optimizer == "Adafactor" and s.optimizer_options.get("relative_step", True):
        return  # it finds its rate itself
    rates = [
        ("--unet_lr" if s.unet_lr is not None else "--learning_rate", s.lr_unet, s.trains_unet),
        ("--text_encoder_lr" if s.text_encoder_lr else "--learning_rate", s.lr_text_encoder,
         s.trains_text_encoder),
    ]  # fmt: skip
    trained = [(flag, rate) for flag, rate, is_trained in rates if is_trained]
    if trained and not any(rate for _, rate in trained):
        flags = ", ".join(dict.fromkeys(flag for flag, _ in trained))
        raise InputError(flags, "a rate of 0 learns nothing", "give a rate above 0; 1e-4 is usual")


def _check_combinations(s: TrainerSettings) -> None:
    if s.network_train_unet_only and s.network_train_text_encoder_only:
        raise InputError(
            "--network_train_unet_only, --network_train_text_encoder_only",
            "together they leave nothing to train", "give one of them, or none to train both",
        )  # fmt: skip
    if s.cache_text_encoder_outputs and s.trains_text_encoder:
        raise InputError(
            "--cache_text_encoder_outputs", "the text encoder is trained, so its outputs change at each step",
            "add --network_train_unet_only, or leave the flag away",
        )  # fmt: skip
    if s.lr_scheduler == "constant" and s.lr_warmup_steps:
        raise InputError(
            "--lr_warmup_steps", "the constant schedule has no warm-up",
            "give --lr_scheduler constant_with_warmup",
        )  # fmt: skip
    if s.optimizer == "Adafactor" and s.optimizer_options.get("relative_step", True) and s.lr_warmup_steps:
        raise InputError(
            "--lr_warmup_steps", "Adafactor with relative_step has a schedule of its own",
            "leave it away, or give --optimizer_args relative_step=False",
        )  # fmt: skip
    trains_both = s.trains_unet and s.trains_text_encoder
    if s.optimizer == "Prodigy" and trains_both and s.lr_unet != s.lr_text_encoder:
        raise InputError(
            "--unet_lr, --text_encoder_lr",
            "Prodigy works with one rate for all",
            "give --learning_rate alone",
        )
    if s.save_last_n_steps and not s.save_every_n_steps:
        raise InputError(
            "--save_last_n_steps", "says which files of --save_every_n_steps to keep, and that is not given",
            "give --save_every_n_steps too",
        )  # fmt: skip
    if s.sample_every_n_steps and s.sample_prompts is None:
        raise InputError(
            "--sample_every_n_steps", "there are no prompts to draw", "give --sample_prompts FILE.txt"
        )
    if s.sample_at_first and s.sample_prompts is None:
        raise InputError(
            "--sample_at_first", "there are no prompts to draw", "give --sample_prompts FILE.txt"
        )
    if s.validation_split and s.validation_data_dir is not None:
        raise InputError(
            "--validation_split, --validation_data_dir", "both say what to measure on", "give one of them"
        )
    if s.validate_every_n_steps and not s.validation_split and s.validation_data_dir is None:
        raise InputError(
            "--validate_every_n_steps", "there are no images to measure on", "give --validation_split 0.1 too"
        )
    if s.log_with and s.logging_dir is None:
        raise InputError("--log_with", "there is no folder for the logs", "give --logging_dir FOLDER")
    if s.persistent_data_loader_workers and not s.max_data_loader_n_workers:
        raise InputError(
            "--persistent_data_loader_workers", "there are no workers to keep",
            "give --max_data_loader_n_workers 1 or more, or leave the flag away",
        )  # fmt: skip
    for name, module, used in (
        ("--optimizer_type AdamW8bit", "bitsandbytes", s.optimizer == "AdamW8bit"),
        ("--optimizer_type Prodigy", "prodigyopt", s.optimizer == "Prodigy"),
        ("--logging_dir", "tensorboard", s.uses_tensorboard),
    ):
        if used and importlib.util.find_spec(module) is None:
            raise InputError(name, f"{module} is not installed", f"run: {_pip_command(module)}")


def _option(text: str) -> tuple[str, Any]:
    """Read one `key=value` of --optimizer_args, the value as a Python literal, as kohya does."""
    key, equals, value = text.partition("=")
    try:
        if not equals or not key.strip().isidentifier():
            raise ValueError
        return key.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise InputError(
            "--optimizer_args",
            f"'{printable(text)}' is not KEY=VALUE with a number, True, False or a list as value",
            'write for example --optimizer_args "weight_decay=0.01" "betas=(0.9,0.99)"',
        ) from None


def _pip_command(module: str) -> str:
    """The command that installs what requirements-optional.txt pins for `module`."""
    from noukii.project import CHECKOUT

    lines = (CHECKOUT / "requirements-optional.txt").read_text(encoding="utf-8").splitlines()
    pin = next((line.split()[0] for line in lines if line.startswith(module)), module)
    return f".venv/bin/pip install {pin}"
