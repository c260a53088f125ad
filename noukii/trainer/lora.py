"""Low-rank adaptation (arXiv:2106.09685) of a frozen SD1.5 model, in kohya's shape.

    y = W·x + s · B·A·x        A: lora_down [rank, in], B: lora_up [out, rank], s = multiplier · alpha / rank

Which layers: every Linear and 1×1 convolution under a `Transformer2DModel` of the UNet, and q, k, v, out,
fc1, fc2 of each CLIP layer (networks/lora.py in sd-scripts). For SD1.5 these are 192 + 72 modules.

Names of the text encoder's modules are built from layer indices, never from module paths: transformers
5.6 dropped the `text_model` level that kohya's format has in its keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noukii.trainer.text_encoding import clip_layers

UNET_PREFIX, TEXT_ENCODER_PREFIX = "lora_unet", "lora_te"
CLIP_TARGETS = (
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_proj",
    "self_attn.out_proj",
    "mlp.fc1",
    "mlp.fc2",
)


class LoraMismatch(Exception):
    """Weights that do not belong to this network; str() says what differs and what would fit."""


class _Weight(nn.Module):
    """Holds one matrix, so that its name in the state dict is `lora_down.weight`, as in kohya's files."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(values)


class LoraModule(nn.Module):
    """The two matrices of one layer. The layer itself is not a child: it stays frozen in its own model.

    The matrices may be float32 while the layer is bfloat16: they are cast to the layer's dtype for the
    product (or autocast's), and their gradients arrive in float32.
    """

    alpha: Tensor

    def __init__(
        self, base: nn.Module, rank: int, alpha: float, dropout: float | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._base = [base]  # in a list, so that torch does not see it as a child
        self._base_forward: Callable[[Tensor], Tensor] | None = None
        self._replaced: Callable[[Tensor], Tensor] | None = None
        self.rank, self.dropout = rank, dropout or 0.0
        self.is_conv = isinstance(base, nn.Conv2d)
        into, out = base.weight.shape[:2][::-1]
        tail = (1, 1) if self.is_conv else ()
        bound = 1 / math.sqrt(into)  # Kaiming-uniform with a = √5
        down = torch.empty(rank, into, *tail).uniform_(-bound, bound, generator=generator)
        self.register_buffer("alpha", torch.tensor(alpha or rank))
        self.lora_down = _Weight(down)
        self.lora_up = _Weight(torch.zeros(out, rank, *tail))
        self.set_multiplier(1.0)

    def set_multiplier(self, multiplier: float) -> None:
        """Set the strength; alpha, rank and multiplier are folded into this one number."""
        self.scale = multiplier * float(self.alpha) / self.rank

    def inject(self) -> None:
        """From now on the layer answers with the LoRA added."""
        if self._base_forward is None:
            self._replaced = self._base[0].__dict__.get("forward")
            self._base_forward = self._base[0].forward
            self._base[0].forward = self.forward  # type: ignore[method-assign]

    def remove(self) -> None:
        """Give the layer back the forward that it had."""
        if self._base_forward is None:
            return
        if self._replaced is None:
            del self._base[0].forward  # the instance attribute; the class's own method shows again
        else:
            self._base[0].forward = self._replaced  # type: ignore[method-assign]
        self._base_forward = None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] for a Linear, [B, in, H, W] for a convolution; returns the layer's shape."""
        assert self._base_forward is not None
        if torch.is_autocast_enabled(x.device.type):  # cast once, not once for the layer and once for us
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if self.is_conv:
            y = self._base_forward(x)
            hidden = self._drop(F.conv2d(x, self.lora_down.weight.to(y.dtype)))
            # y is fresh and the layer's backward does not read it, so it may be changed in place
            return y.add_(F.conv2d(hidden, self.lora_up.weight.to(y.dtype)), alpha=self.scale)
        flat = x.reshape(-1, x.shape[-1])
        y = self._base_forward(flat)
        hidden = self._drop(F.linear(flat, self.lora_down.weight.to(y.dtype)))
        # product, scale and sum in one matrix multiplication; no pointwise kernel
        y = y.addmm_(hidden, self.lora_up.weight.to(y.dtype).t(), alpha=self.scale)
        return y.view(*x.shape[:-1], -1)

    def _drop(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, self.dropout) if self.dropout and self.training else hidden


