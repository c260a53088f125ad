"""Saved states: all that a run needs to go on as if it had not been stopped.

A state is a folder, written under a temporary name and renamed when it is whole:

    state.json            step, fingerprint of the run, and the SHA-256 of the other files
    network.safetensors   the LoRA's matrices as they are trained (float32)
    optimizer.pt          optimiser, learning-rate schedule, gradient scaler (read with weights_only=True)
    metrics.jsonl         the log up to this step

The fingerprint says what the run was made of: settings that change the result, images and captions by
content, base model. A run that differs in any of it is not resumed, and told what differs. Noise, order and
the like need no state: they are functions of (seed, step).
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii import files
from noukii.dataset.samples import SampleSet
from noukii.errors import InputError
from noukii.names import printable
from noukii.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    import torch

FORMAT = "noukii training state"
VERSION = 1
JSON_NAME, NETWORK_NAME, OPTIMIZER_NAME, METRICS_NAME = (
    "state.json",
    "network.safetensors",
    "optimizer.pt",
    "metrics.jsonl",
)
MAX_JSON_BYTES = 256 * 2**20

ASIDE = f"{files.TEMPORARY_PREFIX}old-"
"""A state that is about to be replaced stands under this prefix for a moment."""

SAMPLE_BLOCKS, BLOCK_BYTES = 256, 4096


@dataclass(frozen=True)
class SavedState:
    """What state.json says. `step` counts the optimiser steps that were done."""

    folder: Path
    step: int
    fingerprint: dict[str, Any]
    run: dict[str, Any]


def state_name(output_name: str, *, step: int | None = None, epoch: int | None = None) -> str:
    """Return kohya's name for a state folder: at a step, at an epoch, or at the end."""
    if step is not None:
        return f"{output_name}-step{step:08d}-state"
    if epoch is not None:
        return f"{output_name}-{epoch:06d}-state"
    return f"{output_name}-state"


