"""Convolutions of few positions and many weights as one matrix product, on the processor in float32.

torch lays the weights of a convolution out anew at each call. That costs time per weight, while the
arithmetic costs time per weight and position: in the UNet's deepest layers (8x8 positions, 2560 to 1280
channels at 256 pixels) the copying takes longer than the work. As a matrix product of the weights as they lie
with the unfolded input, these layers take half to a quarter of the time (docs/benchmarks.md); the values
differ by rounding alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WEIGHTS_PER_POSITION = 40_000
"""From here on the product is faster. Measured: 1.35 times at 57,000, twice at 230,000, no more at 29,000."""


def quicken(model: nn.Module) -> None:
    """Give the model's 3x3 convolutions this second way; each call takes the one that suits its input."""
    for layer in model.modules():
        plain = isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) and layer.groups == 1
        if plain and layer.dilation == (1, 1) and layer.padding_mode == "zeros":
            layer.forward = partial(_forward, layer)


def pays(weight: Tensor, x: Tensor, positions: int) -> bool:
    """Say whether this is faster for an output of so many positions, those of the whole batch together."""
    if weight.numel() < WEIGHTS_PER_POSITION * positions or x.device.type != "cpu":
        return False
    return weight.dtype == x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def as_product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    """Return the convolution of x, [B, in, H, W], with weight, [out, in, kh, kw]: [B, out, H', W']."""
    (kernel_y, kernel_x), (pad_y, pad_x), (step_y, step_x) = weight.shape[2:], padding, stride
    height = (x.shape[2] + 2 * pad_y - kernel_y) // step_y + 1
    width = (x.shape[3] + 2 * pad_x - kernel_x) // step_x + 1
    columns = F.unfold(x, (kernel_y, kernel_x), padding=(pad_y, pad_x), stride=(step_y, step_x))
    flat = columns.transpose(0, 1).reshape(columns.shape[1], -1)
    matrix = weight.view(weight.shape[0], -1)
    product = matrix @ flat if bias is None else torch.addmm(bias[:, None], matrix, flat)
    return product.view(-1, len(x), height, width).transpose(0, 1)


def _forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    stride, padding = layer.stride, layer.padding
    if not isinstance(padding, str) and x.dim() == 4:
        positions = len(x) * (x.shape[2] // stride[0]) * (x.shape[3] // stride[1])
        if pays(layer.weight, x, positions):
            return as_product(x, layer.weight, layer.bias, stride, padding)
    return F.conv2d(x, layer.weight, layer.bias, stride, padding, layer.dilation, layer.groups)
