"""Is what --resume asks for the same run? Compared before anything is written, without torch.

A run's record keeps what it was made of: the settings that change the result, every image (the hash of
the user's own file) and caption, the base model. The state that the built-in trainer saved has its own
account of settings and base model; where there is one, that counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from noukii.dataset.config_file import DatasetConfig, SubsetConfig
from noukii.dataset.plan import Plan
from noukii.dataset.samples import Sample, SampleSet, fit_samples
from noukii.driver import facts, launch, outputs, prepare
from noukii.driver.options import TRAINER_WORDS
from noukii.driver.prepare import Machine, Prepared
from noukii.errors import InputError
from noukii.names import printable
from noukii.trainer import settings, state

MADE_OF = "made_of"
"""The record's key for what a run was made of."""
LISTED = 12
DATA_CHANGED = "undo the change, or start anew without --resume"


def made_of(prepared: Prepared, machine: Machine) -> dict[str, Any]:
    """Return what makes a run this run and no other, as JSON values."""
    assert prepared.base is not None
    options = replace(prepared.options, seed=prepared.options.seed or 0)
    kohya = prepared.trainer == "kohya"
    call = prepare.trainer_call(
        replace(prepared, options=replace(options, extra=()) if kohya else options),
        machine,
        run_folder=Path("folder"),
        output_name="name",
        dataset_config=Path("config"),
        sample_prompts=Path("prompts"),
    )
    flags = launch.trainer_flags(replace(call, resume=None, tokenizer_cache=None))
    found = state.make_fingerprint(
        settings.parse(flags),
        [sample_set(prepared.plan)],
        state.content_sample(prepared.base.weights),
        1,
        prepared.plan.steps,
    )
    if kohya:  # its further flags are its own affair; what is known of them is whether they are the same
        found["settings"]["flags behind --"] = list(options.extra)
    found["trainer"], found["seed"] = prepared.trainer, options.seed
    return found


def sample_set(plan: Plan) -> SampleSet:
    """Return the samples of a plan under the names of their copies, with the hashes of the originals."""
    samples: list[Sample] = []
    config = DatasetConfig(plan.rule, plan.batch_size, ())
    for each in plan.sets:
        one = each.data_set
        subset = plan.trained(SubsetConfig(one.folder, one.repeats, one.keyword, ".txt"))
        pictures = [
            (replace(image.info, path=Path(image.stem + image.info.extension)), image.caption.text)
            for image in each.images
        ]
        samples += fit_samples(subset, pictures, config)[0]
    return SampleSet(config, tuple(samples), (), ())


def check(prepared: Prepared, machine: Machine) -> bool:
    """Return whether the run that is resumed has ended already, so that its result is only to be gathered.

    Raises:
        InputError: it was another run, its state is damaged, or it has ended and was gathered.
    """
    assert prepared.earlier is not None
    now = made_of(prepared, machine)
    before = _before(prepared, now)
    found = _differences(before, now)
    if found:
        more = f"\n  … and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise InputError(
            prepared.resume or prepared.earlier,
            "the run that was saved here was another one:\n  " + "\n  ".join(found[:LISTED]) + more,
            DATA_CHANGED,
        )
    return _has_ended(prepared, before.get("step"))


def _before(prepared: Prepared, now: dict[str, Any]) -> dict[str, Any]:
    """Return what the earlier run was made of; what nobody has written down counts as unchanged."""
    assert prepared.earlier is not None
    record = outputs.read_record(prepared.earlier)
    kept = record.get(MADE_OF)
    before: dict[str, Any] = {**now, **kept} if isinstance(kept, dict) else dict(now)
    if prepared.resume is None:
        return before
    if prepared.trainer == "kohya":
        if state.is_ours(prepared.resume):
            raise InputError(prepared.resume, "was saved by the built-in trainer", "give --trainer builtin")
        return before | {"step": outputs.step_of(prepared.resume)}
    saved = state.read_state(prepared.resume)
    try:
        before |= {key: saved.fingerprint[key] for key in ("settings", "base_model")}
        return before | {"seed": saved.run["seed"], "step": saved.step}
    except (KeyError, TypeError):
        raise InputError(saved.folder / state.JSON_NAME, "is damaged", "resume from another state") from None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    try:
        found = state.differences(before, now)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise InputError("--resume", "what is written down of that run is damaged", DATA_CHANGED) from None
    found += [
        f"{name} was {before[name]}, is {now[name]}"
        for name in ("trainer", "seed")
        if before[name] != now[name]
    ]
    return [_in_our_words(line) for line in found]


def _in_our_words(line: str) -> str:
    """Name the flag of ours beside the setting: `network_dim (--rank) was 4, is 8`."""
    name, was, rest = line.partition(" was ")
    flag = {"trainer": "--trainer"}.get(name) or TRAINER_WORDS.get(name)
    return f"{name} ({flag.partition(' ')[0]}){was}{rest}" if flag and was else line


def _has_ended(prepared: Prepared, step: int | None) -> bool:
    options, folder, total = prepared.options, prepared.earlier, prepared.plan.steps
    assert folder is not None and options.output_name is not None
    lora = folder / f"{options.output_name}.safetensors"
    if step is None:
        step = facts.steps_of(lora)
        if step is not None and step < total:
            raise InputError(
                folder, f"the run stopped at step {step} and has left no state to go on from",
                "leave --resume away to start from the beginning",
            )  # fmt: skip
    elif step < total:
        return False
    elif step > total:
        raise InputError(
            prepared.resume or folder, f"holds step {step}, and this run is to end at step {total}",
            f"give --steps {step} or more",
        )  # fmt: skip
    further = f"to train it further: {outputs.resume_command(options.output_name)} --steps"
    if not lora.is_file():
        raise InputError(
            folder, f"the run has ended at step {total}, and {printable(lora.name)} is not there any more",
            f"{further} {total + 1} writes it again",
        )  # fmt: skip
    if gathered := outputs.result_with(lora):
        raise InputError(
            "--resume",
            f"the run has ended at step {total}, and its LoRA is in {printable(gathered)}",
            f"{further} N, with N above {total}" if prepared.resume else "give another --output-name",
        )
    return True