def make_fingerprint(
    settings: TrainerSettings, sets: Sequence[SampleSet], base_model: str, processes: int, total_steps: int
) -> dict[str, Any]:
    """Return what makes a run this run and no other, as JSON values.

    The number of steps belongs to it only where the learning rate depends on it; so a run with a constant
    rate may be resumed for more steps.
    """
    rates = {}
    if settings.trains_unet:
        rates["unet_lr"] = settings.lr_unet
    if settings.trains_text_encoder:
        rates["text_encoder_lr"] = settings.lr_text_encoder
    constant = settings.lr_scheduler in ("constant", "constant_with_warmup")
    if not constant or isinstance(settings.lr_warmup_steps, float):
        rates["max_train_steps"] = total_steps
    if settings.optimizer == "Adafactor":
        rates["learning_rate"] = settings.learning_rate
    plain = (
        "gradient_accumulation_steps", "lr_scheduler", "lr_warmup_steps", "lr_scheduler_num_cycles",
        "max_grad_norm", "network_alpha", "network_dropout", "network_train_unet_only",
        "network_train_text_encoder_only", "min_snr_gamma", "noise_offset", "prior_loss_weight",
        "mixed_precision",
    )  # fmt: skip
    return {
        "settings": {
            **{name: getattr(settings, name) for name in plain},
            **rates,
            "network_dim": settings.rank,
            "clip_skip": settings.clip_skip or 1,
            "max_token_length": settings.token_length,
            "optimizer_type": settings.optimizer,
            "optimizer_args": sorted(settings.optimizer_args or ()),
            "number of processes": processes,
        },
        "data": [_data_set(one) for one in sets],
        "base_model": base_model,
    }


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words what differs between two fingerprints; empty if nothing does."""
    found = []
    before, after = saved["settings"], now["settings"]
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            found.append(f"{name} was {before.get(name)}, is {after.get(name)}")
    if saved["base_model"] != now["base_model"]:
        found.append("the base model is another file")
    if len(saved["data"]) != len(now["data"]):
        found.append(f"there were {len(saved['data'])} data sets, there are {len(now['data'])}")
    else:
        for old, new in zip(saved["data"], now["data"], strict=True):
            found += _data_differences(old, new)
    return found


def content_sample(paths: Sequence[Path]) -> str:
    """Return hex digits that stand for large files: their sizes, first MiB and blocks spread over the rest.

    Reading all of a 4 GB base model at each start would take longer than the start itself.
    """
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode("utf-8", "surrogateescape"))
        with open(path, "rb") as stream:
            digest.update(stream.read(1 << 20))
            for number in range(SAMPLE_BLOCKS):
                stream.seek(size * number // SAMPLE_BLOCKS)
                digest.update(stream.read(BLOCK_BYTES))
            stream.seek(max(0, size - BLOCK_BYTES))
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()


def save_state(
    folder: Path,
    *,
    step: int,
    fingerprint: dict[str, Any],
    run: dict[str, Any],
    network: dict[str, torch.Tensor],
    optimizer: dict[str, Any],
    metrics: str,
) -> None:
    """Write a state folder, whole or not at all; one of that name that was there before is replaced.

    Raises OSError. (Both libraries would write files themselves, and hide in errors of their own what the
    system said; so they write into memory.)
    """
    import torch
    from safetensors.torch import save

    temporary = folder.parent / f"{files.TEMPORARY_PREFIX}{os.getpid()}-{folder.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        tensors = {name: value.detach().cpu().contiguous() for name, value in network.items()}
        (temporary / NETWORK_NAME).write_bytes(save(tensors))
        buffer = io.BytesIO()
        torch.save(optimizer, buffer)
        (temporary / OPTIMIZER_NAME).write_bytes(buffer.getbuffer())
        (temporary / METRICS_NAME).write_text(metrics, encoding="utf-8")
        hashes = {
            name: files.sha256_file(temporary / name) for name in (NETWORK_NAME, OPTIMIZER_NAME, METRICS_NAME)
        }
        content = {
            "format": FORMAT, "version": VERSION, "step": step, "fingerprint": fingerprint, "run": run,
            "files": hashes,
        }  # fmt: skip
        (temporary / JSON_NAME).write_text(json.dumps(content), encoding="utf-8")
        for path in temporary.iterdir():
            _flush(path)
        _flush(temporary)
        _take_name(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_state(folder: Path) -> SavedState:
    """Read and check a state folder without torch; InputError says what is wrong with it."""
    if not folder.exists() and (folder.parent / f"{ASIDE}{folder.name}").is_dir():
        tidy(folder.parent)
    if not folder.is_dir():
        raise InputError(
            folder, "there is no such folder" if not folder.exists() else "is not a folder",
            "--resume wants the folder of a saved state, NAME-state or NAME-step00000100-state",
        )  # fmt: skip
    path = folder / JSON_NAME
    if not path.is_file():
        raise InputError(
            folder, f"has no {JSON_NAME}, so it is not a state of this trainer", "name another folder"
        )
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError
        if content["version"] != VERSION:
            raise InputError(folder, "was saved by another version of noukii", "resume it with that version")
        state = SavedState(folder, int(content["step"]), content["fingerprint"], content["run"])
        hashes = dict(content["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(path, "is damaged", "resume from another state") from None
    for name in (NETWORK_NAME, OPTIMIZER_NAME, METRICS_NAME):
        file = folder / name
        if not file.is_file() or files.sha256_file(file) != hashes.get(name):
            raise InputError(file, "is missing or damaged", "resume from another state")
    return state


def check_resume(state: SavedState, now: dict[str, Any], seed: int | None, total_steps: int) -> None:
    """Refuse to go on if seed, settings, data or base model are not those of the saved run."""
    try:
        found = differences(state.fingerprint, now)
        if seed is not None and seed != state.run["seed"]:
            found.append(f"seed was {state.run['seed']}, is {seed}")
    except (KeyError, TypeError, AttributeError):
        raise InputError(state.folder / JSON_NAME, "is damaged", "resume from another state") from None
    if found:
        more = f"\n  … and {len(found) - 12} more" if len(found) > 12 else ""
        raise InputError(
            state.folder,
            "the run that was saved here was another one:\n  " + "\n  ".join(found[:12]) + more,
            "undo the change, or start anew without --resume",
        )
    if state.step >= total_steps:
        raise InputError(
            state.folder,
            f"holds step {state.step}, and this run ends at step {total_steps}",
            "give more steps, or take the LoRA that is there",
        )


def load_tensors(state: SavedState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return (network, optimiser) as `save_state` got them, on the CPU. No code from the files is run."""
    import torch
    from safetensors.torch import load_file

    optimizer = torch.load(state.folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
    return load_file(state.folder / NETWORK_NAME), optimizer


def load_metrics(state: SavedState) -> str:
    """Return the log up to the saved step."""
    return (state.folder / METRICS_NAME).read_text(encoding="utf-8")


def is_ours(folder: Path) -> bool:
    """Say whether `folder` is a state that this trainer wrote, so that it may be replaced or removed."""
    return not folder.is_symlink() and (folder / JSON_NAME).is_file()


def remove_state(folder: Path) -> None:
    """Remove a state of ours: first its name, so that no half state is ever taken for a whole one."""
    if is_ours(folder):
        gone = folder.parent / f"{files.TEMPORARY_PREFIX}gone-{os.getpid()}-{folder.name}"
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what a killed run left unfinished; a state that it had put aside gets its name back."""
    if not folder.is_dir():
        return
    files.remove_temporaries(folder)
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir() or not path.name.startswith(files.TEMPORARY_PREFIX):
            continue
        home = folder / path.name.removeprefix(ASIDE)
        if path.name.startswith(ASIDE) and not home.exists():
            os.rename(path, home)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _data_set(one: SampleSet) -> dict[str, Any]:
    rule = one.config.rule
    return {
        "batch_size": one.config.batch_size,
        "buckets": [*rule.resolution, rule.enable, rule.no_upscale, rule.step, rule.min_size, rule.max_size],
        "samples": [
            [
                printable(sample.image.path.name),
                sample.image.sha256,
                _short_hash(sample.caption),
                sample.repeats,
                sample.subset.is_reg,
                sample.subset.flip_aug,
                sample.subset.shuffle_caption,
                sample.subset.keep_tokens,
                sample.subset.caption_dropout_rate,
                sample.subset.caption_tag_dropout_rate,
            ]
            for sample in one.samples
        ],
    }


_SAMPLE_FIELDS: tuple[tuple[int, str], ...] = (
    (1, "the image"), (2, "the caption"), (3, "num_repeats"), (4, "is_reg"), (5, "flip_aug"),
    (6, "shuffle_caption"), (7, "keep_tokens"), (8, "caption_dropout_rate"),
    (9, "caption_tag_dropout_rate"),
)  # fmt: skip


def _data_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    found = []
    if old["batch_size"] != new["batch_size"]:
        found.append(f"batch_size was {old['batch_size']}, is {new['batch_size']}")
    if old["buckets"] != new["buckets"]:
        found.append("resolution or bucket settings changed")
    before, after = _by_name(old["samples"]), _by_name(new["samples"])
    found += [f"{name} is gone" for name in before if name not in after]
    found += [f"{name} is new" for name in after if name not in before]
    for name in before.keys() & after.keys():
        changed = [words for at, words in _SAMPLE_FIELDS if before[name][at] != after[name][at]]
        if changed:
            found.append(f"{name}: {', '.join(changed)} changed")
    if not found and old["samples"] != new["samples"]:
        found.append("the data sets stand in another order")
    return found


def _by_name(samples: list[list[Any]]) -> dict[str, list[Any]]:
    """Samples by file name; the second of the same name gets a number."""
    named: dict[str, list[Any]] = {}
    for sample in samples:
        name, number = sample[0], 2
        while name in named:
            name, number = f"{sample[0]} ({number})", number + 1
        named[name] = sample
    return named


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _take_name(temporary: Path, folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        os.rename(temporary, folder)
        return
    if not is_ours(folder):
        reason = "something that is no state of this trainer has that name"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(folder))
    aside = folder.parent / f"{ASIDE}{folder.name}"
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(folder, aside)
    os.rename(temporary, folder)
    shutil.rmtree(aside, ignore_errors=True)
