"""A Janus-Pro with toy dimensions and random weights, in either layout, made in a second.

The two layouts hold the same numbers: the converted one is what transformers itself saves, the
original one is written by the table of names below, which is not the code under test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
EXTRA = ["<image_placeholder>", "<begin_of_image>", "<end_of_image>", "<|User|>", "<|Assistant|>"]
IMAGE_SIZE, PATCH, WIDTH, VISION_LAYERS, TEXT_LAYERS = 64, 16, 64, 2, 2
TOKENS = (IMAGE_SIZE // PATCH) ** 2
TRAINING_TEXT = (
    "You are a helpful language and vision assistant. You are able to understand the visual content "
    "that the user provides, and assist the user with a variety of tasks using natural language. "
    "describe this image in detail a photo of a red car, a cat on a mat, the sea at dawn"
)


def make_tiny_janus(folder: Path, layout: str = "original", seed: int = 0, shards: int = 1) -> Path:
    """Write a model folder; `layout` is `original` (a pickled .bin) or `converted` (safetensors)."""
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(folder)
    model = tiny_model(vocabulary, seed)
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255, "min_size": 14}
    if layout == "converted":
        model.save_pretrained(folder, max_shard_size="40GB")
        pixels |= {"size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}, "do_pad": True}
        _write_json(folder / "preprocessor_config.json", pixels)
        return folder
    pixels |= {"image_size": IMAGE_SIZE, "background_color": [127, 127, 127], "do_normalize": True}
    _write_json(folder / "preprocessor_config.json", pixels)
    _write_json(folder / "config.json", original_config())
    tensors = original_tensors({name: t.contiguous() for name, t in model.state_dict().items()})
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder
    names, table = list(tensors), {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        save_file({name: tensors[name].clone() for name in mine}, folder / shard)
        table |= dict.fromkeys(mine, shard)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})
    return folder


def tiny_model(vocabulary: int, seed: int = 0) -> Any:
    """Return transformers' whole Janus, generation half included, with lively random weights."""
    import torch
    from transformers import JanusConfig, JanusForConditionalGeneration

    config = JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": vocabulary,
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16384,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
            "rms_norm_eps": 1e-5,
        },
        vision_config={
            "hidden_size": WIDTH,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": 1,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH,
            "mlp_ratio": 2.0,
            "projection_dim": WIDTH,
            "num_image_tokens": TOKENS,
        },
        vq_config={
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "latent_channels": 32,
            "num_embeddings": 16,
            "projection_dim": WIDTH,
            "image_token_embed_dim": WIDTH,
        },
        tie_word_embeddings=False,
        image_token_id=3,
    )
    torch.manual_seed(seed)
    model = JanusForConditionalGeneration._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "vqmodel" not in name:  # so strong that pictures change the text
                parameter.normal_(0, 1.0 if "embed" in name else 2.0 / parameter.shape[-1] ** 0.5)
    return model


def original_config() -> dict[str, Any]:
    """Return config.json as deepseek-ai/Janus-Pro writes it."""
    return {
        "model_type": "multi_modality",
        "torch_dtype": "bfloat16",
        "vision_config": {
            "cls": "CLIPVisionTower",
            "params": {"image_size": IMAGE_SIZE, "model_name": "siglip_tiny", "select_layer": -1},
        },
        "aligner_config": {"cls": "MlpProjector", "params": {"depth": 2, "projector_type": "mlp_gelu"}},
        "language_config": {
            "model_type": "llama",
            "num_attention_heads": 4,
            "max_position_embeddings": 16384,
            "rope_theta": 5000.0,
            "rms_norm_eps": 1e-5,
            "_attn_implementation": "flash_attention_2",
            "torch_dtype": "bfloat16",
        },
    }


def original_tensors(native: dict[str, Any]) -> dict[str, Any]:
    """Return transformers' tensors under the original names, with what captioning must pass over."""
    import torch

    tower = "vision_model.vision_tower."
    tensors = {
        tower + "pos_embed": native["model.vision_model.embeddings.position_embedding.weight"][None],
        "language_model.lm_head.weight": native["lm_head.weight"],
        tower + "attn_pool.latent": torch.zeros(1, 1, WIDTH),
        "gen_embed.weight": native["model.generation_embeddings.weight"],
        "gen_vision_model.encoder.conv_in.weight": native["model.vqmodel.encoder.conv_in.weight"],
        "language_model.model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    }
    for name, tensor in native.items():
        if name.startswith("model.language_model."):
            tensors["language_model.model." + name.removeprefix("model.language_model.")] = tensor
    for kind in ("weight", "bias"):
        pairs = {
            tower + "patch_embed.proj.": "model.vision_model.embeddings.patch_embedding.",
            tower + "norm.": "model.vision_model.post_layernorm.",
            "aligner.layers.0.": "model.aligner.fc1.",
            "aligner.layers.2.": "model.aligner.hidden_layers.0.",
            "gen_aligner.layers.0.": "model.generation_aligner.fc1.",
            "gen_head.vision_head.": "model.generation_head.vision_head.",
        }
        for layer in range(VISION_LAYERS):
            block, native_layer = f"{tower}blocks.{layer}.", f"model.vision_model.encoder.layers.{layer}."
            pairs |= {
                block + "norm1.": native_layer + "layer_norm1.",
                block + "norm2.": native_layer + "layer_norm2.",
                block + "attn.proj.": native_layer + "self_attn.projection_layer.",
                block + "mlp.fc1.": native_layer + "mlp.fc1.",
                block + "mlp.fc2.": native_layer + "mlp.fc2.",
            }
            parts = [native[f"{native_layer}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            tensors[block + "attn.qkv." + kind] = torch.cat(parts)
        tensors |= {original + kind: native[name + kind] for original, name in pairs.items()}
    return tensors


def _write_tokenizer(folder: Path) -> int:
    """Train a byte-level vocabulary as DeepSeek's is, with no BOS template; return its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[BOS, EOS, PAD, *EXTRA],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "additional_special_tokens": EXTRA}
    _write_json(folder / "special_tokens_map.json", special)
    settings = {"bos_token": BOS, "eos_token": EOS, "pad_token": None, "tokenizer_class": "LlamaTokenizer"}
    _write_json(folder / "tokenizer_config.json", settings)
    return tokenizer.get_vocab_size()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
