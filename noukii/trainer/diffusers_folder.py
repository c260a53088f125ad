"""Look at a diffusers folder without loading it: is it Stable Diffusion 1.5, of any size, and whole?

Its three parts (unet, vae, text_encoder) must be there with config and safetensors weights; of the weights
only the headers are read. Torch-free.
"""

from __future__ import annotations

import json
from pathlib import Path

from noukii.errors import InputError
from noukii.trainer.base_model_files import NEXT_STEP, BaseModelFiles, weights_dtype
from noukii.trainer.not_safetensors import what_else_it_is
from noukii.trainer.safetensors_header import BadHeader, Header, read_header

WEIGHT_STEMS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}


def inspect_folder(folder: Path) -> BaseModelFiles:
    """Return what a folder holds; raises InputError with what it is instead of an SD1.5 model."""
    index = _json(folder / "model_index.json") if (folder / "model_index.json").is_file() else {}
    pipeline = index.get("_class_name", "")
    missing = [part for part in WEIGHT_STEMS if not (folder / part).is_dir()]
    if what := _other_pipeline(folder, str(pipeline)):
        raise InputError(folder, what, NEXT_STEP)
    if missing:
        raise InputError(folder, *_no_model_in(folder, missing, bool(index)))
    configs = {part: _json(folder / part / "config.json") for part in WEIGHT_STEMS}
    if what := _wrong_config(configs):
        raise InputError(folder, what, NEXT_STEP)
    weights: list[Path] = []
    variants: set[str | None] = set()
    headers: dict[str, list[Header]] = {}
    for part, stem in WEIGHT_STEMS.items():
        files, variant = _weights_in(folder / part, stem)
        variants.add(variant)
        weights += files
        headers[part] = [_folder_header(file) for file in files]
    if len(variants) > 1:
        raise InputError(folder, "mixes fp16 and plain weight files", "download all parts in one of the two")
    blocks, sample_size = configs["vae"].get("block_out_channels"), configs["unet"].get("sample_size")
    vae_factor = 2 ** (len(blocks) - 1) if isinstance(blocks, list) and len(blocks) < 10 else 8
    size = sum(header.size_bytes for found in headers.values() for header in found)
    return BaseModelFiles(
        folder,
        "diffusers",
        weights_dtype(folder, headers["unet"][0], ""),
        size,
        (sample_size if isinstance(sample_size, int) else 64) * vae_factor,
        tuple(weights),
        variants.pop(),
    )


def _other_pipeline(folder: Path, pipeline: str) -> str | None:
    if (folder / "text_encoder_2").is_dir() or "XL" in pipeline:
        return "is a diffusers folder of Stable Diffusion XL (or a later model), not 1.5"
    if (folder / "transformer").is_dir() or pipeline.startswith(("Flux", "StableDiffusion3")):
        return f"is a diffusers folder of {pipeline or 'a transformer model'}, not Stable Diffusion 1.5"
    if "Inpaint" in pipeline:
        return "is an inpainting model; its plain version is wanted"
    return None


def _no_model_in(folder: Path, missing: list[str], has_index: bool) -> tuple[str, str]:
    """Return (reason, next step) for a folder without the three parts."""
    if has_index or len(missing) < len(WEIGHT_STEMS):
        return f"is a diffusers folder without {' and '.join(missing)}", "download the whole folder again"
    snapshots = sorted((folder / "snapshots").glob("*/model_index.json"))
    if snapshots:
        return "is a Hugging Face cache folder", f"give {snapshots[-1].parent}"
    if (folder / "config.json").is_file() and (folder.parent / "model_index.json").is_file():
        return "is one part of a diffusers folder", f"give {folder.parent}"
    checkpoints = sorted(
        file for file in folder.iterdir() if file.suffix.lower() in (".safetensors", ".ckpt")
    )
    if len(checkpoints) == 1:
        return "is a folder that holds one checkpoint", f"give the file: {checkpoints[0]}"
    if checkpoints:
        return f"is a folder with {len(checkpoints)} checkpoints", "give one of the files"
    return "holds no model (no model_index.json, no unet, vae and text_encoder)", NEXT_STEP


def _wrong_config(configs: dict[str, dict]) -> str | None:
    unet, vae, text = configs["unet"], configs["vae"], configs["text_encoder"]
    width, channels = unet.get("cross_attention_dim"), unet.get("in_channels")
    if unet.get("addition_embed_type") or width == 2048:
        return "is a diffusers folder of Stable Diffusion XL, not 1.5"
    if width == 1024:
        return "is a diffusers folder of Stable Diffusion 2.x, not 1.5"
    if channels == 9:
        return "is an inpainting model (9 input channels instead of 4); its plain version is wanted"
    if unet.get("_class_name", "UNet2DConditionModel") != "UNet2DConditionModel" or channels != 4:
        return f"has a {unet.get('_class_name')} with {channels} input channels; SD1.5's UNet has 4"
    if vae.get("_class_name", "AutoencoderKL") != "AutoencoderKL" or vae.get("latent_channels", 4) != 4:
        return "has a VAE that is not Stable Diffusion 1.5's kind"
    if not str(text.get("model_type", "clip_text_model")).startswith("clip"):
        return f"has a {text.get('model_type')} text encoder; SD1.5's is CLIP"
    if text.get("hidden_size", 512) != width:
        return (
            f"its text encoder gives {text.get('hidden_size', 512)} numbers a token, its UNet wants {width}"
        )
    return None


def _weights_in(folder: Path, stem: str) -> tuple[list[Path], str | None]:
    """Return the weight files of one part and their variant (None or "fp16")."""
    for variant in (None, "fp16"):
        middle = f".{variant}" if variant else ""
        whole = folder / f"{stem}{middle}.safetensors"
        if whole.exists():
            return [whole], variant
        index = folder / f"{stem}.safetensors.index{middle}.json"
        if index.is_file():
            shards = _json(index).get("weight_map")
            names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
            absent = [name for name in names if "/" in name or not (folder / name).exists()]
            if absent or not names:
                raise InputError(
                    index, f"names files that are not there: {', '.join(absent) or 'none'}", "download them"
                )
            return [folder / name for name in names], variant
    if list(folder.glob("*.bin")):
        raise InputError(
            folder,
            "holds .bin weights (Python pickles, which can run code) and no .safetensors",
            f"download {stem}.safetensors for it",
        )
    raise InputError(folder, f"holds no weights ({stem}.safetensors is missing)", "download the folder again")


def _folder_header(file: Path) -> Header:
    if found := what_else_it_is(file):
        raise InputError(file, *found)
    try:
        return read_header(file)
    except BadHeader as error:
        raise InputError(file, str(error), "download it again") from None


def _json(path: Path) -> dict:
    """Read a small JSON table; raises InputError."""
    try:
        with open(path, "rb") as stream:
            raw = stream.read(2**20 + 1)
        if len(raw) > 2**20:
            raise ValueError
        value = json.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise InputError(path, "is missing", "download the folder again") from None
    except (ValueError, RecursionError):
        raise InputError(path, "is not a JSON table", "download the folder again") from None
    if not isinstance(value, dict):
        raise InputError(path, "is not a JSON table", "download the folder again")
    return value
