"""Load Janus-Pro as transformers' own JanusForConditionalGeneration, from either layout.

Only the understanding half is built: vision tower, aligner, language model. What makes pictures
(the VQ model, generation_*) is neither read nor allocated, 228 MB less in bfloat16. No code of the
model folder runs: pickles are read with `weights_only=True`, everything else is JSON and tensors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii import hardware
from noukii.captioning.janus_files import NEXT_STEP, JanusFiles, check_model
from noukii.captioning.janus_tokenizer import JanusTokenizer
from noukii.captioning.janus_weights import (
    ContradictedConfig,
    UnusableWeights,
    target_shape,
    targets,
    text_settings,
    vision_settings,
)
from noukii.captioning.out_of_memory import is_out_of_memory
from noukii.captioning.preprocess import PixelRule
from noukii.errors import InputError
from noukii.names import printable
from noukii.quiet import prepare_libraries

if TYPE_CHECKING:
    import torch
    from transformers import JanusConfig, JanusForConditionalGeneration

__all__ = ["Janus", "JanusFiles", "check_model", "choose_device", "choose_dtype", "load"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
GROUP_BYTES = 400_000_000
"""Read from a mapped file before it is mapped anew."""
NAMED = 3
"""How many missing or unknown tensors a message names."""


@dataclass(frozen=True)
class Janus:
    """A model that is ready to describe pictures; `tokenizer` and `pixels` belong to its checkpoint."""

    model: JanusForConditionalGeneration
    tokenizer: JanusTokenizer
    pixels: PixelRule
    device: str
    dtype: torch.dtype
    name: str

    @property
    def image_size(self) -> int:
        """Side in pixels of the square that the vision tower sees."""
        return self.pixels.image_size

    @property
    def image_tokens(self) -> int:
        """Placeholders that one picture takes in the prompt (576 for Janus-Pro)."""
        return self.model.model.vision_model.embeddings.num_positions


def choose_device(wanted: str = "auto") -> str:
    """Return `cpu`, `cuda` or `cuda:N`. Raises InputError for a wish that this machine cannot meet."""
    if wanted == "cpu":
        return "cpu"
    if not re.fullmatch(r"auto|cuda(:\d{1,3})?", wanted):
        raise InputError(
            "--device",
            f"{printable(wanted)!r} is no device",
            "use auto, cpu, cuda or cuda:N (0 for the first)",
        )
    found = hardware.detect()
    if not found.has_gpu:
        if wanted == "auto":
            return "cpu"
        raise InputError("--device", f"{wanted} cannot be used: {found.why_no_gpu}", "use --device cpu")
    prepare_libraries()
    import torch

    if not torch.cuda.is_available():
        if wanted == "auto":
            return "cpu"
        reason = f"{wanted} cannot be used: torch does not find the GPU ({found.gpu_name})"
        raise InputError("--device", reason, "update the NVIDIA driver, or use --device cpu")
    number = int(wanted.partition(":")[2] or 0)
    if number >= torch.cuda.device_count():
        reason = f"there is no {wanted}; the {torch.cuda.device_count()} GPU(s) here count from cuda:0"
        raise InputError("--device", reason, "use --device cuda")
    return "cuda" if wanted == "auto" else wanted


def choose_dtype(device: str, wanted: str = "auto") -> torch.dtype:
    """Return the number format to compute in. Raises InputError for an unusable wish.

    auto: bfloat16 where the hardware computes in it, else float16 on a GPU and float32 on a CPU
    (bfloat16 without the instructions is slower than float32, float16 overflows there).
    """
    if wanted not in DTYPES:
        raise InputError("--dtype", f"{printable(wanted)!r} is no number format", f"use {', '.join(DTYPES)}")
    on_gpu = device.startswith("cuda")
    if wanted == "float16" and not on_gpu:
        raise InputError("--dtype", "float16 is for GPUs", "use auto, bfloat16 or float32 on a CPU")
    prepare_libraries()
    import torch

    if on_gpu:
        has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
        if wanted == "bfloat16" and not has_bfloat16:
            reason = f"{torch.cuda.get_device_name(device)} does not compute in bfloat16"
            raise InputError("--dtype", reason, "use --dtype float16 or float32")
        best = torch.bfloat16 if has_bfloat16 else torch.float16
    else:
        best = torch.bfloat16 if hardware.cpu_bfloat16() else torch.float32
    return best if wanted == "auto" else getattr(torch, wanted)


def load(files: JanusFiles, device: str, dtype: torch.dtype, *, packed: bool = True) -> Janus:
    """Read the weights and return the model, in eval mode, on `device` in `dtype`.

    packed: on a CPU the language model's matrices are laid out for it, and their `weight` is empty.

    Tensors are mapped from disk and converted one at a time, so that memory peaks at about the size
    of the result. Raises InputError for weights that are damaged, hold code, lack a tensor of the
    understanding half, hold one that nobody knows, or do not fit into memory.
    """
    prepare_libraries()
    tokenizer = files.tokenizer
    with _memory_in_plain_words(files, device):
        shapes = _shapes(files)
        with _config_in_plain_words(files):
            config = _config(files, shapes)
            config.image_token_id = tokenizer.image_id
            model = _build_without_memory(config)
        if tokenizer.highest_id >= config.text_config.vocab_size:
            reason = f"has ids beyond the model's vocabulary of {config.text_config.vocab_size}"
            raise InputError(files.folder / "tokenizer.json", reason, NEXT_STEP)
        _check_tensors(files, shapes, {name: tuple(t.shape) for name, t in model.state_dict().items()})
        _fill(model, files, device, dtype)
        if packed and device == "cpu":
            from noukii.captioning import packed_linears

            for part in (model.model.language_model, model.lm_head):
                packed_linears.pack(part)
    return Janus(model, tokenizer, files.pixels, device, dtype, files.name)


def _shapes(files: JanusFiles) -> dict[str, tuple[int, ...]]:
    """Return transformers' name -> shape of every tensor that captioning needs."""
    shapes = {}
    for name, tensor in _tensors(files, are_read=False):
        names = targets(name, files.layout)
        if names and not tensor.is_floating_point():
            reason = f"holds {printable(name)} as {tensor.dtype}; noukii reads plain floating-point weights"
            raise InputError(files.folder, reason, NEXT_STEP)
        shapes.update({target: target_shape(target, tuple(tensor.shape), len(names)) for target in names})
    return shapes


