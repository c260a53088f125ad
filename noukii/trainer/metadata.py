"""What a LoRA file says of itself: kohya's keys, values written as kohya writes them (all strings).

Source of keys and formats: `train_network.py`, `library/train_util.py` and `library/sai_model_spec.py` of
sd-scripts 48d368f. Beyond its TOML mode the bucket information of its folder mode is written too, which
web interfaces show. Folders and files appear by base name only; no path of the user's machine is written.
Settings that this trainer does not offer are written with upstream's defaults: they were in effect.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii import __version__
from noukii.dataset.buckets import predefined_buckets
from noukii.dataset.config_file import SubsetConfig
from noukii.dataset.samples import SampleSet
from noukii.trainer.file_hashes import base_model_hashes

if TYPE_CHECKING:
    from noukii.trainer.settings import TrainerSettings

__all__ = ["RunFacts", "base_model_hashes", "training_metadata"]

MINIMUM_KEYS = ("ss_v2", "ss_base_model_version", "ss_network_module", "ss_network_dim", "ss_network_alpha")
"""What `--no_metadata` keeps, so that programs still know what the file is for."""

WRITER = f"noukii {__version__}"

NOT_OFFERED = {
    "ss_num_validation_images": 0,
    "ss_full_fp16": False,
    "ss_v2": False,
    "ss_base_model_version": "sd_v1",
    "ss_lowram": False,
    "ss_multires_noise_iterations": None,
    "ss_multires_noise_discount": 0.3,
    "ss_adaptive_noise_scale": None,
    "ss_zero_terminal_snr": False,
    "ss_caption_dropout_every_n_epochs": 0,
    "ss_face_crop_aug_range": None,
    "ss_scale_weight_norms": None,
    "ss_ip_noise_gamma": None,
    "ss_debiased_estimation": False,
    "ss_noise_offset_random_strength": False,
    "ss_ip_noise_gamma_random_strength": False,
    "ss_loss_type": "l2",
    "ss_huber_schedule": "snr",
    "ss_huber_scale": 1.0,
    "ss_huber_c": 0.1,
    "ss_fp8_base": False,
    "ss_fp8_base_unet": False,
    "ss_validation_seed": None,
    "ss_validation_split": 0.0,
    "ss_max_validation_steps": None,
    "ss_validate_every_n_epochs": None,
    "ss_validate_every_n_steps": None,
    "ss_resize_interpolation": None,
    "ss_color_aug": False,
    "ss_random_crop": False,
}
"""sd-scripts' defaults for what it can do and we do not."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run when a file is written.

    Times are seconds since 1970. steps and epoch: done so far; max_train_steps and num_epochs: planned.
    num_batches_per_epoch: of one process. optimizer: as `torch.optim.adamw.AdamW` or
    `…Prodigy(decouple=True,weight_decay=0.01)`. seed: the one that was used. processes: of accelerate.
    prediction_type: the base model's, "epsilon" or "v_prediction". base_hashes: from `base_model_hashes`.
    """

    session_id: int
    started_at: float
    finished_at: float
    steps: int
    epoch: int
    num_epochs: int
    num_batches_per_epoch: int
    max_train_steps: int
    optimizer: str
    seed: int
    processes: int = 1
    prediction_type: str = "epsilon"
    base_hashes: tuple[str, str] | None = None


def training_metadata(settings: TrainerSettings, sets: Sequence[SampleSet], run: RunFacts) -> dict[str, str]:
    """Return the metadata of a LoRA file, without the sshs hashes that `write_lora` adds."""
    values: dict[str, Any] = {**NOT_OFFERED, **_run(settings, run), **_settings(settings)}
    values |= _data_sets(sets) | _folder_mode(settings, sets, run)
    values["ss_sd_model_name"] = Path(settings.pretrained_model_name_or_path or "").name
    if run.base_hashes:
        values["ss_sd_model_hash"], values["ss_new_sd_model_hash"] = run.base_hashes
    if settings.no_metadata:
        values = {key: values[key] for key in MINIMUM_KEYS}
    values |= _model_spec(settings, sets, run)
    return {key: str(value) for key, value in values.items()}


def _run(settings: TrainerSettings, run: RunFacts) -> dict[str, Any]:
    return {
        "ss_session_id": run.session_id,
        "ss_training_started_at": run.started_at,
        "ss_training_finished_at": run.finished_at,
        "ss_output_name": settings.name,
        "ss_steps": run.steps,
        "ss_epoch": run.epoch,
        "ss_num_epochs": run.num_epochs,
        "ss_num_batches_per_epoch": run.num_batches_per_epoch,
        "ss_max_train_steps": run.max_train_steps,
        "ss_optimizer": run.optimizer,
        "ss_seed": run.seed,
        "ss_sd_scripts_commit_hash": WRITER,  # honest: this file was not written by sd-scripts
    }


def _settings(settings: TrainerSettings) -> dict[str, Any]:
    text_rates = settings.text_encoder_lr
    plain = (
        "learning_rate", "unet_lr", "lr_warmup_steps", "lr_scheduler", "max_grad_norm",
        "gradient_checkpointing", "gradient_accumulation_steps", "mixed_precision",
        "network_module", "network_dim", "network_alpha", "network_dropout",
        "clip_skip", "max_token_length", "training_comment",
        "noise_offset", "prior_loss_weight", "min_snr_gamma",
    )  # fmt: skip
    values = {f"ss_{name}": getattr(settings, name) for name in plain}
    values["ss_cache_latents"] = settings.caches_latents
    values["ss_text_encoder_lr"] = text_rates[0] if text_rates else None
    return values


def _data_sets(sets: Sequence[SampleSet]) -> dict[str, Any]:
    """kohya's TOML mode: all data sets as JSON, and what its metadata editors want merged."""
    frequencies: dict[str, dict[str, int]] = {}
    folders: dict[str, dict[str, int]] = {}
    for each in sets:
        for name, frequency in _tag_frequency(each).items():
            frequencies.setdefault(name, frequency)
        for subset in each.config.subsets:
            if not subset.is_reg:
                name = _free_name(subset.image_dir.name, folders)
                folders[name] = _folder(each, subset)
    return {
        "ss_num_train_images": sum(_repeats(each, is_reg=False) for each in sets),
        "ss_num_reg_images": sum(_repeats(each, is_reg=True) for each in sets),
        "ss_datasets": json.dumps([_data_set(each) for each in sets]),
        "ss_tag_frequency": json.dumps(frequencies),
        "ss_dataset_dirs": json.dumps(folders),
    }


