"""Which files a run writes, under which names, and which of its own it removes again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii.disk import write_failure
from noukii.trainer import state
from noukii.trainer.job import Job
from noukii.trainer.metadata import RunFacts, base_model_hashes, training_metadata

if TYPE_CHECKING:
    from noukii.trainer.lora import LoraNetwork

NEXT_AFTER_FAILED_WRITE = "free space or rights there; what was saved before is as it was"


def step_name(output_name: str, step: int) -> str:
    """kohya's name of a LoRA saved after a step."""
    return f"{output_name}-step{step:08d}.safetensors"


def epoch_name(output_name: str, epoch: int) -> str:
    """kohya's name of a LoRA saved after an epoch."""
    return f"{output_name}-{epoch:06d}.safetensors"


@dataclass
class Saver:
    """Writes LoRAs and states of one run.

    `optimizer_state` and `metrics` are asked for only when a state is written. `written` maps a step to the
    LoRA that --save_every_n_steps wrote after it, so that --save_last_n_steps removes these and no others.
    """

    job: Job
    network: LoraNetwork
    optimizer_name: str
    prediction_type: str
    optimizer_state: Callable[[], dict[str, Any]]
    metrics: Callable[[], str]
    session_id: int
    started_at: float
    written: dict[int, str] = field(default_factory=dict)
    _hashes: Future[tuple[str, str] | None] | None = None

    def __post_init__(self) -> None:
        # Reading a 4 GB base model takes seconds: it is done while the first steps are computed.
        pool = ThreadPoolExecutor(1, thread_name_prefix="base-model-hash")
        self._hashes = pool.submit(base_model_hashes, self.job.base.path)
        pool.shutdown(wait=False)

    def save_lora(self, name: str, step: int, epoch: int) -> Path | None:
        """Write the LoRA as it is now; None if it has no effect yet, as after a first step of warm-up.

        RunError if it holds NaN or Inf, or the disk does not take it; nothing is left behind then.
        """
        from noukii.trainer.lora_file import SAVE_DTYPES, write_lora

        tensors = self.network.state_dict_kohya()
        if step < self.job.total_steps and not _has_effect(tensors):
            return None
        assert self._hashes is not None
        facts = RunFacts(
            session_id=self.session_id,
            started_at=self.started_at,
            finished_at=time.time(),
            steps=step,
            epoch=epoch,
            num_epochs=self.job.epochs,
            num_batches_per_epoch=-(-self.job.schedule.batches_per_epoch // self.job.processes),
            max_train_steps=self.job.total_steps,
            optimizer=self.optimizer_name,
            seed=self.job.seed,
            processes=self.job.processes,
            prediction_type=self.prediction_type,
            base_hashes=self._hashes.result(),
        )
        path = self.job.output_dir / name
        precision = self.job.settings.save_precision
        try:
            metadata = training_metadata(self.job.settings, self.job.sets, facts)
            write_lora(path, tensors, metadata, SAVE_DTYPES[precision] if precision else None)
        except OSError as error:
            raise write_failure(path, error, NEXT_AFTER_FAILED_WRITE) from None
        return path

    def save_state(self, name: str, step: int) -> Path:
        """Write all that --resume needs."""
        path = self.job.output_dir / name
        run = {
            "seed": self.job.seed,
            "session_id": self.session_id,
            "started_at": self.started_at,
            "written": {str(at): file for at, file in self.written.items()},
        }
        try:
            state.save_state(
                path,
                step=step,
                fingerprint=self.job.fingerprint,
                run=run,
                network=self.network.state_dict_kohya(),
                optimizer=self.optimizer_state(),
                metrics=self.metrics(),
            )
        except OSError as error:
            raise write_failure(path, error, NEXT_AFTER_FAILED_WRITE) from None
        return path

    def after_step(self, step: int, epoch: int, ends_epoch: bool) -> list[Path]:
        """Save what the flags ask for after this step (counted from 1); the last one is saved by `finish`."""
        s, saved = self.job.settings, []
        if s.save_every_n_steps and step % s.save_every_n_steps == 0:
            saved.append(self.save_lora(step_name(s.name, step), step, epoch - 1))
            if saved[-1]:
                self.written[step] = saved[-1].name
            self._remove_old(step)
            if s.save_state:
                saved.append(self.save_state(state.state_name(s.name, step=step), step))
        done = epoch if ends_epoch else 0
        if s.save_every_n_epochs and done and done % s.save_every_n_epochs == 0 and done < self.job.epochs:
            saved.append(self.save_lora(epoch_name(s.name, done), step, done))
            if s.save_state:
                saved.append(self.save_state(state.state_name(s.name, epoch=done), step))
        return [path for path in saved if path]

    def finish(self, step: int, epoch: int) -> list[Path]:
        """Save the LoRA under its own name, at the end or when the run was stopped."""
        s = self.job.settings
        saved = [self.save_lora(f"{s.name}.safetensors", step, epoch)]
        if s.save_state:
            saved.append(self.save_state(state.state_name(s.name), step))
        return [path for path in saved if path]

    def _remove_old(self, step: int) -> None:
        """kohya's rule: with 10 and 30, after step 50 the file of step 10 goes, those of 20 to 50 stay."""
        s = self.job.settings
        if not s.save_last_n_steps or not s.save_every_n_steps:
            return
        last_to_go = step - s.save_last_n_steps - 1
        for at in [at for at in self.written if at <= last_to_go]:
            (self.job.output_dir / self.written.pop(at)).unlink(missing_ok=True)
            state.remove_state(self.job.output_dir / state.state_name(s.name, step=at))


def _has_effect(tensors: dict[str, Any]) -> bool:
    return any(name.endswith(".lora_up.weight") and bool(value.any()) for name, value in tensors.items())
