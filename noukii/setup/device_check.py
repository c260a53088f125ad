"""Multiplies a matrix on the device that torch would use; run with an environment's own Python."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
if product.sum().item() != 64**3:
    sys.exit(f"torch {torch.__version__}: a matrix product on {device} is wrong")
name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
print(f"torch {torch.__version__} multiplied a matrix on {name}")
