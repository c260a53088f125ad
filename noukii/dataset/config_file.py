"""The TOML data set file that both trainers read.

Keys, levels, fall-backs and defaults are those of sd-scripts 48d368f (library/config_util.py): a
value is looked for in the subset, then in its data set, then in [general]. A key we do not know is
refused by name instead of being ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noukii.command_line import nearest
from noukii.dataset.buckets import BucketRule
from noukii.dataset.config_text import format_config, write_config
from noukii.dataset.config_types import (
    DATASET_DEFAULTS,
    STEP_MULTIPLE,
    SUBSET_DEFAULTS,
    SUBSET_ONLY,
    DatasetConfig,
    SubsetConfig,
    TrainConfig,
    rule_problem,
)
from noukii.errors import InputError
from noukii.names import printable

__all__ = [
    "DatasetConfig",
    "SubsetConfig",
    "TrainConfig",
    "format_config",
    "read_config",
    "rule_problem",
    "write_config",
]

_TYPES = {
    "resolution": "a whole number or a pair of them",
    "batch_size": int,
    "enable_bucket": bool,
    "bucket_no_upscale": bool,
    "bucket_reso_steps": int,
    "min_bucket_reso": int,
    "max_bucket_reso": int,
    "num_repeats": int,
    "class_tokens": str,
    "caption_extension": str,
    "caption_prefix": str,
    "shuffle_caption": bool,
    "keep_tokens": int,
    "caption_dropout_rate": float,
    "caption_tag_dropout_rate": float,
    "flip_aug": bool,
    "image_dir": str,
    "is_reg": bool,
}
_TYPE_WORDS = {int: "a whole number", bool: "true or false", str: "text in quotes", float: "a number"}
_LEAST = {
    "batch_size": 1,
    "num_repeats": 1,
    "keep_tokens": 0,
    "bucket_reso_steps": STEP_MULTIPLE,
    "min_bucket_reso": 1,
    "max_bucket_reso": 1,
}
_UPSTREAM_WORDS = (
    "color_aug face_crop_aug_range random_crop keep_tokens_separator secondary_separator enable_wildcard"
    " caption_separator token_warmup_min token_warmup_step caption_suffix custom_attributes cache_info"
    " resize_interpolation caption_dropout_every_n_epochs alpha_mask"
    " metadata_file conditioning_data_dir validation_seed validation_split network_multiplier"
)
_UPSTREAM_ONLY = frozenset(_UPSTREAM_WORDS.split())


def read_config(path: Path) -> TrainConfig:
    """Read and check a data set file; folders named in it are not looked at.

    Raises:
        InputError: naming the level and the key that is unknown, missing or of the wrong type.
    """
    from tomlkit import parse
    from tomlkit.exceptions import TOMLKitError

    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check --dataset_config") from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    try:
        content = parse(text).unwrap()
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise InputError(path, f"is not valid TOML: {error}", "mend that line") from None
    return _Reader(path).config(content)


class _Reader:
    """Turns parsed TOML into settings; holds the path for its messages."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def config(self, content: Mapping[str, Any]) -> TrainConfig:
        for key in content:
            if key not in ("general", "datasets"):
                raise self._unknown("the file", key, ("general", "datasets"))
        inherited = {**DATASET_DEFAULTS, **SUBSET_DEFAULTS}
        general = self._table(content.get("general", {}), "[general]", inherited)
        datasets = self._tables(content.get("datasets"), "[[datasets]]")
        return TrainConfig(tuple(self._dataset(table, n, general) for n, table in enumerate(datasets, 1)))

    def _dataset(self, table: Mapping[str, Any], number: int, general: dict[str, Any]) -> DatasetConfig:
        level = f"[[datasets]] {number}"
        own = {key: value for key, value in table.items() if key != "subsets"}
        known = {**DATASET_DEFAULTS, **SUBSET_DEFAULTS}
        values = {**known, **general, **self._table(own, level, known, extra=("subsets",))}
        subsets = []
        for n, subset in enumerate(self._tables(table.get("subsets"), f"{level}, subsets"), 1):
            subsets.append(self._subset(subset, f"[[datasets.subsets]] {number}.{n}", values))
        folders = [os.path.realpath(subset.image_dir) for subset in subsets]
        for n, folder in enumerate(folders):
            if folder in folders[:n]:
                reason = f"{level}: image_dir {printable(folder)} is listed twice"
                raise InputError(self._path, reason, "keep one of the two subsets and set its num_repeats")
        return DatasetConfig(self._rule(values, level), values["batch_size"], tuple(subsets))

    def _subset(self, table: Mapping[str, Any], level: str, inherited: dict[str, Any]) -> SubsetConfig:
        own = self._table(table, level, {**SUBSET_DEFAULTS, **SUBSET_ONLY})
        values = {key: inherited[key] for key in SUBSET_DEFAULTS} | {"is_reg": False} | own
        if not values.get("image_dir"):
            raise self._bad(level, "image_dir is missing", "name the folder of images")
        if not values["caption_extension"].startswith("."):
            raise self._bad(level, "caption_extension must start with a dot", 'write ".txt"')
        fixed: dict[str, Any] = {"image_dir": Path(values["image_dir"])}
        for key in ("caption_dropout_rate", "caption_tag_dropout_rate"):
            fixed[key] = float(values[key])
            if not 0 <= fixed[key] <= 1:
                raise self._bad(level, f"{key} is {fixed[key]:g}", "it lies between 0 and 1")
        return SubsetConfig(**(values | fixed))

    def _rule(self, values: dict[str, Any], level: str) -> BucketRule:
        wanted = values["resolution"]
        if wanted is None:
            raise self._bad(level, "resolution is missing", "write resolution = 512")
        width, height = (wanted, wanted) if isinstance(wanted, int) else wanted
        rule = BucketRule(
            (width, height),
            values["enable_bucket"],
            values["bucket_no_upscale"],
            values["bucket_reso_steps"],
            values["min_bucket_reso"],
            values["max_bucket_reso"],
        )
        if problem := rule_problem(rule):
            raise self._bad(level, *problem)
        return rule

    def _table(
        self, table: Any, level: str, known: Mapping[str, Any], extra: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        if not isinstance(table, Mapping):
            raise self._bad(level, "is not a table", "see README for the layout of the file")
        for key, value in table.items():
            if key not in known:
                raise self._unknown(level, key, (*known, *extra))
            self._check(level, key, value)
        return dict(table)

    def _tables(self, tables: Any, level: str) -> list[Any]:
        if tables is None or tables == []:
            raise self._bad(level, "is missing", "see README for the layout of the file")
        if not isinstance(tables, list):
            raise self._bad(level, "must be a list of tables", "use double brackets")
        return tables

    def _check(self, level: str, key: str, value: Any) -> None:
        kind = _TYPES[key]
        if key == "resolution":
            pair = value if isinstance(value, list) else [value]
            right = len(pair) <= 2 and all(_is_whole(side) and side >= STEP_MULTIPLE for side in pair)
            if not right or value == [] or (isinstance(value, list) and len(value) != 2):
                reason = f"resolution is {_shown(value)}"
                step = f"it wants a whole number of at least {STEP_MULTIPLE}, or [width, height]"
                raise self._bad(level, reason, step)
            return
        if kind is int:
            right = _is_whole(value)
        elif kind is float:
            right = _is_whole(value) or isinstance(value, float)
        else:
            right = isinstance(value, kind)  # type: ignore[arg-type]
        if not right:
            raise self._bad(level, f"{key} is {_shown(value)}", f"it wants {_TYPE_WORDS[kind]}")  # type: ignore[index]
        if key in _LEAST and value < _LEAST[key]:
            raise self._bad(level, f"{key} is {value}", f"the least is {_LEAST[key]}")

    def _unknown(self, level: str, key: str, known: tuple[str, ...]) -> InputError:
        if key in SUBSET_ONLY:
            return self._bad(level, f"key {key} has no place here", "it belongs into [[datasets.subsets]]")
        if key in DATASET_DEFAULTS:
            return self._bad(
                level, f"key {key} has no place here", "it belongs into [[datasets]] or [general]"
            )
        if key in _UPSTREAM_ONLY:
            reason = f"key {key} is one that the built-in trainer does not have"
            return self._bad(level, reason, "remove it, or train with --trainer kohya")
        near = nearest(key, list(known))
        step = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
        return self._bad(level, f"unknown key {printable(key)}", step)

    def _bad(self, level: str, reason: str, next_step: str) -> InputError:
        return InputError(self._path, f"{level}: {reason}", next_step)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return printable(repr(value))[:60]
