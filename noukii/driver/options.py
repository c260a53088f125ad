"""The flags of ./run_training.sh, read once into one frozen dataclass."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from noukii import project
from noukii.command_line import Parser
from noukii.dataset.arguments import (
    add_data_set_arguments,
    data_sets_from,
    parse_mixed,
    resolution,
    whole_number,
)
from noukii.driver.outputs import timestamp
from noukii.errors import InputError
from noukii.names import name_problem, printable

DEFAULT_STEPS = 400
MAX_STEPS = 10_000_000
"""More is a slip of the finger: it would take months on any machine."""
DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "resolution": 512,
    "batch_size": 4,
    "precision": "auto",
    "gradient_checkpointing": "auto",
    "max_token_length": 75,
}

SETTLED_BY_US = {
    "--pretrained_model_name_or_path": "--base-model",
    "--dataset_config": "--dataset",
    "--output_dir": "--output-name",
    "--output_name": "--output-name",
    "--max_train_steps": "--steps",
    "--max_train_epochs": "--epochs",
    "--max_token_length": "--max-token-length",
    "--train_batch_size": "--batch-size",
    "--resolution": "--resolution",
    "--resume": "--resume",
    "--seed": "--seed",
    "--sample_prompts": "--sample-prompts",
    "--sample_every_n_steps": "--sample-every",
    "--save_every_n_steps": "--save-every",
}
"""Flags that may not stand behind `--`: the plan, the record and the resuming depend on them."""
WRITES_ELSEWHERE = ("--save_model_as", "--network_module", "--config_file", "--output_config")
"""Flags with which the run would not end with the LoRA file that is gathered."""
OURS = (
    "--prior_loss_weight", "--learning_rate", "--sdpa", "--gradient_checkpointing", "--cache_latents",
    "--mixed_precision", "--max_data_loader_n_workers", "--network_dim", "--network_alpha",
    "--save_state",
)  # fmt: skip
"""Flags of ours that one behind `--` replaces: argparse keeps the last."""


@dataclass(frozen=True)
class Options:
    """The command line; None stands for `not given`."""

    explicit: tuple[tuple[Path, int | None], ...] = ()
    positional: tuple[Path, ...] = ()
    output_name: str | None = None
    base_model: Path | None = None
    trainer: str | None = None
    steps: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    resolution: int | None = None
    batch_size: int | None = None
    rank: int | None = None
    alpha: float | None = None
    seed: int | None = None
    precision: str | None = None
    gradient_checkpointing: str | None = None
    max_token_length: int | None = None
    save_every: int | None = None
    sample_every: int | None = None
    sample_prompts: Path | None = None
    validation: str | None = None
    """A share as text (`0.1`), or the absolute path of a folder"""
    tag_dropout: float = 0.0
    dry_run: bool = False
    json: bool = False
    resume: bool = False
    extra: tuple[str, ...] = ()

    @property
    def validation_share(self) -> float | None:
        """The share of each data set's images that is held out; None where it is a folder or nothing."""
        return None if self.validation is None or os.path.isabs(self.validation) else float(self.validation)

    @property
    def validation_folder(self) -> Path | None:
        """The folder of images to measure on; None where it is a share or nothing."""
        named = self.validation is not None and os.path.isabs(self.validation)
        return Path(self.validation) if named and self.validation else None

    def record(self) -> dict[str, Any]:
        """Return what --resume needs to know, as JSON can hold it."""
        kept = {key: value for key, value in asdict(self).items() if key not in ("dry_run", "json", "resume")}
        kept["explicit"] = [[os.fspath(folder), repeats] for folder, repeats in self.explicit]
        kept["positional"] = [os.fspath(folder) for folder in self.positional]
        for key in ("base_model", "sample_prompts"):
            kept[key] = os.fspath(kept[key]) if kept[key] is not None else None
        kept["extra"] = list(self.extra)
        return kept

    def completed_by(self, record: dict[str, Any]) -> Options:
        """Return these options with what was not given taken from the `record` of an earlier run."""
        earlier = _from_record(record)
        taken = {
            one.name: getattr(earlier, one.name)
            for one in fields(self)
            if getattr(self, one.name) in (None, ()) and one.name not in ("explicit", "positional")
        }
        if self.steps is not None or self.epochs is not None:
            taken.pop("steps", None)
            taken.pop("epochs", None)
        if not self.explicit and not self.positional:
            taken |= {"explicit": earlier.explicit, "positional": earlier.positional}
        return replace(self, **taken)

    def with_defaults(self) -> Options:
        """Return these options with DESIGN's defaults where nothing was given."""
        settled: dict[str, Any] = {
            key: value for key, value in DEFAULTS.items() if getattr(self, key) is None
        }
        if self.steps is None and self.epochs is None:
            settled["steps"] = DEFAULT_STEPS
        if self.output_name is None:
            settled["output_name"] = f"nouki_sd1-5_{timestamp()}"
        if self.base_model is None:
            settled["base_model"] = default_base_model()
        return replace(self, **settled)


