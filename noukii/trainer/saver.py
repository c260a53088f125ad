"""Which files a run writes, under which names, and which of its own it removes again.

A save on the way that the disk does not take is told, and the training goes on: the next one may succeed.
Only without the LoRA at the end a run has failed.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotReadyYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noukii import disk
from noukii.errors import RunError
from noukii.names import printable
from noukii.trainer import state
from noukii.trainer.job import Job, belongs_to
from noukii.trainer.metadata import RunFacts, base_model_hashes, training_metadata
from noukii.trainer.overseer import driver_speaks

if TYPE_CHECKING:
    from noukii.trainer.lora import LoraNetwork

HURRY_SECONDS = 2.0

NAMED = 4
"""How many of the files that are there a message lists."""


class SaveFailed(RunError):
    """A LoRA or a state could not be written; what was there before is as it was."""


def step_name(output_name: str, step: int) -> str:
    """kohya's name of a LoRA saved after a step."""
    return f"{output_name}-step{step:08d}.safetensors"


def epoch_name(output_name: str, epoch: int) -> str:
    """kohya's name of a LoRA saved after an epoch."""
    return f"{output_name}-{epoch:06d}.safetensors"


@dataclass
class Saver:
    """Writes LoRAs and states of one run.

    `optimizer_state` and `metrics` are asked for only when a state is written. `say` prints a line.
    `written` maps a step to the LoRA that --save_every_n_steps wrote after it, so that --save_last_n_steps
    removes these and no others.
    """

    job: Job
    network: LoraNetwork
    optimizer_name: str
    prediction_type: str
    optimizer_state: Callable[[], dict[str, Any]]
    metrics: Callable[[], str]
    say: Callable[[str], None]
    session_id: int
    started_at: float
    written: dict[int, str] = field(default_factory=dict)
    hurry: bool = False
    """A stop was asked for: a service manager or a container kills who takes his time."""
    _hashes: Future[tuple[str, str] | None] | None = None

    def __post_init__(self) -> None:
        # Reading a 4 GB base model takes seconds: it is done while the first steps are computed.
        pool = ThreadPoolExecutor(1, thread_name_prefix="base-model-hash")
        self._hashes = pool.submit(base_model_hashes, self.job.base.path)
        pool.shutdown(wait=False)

    def save_lora(self, name: str, step: int, epoch: int) -> Path | None:
        """Write the LoRA as it is now; None if it has no effect yet, as after a first step of warm-up.

        SaveFailed if the disk does not take it, RunError if it holds NaN or Inf; nothing is left behind then.
        """
        from noukii.trainer.lora_file import SAVE_DTYPES, UnreadableLora, write_lora

        tensors = self.network.state_dict_kohya()
        if step < self.job.total_steps and not _has_effect(tensors):
            return None
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
            base_hashes=self._base_hashes(),
        )
        path = self.job.output_dir / name
        precision = self.job.settings.save_precision
        metadata = training_metadata(self.job.settings, self.job.sets, facts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_lora(path, tensors, metadata, SAVE_DTYPES[precision] if precision else None)
        except OSError as error:
            raise self._failed(path, error, _size(tensors)) from None
        except UnreadableLora as error:
            raise SaveFailed(path, error.reason, error.next_step) from None
        return path

    def save_state(self, name: str, step: int) -> Path:
        """Write all that --resume needs; SaveFailed if the disk does not take it."""
        path = self.job.output_dir / name
        run = {
            "seed": self.job.seed,
            "session_id": self.session_id,
            "started_at": self.started_at,
            "written": {str(at): file for at, file in self.written.items()},
        }
        network = self.network.state_dict_kohya()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            state.save_state(
                path,
                step=step,
                fingerprint=self.job.fingerprint,
                run=run,
                network=network,
                optimizer=self.optimizer_state(),
                metrics=self.metrics(),
            )
        except OSError as error:
            raise self._failed(path, error, 3 * _size(network)) from None
        return path

    def after_step(self, step: int, epoch: int, ends_epoch: bool) -> list[Path]:
        """Save what the flags ask for after this step (counted from 1); returns what was written.

        As kohya: every n steps means after the last one too, every n epochs does not.
        """
        s, saved = self.job.settings, []
        if s.save_every_n_steps and step % s.save_every_n_steps == 0:
            lora, folder = step_name(s.name, step), state.state_name(s.name, step=step)
            written, is_whole = self._save_both(lora, folder, step, epoch - 1, remember=True)
            saved += written
            if is_whole:  # else an older one may be all that there is
                self._remove_old(step)
        done = epoch if ends_epoch else 0
        if s.save_every_n_epochs and done and done % s.save_every_n_epochs == 0 and done < self.job.epochs:
            lora, folder = epoch_name(s.name, done), state.state_name(s.name, epoch=done)
            saved += self._save_both(lora, folder, step, done)[0]
        return saved

    def finish(self, step: int, epoch: int, ends_epoch: bool, done_epochs: int) -> tuple[list[Path], bool]:
        """Save at the end, or when the run was stopped: the LoRA under its own name before all else.

        `epoch` is the running one, `done_epochs` what the metadata shall say. Returns what was written, and
        whether that includes the state, where one is wanted. SaveFailed without the LoRA.
        """
        s = self.job.settings
        try:
            lora = self.save_lora(f"{s.name}.safetensors", step, done_epochs)
        except SaveFailed as error:
            raise SaveFailed(error.where, error.reason, self._how_to_go_on(error.next_step)) from None
        saved = [lora] if lora else []
        saved += self.after_step(step, epoch, ends_epoch)
        if not s.save_state:
            return saved, True
        try:
            saved.append(self.save_state(state.state_name(s.name), step))
        except SaveFailed as error:
            self.say(f"! {error.where}: {error.reason}")
            return saved, False
        return saved, True

    def newest_state(self) -> Path | None:
        """Return the state of this run that was written last, if one is there."""
        states = [path for path in self._there() if path.name.endswith("-state") and state.is_ours(path)]
        return states[-1] if states else None

    def _save_both(
        self, lora_name: str, folder_name: str, step: int, epoch: int, remember: bool = False
    ) -> tuple[list[Path], bool]:
        """Save LoRA and, if wanted, state; returns what was written, and whether that is all."""
        saved: list[Path] = []
        try:
            lora = self.save_lora(lora_name, step, epoch)
            if lora is not None:
                saved.append(lora)
                if remember:
                    self.written[step] = lora.name
            if self.job.settings.save_state:
                saved.append(self.save_state(folder_name, step))
        except SaveFailed as error:
            goes_on = (
                "; training goes on, and the next save tries again" if step < self.job.total_steps else ""
            )
            self.say(f"! {error.where}: {error.reason}{goes_on}")
            return saved, False
        return saved, True

    def _base_hashes(self) -> tuple[str, str] | None:
        """The base model's hashes; None if it cannot be read any more, or not soon enough for a stop."""
        assert self._hashes is not None
        try:
            return self._hashes.result(HURRY_SECONDS if self.hurry else None)
        except (OSError, NotReadyYet):
            return None

    def _failed(self, path: Path, error: OSError, need: int) -> SaveFailed:
        told = disk.write_failure(path, error, "")
        reason = told.reason
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason += f"; it needs about {disk.size(need)}"
            try:
                free = shutil.disk_usage(disk.existing_parent(path)).free
                reason += f", {disk.size(free)} are free" if error.errno == errno.ENOSPC else ""
            except OSError:
                pass
        remedy = {errno.ENOSPC: "free space there", errno.EDQUOT: "free space there",
                  errno.EFBIG: "ulimit -f unlimited"}.get(error.errno or 0, "see to that")  # fmt: skip
        return SaveFailed(path, reason, remedy)

    def _there(self) -> list[Path]:
        """LoRAs and states of this run's name in its folder, the oldest first."""
        try:
            found = [
                path
                for path in self.job.output_dir.iterdir()
                if belongs_to(path.name, self.job.settings.name)
            ]
            return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
        except OSError:
            return []

    def _how_to_go_on(self, remedy: str) -> str:
        """After a failed end: the remedy, and what is there all the same."""
        folder = self.newest_state()
        again = (
            "run it again" if driver_speaks() or not folder else f"go on with --resume {printable(folder)}"
        )
        names = [printable(path.name) for path in self._there()]
        if not names:
            return f"{remedy}, then {again}; nothing was saved before"
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{remedy}, then {again}; saved before and whole: {', '.join(names[-NAMED:])}{more}"

    def _remove_old(self, step: int) -> None:
        """kohya's rule: with 10 and 30, after step 50 the file of step 10 goes, those of 20 to 50 stay."""
        s = self.job.settings
        if not s.save_last_n_steps or not s.save_every_n_steps:
            return
        last_to_go = step - s.save_last_n_steps - 1
        for at in [at for at in self.written if at <= last_to_go]:
            path = self.job.output_dir / self.written.pop(at)
            try:
                path.unlink(missing_ok=True)
                state.remove_state(self.job.output_dir / state.state_name(s.name, step=at))
            except OSError as error:
                self.say(f"! {printable(path)}: could not be removed: {error.strerror or error}")


def _size(tensors: dict[str, Any]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())


def _has_effect(tensors: dict[str, Any]) -> bool:
    return any(name.endswith(".lora_up.weight") and bool(value.any()) for name, value in tensors.items())