def _data_set(each: SampleSet) -> dict[str, Any]:
    rule = each.config.rule
    return {
        "is_dreambooth": True,
        "batch_size_per_device": each.config.batch_size,
        "num_train_images": _repeats(each, is_reg=False),
        "num_reg_images": _repeats(each, is_reg=True),
        "resolution": list(rule.resolution),
        "enable_bucket": rule.enable,
        "min_bucket_reso": rule.min_size,
        "max_bucket_reso": rule.max_size,
        "tag_frequency": _tag_frequency(each),
        "bucket_info": _bucket_info([each]),
        "resize_interpolation": None,
        "subsets": [
            {
                "img_count": _count(each, subset),
                "num_repeats": subset.num_repeats,
                "color_aug": False,
                "flip_aug": subset.flip_aug,
                "random_crop": False,
                "shuffle_caption": subset.shuffle_caption,
                "keep_tokens": subset.keep_tokens,
                "keep_tokens_separator": "",
                "secondary_separator": None,
                "enable_wildcard": False,
                "caption_prefix": subset.caption_prefix,
                "caption_suffix": None,
                "resize_interpolation": None,
                "image_dir": subset.image_dir.name,
                "class_tokens": subset.class_tokens,
                "is_reg": subset.is_reg,
            }
            for subset in each.config.subsets
        ],
    }