def default_base_model() -> Path:
    """Where setup.sh puts SD1.5."""
    return project.kohya() / "models" / "v1-5-pruned-emaonly.safetensors"


def _from_record(record: dict[str, Any]) -> Options:
    try:
        values = {one.name: record[one.name] for one in fields(Options) if one.name in record}
        values["explicit"] = tuple((Path(folder), repeats) for folder, repeats in values.get("explicit", ()))
        values["positional"] = tuple(map(Path, values.get("positional", ())))
        values["extra"] = tuple(values.get("extra", ()))
        for key in ("base_model", "sample_prompts"):
            values[key] = Path(values[key]) if values.get(key) else None
        found = Options(**values)
        _ = found.validation_share, found.validation_folder  # ValueError where it is neither
        return found
    except (TypeError, ValueError):
        return Options()


def parse(argv: list[str]) -> Options:
    """Read the command line.

    Raises:
        InputError: an unknown flag, a value out of range, two flags that exclude each other.
    """
    argv, extra = _split_extra(argv)
    namespace = parse_mixed(_parser(), argv)
    values = vars(namespace)
    explicit, positional = data_sets_from(namespace)
    given = {one.name: values[one.name] for one in fields(Options) if one.name in values}
    given |= {
        "explicit": tuple((_absolute(folder), repeats) for folder, repeats in explicit),
        "positional": tuple(_absolute(folder) for folder in positional),
        "extra": extra,
    }
    for key in ("base_model", "sample_prompts"):
        given[key] = None if given[key] is None else _absolute(given[key])
    options = Options(**given)
    if values["base_model"] == Path("demo"):
        options = replace(options, base_model=demo_model())
    _check(options)
    return options


def replaced_flags(options: Options) -> list[str]:
    """Name the flags behind `--` that replace one that the driver gives."""
    return [flag for flag in _flags(options.extra) if flag in OURS]