def _config(files: JanusFiles, shapes: dict[str, tuple[int, ...]]) -> JanusConfig:
    from transformers import JanusConfig

    if files.layout == "original":
        text = {"model_type": "llama", **text_settings(files.config, shapes)}
        vision = vision_settings(files.config, shapes, files.pixels.image_size)
    else:
        text = dict(files.config.get("text_config") or {})
        vision = dict(files.config.get("vision_config") or {})
    for settings in (text, vision):
        for key in ("torch_dtype", "dtype", "_attn_implementation", "_attn_implementation_internal"):
            settings.pop(key, None)  # ours to decide; an old config may ask for flash-attn
    # JanusConfig ties lm_head to the embeddings by default; in Janus they are two matrices.
    config = JanusConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    config.text_config.tie_word_embeddings = False
    return config


@contextmanager
def _config_in_plain_words(files: JanusFiles) -> Iterator[None]:
    """Blame config.json or the weights, whichever it is, for a model that cannot be built."""
    path = files.folder / "config.json"
    try:
        yield
    except UnusableWeights as error:
        raise InputError(_weights_place(files), printable(str(error)), NEXT_STEP) from None
    except ContradictedConfig as error:
        raise InputError(path, printable(str(error)), NEXT_STEP) from None
    except (MemoryError, InputError):
        raise
    except Exception as error:  # transformers raises anything at all for a value it does not expect
        if is_out_of_memory(error):
            raise
        named = re.search(r"field '(\w{1,60})'", str(error))
        if named:
            reason = f"gives {named[1]} a value that no Janus can have"
        elif isinstance(error, KeyError):
            reason = f"names {printable(str(error))[:60]}, which transformers does not know"
        else:
            reason = "describes a model that cannot be built; a value in it is wrong or missing"
        raise InputError(path, reason, NEXT_STEP) from None


def _weights_place(files: JanusFiles) -> Path:
    return files.weights[0] if len(files.weights) == 1 else files.folder


def _build_without_memory(config: JanusConfig) -> JanusForConditionalGeneration:
    """Return the understanding half with every tensor on the meta device (shapes only)."""
    import torch
    from transformers import JanusForConditionalGeneration

    with torch.device("meta"):
        model = JanusForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    for name in ("vqmodel", "generation_embeddings", "generation_aligner", "generation_head"):
        delattr(model.model, name)
    return model.eval().requires_grad_(False)


