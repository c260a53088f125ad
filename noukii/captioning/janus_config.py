"""config.json and preprocessor_config.json of a Janus folder, checked without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noukii.captioning.janus_json import (
    NEXT_STEP,
    check_number,
    check_numbers,
    check_text,
    check_whole,
    read_object,
    section,
)
from noukii.captioning.preprocess import PixelRule, pixel_rule
from noukii.errors import InputError
from noukii.names import printable

LAYOUTS = {"multi_modality": "original", "janus": "converted"}
DEFAULT_POSITIONS = 2048
"""Llama's own, in transformers, where a config does not say how long a text may be."""

_LAYERS = {"num_hidden_layers": 1000, "num_attention_heads": 4096, "num_key_value_heads": 4096, "depth": 100}
_SIZES = dict.fromkeys(
    (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "head_dim",
        "num_channels",
        "patch_size",
        "projection_dim",
        "num_image_tokens",
        "max_position_embeddings",
    ),
    10**8,
)
_NUMBERS = ("rms_norm_eps", "layer_norm_eps", "rope_theta", "mlp_ratio", "factor")
_TEXTS = ("model_type", "hidden_act", "model_name", "rope_type", "type")


def layout_of(path: Path, config: Mapping[str, Any]) -> str:
    """Return `original` or `converted`. Raises InputError for another kind of model."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        said = f"describes a model of type {printable(str(kind))[:60]}" if kind else "names no model_type"
        raise InputError(path, f"{said}, not Janus-Pro (multi_modality or janus)", NEXT_STEP)
    if config.get("quantization_config"):
        raise InputError(path, "describes quantised weights; noukii reads the plain ones", NEXT_STEP)
    return LAYOUTS[kind]


def check_config(path: Path, config: Mapping[str, Any], layout: str) -> None:
    """Refuse values of the wrong kind or size in the parts of config.json that captioning reads."""
    language, vision = _parts(path, config, layout)
    for settings in (language, vision):
        parts = [settings, *(section(path, settings, key) for key in ("rope_parameters", "rope_scaling"))]
        for part in parts:
            for key, most in (*_LAYERS.items(), *_SIZES.items()):
                check_whole(path, part, key, most)
            for key in _NUMBERS:
                check_number(path, part, key)
            for key in _TEXTS:
                check_text(path, part, key)
    kind = language.get("model_type", "llama")
    if kind != "llama":
        raise InputError(path, f"names a language model of type {printable(str(kind))}, not llama", NEXT_STEP)


def longest_text(path: Path, config: Mapping[str, Any], layout: str) -> int:
    """Return how many tokens the model takes: prompt, picture and answer together."""
    return _parts(path, config, layout)[0].get("max_position_embeddings") or DEFAULT_POSITIONS


def image_token_count(path: Path, config: Mapping[str, Any], layout: str, image_size: int) -> int:
    """Return the tokens that a picture takes in the prompt; 0 where only the weights tell.

    The original layout gives the patch in the tower's name (siglip_large_patch16_384).
    """
    vision = _parts(path, config, layout)[1]
    if layout == "converted":
        patch = vision.get("patch_size") or 16
    else:
        found = re.search(r"patch(\d{1,3})(?!\d)", vision.get("model_name") or "")
        patch = int(found[1]) if found else 0
    return (image_size // patch) ** 2 if patch else 0


def pixels_of(folder: Path, config: Mapping[str, Any], layout: str) -> PixelRule:
    """Return how pictures are prepared. Raises InputError where that is missing or makes no sense."""
    path = folder / "preprocessor_config.json"
    if path.is_file():
        settings = read_object(path)
    elif (folder / "processor_config.json").is_file():  # where transformers 5 saves the same settings
        path = folder / "processor_config.json"
        settings = section(path, read_object(path), "image_processor")
    else:
        settings = {}
    if not settings:
        reason = "is missing or empty; it says how pictures are prepared for the model"
        raise InputError(path, reason, NEXT_STEP)
    settings = {key: value for key, value in settings.items() if value is not None}
    for key in ("image_mean", "image_std"):
        check_numbers(path, settings, key, 3)
    check_number(path, settings, "rescale_factor")
    check_whole(path, settings, "min_size", 4096)
    check_whole(path, settings, "image_size", 4096)
    size = settings.get("size")
    for key in ("height", "longest_edge"):
        check_whole(path, size if isinstance(size, dict) else {}, key, 4096)
    if not isinstance(size, dict):
        check_whole(path, settings, "size", 4096)
    vision = _parts(folder / "config.json", config, layout)[1]
    check_whole(folder / "config.json", vision, "image_size", 4096)
    # 384 is the default of transformers' Janus.
    image_size = vision.get("image_size") or settings.get("image_size") or 384
    try:
        return pixel_rule(settings, image_size)
    except ValueError as error:
        raise InputError(path, str(error), NEXT_STEP) from None


def _parts(path: Path, config: Mapping[str, Any], layout: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the language model and of the vision tower."""
    vision = section(path, config, "vision_config")
    if layout == "original":
        return section(path, config, "language_config"), section(path, vision, "params")
    return section(path, config, "text_config"), vision
