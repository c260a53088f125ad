"""Full-size models with random weights, and photographs to work on, made once and kept.

Speed and memory do not depend on what the weights are, only on their number. The layouts are the real files':
SD1.5's tensor names and shapes, Janus-Pro-1B's in the original layout (pytorch_model.bin, bfloat16, 3.9 GB)
without the half that makes pictures, which upstream's package fills by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import CACHE, CHECKOUT

VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 102_400, 2048, 5632, 24, 16
SIGHT, SIGHT_LAYERS, PATCH, SIDE = 1024, 24, 16, 384
SPECIAL = {
    "bos_token": "<｜begin▁of▁sentence｜>",
    "eos_token": "<｜end▁of▁sentence｜>",
    "pad_token": "<｜▁pad▁｜>",
    "additional_special_tokens": [
        "<image_placeholder>",
        "<begin_of_image>",
        "<end_of_image>",
        "<|User|>",
        "<|Assistant|>",
    ],
}
TEXT = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the "
    "user provides, and assist the user with a variety of tasks using natural language. describe this image "
    "in detail"
)


def random_sd15(path: Path | None) -> Path:
    """Return a full-size SD1.5 in float32 (4.3 GB): the one at `path`, else one made in the cache."""
    if path is not None:
        return path
    path = CACHE / "random_sd15.safetensors"
    if path.exists():
        return path
    import torch
    from safetensors.torch import save_file

    CACHE.mkdir(parents=True, exist_ok=True)
    layout = json.loads((CHECKOUT / "noukii/assets/sd15/single_file_layout.json").read_text(encoding="utf-8"))
    torch.manual_seed(0)
    tensors = {}
    for name, shape in layout.items():
        if name.endswith("position_ids"):
            tensors[name] = torch.arange(shape[-1]).reshape(shape)
        elif len(shape) > 1:
            scale = 0.05 if "embedding" in name else 1 / math.sqrt(math.prod(shape[1:]))
            tensors[name] = torch.randn(shape) * scale
        else:
            tensors[name] = torch.randn(shape) * 0.01 + (1.0 if name.endswith("weight") else 0.0)
    _whole(path, lambda temporary: save_file(tensors, temporary))
    return path


def random_janus(path: Path | None) -> Path:
    """Return a folder like Janus-Pro-1B's: the one at `path`, made there or in the cache if need be."""
    import torch

    folder = path or CACHE / "random_janus"
    weights = folder / "pytorch_model.bin"
    if weights.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    _write(folder / "config.json", _janus_config())
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "VLMImageProcessor", "processor_class": "VLChatProcessor",
            "image_size": SIDE, "min_size": 14, "rescale_factor": 1 / 255, "do_normalize": True,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "background_color": [127] * 3,
        },
    )  # fmt: skip
    _write(
        folder / "processor_config.json",
        {
            "processor_class": "VLChatProcessor", "image_tag": "<image_placeholder>", "num_image_tokens": 576,
            "add_special_token": False, "mask_prompt": True, "ignore_id": -100, "sft_format": "deepseek",
        },
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in _janus_shapes():
        if len(shape) == 1:
            values = torch.ones(shape) if "norm" in name and name.endswith("weight") else torch.zeros(shape)
        else:
            scale = (
                0.3 if "embed_tokens" in name or "pos_embed" in name else 1 / math.sqrt(math.prod(shape[1:]))
            )
            values = torch.empty(shape, dtype=torch.bfloat16).normal_(0, scale, generator=generator)
        tensors[name] = values.to(torch.bfloat16)
    _whole(weights, lambda temporary: torch.save(tensors, temporary))
    return folder


def photographs(folder: Path, count: int, width: int, height: int) -> list[Path]:
    """Write `count` different JPEG files with some detail, each with a caption; returns their paths."""
    import numpy
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(count):
        path = folder / f"photo_{number:05d}.jpg"
        made.append(path)
        if path.exists():
            continue
        random = numpy.random.default_rng(number)
        coarse = random.integers(0, 255, (max(2, height // 32), max(2, width // 32), 3), dtype=numpy.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(path, quality=88)
        words = " ".join(random.choice(("red", "house", "tree", "river", "dog", "sky", "old", "small"), 12))
        path.with_suffix(".txt").write_text(f"photo, {words}\n", encoding="utf-8")
    return made


def _janus_config() -> dict[str, Any]:
    return {
        "model_type": "multi_modality",
        "architectures": ["MultiModalityCausalLM"],
        "torch_dtype": "bfloat16",
        "vision_config": {
            "cls": "CLIPVisionTower",
            "model_type": "vision",
            "params": {
                "image_size": SIDE, "model_name": "siglip_large_patch16_384", "select_feature": "same",
                "select_layer": -1,
            },
        },
        "aligner_config": {
            "cls": "MlpProjector",
            "model_type": "aligner",
            "params": {"depth": 2, "input_dim": SIGHT, "n_embed": WIDTH, "projector_type": "mlp_gelu"},
        },
        "gen_vision_config": {
            "cls": "VQ-16", "model_type": "gen_vision", "params": {"image_token_size": 16384, "n_embed": 8}
        },
        "gen_aligner_config": {
            "cls": "MlpProjector",
            "model_type": "gen_aligner",
            "params": {"depth": 2, "input_dim": 8, "n_embed": WIDTH, "projector_type": "mlp_gelu"},
        },
        "gen_head_config": {
            "cls": "vision_head",
            "model_type": "gen_head",
            "params": {"image_token_embed": WIDTH, "image_token_size": 16384, "n_embed": WIDTH},
        },
        "language_config": {
            "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
            "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY,
            "max_position_embeddings": 16384, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
    }  # fmt: skip


def _janus_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor of the understanding half; upstream fills the rest with numbers of its own."""
    tower = "vision_model.vision_tower."
    yield tower + "patch_embed.proj.weight", (SIGHT, 3, PATCH, PATCH)
    yield tower + "patch_embed.proj.bias", (SIGHT,)
    yield tower + "pos_embed", (1, (SIDE // PATCH) ** 2, SIGHT)
    for layer in range(SIGHT_LAYERS):
        block = f"{tower}blocks.{layer}."
        for name, out, into in (
            ("attn.qkv", 3 * SIGHT, SIGHT),
            ("attn.proj", SIGHT, SIGHT),
            ("mlp.fc1", 4 * SIGHT, SIGHT),
            ("mlp.fc2", SIGHT, 4 * SIGHT),
        ):
            yield f"{block}{name}.weight", (out, into)
            yield f"{block}{name}.bias", (out,)
        for norm in ("norm1", "norm2"):
            yield f"{block}{norm}.weight", (SIGHT,)
            yield f"{block}{norm}.bias", (SIGHT,)
    yield tower + "norm.weight", (SIGHT,)
    yield tower + "norm.bias", (SIGHT,)
    for name, into in (("aligner.layers.0", SIGHT), ("aligner.layers.2", WIDTH)):
        yield f"{name}.weight", (WIDTH, into)
        yield f"{name}.bias", (WIDTH,)
    yield "language_model.model.embed_tokens.weight", (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        block = f"language_model.model.layers.{layer}."
        for name in "qkvo":
            yield f"{block}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        yield f"{block}mlp.gate_proj.weight", (INNER, WIDTH)
        yield f"{block}mlp.up_proj.weight", (INNER, WIDTH)
        yield f"{block}mlp.down_proj.weight", (WIDTH, INNER)
        yield f"{block}input_layernorm.weight", (WIDTH,)
        yield f"{block}post_attention_layernorm.weight", (WIDTH,)
    yield "language_model.model.norm.weight", (WIDTH,)
    yield "language_model.lm_head.weight", (VOCABULARY, WIDTH)


def _write_tokenizer(folder: Path) -> None:
    """Train a byte-level vocabulary as DeepSeek's is; it knows the prompt's words and little else."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [word for value in SPECIAL.values() for word in ([value] if isinstance(value, str) else value)]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    data = json.loads(tokenizer.to_str())
    # Every id that the model may answer has a word.
    words = data["model"]["vocab"]
    words |= {f"w{number}": number for number in range(tokenizer.get_vocab_size(), VOCABULARY)}
    _write(folder / "tokenizer.json", data)
    _write(folder / "special_tokens_map.json", SPECIAL)
    _write(
        folder / "tokenizer_config.json", {**SPECIAL, "pad_token": None, "tokenizer_class": "LlamaTokenizer"}
    )


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _whole(path: Path, write: Any) -> None:
    temporary = path.with_name(f"{path.name}.part")
    write(temporary)
    temporary.replace(path)
