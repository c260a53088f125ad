"""Everything that can be checked before anything is written or any model is loaded (R4)."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from noukii import hardware, project
from noukii.dataset.caption_check import plural
from noukii.dataset.folders import DataSet, find_data_sets
from noukii.dataset.images import Skipped
from noukii.dataset.plan import Plan, make_plan
from noukii.driver import estimate, kohya_tokenizer, launch, outputs
from noukii.driver.launch import TrainerCall
from noukii.driver.measured_on import check_validation
from noukii.driver.options import MAX_STEPS, Options, default_base_model, extra_value, in_our_flags
from noukii.errors import InputError
from noukii.trainer.checkpoint_header import BaseModelFiles, inspect_base_model

LORA_PARAMETERS_PER_RANK = 589_824
"""Of a kohya LoRA on SD1.5: UNet 423,936 and text encoder 165,888."""
DEFAULT_RANK = 4


@dataclass(frozen=True)
class Prepared:
    """A run that nothing speaks against: what was asked for, settled, and what it works on."""

    options: Options
    trainer: str
    base: BaseModelFiles | None
    """None only in a dry run before setup.sh has fetched the default model"""
    data_sets: tuple[DataSet, ...]
    plan: Plan
    resume: Path | None
    """The saved state to go on from"""
    earlier: Path | None = None
    """The working folder of the run that --resume means"""


def settle(options: Options) -> tuple[Options, Path | None, Path | None]:
    """Fill in what was not given: from the run that is resumed, then from the defaults.

    Returns the options, the state to go on from and the working folder of that run.
    """
    if not options.resume:
        return options.with_defaults(), None, None
    assert options.output_name is not None
    none_there: InputError | None = None
    state = None
    try:
        state = outputs.newest_state(options.output_name)
    except InputError as problem:
        none_there = problem
    folder = outputs.working_folder(options.output_name, state)
    if folder is None:
        assert none_there is not None
        raise none_there
    if state is not None and state.parent != folder:
        state = None
    return options.completed_by(outputs.read_record(folder)).with_defaults(), state, folder


def prepare(options: Options, advance: Callable[[], object] | None = None) -> Prepared:
    """Check the base model's header, find the data sets and look at every image in them.

    `advance` is called once per image.

    Raises:
        InputError: with everything that is wrong with the base model or the folders; nothing was written.
    """
    options, resume, earlier = settle(options)
    trainer = choose_trainer(options.trainer)
    base = None
    base_problem: InputError | None = None
    try:
        base = _inspect(options.base_model or default_base_model())
    except InputError as problem:
        base_problem = problem
    if trainer == "builtin":
        _check_builtin_flags(options)
    elif options.validation is not None:
        raise InputError(
            "--validation",
            "kohya's trainer draws other noise for each value and writes none of them into a file that the"
            " report could read, so no best checkpoint could be named",
            "give --trainer builtin, or kohya's own flag behind --: -- --validation_split 0.1",
        )
    try:
        data_sets, ignored = find_data_sets(list(options.explicit), list(options.positional))
    except InputError:
        if base_problem:  # both are wrong: say both at once
            print(base_problem, file=sys.stderr)
        raise
    planned_only = options.dry_run and not options.resume and options.base_model == default_base_model()
    if base_problem and not planned_only:
        raise base_problem
    if base and trainer == "builtin":
        _check_builtin_files(options, base)
    plan = _plan(options, data_sets, ignored, advance)
    check_validation(options, plan)
    if plan.steps > MAX_STEPS:
        raise InputError(
            "--epochs", f"come to {plan.steps} steps, and {MAX_STEPS} are possible", "give fewer epochs"
        )
    return Prepared(options, trainer, base, tuple(data_sets), plan, resume, earlier)


def _plan(
    options: Options,
    data_sets: list[DataSet],
    ignored: list[Skipped],
    advance: Callable[[], object] | None,
) -> Plan:
    assert options.resolution and options.batch_size and options.max_token_length
    accumulation = extra_value(options, "--gradient_accumulation_steps") or "1"
    return make_plan(
        data_sets,
        ignored,
        resolution=options.resolution,
        batch_size=options.batch_size,
        steps=options.steps,
        epochs=options.epochs,
        accumulation=int(accumulation) if accumulation.isdecimal() and int(accumulation) else 1,
        max_token_length=options.max_token_length,
        validation=options.validation_share,
        tag_dropout=options.tag_dropout,
        advance=advance,
    )


def choose_trainer(wanted: str | None) -> str:
    """Return kohya where setup.sh installed it, else builtin; or what was asked for, if it is there.

    Raises:
        InputError: kohya was asked for and is not installed.
    """
    parts = (launch.kohya_script(), launch.kohya_accelerate())
    missing = [part for part in parts if not part.exists()]
    if wanted == "kohya" and missing:
        raise InputError(
            missing[0],
            "is not there, so kohya's trainer cannot run",
            "./setup.sh --training-only --no-models installs it; --trainer builtin needs nothing more",
        )
    return wanted or ("builtin" if missing else "kohya")


def _inspect(path: Path) -> BaseModelFiles:
    if not path.exists() and not path.is_symlink():
        raise InputError(
            path,
            "the base model is not there",
            "./setup.sh --training-only --no-kohya fetches it (4.3 GB), or --base-model names another",
        )
    return inspect_base_model(path)


def _check_builtin_flags(options: Options) -> None:
    """Let the trainer's own parser look at all flags, those behind `--` too, and at the sample prompts."""
    from noukii.trainer import sampling, settings

    for flag in ("--validation_split", "--validation_data_dir"):
        if extra_value(options, flag) is not None:
            raise InputError(flag, "is settled by a flag of this command", "give --validation in front of --")
    with in_our_flags(options):
        settings.parse(launch.trainer_flags(_call_for_check(options)))
        if options.sample_prompts is not None:
            sampling.read_prompts(options.sample_prompts)


