"""The language model's matrices on a processor, laid out once for products with few rows.

Each token of an answer reads every weight for a handful of rows. torch's own product of so few rows reaches a
quarter of the memory's speed in float32; oneDNN's, on weights in its blocks, twice to three times as much
(docs/benchmarks.md). The blocks take the place of the weights as they were. The operators are those that
torch's own compiler uses for frozen models; where they are missing or refuse, a model stays as it is.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NOTHING_FUSED = ("none", (), "")


def pack(model: nn.Module) -> None:
    """Pack every linear layer of a model that is on the processor and does not train, one after the other."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and can_pack(layer.weight.dtype):
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight)
            # nothing reads it any more but its dtype and device
            layer.weight.data = layer.weight.new_empty(0)
            layer.forward = partial(_product, packed, layer.bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Try a small product in this number format, with one row and with several."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        for rows in (1, 6):
            x = torch.randn(1, rows, 32, generator=generator).to(dtype)
            found, wanted = _product(packed, None, x).float(), F.linear(x, weight).float()
            if torch.linalg.vector_norm(found - wanted) > 0.01 * torch.linalg.vector_norm(wanted):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def _product(packed: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, *NOTHING_FUSED)