class LoraNetwork(nn.Module):
    """All LoRA modules of one model; its state dict is kohya's file: key for key, text encoder first."""

    def __init__(self, modules: dict[str, LoraModule], rank: int, alpha: float) -> None:
        super().__init__()
        self.rank, self.alpha = rank, alpha
        self._multiplier = 1.0
        for key, module in modules.items():
            self.add_module(key, module)

    def apply(self, fn: Callable[[nn.Module], None] | None = None) -> LoraNetwork:
        """Put the LoRA into its models (with a function: torch's own `Module.apply`)."""
        if fn is not None:
            return super().apply(fn)
        for module in self.lora_modules():
            module.inject()
        return self

    def remove(self) -> None:
        """Take the LoRA out again; the models are as they were."""
        for module in self.lora_modules():
            module.remove()

    @property
    def multiplier(self) -> float:
        """Strength of the whole LoRA; 1 while training."""
        return self._multiplier

    @multiplier.setter
    def multiplier(self, value: float) -> None:
        self._multiplier = value
        for module in self.lora_modules():
            module.set_multiplier(value)

    def lora_modules(self) -> list[LoraModule]:
        """The LoRA modules in the order of the file."""
        return [module for module in self.children() if isinstance(module, LoraModule)]

    def unet_parameters(self) -> list[nn.Parameter]:
        """The matrices of the UNet's LoRA."""
        return self._parameters_of(UNET_PREFIX)

    def text_encoder_parameters(self) -> list[nn.Parameter]:
        """The matrices of the text encoder's LoRA."""
        return self._parameters_of(TEXT_ENCODER_PREFIX)

    def _parameters_of(self, prefix: str) -> list[nn.Parameter]:
        return [value for name, value in self.named_parameters() if name.startswith(f"{prefix}_")]

    def state_dict_kohya(self) -> dict[str, Tensor]:
        """Return alpha, lora_down.weight, lora_up.weight of each module, detached, not copied."""
        return {name: value.detach() for name, value in self.state_dict().items()}

    def load_kohya(self, tensors: dict[str, Tensor]) -> None:
        """Take over the weights of a file in kohya's format (`--network_weights`).

        Names, ranks and alphas must be exactly those of this network; raises LoraMismatch otherwise.
        (Upstream drops unknown keys without a word and keeps its own scale beside the file's alpha.)
        """
        own = self.state_dict()
        unexpected = sorted(tensors.keys() - own.keys())
        missing = sorted(own.keys() - tensors.keys())
        if unexpected or missing:
            raise LoraMismatch(_describe_key_mismatch(missing, unexpected))
        ranks, alphas = lora_ranks(tensors), lora_alphas(tensors)
        if ranks != {self.rank}:
            raise LoraMismatch(
                f"has rank {_listed(ranks)}, this run has {self.rank}; use --network_dim to fit"
            )
        if alphas != {float(self.alpha or self.rank)}:
            raise LoraMismatch(
                f"has alpha {_listed(alphas)}, this run has {self.alpha:g}; use --network_alpha to fit"
            )
        for name, value in tensors.items():
            if value.shape != own[name].shape:
                raise LoraMismatch(
                    f"{name} is {list(value.shape)}, this model needs {list(own[name].shape)}; "
                    "it was made for another base model"
                )
        with torch.no_grad():
            for name, value in tensors.items():
                own[name].copy_(value)


def create_network(
    unet: nn.Module | None,
    text_encoder: nn.Module | None,
    *,
    rank: int = 4,
    alpha: float = 1,
    dropout: float | None = None,
    seed: int = 0,
) -> LoraNetwork:
    """Return a LoRA for the given models (None: that half is not trained), not yet put into them.

    The matrices are float32 on the CPU and depend on `seed` alone; torch's global random state is
    neither read nor changed. With lora_up at zero the models answer as before, bit for bit.
    alpha 0 means alpha = rank. A whole-number alpha is saved as an integer, as kohya does for its default.
    """
    generator = torch.Generator().manual_seed(seed)
    modules: dict[str, LoraModule] = {}
    for key, layer in _targets(unet, text_encoder):
        modules[key] = LoraModule(layer, rank, alpha, dropout, generator)
    if not modules:
        raise ValueError("no layer to train was found in the given models")
    return LoraNetwork(modules, rank, alpha)


def _targets(unet: nn.Module | None, text_encoder: nn.Module | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield (key, layer), text encoder first, as kohya builds them."""
    if text_encoder is not None:
        for index, layer in enumerate(clip_layers(text_encoder)):
            for target in CLIP_TARGETS:
                name = target.replace(".", "_")
                yield (
                    f"{TEXT_ENCODER_PREFIX}_text_model_encoder_layers_{index}_{name}",
                    layer.get_submodule(target),
                )
    if unet is not None:
        for path, block in unet.named_modules():
            if type(block).__name__ != "Transformer2DModel":
                continue
            for inner, layer in block.named_modules():
                pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)
                if pointwise or isinstance(layer, nn.Linear):
                    yield f"{UNET_PREFIX}_{path}_{inner}".replace(".", "_"), layer


def lora_ranks(tensors: dict[str, Tensor]) -> set[int]:
    """The ranks in a file: one, unless it was merged or resized."""
    return {value.shape[0] for name, value in tensors.items() if name.endswith(".lora_down.weight")}


def lora_alphas(tensors: dict[str, Tensor]) -> set[float]:
    """The alphas in a file: one, unless it was merged or resized."""
    return {float(value) for name, value in tensors.items() if name.endswith(".alpha")}


def _listed(values: set[int] | set[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values)) or "none"


def _describe_key_mismatch(missing: list[str], unexpected: list[str]) -> str:
    parts = []
    for names, words in ((missing, "lacks"), (unexpected, "has, beyond this network,")):
        if names:
            modules = sorted({name.rpartition(".lora_")[0] or name.rpartition(".")[0] for name in names})
            parts.append(f"{words} {len(names)} tensors of {len(modules)} modules, first {names[0]}")
    text = " and ".join(parts)
    for names, flag in (
        (missing, "the file holds no text encoder: use --network_train_unet_only"),
        (unexpected, "the file holds a text encoder: leave --network_train_unet_only out"),
    ):
        if names and all(name.startswith(f"{TEXT_ENCODER_PREFIX}_") for name in names):
            return f"{text}; {flag}"
    return text
