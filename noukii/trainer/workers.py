"""The processes that `accelerate launch` started: which one this is, and how they add up their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from noukii.errors import InputError


class Workers:
    """One process, or several that train the same LoRA together, each on its share of a step's batches."""

    def __init__(self, use_gpu: bool) -> None:
        from accelerate import PartialState

        self._state = PartialState(cpu=not use_gpu)
        self.device: torch.device = self._state.device
        if use_gpu and self.device.type != "cuda":
            raise InputError(
                "GPU", f"torch {torch.__version__} cannot use it; most often the NVIDIA driver is too old",
                "update the driver, or train on the processor: accelerate launch --cpu",
            )  # fmt: skip
        self.count: int = self._state.num_processes
        self.rank: int = self._state.process_index
        self.is_main: bool = self._state.is_main_process

    def share(self, batches: Sequence[object]) -> range:
        """Return the numbers of this process's batches."""
        return range(self.rank, len(batches), self.count)

    def add_up(self, parameters: Sequence[nn.Parameter], extra: Tensor) -> Tensor:
        """Sum gradients and `extra` over all processes, in one message; returns the sum of `extra`.

        A process that had no batch in this step counts as zero.
        """
        if self.count == 1:
            return extra
        with torch.no_grad():
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            flat = torch.cat([*(grad.flatten() for grad in grads), extra.to(grads[0].dtype)])
            torch.distributed.all_reduce(flat)
            place = 0
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = flat[place : place + grad.numel()].view_as(grad)
                place += grad.numel()
        return flat[place:]

    def wait_for_all(self) -> None:
        """Return when every process has come here."""
        self._state.wait_for_everyone()

    def close(self) -> None:
        """Leave the process group, so that no process waits for another at exit."""
        self._state.destroy_process_group()
