"""The demo's captioner: Janus-Pro's architecture with toy dimensions, in the original checkpoint layout.

Trained on fresh pictures at every step, at the prompt that run_captioning.sh uses, the loss on the answer
only. It knows more than the world (purple things and stripes), so that it can describe a concept that it
never saw.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from demo import measure, tools, world
from noukii.captioning.janus_tokenizer import SYSTEM_SENTENCE, JanusTokenizer

FOLDER = Path(__file__).resolve().parent / "models" / "janus"
SEED = 2
BATCH = 32
STRIPED = 0.5
"""Share of scenes to learn from that have stripes and purple things, as the concept has."""
PATCH, WIDTH, VISION_LAYERS, TEXT_LAYERS, INNER, HEADS = 16, 192, 4, 3, 512, 4
IMAGE_TOKENS = (world.SIDE // PATCH) ** 2
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
EXTRA = ["<image_placeholder>", "<begin_of_image>", "<end_of_image>", "<|User|>", "<|Assistant|>"]
LONGEST = 2048


def new_model(vocabulary: int) -> Any:
    """Return the untrained model: the understanding half of transformers' Janus."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    config = JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": vocabulary,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "max_position_embeddings": LONGEST,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "rms_norm_eps": 1e-6,
        },
        vision_config={
            "hidden_size": WIDTH,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": WIDTH // 64,
            "image_size": world.SIDE,
            "patch_size": PATCH,
            "mlp_ratio": 3.0,
            "projection_dim": WIDTH,
            "num_image_tokens": IMAGE_TOKENS,
        },
        vq_config={  # built by transformers and thrown away: it belongs to the generation half
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "latent_channels": 32,
            "num_embeddings": 16,
            "projection_dim": WIDTH,
            "image_token_embed_dim": WIDTH,
        },
        tie_word_embeddings=False,
    )
    torch.manual_seed(SEED)
    model = JanusForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    for name in ("vqmodel", "generation_embeddings", "generation_aligner", "generation_head"):
        delattr(model.model, name)
    return model


class Batches:
    """Pictures, prompts and answers of a step, as tensors."""

    def __init__(self, tokenizer: JanusTokenizer) -> None:
        self.tokenizer = tokenizer
        prompt = tokenizer.prompt_ids(measure.QUESTION, IMAGE_TOKENS)
        first = prompt.index(tokenizer.image_id)
        self.before = torch.tensor(prompt[:first])
        self.after = torch.tensor(prompt[first + IMAGE_TOKENS :])

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return pixels [B, 3, 64, 64], answers [B, n] and which of their places count [B, n]."""
        random = np.random.default_rng((SEED, step))
        scenes = [world.richer_scene(random, STRIPED) for _ in range(BATCH)]
        end = self.tokenizer.eos_id
        rows = [
            [
                *self.tokenizer.backend.encode(world.answer(scene), add_special_tokens=False).ids,
                self.tokenizer.eos_id,
            ]
            for scene in scenes
        ]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [end] * (longest - len(row)) for row in rows])
        counts = torch.arange(longest)[None] < torch.tensor([len(row) for row in rows])[:, None]
        return tools.to_tensor([world.draw(scene) for scene in scenes]), ids, counts


def loss(model: Any, batches: Batches, step: int) -> Tensor:
    """Cross-entropy of the answers' tokens.

    What stands before the picture is the same in every row, so it is read once for all of them.
    """
    from transformers import DynamicCache

    pixels, ids, counts = batches(step)
    speaker = model.model.language_model
    embed = speaker.get_input_embeddings()
    rows = len(ids)
    with tools.autocast():
        cache = DynamicCache()
        speaker(inputs_embeds=embed(batches.before)[None], past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            layer.keys = layer.keys.expand(rows, -1, -1, -1)
            layer.values = layer.values.expand(rows, -1, -1, -1)
        picture = model.model.aligner(model.model.vision_model(pixel_values=pixels).last_hidden_state)
        after = embed(batches.after).expand(rows, -1, -1)
        inputs = torch.cat([picture.float(), after, embed(ids[:, :-1])], dim=1)
        hidden = speaker(inputs_embeds=inputs, past_key_values=cache, use_cache=True).last_hidden_state
        logits = model.lm_head(hidden[:, -ids.shape[1] :])
    return F.cross_entropy(logits.float()[counts], ids[counts])


def vocabulary() -> int:
    """Return how many tokens the language model knows; writes the tokenizer first."""
    write_tokenizer(FOLDER)
    return JanusTokenizer.from_folder(FOLDER).backend.get_vocab_size()


def train(steps: int) -> None:
    """Train until `steps`; the weights lie in the stage's checkpoint."""
    model = new_model(vocabulary())
    eyes = tools.averaged("sight", "eyes")
    assert eyes is not None, "the stage `sight` comes first"
    model.model.load_state_dict({k: v for k, v in eyes.items() if not k.startswith("read.")}, strict=False)
    batches = Batches(JanusTokenizer.from_folder(FOLDER))
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or "embed" in n]
    groups = [
        {"params": matrices, "lr": 1.5e-3, "weight_decay": 0.02},
        {"params": others, "lr": 1.5e-3, "weight_decay": 0.0},
    ]

    def report(step: int, averages: dict[str, tools.Average]) -> None:
        export()
        totals = measure.captioner(100).values()
        right, named = sum(right for right, _ in totals), sum(named for _, named in totals)
        print(f"captioner {step}: {right} of {named} attributes right ({right / named:.1%})", flush=True)

    tools.train(
        "captioner", {"captioner": model}, groups, steps,
        lambda step: loss(model, batches, step), report=report, report_every=1100, save_every=100,
    )  # fmt: skip


