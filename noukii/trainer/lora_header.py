"""Look at a LoRA file without torch: is it one, and does it fit the run that is to start from it?"""

from __future__ import annotations

import json
from pathlib import Path

from noukii.errors import InputError
from noukii.names import printable
from noukii.trainer.base_model_files import BaseModelFiles
from noukii.trainer.checkpoint_header import what_model_it_is
from noukii.trainer.not_safetensors import unfinished_download, what_else_it_is
from noukii.trainer.safetensors_header import BadHeader, Header, read_header, read_scalars
from noukii.trainer.settings import TrainerSettings

NEXT_STEP = "give a LoRA in kohya's format (.safetensors)"
SD15_CAPTION_WIDTH = 768
"""What the UNet's attention takes from the text encoder; Stable Diffusion 2 has 1024, SDXL 2048."""


def inspect_lora(path: Path) -> Header:
    """Return the header of a LoRA in kohya's format; raises InputError with what it is instead."""
    path = Path(path)
    if not path.is_file():
        raise InputError(path, "is a folder" if path.is_dir() else "there is no such file", NEXT_STEP)
    try:
        if reason := unfinished_download(path):
            raise InputError(path, reason, "let the download finish")
        if found := what_else_it_is(path):
            raise InputError(path, *found)
        header = read_header(path)
    except BadHeader as error:
        raise InputError(path, str(error), NEXT_STEP) from None
    except OSError as error:
        raise cannot_be_read(path, error) from None
    if not any(name.endswith(".lora_down.weight") for name in header.tensors):
        if any(".lora_A." in name or ".lora.down." in name for name in header.tensors):
            raise InputError(path, "is a LoRA in diffusers' naming, not kohya's", "convert it first")
        what = what_model_it_is(header) or "is a base model, not a LoRA"
        raise InputError(
            path, "holds no LoRA of kohya's kind" if what.startswith("is a LoRA") else what, NEXT_STEP
        )
    return header


def cannot_be_read(path: Path, error: Exception) -> InputError:
    """Return the message for a file that the system, or safetensors, does not give us."""
    reason = getattr(error, "strerror", None) or printable(str(error))
    return InputError(path, f"cannot be read: {reason}", "check the file and its disk")


def check_start_weights(settings: TrainerSettings, base: BaseModelFiles) -> None:
    """Refuse a --network_weights file that this run cannot start from; InputError says what would fit.

    What its names and shapes must be in full is known only with the model; `LoraNetwork.load_kohya` looks.
    """
    path = settings.network_weights
    assert path is not None
    header = inspect_lora(path)
    if any(name.startswith(("lora_te1_", "lora_te2_")) for name in header.tensors):
        raise InputError(path, "is a LoRA for Stable Diffusion XL", "give one for Stable Diffusion 1.5")
    _check_width(path, header, base)
    _check_parts(path, header, settings)
    downs = [info.shape for name, info in header.tensors.items() if name.endswith(".lora_down.weight")]
    ranks = sorted({shape[0] for shape in downs if shape})
    if ranks != [settings.rank]:
        fit = (
            f"give --network_dim {ranks[0]}"
            if len(ranks) == 1
            else "give one that has the same rank all over"
        )
        raise InputError(path, f"has rank {_listed(ranks)}, this run has {settings.rank}", fit)
    try:
        values = read_scalars(path, header, [name for name in header.tensors if name.endswith(".alpha")])
    except BadHeader as error:
        raise InputError(path, str(error), NEXT_STEP) from None
    except OSError as error:
        raise cannot_be_read(path, error) from None
    alphas, wanted = sorted(set(values.values())), float(settings.network_alpha or settings.rank)
    if not alphas:
        raise InputError(path, "holds no alphas, which say how strong it is", NEXT_STEP)
    if alphas != [wanted]:
        fit = (
            f"give --network_alpha {alphas[0]:g}"
            if len(alphas) == 1
            else "give one that has one alpha all over"
        )
        raise InputError(path, f"has alpha {_listed(alphas)}, this run has {wanted:g}", fit)


def _check_width(path: Path, header: Header, base: BaseModelFiles) -> None:
    width = SD15_CAPTION_WIDTH
    if base.kind == "diffusers":
        try:
            config = json.loads((base.path / "unet" / "config.json").read_bytes())
            width = int(config["cross_attention_dim"])
        except (OSError, ValueError, TypeError, KeyError):
            return
    for name, info in header.tensors.items():
        if name.endswith("attn2_to_k.lora_down.weight") and len(info.shape) > 1 and info.shape[1] != width:
            kind = {1024: " (it is for Stable Diffusion 2)", 2048: " (it is for Stable Diffusion XL)"}
            raise InputError(
                path,
                f"was made for another base model{kind.get(info.shape[1], '')}: its attention takes captions"
                f" {info.shape[1]} wide, this model's are {width}",
                "give a LoRA for Stable Diffusion 1.5",
            )


def _check_parts(path: Path, header: Header, settings: TrainerSettings) -> None:
    for prefix, part, trained, alone in (
        ("lora_te_", "text encoder", settings.trains_text_encoder, "--network_train_unet_only"),
        ("lora_unet_", "UNet", settings.trains_unet, "--network_train_text_encoder_only"),
    ):
        held = any(name.startswith(prefix) for name in header.tensors)
        if trained and not held:
            raise InputError(path, f"holds nothing for the {part}, which this run trains", f"give {alone}")
        if held and not trained:
            raise InputError(
                path, f"holds weights for the {part}, which this run does not train", f"leave {alone} out"
            )


def _listed(values: list[int] | list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"
