"""Writing the TOML data set file so that every TOML reader in use gives it back unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noukii.dataset.buckets import BucketRule
from noukii.dataset.config_types import SUBSET_DEFAULTS, SUBSET_ONLY, SubsetConfig, TrainConfig
from noukii.errors import InputError
from noukii.files import write_text


def write_config(path: Path, config: TrainConfig) -> None:
    """Write `config` to `path` (whole or not at all) so that `read_config` gives it back.

    Values shared by all data sets stand in [general]. Parses alike under tomllib, tomlkit and the
    toml package 0.10.2 that sd-scripts uses.

    Raises:
        InputError: an image_dir has a line break or bytes that are not UTF-8 in it.
    """
    write_text(path, format_config(config))


def format_config(config: TrainConfig) -> str:
    """Return the text that `write_config` writes."""
    first = config.datasets[0]
    shared = _bucket_keys(first.rule) | {"caption_extension": first.subsets[0].caption_extension}
    lines = ["[general]", *_assignments(shared)]
    for dataset in config.datasets:
        width, height = dataset.rule.resolution
        own: dict[str, Any] = {"resolution": width if width == height else [width, height]}
        own["batch_size"] = dataset.batch_size
        own |= {key: value for key, value in _bucket_keys(dataset.rule).items() if shared[key] != value}
        lines += ["", "[[datasets]]", *_assignments(own)]
        for subset in dataset.subsets:
            keys = _subset_keys(subset, shared["caption_extension"])
            lines += ["", "  [[datasets.subsets]]", *("  " + line for line in _assignments(keys))]
    return "\n".join(lines) + "\n"


def _bucket_keys(rule: BucketRule) -> dict[str, Any]:
    return {
        "enable_bucket": rule.enable,
        "bucket_no_upscale": rule.no_upscale,
        "bucket_reso_steps": rule.step,
        "min_bucket_reso": rule.min_size,
        "max_bucket_reso": rule.max_size,
    }


def _subset_keys(subset: SubsetConfig, shared_extension: str) -> dict[str, Any]:
    folder = os.fspath(subset.image_dir)
    if any(char in folder for char in "\n\r\x85\u2028\u2029"):
        raise InputError(subset.image_dir, "has a line break in its name", "rename the folder")
    if any("\ud800" <= char <= "\udfff" for char in folder):
        raise InputError(subset.image_dir, "has bytes in its name that are not UTF-8", "rename the folder")
    keys: dict[str, Any] = {"image_dir": folder, "num_repeats": subset.num_repeats}
    if subset.class_tokens is not None:
        keys["class_tokens"] = subset.class_tokens
    if subset.caption_extension != shared_extension:
        keys["caption_extension"] = subset.caption_extension
    for key in (
        "caption_prefix",
        "shuffle_caption",
        "keep_tokens",
        "caption_dropout_rate",
        "caption_tag_dropout_rate",
        "flip_aug",
        "is_reg",
    ):
        value = getattr(subset, key)
        if value != (SUBSET_DEFAULTS | SUBSET_ONLY)[key]:
            keys[key] = value
    return keys


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items()]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


_SHORT = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _toml_string(text: str) -> str:
    """Return a TOML string: a literal one where a basic one would need escapes and it can be one.

    toml 0.10.2 reads every literal string rightly, but not every basic one: not one that starts with
    two quotes, nor `\\u` beside a \\uXXXX escape. Texts that would need such are refused.
    """
    if any(char not in _SHORT and (char < " " or char == "\x7f") for char in text):
        raise InputError(text, "has a control character in it", "rename it")
    if "'" not in text and not any(char in text for char in "\t\n\r"):
        return f"'{text}'" if "\\" in text or '"' in text else f'"{text}"'
    if text.startswith('""'):
        raise InputError(text, "starts with two quotes and has an apostrophe or tab in it", "rename it")
    return '"' + "".join(_SHORT.get(char, char) for char in text) + '"'