def _folder_mode(settings: TrainerSettings, sets: Sequence[SampleSet], run: RunFacts) -> dict[str, Any]:
    """The keys of kohya's folder mode, which knows one data set; of several, the first one's rule is told."""
    first = sets[0].config
    subsets = [subset for each in sets for subset in each.config.subsets]
    regular = {
        subset.image_dir.name: _folder(each, subset)
        for each in sets
        for subset in each.config.subsets
        if subset.is_reg
    }
    return {
        "ss_batch_size_per_device": first.batch_size,
        "ss_total_batch_size": first.batch_size * run.processes * settings.gradient_accumulation_steps,
        "ss_resolution": tuple(first.rule.resolution),
        "ss_flip_aug": any(subset.flip_aug for subset in subsets),
        "ss_shuffle_caption": any(subset.shuffle_caption for subset in subsets),
        "ss_enable_bucket": first.rule.enable,
        "ss_bucket_no_upscale": first.rule.no_upscale,
        "ss_min_bucket_reso": first.rule.min_size,
        "ss_max_bucket_reso": first.rule.max_size,
        "ss_keep_tokens": max(subset.keep_tokens for subset in subsets),
        "ss_caption_dropout_rate": max(subset.caption_dropout_rate for subset in subsets),
        "ss_caption_tag_dropout_rate": max(subset.caption_tag_dropout_rate for subset in subsets),
        "ss_reg_dataset_dirs": json.dumps(regular),
        "ss_bucket_info": json.dumps(_bucket_info(sets)),
    }


def _model_spec(settings: TrainerSettings, sets: Sequence[SampleSet], run: RunFacts) -> dict[str, str]:
    """ModelSpec 1.0.1, with the resolution that was trained (upstream in TOML mode: always 512x512)."""
    width, height = sets[0].config.rule.resolution
    date = datetime.datetime.fromtimestamp(int(run.finished_at)).isoformat()
    spec = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": "stable-diffusion-v1/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.implementation_version": WRITER,
        "modelspec.title": settings.name,
        "modelspec.resolution": f"{width}x{height}",
        "modelspec.date": date,
        "modelspec.prediction_type": "epsilon" if run.prediction_type == "epsilon" else "v",
    }
    if settings.clip_skip is not None:
        spec["modelspec.encoder_layer"] = str(settings.clip_skip)
    return spec


def _bucket_info(sets: Sequence[SampleSet]) -> dict[str, Any] | None:
    """Buckets in use with their pictures, repeats counted; None where bucketing is off, as upstream."""
    if not sets[0].config.rule.enable:
        return None
    counts: Counter[tuple[int, int]] = Counter()
    errors = []
    for each in sets:
        for bucket, count in each.bucket_counts().items():
            counts[(bucket.width, bucket.height)] += count
        for sample in each.samples:
            bucket = sample.fit.bucket
            errors.append(abs(bucket.width / bucket.height - sample.image.width / sample.image.height))
    return {
        "buckets": {
            str(_bucket_index(size, sets, counts)): {"resolution": list(size), "count": counts[size]}
            for size in sorted(counts)
        },
        "mean_img_ar_error": sum(errors) / len(errors) if errors else 0,
    }


def _bucket_index(size: tuple[int, int], sets: Sequence[SampleSet], counts: Counter[tuple[int, int]]) -> int:
    """A bucket's place in upstream's list: of all possible ones, or with no_upscale of those in use."""
    possible = set(counts)
    for each in sets:
        if not each.config.rule.no_upscale:
            possible |= {(bucket.width, bucket.height) for bucket in predefined_buckets(each.config.rule)}
    return sorted(possible).index(size)


def _tag_frequency(each: SampleSet) -> dict[str, dict[str, int]]:
    """Per folder, how often each comma-separated piece of the captions occurs, in lower case."""
    found: dict[str, dict[str, int]] = {}
    for sample in each.samples:
        tags = found.setdefault(sample.subset.image_dir.name, {})
        prefix = sample.subset.caption_prefix
        caption = sample.caption.removeprefix(f"{prefix} ") if prefix else sample.caption
        for tag in (piece.strip().lower() for piece in caption.split(",")):
            if tag:
                tags[tag] = tags.get(tag, 0) + 1
    return found


def _repeats(each: SampleSet, *, is_reg: bool) -> int:
    return sum(sample.repeats for sample in each.samples if sample.subset.is_reg == is_reg)


def _count(each: SampleSet, subset: SubsetConfig) -> int:
    return sum(sample.subset == subset for sample in each.samples)


def _folder(each: SampleSet, subset: SubsetConfig) -> dict[str, int]:
    return {"n_repeats": subset.num_repeats, "img_count": _count(each, subset)}


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """Two folders of one name: the second is called `name (2)`, as upstream does."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free