def _check_builtin_files(options: Options, base: BaseModelFiles) -> None:
    """Let the trainer look at what its flags want of the base model, and at the LoRA to start from."""
    from noukii.trainer import job, settings

    call = replace(_call_for_check(options), base_model=base.path)
    with in_our_flags(options):
        parsed = settings.parse(launch.trainer_flags(call))
        job.check_without_data(replace(parsed, sample_prompts=None))


def _call_for_check(options: Options) -> TrainerCall:
    """Return the launch as far as the options alone decide it."""
    nowhere = Path("checked before it is known")
    assert options.learning_rate is not None and options.output_name is not None
    return TrainerCall(
        trainer="builtin",
        accelerate=(),
        script=nowhere,
        accelerate_config=nowhere,
        base_model=nowhere,
        dataset_config=nowhere,
        output_dir=nowhere,
        output_name=options.output_name,
        learning_rate=options.learning_rate,
        seed=options.seed or 0,
        precision="no",
        gradient_checkpointing=False,
        cpu=False,
        threads=1,
        steps=options.steps,
        epochs=options.epochs,
        rank=options.rank,
        alpha=options.alpha,
        max_token_length=options.max_token_length or 75,
        save_every=options.save_every,
        sample_every=options.sample_every,
        sample_prompts=options.sample_prompts or nowhere,
        validation_split=options.validation_share,
        validation_data_dir=options.validation_folder,
        resume=nowhere if options.resume else None,
        extra=options.extra,
    )


@dataclass(frozen=True)
class Machine:
    """How this run uses this machine."""

    hardware: hardware.Hardware
    precision: str
    gradient_checkpointing: bool
    load: estimate.Load

    @property
    def words(self) -> str:
        """The device and the precision in words."""
        device = self.hardware.gpu_name or f"CPU, {plural(self.hardware.cpu_count, 'core')}"
        extra = ", gradient checkpointing" if self.gradient_checkpointing else ""
        if self.precision == "bf16" and not self.hardware.computes_bfloat16:
            extra += " (this processor only emulates bfloat16, many times slower: give --precision no)"
        return f"{device}; mixed precision {self.precision}{extra}"


