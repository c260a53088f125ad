"""Load Stable Diffusion 1.5: UNet, VAE and CLIP text encoder, frozen, from one file or a diffusers folder.

Nothing is fetched: a single file is built from our own component configs (noukii/assets/sd15), a folder
from its own. Names in a single file are renamed by diffusers' converters. Tensors are read one at a time
from the mapped file and cast at once, so memory holds one copy in the wanted dtype and no more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noukii.clip_tokens import ClipTokenizer
from noukii.errors import InputError
from noukii.names import printable
from noukii.project import ASSETS
from noukii.quiet import prepare_libraries
from noukii.trainer.checkpoint_header import NEXT_STEP, BaseModelFiles

prepare_libraries()

import torch  # noqa: E402
from safetensors import SafetensorError  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from noukii.trainer.single_file import ReadAhead, read_tensors  # noqa: E402
from noukii.trainer.text_encoding import clip_text_body, encode_prompt  # noqa: E402

__all__ = ["PARTS", "BaseModel", "encode_prompt", "load_base_model", "noise_schedule"]

PARTS = ("unet", "vae", "text_encoder")
SD15 = ASSETS / "sd15"
PREFIXES = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder": "cond_stage_model.transformer.",
}
NOT_NEEDED = ("position_ids", "logit_scale", "text_projection", "text_projection.weight")
"""Left over from CLIP in some files; the text encoder computes without them."""


@dataclass
class BaseModel:
    """The frozen models, all in `dtype` on one device; a part that was not asked for is None.

    alphas_cumprod: [1000] float32 on the same device. vae_scaling_factor: latents = factor × what the
    VAE gives (0.18215 for SD1.5).
    """

    unet: Any
    vae: Any
    text_encoder: Any
    tokenizer: ClipTokenizer
    alphas_cumprod: Tensor
    files: BaseModelFiles
    vae_scaling_factor: float
    prediction_type: str = "epsilon"


def load_base_model(
    files: BaseModelFiles,
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    parts: tuple[str, ...] = PARTS,
    early: dict[str, Tensor] | None = None,
) -> BaseModel:
    """Return the parts of the base model in eval mode with requires_grad off.

    early: tensors of a single file that were read ahead, in `dtype`; taken out as they are used.
    Raises InputError when the weights do not fit the architecture (a tensor missing or of another shape).
    """
    single = files.kind == "single-file"
    models: dict[str, nn.Module | None] = dict.fromkeys(PARTS)
    for part in parts:
        try:
            model = (
                _from_single_file(files, part, dtype, early) if single else _from_folder(files, part, dtype)
            )
        except SafetensorError as error:  # its header was whole when the run was planned
            raise InputError(
                files.path,
                f"its {part} cannot be read: {printable(str(error))}",
                "check its disk, or download it again",
            ) from None
        models[part] = model.to(device).eval().requires_grad_(False)
    config = SD15 if single else files.path
    alphas_cumprod, prediction_type = noise_schedule(config / "scheduler")
    tokenizer_folder = files.path / "tokenizer"
    tokenizer = (
        ClipTokenizer.bundled()
        if single or not tokenizer_folder.is_dir()
        else ClipTokenizer.from_folder(tokenizer_folder)
    )
    vae_config = json.loads((config / "vae" / "config.json").read_text(encoding="utf-8"))
    return BaseModel(
        **models,
        tokenizer=tokenizer,
        alphas_cumprod=alphas_cumprod.to(device),
        files=files,
        vae_scaling_factor=float(vae_config.get("scaling_factor", 0.18215)),
        prediction_type=prediction_type,
    )


def read_ahead(files: BaseModelFiles, dtype: torch.dtype, parts: tuple[str, ...]) -> ReadAhead | None:
    """Begin to read the weights of these parts; None for a folder, whose tensors the libraries name."""
    if files.kind != "single-file":
        return None
    return ReadAhead(files.path, tuple(PREFIXES[part] for part in parts), dtype)


def noise_schedule(scheduler_folder: Path) -> tuple[Tensor, str]:
    """Return (alphas_cumprod [1000] float32, prediction type) of a folder's scheduler, else SD1.5's."""
    from diffusers import DDPMScheduler

    names = (scheduler_folder / "scheduler_config.json", SD15 / "scheduler" / "scheduler_config.json")
    config = json.loads(next(name for name in names if name.is_file()).read_text(encoding="utf-8"))
    known = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas")
    chosen = {key: config[key] for key in (*known, "rescale_betas_zero_snr") if config.get(key) is not None}
    # kohya trains every SD1.5 model on this schedule; a folder may say otherwise
    defaults = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    scheduler = DDPMScheduler(**{**defaults, **chosen})
    return scheduler.alphas_cumprod.float(), config.get("prediction_type") or "epsilon"


def _from_single_file(
    files: BaseModelFiles, part: str, dtype: torch.dtype, early: dict[str, Tensor] | None
) -> nn.Module:
    """Build one part from our config and fill it with the file's tensors."""
    from accelerate import init_empty_weights
    from safetensors import safe_open

    with init_empty_weights():
        model = _empty_model(part)
    with safe_open(str(files.path), framework="pt") as file:
        names = _renamed(list(file.keys()), part, model)
    wanted = model.state_dict()
    _check_missing(files.path, part, wanted.keys() - names.keys())
    early = early or {}
    found = read_tensors(files.path, (names[ours] for ours in wanted if names[ours] not in early), dtype)
    tensors: dict[str, Tensor] = {}
    for ours, shape in ((ours, value.shape) for ours, value in wanted.items()):
        theirs = names[ours]
        value = early.pop(theirs) if theirs in early else found.pop(theirs)
        if value.ndim > len(shape):
            value = value.flatten(1)  # the VAE's attention: 1×1 convolutions there, Linear here
        if value.shape != shape:
            raise InputError(
                files.path,
                f"tensor {theirs} is {list(value.shape)}, Stable Diffusion 1.5 has {list(shape)}",
                NEXT_STEP,
            )
        tensors[ours] = value
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


