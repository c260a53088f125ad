"""The UNet's 3x3 convolutions on a processor, with weights laid out for it once instead of at each call.

oneDNN computes a convolution on weights in blocks of its own order. torch keeps them as they were loaded, so
every call first copies all of them into that order, forwards and backwards. With few positions and many
weights the copying takes twice as long as the work, as in the UNet's deepest layers at 256 pixels
(docs/benchmarks.md). Frozen weights need it once. Both orders, one for each direction, are kept in place of
the weights as they were: one more copy of them in memory, 541 million numbers in SD1.5's UNet.

The operators are those that torch's own compiler uses for frozen models. They are tried before they are used;
where they are missing, refuse a number format or are wrong, the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DILATION, GROUPS = (1, 1), 1
NOTHING_FUSED = ("none", (), "")
"""No activation behind the convolution."""


def pack(model: nn.Module, *, trains: bool) -> None:
    """Let the frozen 3x3 convolutions of a model on the processor pack their weights at their first call.

    trains: gradients are to go through them; else one direction is kept.
    """
    for layer in model.modules():
        if (
            isinstance(layer, nn.Conv2d)
            and (layer.kernel_size, layer.dilation, layer.groups) == ((3, 3), DILATION, GROUPS)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and not layer.weight.requires_grad
            and can_pack(layer.weight.dtype)
        ):
            layer.forward = partial(
                _forward, layer, Packed(tuple(layer.stride), tuple(layer.padding), trains)
            )


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Try a small convolution in this number format, both ways."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 8, 3, 3, generator=generator).to(dtype)
    x = torch.randn(1, 8, 6, 6, generator=generator).to(dtype)
    gradient = torch.randn(1, 16, 3, 3, generator=generator).to(dtype)
    packed = Packed((2, 2), (1, 1), trains=True)
    try:
        packed.prepare(weight, x, with_gradient=True)
        answers = packed.convolve(x, None), packed.convolve_back(gradient, x.shape[2:])
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    wanted = F.conv2d(x, weight, None, 2, 1), F.conv_transpose2d(gradient, weight, None, 2, 1, 1)
    return all(
        torch.linalg.vector_norm((one - other).float()) < 0.01 * torch.linalg.vector_norm(other.float())
        for one, other in zip(answers, wanted, strict=True)
    )


@dataclass
class Packed:
    """One layer's weights in the orders of both directions (without `trains`, of one), None until needed."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    trains: bool
    forwards: Tensor | None = None
    backwards: Tensor | None = None

    @property
    def is_whole(self) -> bool:
        return self.forwards is not None and (self.backwards is not None or not self.trains)

    def prepare(self, weight: Tensor, x: Tensor, *, with_gradient: bool) -> None:
        """Pack `weight`, [out, in, 3, 3], for inputs like x, [B, in, H, W]; others may be slower."""
        operators, size = torch.ops.mkldnn, x.shape[2:]
        if self.forwards is None:
            self.forwards = operators._reorder_convolution_weight(
                weight, self.padding, self.stride, DILATION, GROUPS, x.shape
            )
        if self.backwards is None and self.trains and with_gradient:
            shape = (x.shape[0], weight.shape[0], *self._answer_size(size))
            self.backwards = operators._reorder_convolution_transpose_weight(
                weight, self.padding, self._left_over(size), self.stride, DILATION, GROUPS, shape
            )

    def convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution of x, [B, in, H, W]: [B, out, H', W']."""
        return torch.ops.mkldnn._convolution_pointwise(
            x, self.forwards, bias, self.padding, self.stride, DILATION, GROUPS, *NOTHING_FUSED
        )

    def convolve_back(self, gradient: Tensor, size: Sequence[int]) -> Tensor:
        """Return the gradient of an input of `size` (H, W), given that of its answer, [B, out, H', W']."""
        return torch.ops.mkldnn._convolution_transpose_pointwise(
            gradient, self.backwards, None, self.padding, self._left_over(size), self.stride,
            DILATION, GROUPS, *NOTHING_FUSED,
        )  # fmt: skip

    def _answer_size(self, size: Sequence[int]) -> list[int]:
        pairs = zip(size, self.padding, self.stride, strict=True)
        return [(side + 2 * pad - 3) // step + 1 for side, pad, step in pairs]

    def _left_over(self, size: Sequence[int]) -> list[int]:
        """Rows and columns at the end that no position of a strided convolution reaches."""
        sides = zip(size, self._answer_size(size), self.padding, self.stride, strict=True)
        return [side + 2 * pad - 3 - (out - 1) * step for side, out, pad, step in sides]


class _Convolution(torch.autograd.Function):
    """A convolution whose weights do not train."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, packed: Packed) -> Tensor:
        ctx.packed, ctx.size = packed, x.shape[2:]
        return packed.convolve(x, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.packed.convolve_back(gradient, ctx.size), None, None


def _forward(layer: nn.Conv2d, packed: Packed, x: Tensor) -> Tensor:
    x = x.to(layer.weight.dtype)
    if not packed.is_whole:
        packed.prepare(layer.weight, x, with_gradient=x.requires_grad)
        if packed.is_whole:
            layer.weight.data = layer.weight.new_empty(0)  # nothing reads them any more but their dtype
    return _Convolution.apply(x, layer.bias, packed)