def _fill(model: JanusForConditionalGeneration, files: JanusFiles, device: str, dtype: torch.dtype) -> None:
    """Replace the meta tensors by the file's, converted one at a time."""
    import torch

    for name, tensor in _tensors(files, are_read=True):
        names = targets(name, files.layout)
        for target, part in zip(names, tensor.chunk(len(names)) if names else (), strict=True):
            shaped = part.reshape(target_shape(target, tuple(part.shape), 1))
            # copy=True: a mapped tensor would tie the model to the file, page by page.
            value = shaped.to(device=device, dtype=dtype, copy=True).contiguous()
            module_name, _, attribute = target.rpartition(".")
            setattr(
                model.get_submodule(module_name), attribute, torch.nn.Parameter(value, requires_grad=False)
            )
    inner = model.model
    embeddings = inner.vision_model.embeddings
    embeddings.position_ids = torch.arange(embeddings.num_positions, device=device)[None]
    # RoPE's frequencies are computed, not stored; in float32 whatever the weights are.
    rotary = type(inner.language_model.rotary_emb)(inner.config.text_config)
    inner.language_model.rotary_emb = rotary.to(device)
    left = [name for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if left:
        raise InputError(files.folder, f"lacks {left[0]}", NEXT_STEP)


def _tensors(files: JanusFiles, *, are_read: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor mapped from disk) of all weight files, the unused ones included.

    Where they are to be read, a file is mapped anew now and then: what was read of it counts as our memory
    while it stays mapped.
    """
    for path in files.weights:
        done = 0
        while True:
            with _weights_in_plain_words(path):
                names, read, is_mapped = _opened(path)
            size = 0
            for name in names[done:]:
                if are_read and is_mapped and size >= GROUP_BYTES:
                    break
                with _weights_in_plain_words(path):
                    tensor = read(name)
                yield name, tensor
                size += tensor.nbytes
                done += 1
                del tensor
            del read
            if done == len(names):
                break


def _opened(path: Path) -> tuple[list[str], Callable[[str], torch.Tensor], bool]:
    """Return the names in a weight file, what gives the tensor of a name, and whether the file is mapped."""
    import torch

    if path.suffix == ".safetensors":
        from safetensors import safe_open

        archive = safe_open(path, framework="pt")
        return list(archive.keys()), archive.get_tensor, True
    with open(path, "rb") as stream:
        zipped = stream.read(2) == b"PK"  # only the newer, zipped format can be mapped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch remarks on the pickle's protocol, which is no one's fault
        entries: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    if not isinstance(entries, dict) or not all(isinstance(t, torch.Tensor) for t in entries.values()):
        raise InputError(path, "does not hold a plain table of named tensors", NEXT_STEP)
    return list(entries), entries.__getitem__, zipped


@contextmanager
def _weights_in_plain_words(path: Path) -> Iterator[None]:
    import pickle

    from safetensors import SafetensorError

    try:
        yield
    except pickle.UnpicklingError:
        reason = (
            "holds something other than plain tensors, or an unusual kind of pickle (which can carry code); "
            "nothing of it was run"
        )
        raise InputError(path, reason, f"do not use this file; {NEXT_STEP}") from None
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        if "memory" in str(error).lower():
            raise
        raise InputError(path, "cannot be read as weights; it is damaged or cut off", NEXT_STEP) from None


@contextmanager
def _memory_in_plain_words(files: JanusFiles, device: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (
            f"the model ({files.size_bytes / 1e9:.1f} GB on disk) does not fit into the memory of {device}"
        )
        step = "close other programs, or use --device cpu" if device != "cpu" else "close other programs"
        raise InputError(files.folder, reason, step) from None


def _check_tensors(
    files: JanusFiles, found: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> None:
    """Refuse a checkpoint that does not fill the understanding half exactly.

    A missing tensor would stay random and the captions be nonsense, without any other sign.
    """
    where = _weights_place(files)
    for names, word in (
        (sorted(wanted.keys() - found.keys()), "lacks"),
        (sorted(found.keys() - wanted.keys()), "holds unknown"),
    ):
        if names:
            some = ", ".join(printable(name) for name in names[:NAMED])
            more = " …" if len(names) > NAMED else ""
            reason = f"{word} {len(names)} tensor(s) of the understanding half: {some}{more}"
            raise InputError(where, reason, NEXT_STEP)
    for name, shape in wanted.items():
        if found[name] != shape:
            reason = f"{name} has the shape {list(found[name])}; config.json makes it {list(shape)}"
            raise InputError(where, reason, NEXT_STEP)