def _empty_model(part: str) -> nn.Module:
    folder = SD15 / part
    if part == "text_encoder":
        from transformers import CLIPTextConfig, CLIPTextModel

        return CLIPTextModel(CLIPTextConfig.from_pretrained(folder, local_files_only=True))
    from diffusers import AutoencoderKL, UNet2DConditionModel

    kind = UNet2DConditionModel if part == "unet" else AutoencoderKL
    return kind.from_config(kind.load_config(folder, local_files_only=True))


@dataclass(frozen=True)
class _Tag:
    """Stands for a tensor of the file while it is renamed; its shape is one that nobody reshapes."""

    name: str
    ndim: int = 2
    shape: tuple[int, ...] = ()


def _renamed(names: list[str], part: str, model: nn.Module) -> dict[str, str]:
    """Return {name in our model: name in the file}, renamed by diffusers' converters without any weights."""
    from diffusers.loaders import single_file_utils as rename

    prefix = PREFIXES[part]
    tags = {name: _Tag(name) for name in names if name.startswith(prefix)}
    if part == "text_encoder":
        wrapper = "" if clip_text_body(model) is model else "text_model."
        return {
            wrapper + name.removeprefix(prefix).removeprefix("text_model."): name
            for name in tags
            if not name.endswith(NOT_NEEDED)
        }
    convert = rename.convert_ldm_unet_checkpoint if part == "unet" else rename.convert_ldm_vae_checkpoint
    return {ours: tag.name for ours, tag in convert(tags, model.config).items()}


def _from_folder(files: BaseModelFiles, part: str, dtype: torch.dtype) -> nn.Module:
    """Load one part of a diffusers folder; a tensor that is missing is an error."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextModel

    options: dict[str, Any] = {
        "local_files_only": True,
        "use_safetensors": True,
        "variant": files.variant,
        "output_loading_info": True,
    }
    if part == "text_encoder":
        model, info = CLIPTextModel.from_pretrained(files.path / part, dtype=dtype, **options)
    else:
        kind = UNet2DConditionModel if part == "unet" else AutoencoderKL
        model, info = kind.from_pretrained(files.path / part, torch_dtype=dtype, **options)
    _check_missing(files.path / part, part, set(info["missing_keys"]))
    if info.get("mismatched_keys"):
        raise InputError(files.path / part, "the weights do not have the shapes its config names", NEXT_STEP)
    return model


def _check_missing(where: Path, part: str, missing: set[str]) -> None:
    if missing:
        raise InputError(
            where,
            f"the {part} lacks {len(missing)} tensors, first {min(missing)}",
            "download the model again",
        )