def extra_value(options: Options, flag: str) -> str | None:
    """Return the value that a flag behind `--` has there, None if it does not stand there."""
    found = None
    for index, word in enumerate(options.extra):
        if word == flag and index + 1 < len(options.extra):
            found = options.extra[index + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


TRAINER_WORDS = {
    "network_dim": "--rank",
    "network_alpha": "--alpha",
    "mixed_precision": "--precision",
    "learning_rate": "--learning-rate",
    "gradient_checkpointing": "--gradient-checkpointing on",
    "validation_split": "--validation",
    "validation_data_dir": "--validation",
    **{theirs.removeprefix("--"): ours for theirs, ours in SETTLED_BY_US.items()},
}
"""The trainer's name of a setting, and the flag of ours that sets it."""


def in_our_words(text: str, extra: tuple[str, ...]) -> str:
    """Return a trainer's advice with our flags in the place of its own, but for what stands behind `--`."""
    theirs = set(_flags(extra))

    def ours(found: re.Match[str]) -> str:
        return found[0] if found[0] in theirs else TRAINER_WORDS.get(found[1], found[0])

    return re.sub(r"--(\w+)", ours, text)


@contextlib.contextmanager
def in_our_flags(options: Options) -> Iterator[None]:
    """Let the trainer's refusals name our flags."""
    try:
        yield
    except InputError as error:
        where = TRAINER_WORDS.get(error.where.removeprefix("--"), error.where)
        if error.where in _flags(options.extra):
            where = error.where
        raise InputError(where, error.reason, in_our_words(error.next_step, options.extra)) from None


def _check(options: Options) -> None:
    if options.output_name is not None and (problem := name_problem(options.output_name)):
        raise InputError(
            "--output-name",
            f"'{printable(options.output_name)}' {problem}",
            "give a plain name, such as my_cat",
        )
    if options.steps is not None and options.epochs is not None:
        raise InputError("--steps, --epochs", "both say how long to train", "give one of them")
    if options.json and not options.dry_run:
        raise InputError("--json", "is the plan as JSON and belongs to --dry-run", "give --dry-run too")
    if options.resume and options.output_name is None:
        raise InputError("--resume", "which run?", "name it: --output-name NAME --resume")
    if options.sample_prompts is not None:
        if options.sample_every is None:
            raise InputError("--sample-prompts", "says what to draw, not when", "give --sample-every N too")
        if not options.sample_prompts.is_file():
            raise InputError(options.sample_prompts, "there is no such file", "one prompt a line is wanted")
    for flag in _flags(options.extra):
        if settled := _meant(flag, SETTLED_BY_US):
            raise InputError(
                flag,
                "is settled by a flag of this command",
                f"give {SETTLED_BY_US[settled]} in front of the --",
            )
        if _meant(flag, WRITES_ELSEWHERE):
            raise InputError(flag, "cannot be changed: the result would not be gathered", "leave it away")


def _meant(flag: str, among: Iterable[str]) -> str | None:
    """Return the one of `among` that a trainer may take `flag` for: kohya's accepts abbreviations."""
    return next((known for known in among if known.startswith(flag) and len(flag) > 2), None)


def _split_extra(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in argv:
        return argv, ()
    at = argv.index("--")
    return argv[:at], tuple(argv[at + 1 :])


def _flags(extra: tuple[str, ...]) -> list[str]:
    return [word.partition("=")[0] for word in extra if word.startswith("--")]


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))


def demo_model() -> Path:
    """Where the demo's base model is; InputError if it is not here."""
    folder = project.CHECKOUT / "demo" / "models" / "sd"
    if not folder.is_dir():
        raise InputError("--base-model demo", "the demo model is not here", "./demo.sh makes it")
    return folder


class _DriverParser(Parser):
    def unknown_argument(self, argument: str) -> InputError:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and "_" in flag:
            near = SETTLED_BY_US.get(flag) or {
                "--network_dim": "--rank",
                "--network_alpha": "--alpha",
                "--mixed_precision": "--precision",
            }.get(flag)
            known = f"did you mean {near}? " if near else ""
            return InputError(
                flag,
                "is not a flag of this command",
                f"{known}Flags of train_network.py go behind --, at the end: -- {printable(argument)}",
            )
        return super().unknown_argument(argument)


