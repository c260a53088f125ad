"""What a run will do, settled before torch is imported: all that can be checked without a model (R4)."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noukii import disk, hardware
from noukii.dataset.config_file import read_config
from noukii.dataset.samples import Sample, SampleSet, load_samples
from noukii.errors import InputError
from noukii.names import printable
from noukii.trainer import sampling, state, validation_data
from noukii.trainer.batches import Schedule
from noukii.trainer.checkpoint_header import BaseModelFiles, inspect_base_model
from noukii.trainer.lora_header import check_start_weights
from noukii.trainer.settings import TrainerSettings, check_hardware

PARAMETERS_PER_RANK = 590_000
"""Of a LoRA on SD1.5, UNet and text encoder together; smaller models need less."""


@dataclass(frozen=True)
class Job:
    """One run: settings with the seed settled, data, base model, lengths, and what it goes on from."""

    settings: TrainerSettings
    seed: int
    sets: tuple[SampleSet, ...]
    base: BaseModelFiles
    prompts: tuple[sampling.SamplePrompt, ...]
    schedule: Schedule
    total_steps: int
    epochs: int
    use_gpu: bool
    processes: int
    resume: state.SavedState | None
    fingerprint: dict[str, Any]
    validation: tuple[Sample, ...] = ()
    """Samples that are not trained and that the training is measured on."""

    @property
    def output_dir(self) -> Path:
        assert self.settings.output_dir is not None
        return self.settings.output_dir

    @property
    def image_count(self) -> int:
        return sum(len(one.samples) for one in self.sets)

    @property
    def samples_per_epoch(self) -> int:
        return sum(sample.repeats for one in self.sets for sample in one.samples)

    def describe(self, machine: str) -> list[str]:
        """Return what is told before training, one line each."""
        s = self.settings
        precision = {"no": "float32", "fp16": "float16 mixed", "bf16": "bfloat16 mixed"}[s.mixed_precision]
        parts = [
            name for name, on in (("UNet", s.trains_unet), ("text encoder", s.trains_text_encoder)) if on
        ]
        several = f" in each of {self.processes} processes" if self.processes > 1 else ""
        per_step = self.settings.gradient_accumulation_steps * self.processes
        batches = f" ({self.schedule.batches_per_epoch} batches, {per_step} a step)" if per_step > 1 else ""
        lines = [
            f"device: {machine}{several}, {precision}",
            f"base model: {printable(self.base.path.name)}",
            f"LoRA: rank {s.rank}, alpha {s.network_alpha:g}, for {' and '.join(parts)}",
            f"data: {self.image_count} images, {self.samples_per_epoch} samples per epoch with repeats",
            *([f"validation: {len(self.validation)} images that are not trained"] if self.validation else []),
            f"steps per epoch: {self.schedule.steps_per_epoch}{batches}",
            f"epochs: {self.epochs}",
            f"total steps: {self.total_steps}",
            f"seed: {self.seed}",
        ]
        if self.resume:
            lines.append(f"going on after step {self.resume.step} of {printable(self.resume.folder.name)}")
        return lines


def prepare_job(settings: TrainerSettings) -> Job:
    """Check everything that needs no model and return the run; InputError names what is wrong."""
    assert settings.dataset_config and settings.output_dir
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    machine = hardware.detect()
    use_gpu = machine.has_gpu and os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true", "yes")
    check_hardware(settings, has_gpu=use_gpu, gpu_capability=machine.gpu_capability)
    base, prompts = check_without_data(settings)
    sets, validation = validation_data.split(settings, load_samples(read_config(settings.dataset_config)))
    if settings.cache_text_encoder_outputs and any(
        subset.shuffle_caption for one in sets for subset in one.config.subsets
    ):
        raise InputError(
            "--cache_text_encoder_outputs", "captions are shuffled, so they change at each step",
            "set shuffle_caption = false in the TOML, or leave the flag away",
        )  # fmt: skip
    saved = state.read_state(settings.resume) if settings.resume else None
    seed = _seed(settings, saved)
    schedule, total = length(settings, sets, seed, processes)
    fingerprint = state.make_fingerprint(settings, sets, state.content_sample(base.weights), processes, total)
    if saved is not None:
        state.check_resume(saved, fingerprint, settings.seed, total)
    _check_output(settings, saved)
    return Job(
        settings=replace(settings, seed=seed),
        seed=seed,
        sets=sets,
        base=base,
        prompts=prompts,
        schedule=schedule,
        total_steps=total,
        epochs=math.ceil(total / schedule.steps_per_epoch),
        use_gpu=use_gpu,
        processes=processes,
        resume=saved,
        fingerprint=fingerprint,
        validation=validation,
    )


def check_without_data(
    settings: TrainerSettings,
) -> tuple[BaseModelFiles, tuple[sampling.SamplePrompt, ...]]:
    """Check every file that the flags name but the data, without torch; InputError names what is wrong.

    For whoever is about to prepare data for a run: base model, --clip_skip, --network_weights,
    --sample_prompts. (What needs no file at all, `settings.parse` has checked.)
    """
    assert settings.pretrained_model_name_or_path
    base = inspect_base_model(settings.pretrained_model_name_or_path)
    _check_clip_skip(settings, base)
    if settings.network_weights and settings.resume is None:
        check_start_weights(settings, base)
    prompts = tuple(sampling.read_prompts(settings.sample_prompts)) if settings.sample_prompts else ()
    return base, prompts


def length(
    settings: TrainerSettings, sets: Sequence[SampleSet], seed: int, processes: int = 1
) -> tuple[Schedule, int]:
    """Return which batches make up each step, and how many steps the run has."""
    schedule = Schedule(sets, seed, settings.gradient_accumulation_steps * processes)
    if settings.max_train_epochs is not None:
        return schedule, settings.max_train_epochs * schedule.steps_per_epoch
    return schedule, settings.max_train_steps


def data_notes(sets: tuple[SampleSet, ...]) -> list[str]:
    """Return what was skipped and what is worth knowing about the data, one line each."""
    lines = []
    for one in sets:
        lines += [f"skipped: {printable(skipped.path)}: {skipped.reason}" for skipped in one.skipped]
        lines += list(one.notes)
    return lines


def _seed(settings: TrainerSettings, saved: state.SavedState | None) -> int:
    """The seed given, else that of the run gone on with, else one drawn (kohya's range)."""
    if settings.seed is not None:
        return settings.seed
    if saved is not None:
        seed = saved.run.get("seed")
        if not isinstance(seed, int):
            raise InputError(saved.folder, "is damaged: it holds no seed", "resume from another state")
        return seed
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--seed", "several processes need the same seed", "give --seed NUMBER")
    return random.SystemRandom().randrange(2**32)


def _check_clip_skip(settings: TrainerSettings, base: BaseModelFiles) -> None:
    layers = 12
    if base.kind == "diffusers":
        import json

        try:
            config = json.loads((base.path / "text_encoder" / "config.json").read_bytes())
            layers = int(config.get("num_hidden_layers", 12))
        except (OSError, ValueError, TypeError, AttributeError):
            return
    if settings.clip_skip is not None and settings.clip_skip > layers:
        raise InputError(
            "--clip_skip", f"{settings.clip_skip} is more than the text encoder's {layers} layers",
            "1 and 2 are usual",
        )  # fmt: skip


def _check_output(settings: TrainerSettings, saved: state.SavedState | None) -> None:
    """Refuse to write over an earlier run's files; a resumed run goes on in its own folder."""
    folder, name = settings.output_dir, settings.name
    assert folder is not None
    goes_on_here = saved is not None and saved.folder.resolve().parent == folder.resolve()
    for path in sorted(folder.iterdir()) if folder.is_dir() and not goes_on_here else []:
        if belongs_to(path.name, name):
            raise InputError(
                path, "an earlier run left it, and it would be lost",
                "choose another --output_name or --output_dir, or --resume that run",
            )  # fmt: skip
    lora = PARAMETERS_PER_RANK * settings.rank * 4
    disk.require_space(folder, lora * (5 if settings.save_state else 2), lora)
    if settings.uses_tensorboard and settings.logging_dir is not None:
        disk.require_space(settings.logging_dir, 2**20)


def belongs_to(file: str, name: str) -> bool:
    """Say whether a run called `name` writes a file or folder called `file`."""
    if not file.startswith(name):
        return False
    rest = file[len(name) :].removesuffix("-state" if file.endswith("-state") else ".safetensors")
    if rest == file[len(name) :]:
        return False
    number = rest.removeprefix("-step") if rest.startswith("-step") else rest.removeprefix("-")
    wanted = 8 if rest.startswith("-step") else 6
    return rest == "" or (rest.startswith("-") and len(number) == wanted and number.isdigit())