def fit_machine(prepared: Prepared) -> Machine:
    """Choose precision and checkpointing for the hardware, where they were not given.

    Raises:
        InputError: a precision was asked for that this machine does not have.
    """
    options, found = prepared.options, hardware.detect()
    automatic = found.precision if prepared.trainer == "builtin" else "no"
    precision = extra_value(options, "--mixed_precision") or (
        automatic if options.precision == "auto" else options.precision or automatic
    )
    if precision == "fp16" and not found.has_gpu:
        raise InputError(
            "--precision fp16", f"needs an NVIDIA GPU: {found.why_no_gpu}", "give --precision no or bf16"
        )
    if precision == "bf16" and found.has_gpu and found.gpu_capability < (8, 0):
        raise InputError("--precision bf16", f"{found.gpu_name} has no bfloat16", "give --precision fp16")
    size = prepared.base.size_bytes if prepared.base else 4_300_000_000
    if prepared.base and prepared.base.dtype != "float32":
        size *= 2
    load = estimate.Load(
        options.resolution or 512, options.batch_size or 4, precision, False, size,
        on_gpu=found.has_gpu, unet_only="--network_train_unet_only" in options.extra,
        builtin=prepared.trainer == "builtin",
    )  # fmt: skip
    wanted = options.gradient_checkpointing
    checkpointing = wanted == "on" or "--gradient_checkpointing" in options.extra
    if wanted == "auto":
        checkpointing |= prepared.trainer == "kohya" or estimate.memory_is_short(load, found)
    return Machine(found, precision, checkpointing, replace(load, gradient_checkpointing=checkpointing))


def require_space(prepared: Prepared) -> None:
    """Check that training copies, LoRAs, states and the result fit on the disk."""
    options, plan = prepared.options, prepared.plan
    rank = options.rank or _whole(extra_value(options, "--network_dim")) or DEFAULT_RANK
    lora = LORA_PARAMETERS_PER_RANK * rank * 4
    if prepared.base and prepared.base.size_bytes < estimate.TOY_MODEL_BYTES:
        lora = min(lora, prepared.base.size_bytes)
    saves = 1 + (plan.steps // options.save_every if options.save_every else 0)
    state = 3 * lora if prepared.trainer == "builtin" or options.save_every else 0
    outputs.check_space(
        [
            (project.staging(), plan.staging_bytes, plan.largest_bytes),
            (project.kohya() / "outputs", saves * (lora + state), max(lora, state)),
            (project.trained_loras(), saves * lora, lora),
        ]
    )


def _whole(text: str | None) -> int:
    """Return a whole number; 0 for anything else."""
    return int(text) if text is not None and text.isdecimal() else 0


def cpu_threads(machine: Machine) -> int:
    """Return how many threads compute where there is no GPU: all cores, or what OMP_NUM_THREADS says.

    A toy model's layers are too small to be shared out: a second core adds a fifth, and where it has other
    work to do, each layer waits for it.
    """
    if asked := _whole(os.environ.get("OMP_NUM_THREADS")):
        return asked
    return 1 if machine.load.base_model_bytes < estimate.TOY_MODEL_BYTES else machine.hardware.cpu_count


def draw_seed() -> int:
    """Return a seed in kohya's range."""
    return secrets.randbelow(2**32)


def trainer_call(
    prepared: Prepared,
    machine: Machine,
    *,
    run_folder: Path,
    output_name: str,
    dataset_config: Path,
    sample_prompts: Path | None,
) -> TrainerCall:
    """Return the launch of a prepared run."""
    options, kohya = prepared.options, prepared.trainer == "kohya"
    assert options.learning_rate is not None and options.seed is not None and options.base_model is not None
    return TrainerCall(
        trainer=prepared.trainer,
        accelerate=launch.accelerate_program(prepared.trainer),
        script=launch.kohya_script() if kohya else launch.BUILTIN_SCRIPT,
        accelerate_config=run_folder / "accelerate.yaml",
        base_model=options.base_model,
        dataset_config=dataset_config,
        output_dir=run_folder,
        output_name=output_name,
        learning_rate=options.learning_rate,
        seed=options.seed,
        precision=machine.precision,
        # one that was asked for behind `--` is there already
        gradient_checkpointing=machine.gradient_checkpointing
        and "--gradient_checkpointing" not in options.extra,
        cpu=not machine.hardware.has_gpu,
        threads=1 if machine.hardware.has_gpu else cpu_threads(machine),
        steps=options.steps,
        epochs=options.epochs,
        rank=options.rank,
        alpha=options.alpha,
        max_token_length=options.max_token_length or 75,
        save_every=options.save_every,
        sample_every=options.sample_every,
        sample_prompts=sample_prompts,
        validation_split=None if kohya else options.validation_share,
        validation_data_dir=None if kohya else options.validation_folder,
        resume=prepared.resume,
        tokenizer_cache=kohya_tokenizer.folder() if kohya else None,
        extra=options.extra,
    )
