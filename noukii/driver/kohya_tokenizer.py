"""The CLIP tokenizer in the place where upstream's trainer looks for it, so that it needs no network.

sd-scripts asks the Hub for openai/clip-vit-large-patch14 unless `--tokenizer_cache_dir` names a folder that
holds it under that name with an underscore (library/strategy_base.py). The vocabulary is the one we ship;
without `model_max_length` upstream cannot pad.
"""

from __future__ import annotations

import json
from pathlib import Path

from noukii import files, project

NAME = "openai_clip-vit-large-patch14"
_CONFIG = {
    "tokenizer_class": "CLIPTokenizer",
    "model_max_length": 77,
    "do_lower_case": True,
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
}


def folder() -> Path:
    """Return what `--tokenizer_cache_dir` is to name."""
    return project.kohya() / "tokenizer"


def provide() -> None:
    """Put the tokenizer there unless it is there already (setup.sh may have brought upstream's own)."""
    wanted = folder() / NAME
    if (wanted / "tokenizer_config.json").exists():
        return
    wanted.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.json", "merges.txt"):
        files.copy_file(project.ASSETS / "clip_vocab" / name, wanted / name)
    files.write_text(wanted / "tokenizer_config.json", json.dumps(_CONFIG, indent=2) + "\n")
