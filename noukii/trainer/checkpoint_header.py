"""Look at a base model without loading it: is it Stable Diffusion 1.5, and if not, what is it?

Torch-free and quick: of a checkpoint only the header is read, of a diffusers folder the configs and
headers. Whatever is no SD1.5 model is refused by what it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from noukii.errors import InputError
from noukii.project import ASSETS
from noukii.trainer.base_model_files import NEXT_STEP, BaseModelFiles, weights_dtype
from noukii.trainer.diffusers_folder import inspect_folder
from noukii.trainer.not_safetensors import unfinished_download, what_else_it_is
from noukii.trainer.safetensors_header import BadHeader, Header, TensorInfo, read_header

__all__ = ["NEXT_STEP", "BaseModelFiles", "inspect_base_model", "what_model_it_is"]

UNET, VAE, TEXT = "model.diffusion_model.", "first_stage_model.", "cond_stage_model.transformer."
CONV_IN, CROSS_K = (
    f"{UNET}input_blocks.0.0.weight",
    f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
)


def inspect_base_model(path: Path) -> BaseModelFiles:
    """Return what `path` holds; raises InputError with what it is instead of an SD1.5 model."""
    path = Path(path)
    try:
        if path.is_dir():
            return inspect_folder(path)
        if path.is_file():
            return _inspect_file(path)
    except PermissionError:
        raise InputError(path, "may not be read", "give yourself the right to read it") from None
    except OSError as error:
        raise InputError(
            path, f"cannot be read: {error.strerror or error}", "check the disk or the path"
        ) from None
    if path.is_symlink():
        raise InputError(path, "is a link to a file that is not there", NEXT_STEP)
    raise InputError(path, "there is no such file or folder, and nothing is fetched at run time", NEXT_STEP)


def _inspect_file(path: Path) -> BaseModelFiles:
    if reason := unfinished_download(path):
        raise InputError(path, reason, "let the download finish, or start it again")
    if found := what_else_it_is(path):
        raise InputError(path, *found)
    try:
        header = read_header(path)
    except BadHeader as error:
        raise InputError(path, str(error), f"download it again, or {NEXT_STEP}") from None
    if path.suffix.lower() != ".safetensors":
        raise InputError(path, "is a safetensors file under another name", "rename it to end in .safetensors")
    if what := what_model_it_is(header):
        raise InputError(path, what, NEXT_STEP)
    if what := _layout_problem(header.tensors):
        raise InputError(path, what, "download it again; parts of it are missing or were exchanged")
    return BaseModelFiles(
        path, "single-file", weights_dtype(path, header, UNET), header.size_bytes, 512, (path,)
    )


def what_model_it_is(header: Header) -> str | None:
    """Say what a safetensors file holds, in words that follow its name; None if it looks like SD1.5."""
    tensors = header.tensors
    if not tensors:
        return "is a safetensors file without tensors"

    def has(*parts: str) -> bool:
        return any(part in name for name in tensors for part in parts)

    if has("lora_down", "lora_up", "lora_A.", "lora_B.", ".lora.", "hada_w1", "lokr_w", "oft_blocks"):
        return "is a LoRA, not a base model"
    if has("control_model.", "controlnet_cond_embedding", "zero_convs.", "controlnet_down_blocks"):
        return "is a ControlNet, not a base model"
    if has("emb_params", "string_to_param"):
        return "is a textual-inversion embedding, not a base model"
    if has("double_blocks.", "single_transformer_blocks."):
        return "is a Flux model (or a relative of it), not Stable Diffusion 1.5"
    if has("joint_blocks.") or (has("transformer_blocks.") and has("pos_embed.proj")):
        return "is Stable Diffusion 3, not 1.5"
    if not has(UNET):
        return _part_of_a_model(tensors)
    return _wrong_diffusion_model(tensors)


def _wrong_diffusion_model(tensors: dict[str, TensorInfo]) -> str | None:
    if (
        any(name.startswith("conditioner.embedders.") for name in tensors)
        or f"{UNET}label_emb.0.0.weight" in tensors
    ):
        return "is Stable Diffusion XL, not 1.5"
    width = tensors[CROSS_K].shape[-1] if CROSS_K in tensors and tensors[CROSS_K].shape else 0
    if width == 2048:
        return "is Stable Diffusion XL, not 1.5"
    if width == 1024 or any(name.startswith("cond_stage_model.model.") for name in tensors):
        return "is Stable Diffusion 2.x, not 1.5"
    entry = tensors.get(CONV_IN)
    if entry is not None and len(entry.shape) == 4 and entry.shape[1] != 4:
        kind = {
            9: "an inpainting model",
            8: "an instruct-pix2pix model",
            5: "a depth model",
            7: "an upscaler",
        }
        name = kind.get(entry.shape[1], "a special model")
        return f"is {name} ({entry.shape[1]} input channels instead of 4); its plain version is wanted"
    if entry is None or width != 768:
        return "holds a diffusion model that is not Stable Diffusion 1.5"
    missing = [
        word
        for word, prefix in (("VAE", VAE), ("text encoder", TEXT))
        if not any(name.startswith(prefix) for name in tensors)
    ]
    return (
        f"holds the UNet but no {' and no '.join(missing)}; the whole checkpoint is wanted"
        if missing
        else None
    )


def _part_of_a_model(tensors: dict[str, TensorInfo]) -> str:
    def has(*starts: str) -> bool:
        return any(name.startswith(starts) for name in tensors)

    if has("down_blocks.") and has("conv_in.", "time_embedding."):
        return "is the UNet alone, from a diffusers folder; the folder itself is wanted"
    if has("first_stage_model.", "encoder.down", "decoder.up", "decoder.conv_in", "vae."):
        return "is a VAE alone, not a base model"
    if has("text_model.", "transformer.resblocks", "encoder.block.", "cond_stage_model.", "embeddings.token"):
        return "is a text encoder alone, not a base model"
    if has("model.layers.", "language_model.", "transformer.h."):
        return "is a language model, not a base model"
    return f"is no Stable Diffusion model; it has {len(tensors)} tensors, first {min(tensors)[:80]!r}"


def _layout_problem(tensors: dict[str, TensorInfo]) -> str | None:
    """Compare with SD1.5's own list of names and shapes; extra tensors (EMA, position_ids) do no harm."""
    layout = json.loads((ASSETS / "sd15" / "single_file_layout.json").read_text(encoding="utf-8"))
    missing, reshaped = [], []
    for name, shape in layout.items():
        found = tensors.get(name) or tensors.get(name.replace(f"{TEXT}text_model.", TEXT))
        if found is None:
            missing.append(name)
        elif _squeezed(found.shape) != _squeezed(shape):
            reshaped.append(f"{name} is {list(found.shape)}, SD1.5 has {shape}")
    if missing:
        return (
            f"lacks {len(missing)} of the {len(layout)} tensors of Stable Diffusion 1.5, first {missing[0]}"
        )
    return f"is not Stable Diffusion 1.5: {reshaped[0]}" if reshaped else None


def _squeezed(shape: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """A 1×1 convolution and a Linear hold the same numbers; files have either in the VAE's attention."""
    return tuple(shape[:2]) if len(shape) in (3, 4) and set(shape[2:]) == {1} else tuple(shape)