def export(folder: Path = FOLDER) -> None:
    """Write the averaged weights, in float16, and everything around them."""
    weights = tools.averaged("captioner", "captioner")
    assert weights is not None
    write_tokenizer(folder)
    _json(folder / "config.json", _config(len(weights["lm_head.weight"])))
    _json(
        folder / "preprocessor_config.json",
        {
            "background_color": [127, 127, 127],
            "do_normalize": True,
            "image_mean": [0.5] * 3,
            "image_processor_type": "VLMImageProcessor",
            "image_size": world.SIDE,
            "image_std": [0.5] * 3,
            "min_size": 14,
            "processor_class": "VLChatProcessor",
            "rescale_factor": 1 / 255,
        },
    )
    _json(
        folder / "processor_config.json",
        {
            "add_special_token": False,
            "ignore_id": -100,
            "image_tag": EXTRA[0],
            "mask_prompt": True,
            "num_image_tokens": IMAGE_TOKENS,
            "processor_class": "VLChatProcessor",
            "sft_format": "deepseek",
        },
    )
    tensors = original_names(weights)
    tools.save(
        folder / "pytorch_model.bin", {name: value.half().contiguous() for name, value in tensors.items()}
    )


def original_names(native: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return transformers' tensors under the names of deepseek-ai's checkpoints."""
    tower = "vision_model.vision_tower."
    vision = "model.vision_model."
    tensors = {
        tower + "pos_embed": native[vision + "embeddings.position_embedding.weight"][None],
        "language_model.lm_head.weight": native["lm_head.weight"],
    }
    for name, value in native.items():
        if name.startswith("model.language_model."):
            tensors["language_model.model." + name.removeprefix("model.language_model.")] = value
    for kind in ("weight", "bias"):
        pairs = {
            tower + "patch_embed.proj.": vision + "embeddings.patch_embedding.",
            tower + "norm.": vision + "post_layernorm.",
            "aligner.layers.0.": "model.aligner.fc1.",
            "aligner.layers.2.": "model.aligner.hidden_layers.0.",
        }
        for number in range(VISION_LAYERS):
            block, layer = f"{tower}blocks.{number}.", f"{vision}encoder.layers.{number}."
            pairs |= {
                block + "norm1.": layer + "layer_norm1.",
                block + "norm2.": layer + "layer_norm2.",
                block + "attn.proj.": layer + "self_attn.projection_layer.",
                block + "mlp.fc1.": layer + "mlp.fc1.",
                block + "mlp.fc2.": layer + "mlp.fc2.",
            }
            parts = [native[f"{layer}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            tensors[f"{block}attn.qkv.{kind}"] = torch.cat(parts)
        tensors |= {theirs + kind: native[ours + kind] for theirs, ours in pairs.items()}
    return tensors


def _config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["MultiModalityCausalLM"],
        "model_type": "multi_modality",
        "torch_dtype": "float16",
        "vision_config": {
            "cls": "CLIPVisionTower",
            "model_type": "vision",
            "params": {
                "image_size": world.SIDE,
                "model_name": f"siglip_demo_patch{PATCH}_{world.SIDE}",
                "select_feature": "same",
                "select_layer": -1,
            },
        },
        "aligner_config": {
            "cls": "MlpProjector",
            "model_type": "aligner",
            "params": {"depth": 2, "input_dim": WIDTH, "n_embed": WIDTH, "projector_type": "mlp_gelu"},
        },
        "language_config": {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "max_position_embeddings": LONGEST,
            "model_type": "llama",
            "num_attention_heads": HEADS,
            "num_hidden_layers": TEXT_LAYERS,
            "num_key_value_heads": HEADS,
            "torch_dtype": "float16",
            "vocab_size": vocabulary,
        },
    }


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level vocabulary as DeepSeek's is, learned from the prompt and from answers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    texts = [world.answer(world.richer_scene(random)) for _ in range(2000)]
    texts += [f"{SYSTEM_SENTENCE}\n\n<|User|>: \n{measure.QUESTION}\n\n<|Assistant|>:"] * 500
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[BOS, EOS, PAD, *EXTRA],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "additional_special_tokens": EXTRA}
    _json(folder / "special_tokens_map.json", special)
    settings = {
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": LONGEST,
        "pad_token": None,
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": None,
    }
    _json(folder / "tokenizer_config.json", settings)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
