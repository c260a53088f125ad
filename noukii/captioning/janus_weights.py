"""Janus' tensors by name and shape: original names -> transformers' names, shapes -> dimensions.

Pure functions, no torch: a shape is a tuple of ints. Facts: deepseek-ai/Janus (siglip_vit.py,
projector.py, modeling_vlm.py) and transformers' conversion script for Janus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from noukii.captioning.janus_config import DEFAULT_POSITIONS

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

_BLOCK = r"vision_model\.vision_tower\.blocks\.(\d+)\."
_LAYER = r"model.vision_model.encoder.layers.\1."
_RULES = [
    (re.compile(pattern + r"$"), target)
    for pattern, target in (
        (_BLOCK + r"norm([12])\.(weight|bias)", _LAYER + r"layer_norm\2.\3"),
        (_BLOCK + r"attn\.proj\.(weight|bias)", _LAYER + r"self_attn.projection_layer.\2"),
        (_BLOCK + r"mlp\.(fc[12])\.(weight|bias)", _LAYER + r"mlp.\2.\3"),
        (
            r"vision_model\.vision_tower\.patch_embed\.proj\.(weight|bias)",
            r"model.vision_model.embeddings.patch_embedding.\1",
        ),
        (
            r"vision_model\.vision_tower\.pos_embed",
            r"model.vision_model.embeddings.position_embedding.weight",
        ),
        (r"vision_model\.vision_tower\.norm\.(weight|bias)", r"model.vision_model.post_layernorm.\1"),
        (r"aligner\.layers\.0\.(weight|bias)", r"model.aligner.fc1.\1"),
        (r"language_model\.model\.(.+)", r"model.language_model.\1"),
        (r"language_model\.lm_head\.weight", r"lm_head.weight"),
    )
]
_QKV = re.compile(_BLOCK + r"attn\.qkv\.(weight|bias)$")
_ALIGNER = re.compile(r"aligner\.layers\.(\d+)\.(weight|bias)$")
_UNUSED = {
    # Image generation, the pooling head that Janus does not ask, and numbers computed from the config.
    "original": re.compile(r"gen_|vision_model\.vision_tower\.attn_pool\.|.*rotary_emb\.inv_freq$"),
    "converted": re.compile(r"model\.(vqmodel|generation_\w+)\.|.*rotary_emb\.inv_freq$"),
}


class ContradictedConfig(ValueError):
    """config.json says one thing and the tensors another."""


class UnusableWeights(ValueError):
    """The tensors are not those of a Janus; what config.json says has no part in it."""


def targets(name: str, layout: str) -> tuple[str, ...]:
    """Return transformers' names for one tensor of a checkpoint.

    None at all for a tensor that captioning does not need, three for the fused q, k and v (equal parts along
    dimension 0), else one. A name that nobody knows is returned as it is and so shows up as
    unexpected.
    """
    if _UNUSED[layout].match(name):
        return ()
    if layout == "converted":
        return (name,)
    if fused := _QKV.match(name):
        layer, kind = fused.groups()
        return tuple(
            f"model.vision_model.encoder.layers.{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"
        )
    if (aligner := _ALIGNER.match(name)) and int(aligner[1]) > 0 and int(aligner[1]) % 2 == 0:
        # Upstream's sequence alternates linear layers and GELUs: 0 is fc1, 2 the first hidden layer.
        return (f"model.aligner.hidden_layers.{int(aligner[1]) // 2 - 1}.{aligner[2]}",)
    for pattern, target in _RULES:
        if pattern.match(name):
            return (pattern.sub(target, name),)
    return (name,)


def target_shape(target: str, shape: Shape, parts: int) -> Shape:
    """Return the shape under its new name of a tensor that goes to `parts` names."""
    if parts > 1:
        return (shape[0] // parts, *shape[1:])
    if target.endswith("position_embedding.weight") and len(shape) == 3:  # [1, positions, width]
        return shape[1:]
    return shape


def vision_settings(config: Mapping[str, Any], shapes: Shapes, image_size: int) -> dict[str, Any]:
    """Return the fields of transformers' JanusVisionConfig for a checkpoint in the original layout.

    Raises UnusableWeights where the tensors do not belong to a Janus vision tower, ContradictedConfig
    where they contradict config.json. Fields that neither tells are upstream's (GELU, LayerNorm eps 1e-6).
    """
    prefix = "model.vision_model."
    width, channels, patch, _ = _shape(shapes, prefix + "embeddings.patch_embedding.weight", 4)
    positions, _ = _shape(shapes, prefix + "embeddings.position_embedding.weight", 2)
    inner, _ = _shape(shapes, prefix + "encoder.layers.0.mlp.fc1.weight", 2)
    aligned, _ = _shape(shapes, "model.aligner.fc1.weight", 2)
    if (image_size // patch) ** 2 != positions:
        raise ContradictedConfig(
            f"the vision tower has {positions} positions of {patch} x {patch} pixels, "
            f"which is not a picture of {image_size} pixels"
        )
    params = (config.get("vision_config") or {}).get("params") or {}
    heads = _vision_heads(str(params.get("model_name", "")), width)
    return {
        "hidden_size": width,
        "num_hidden_layers": _count(shapes, prefix + "encoder.layers."),
        "num_attention_heads": heads,
        "num_channels": channels,
        "image_size": image_size,
        "patch_size": patch,
        # transformers computes int(width * ratio); half a unit keeps a rounded ratio from losing one.
        "mlp_ratio": inner / width if inner % width == 0 else (inner + 0.5) / width,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "attention_bias": prefix + "encoder.layers.0.self_attn.q_proj.bias" in shapes,
        "projection_dim": aligned,
        "depth": 1 + _count(shapes, "model.aligner.hidden_layers."),
        "num_image_tokens": positions,
    }


def text_settings(config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Return the fields of transformers' LlamaConfig for a checkpoint in the original layout.

    Sizes come from the tensors; what they do not show (heads, RoPE, eps) from config.json or, where
    it is silent as for Janus-Pro-7B, from Llama's defaults (32 heads, theta 10,000, eps 1e-6).
    Raises ContradictedConfig where the two contradict each other.
    """
    given = config.get("language_config") or {}
    prefix = "model.language_model."
    vocabulary, width = _shape(shapes, prefix + "embed_tokens.weight", 2)
    inner, _ = _shape(shapes, prefix + "layers.0.mlp.gate_proj.weight", 2)
    queries, _ = _shape(shapes, prefix + "layers.0.self_attn.q_proj.weight", 2)
    keys, _ = _shape(shapes, prefix + "layers.0.self_attn.k_proj.weight", 2)
    heads = given.get("num_attention_heads") or 32
    if not isinstance(heads, int) or heads < 1 or queries % heads or width % heads:
        raise ContradictedConfig(f"{queries} rows of queries cannot be {heads} attention heads")
    head_dim = queries // heads
    if keys % head_dim:
        raise ContradictedConfig(f"{keys} rows of keys cannot be heads of {head_dim}")
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": _count(shapes, prefix + "layers."),
        "num_attention_heads": heads,
        "num_key_value_heads": keys // head_dim,
        "head_dim": head_dim,
        "attention_bias": prefix + "layers.0.self_attn.q_proj.bias" in shapes,
        "mlp_bias": prefix + "layers.0.mlp.gate_proj.bias" in shapes,
    }
    for key, value in settings.items():
        stated = given.get(key)
        if stated is not None and stated != value:
            raise ContradictedConfig(f"config.json says {key} {stated}, but the weights have {value}")
    scaling = given.get("rope_parameters") or given.get("rope_scaling") or {}
    rope = {key: value for key, value in scaling.items() if key != "type"}
    rope.setdefault("rope_type", scaling.get("type", "default"))
    rope.setdefault("rope_theta", float(given.get("rope_theta") or 10_000.0))
    settings.update(
        hidden_act=given.get("hidden_act") or "silu",
        rms_norm_eps=float(given.get("rms_norm_eps") or 1e-6),
        max_position_embeddings=given.get("max_position_embeddings") or DEFAULT_POSITIONS,
        rope_parameters=rope,
        tie_word_embeddings=False,
    )
    return settings


def _vision_heads(model_name: str, width: int) -> int:
    """Upstream fixes the heads by the tower's name; all but SigLIP so400m have heads of 64."""
    heads = 16 if "so400m" in model_name else width // 64
    if heads < 1 or width % heads:
        raise UnusableWeights(f"a vision tower of width {width} cannot be split into heads")
    return heads


def _shape(shapes: Shapes, name: str, dimensions: int) -> Shape:
    shape = shapes.get(name)
    if shape is None:
        raise UnusableWeights(f"the weights have no {name}")
    if len(shape) != dimensions:
        raise UnusableWeights(f"{name} has the shape {list(shape)}; {dimensions} dimensions are wanted")
    return shape


def _count(shapes: Shapes, prefix: str) -> int:
    """Return how many numbered layers stand under `prefix`, a gap counted as a (missing) layer."""
    numbers = [
        int(match[1])
        for name in shapes
        if (match := re.match(re.escape(prefix) + r"(\d+)\.", name)) is not None
    ]
    count = max(numbers, default=-1) + 1
    if count > len(shapes):
        raise UnusableWeights(f"{prefix}{count - 1} stands alone; the weights are not whole")
    return count