def _parser() -> Parser:
    parser = _DriverParser(
        prog="./run_training.sh",
        usage="./run_training.sh [--dataset PATH [--repeats N]]... [PATH ...] [flags] [-- FLAGS]",
        description="Train a Stable Diffusion 1.5 LoRA on captioned images.\n"
        "Without a data set, every {repeats}_{keyword} folder in image_datasets/ is used.",
        epilog="What stands behind -- is passed to train_network.py unchanged, after our own flags, so that\n"
        "it replaces one of ours: ./run_training.sh --steps 800 -- --lr_scheduler cosine --min_snr_gamma 5",
    )
    add_data_set_arguments(parser)
    add = parser.add_argument
    add("--output-name", metavar="NAME", help="the LoRA's name (default: nouki_sd1-5_<timestamp>)")
    add(
        "--base-model", type=Path, metavar="PATH",
        help="SD1.5 as one .safetensors file or a diffusers folder, or: demo "
        "(default: kohya_ss/models/v1-5-pruned-emaonly.safetensors)",
    )  # fmt: skip
    add(
        "--steps",
        type=whole_number("--steps", 1, MAX_STEPS),
        metavar="N",
        help=f"optimiser steps (default: {DEFAULT_STEPS})",
    )
    add(
        "--epochs", type=whole_number("--epochs", 1, MAX_STEPS), metavar="N",
        help="instead of --steps: passes over all images and repeats",
    )  # fmt: skip
    add("--learning-rate", type=_positive("--learning-rate", 10), metavar="X", help="default: 1e-4")
    add(
        "--resolution",
        type=resolution,
        metavar="N",
        help="pixels of a side, a multiple of 64 (default: 512)",
    )
    add(
        "--batch-size",
        type=whole_number("--batch-size", 1, 1024),
        metavar="N",
        help="images per step (default: 4)",
    )
    add(
        "--rank", type=whole_number("--rank", 1, 4096), metavar="N",
        help="of the LoRA; its size grows with it (trainer's: 4)",
    )  # fmt: skip
    add(
        "--alpha", type=_positive("--alpha", 1e6), metavar="X",
        help="the LoRA is scaled by alpha/rank (trainer's: 1)",
    )  # fmt: skip
    add(
        "--seed",
        type=whole_number("--seed", 0, 2**32 - 1),
        metavar="N",
        help="of everything random (default: drawn and told)",
    )
    add(
        "--precision", choices=("auto", "no", "fp16", "bf16"),
        help="auto: what suits this machine (builtin), no (kohya)",
    )  # fmt: skip
    add(
        "--gradient-checkpointing", choices=("auto", "on", "off"),
        help="less memory, more time; auto: where memory is short (builtin), on (kohya)",
    )  # fmt: skip
    add("--max-token-length", type=int, choices=(75, 150, 225), help="tokens of a caption that are used")
    add("--trainer", choices=("kohya", "builtin"), help="default: kohya where setup.sh installed it")
    add(
        "--validation", type=_validation, metavar="X",
        help="measure the loss on images that are not trained, so that over-fitting shows: a share of each"
        " data set (0.1), or a folder of captioned images (builtin)",
    )  # fmt: skip
    add(
        "--tag-dropout", type=_share, default=0.0, metavar="X",
        help="leave each comma-separated part of a caption but the first out this often (0.3), so that the"
        " trigger word alone comes to show the concept (default: 0)",
    )  # fmt: skip
    for flag, what in (
        ("--save-every", "also keep the LoRA every N steps"),
        ("--sample-every", "draw sample pictures every N steps"),
    ):
        add(flag, type=whole_number(flag, 1, MAX_STEPS), metavar="N", help=what)
    add(
        "--sample-prompts", type=Path, metavar="FILE",
        help="what to draw, a prompt a line (default: keyword and key concepts of the data sets)",
    )  # fmt: skip
    add("--compare", metavar="NAME", help="draw a sheet of a finished run's checkpoints at several strengths")
    add("--resume", action="store_true", help="go on with the run of that --output-name; its flags hold on")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add("--json", action="store_true", help="with --dry-run: the plan as JSON")
    return parser


def _validation(text: str) -> str:
    """Read --validation: a share (0.1 or 10%) as plain text, or the absolute path of a folder."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        folder = _absolute(Path(text))
        if text.strip() and folder.is_dir():
            return os.fspath(folder)
        raise InputError(
            f"--validation {text}", "is neither a share of the images nor a folder",
            "give a share, such as 0.1, or the folder of images to measure on",
        ) from None  # fmt: skip
    if not 0 < share < 1:
        raise InputError(
            f"--validation {text}", "is no share of the images",
            "more than 0 and less than 1 is possible; 0.1 is usual",
        )  # fmt: skip
    return repr(share)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(f"--tag-dropout {text}", "is no share", "0 and more and less than 1 is possible")
    return value


def _positive(flag: str, most: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and 0 < value <= most):
            raise InputError(
                f"{flag} {text}", "is not a number above 0" if not value > most else "is out of range",
                f"more than 0 and at most {most:g} is possible",
            )  # fmt: skip
        return value

    return convert
