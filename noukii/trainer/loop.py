"""The training loop of the built-in trainer, to be read from top to bottom.

`train` loads the models one after the other, so that no more is in memory than is needed at once: the VAE
turns images into latents, the text encoder turns captions into embeddings, then UNet and LoRA train. The
method itself is in objective.py, what a step works on in batches.py.

Errors: RunError when the loss or the LoRA is NaN or Inf, when an image cannot be read any more, or when a
LoRA cannot be written at the end; Interrupted (exit 130) when the run was stopped and saved. What cannot be
written on the way - a checkpoint, a picture, the log - is told, and the training goes on.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noukii import disk
from noukii.dataset.samples import Sample
from noukii.errors import InputError, Interrupted, RunError
from noukii.names import printable
from noukii.stop import StopSignal
from noukii.trainer import batches, sampling, starting, state, validation
from noukii.trainer.base_model import BaseModel
from noukii.trainer.batches import Step, derived_seed
from noukii.trainer.cache import LatentSource, TextSource
from noukii.trainer.job import Job, data_notes
from noukii.trainer.lora import LoraNetwork
from noukii.trainer.lora_file import read_lora
from noukii.trainer.one_batch import (
    Inputs,
    autocast,
    batch_loss,
    encode_captions,
    gather,
    samples_of,
)
from noukii.trainer.optimizer import (
    adapted_rates,
    learning_rates,
    make_optimizer,
    make_scheduler,
    parameter_groups,
)
from noukii.trainer.overseer import Overseer, driver_speaks
from noukii.trainer.run_log import GPU_MEMORY, RunLog
from noukii.trainer.saver import Saver, step_name
from noukii.trainer.setting_up import (
    empty_gpu_cache,
    latent_source,
    load_trained_parts,
    load_vae,
    network_and_text,
    try_optimizer,
)
from noukii.trainer.settings import TrainerSettings
from noukii.trainer.workers import Workers


def train(job: Job) -> None:
    """Run `job` to its end: train, save, and raise if anything went wrong."""
    overseer = Overseer()
    workers = Workers(job.use_gpu)
    say: Callable[[str], None] = (
        (lambda text: print(text, flush=True)) if workers.is_main else (lambda text: None)
    )
    for line in [*data_notes(job.sets), *job.describe(_machine(workers.device))]:
        say(line)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    try_optimizer(job)
    given = None
    if job.settings.network_weights and job.resume is None:
        given = read_lora(job.settings.network_weights)[0]

    vae, early = load_vae(job, workers)
    latents = latent_source(job, workers, vae, say)
    del vae
    model = load_trained_parts(job, workers, early)
    network, text = network_and_text(job, model, workers, given)
    trainer = _Trainer(job, workers, overseer, model, network, latents, text)
    try:
        trainer.run()
    except torch.OutOfMemoryError:
        raise RunError("GPU", "its memory does not suffice", _memory_advice(job)) from None
    finally:
        latents.close()
        workers.close()


class _Trainer:
    """The run itself: models, LoRA, optimiser, and where it is."""

    def __init__(
        self, job: Job, workers: Workers, overseer: Overseer, model: BaseModel, network: LoraNetwork,
        latents: LatentSource, text: TextSource | None,
    ) -> None:  # fmt: skip
        self.job, self.settings, self.workers, self.overseer = job, job.settings, workers, overseer
        self.model, self.network, self.latents, self.text = model, network, latents, text
        groups = parameter_groups(self.settings, network)
        self.parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        self.optimizer, self.optimizer_name = make_optimizer(self.settings, groups)
        self.scheduler = make_scheduler(self.settings, self.optimizer, job.total_steps)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.settings.mixed_precision == "fp16")
        self.pending: deque[_StepReport] = deque()
        self.done = 0
        self.validation = validation.Validation(job, model, network, latents, self._embed, workers.device)
        session, started, written, self.metrics = random_session(), time.time(), {}, ""
        if job.resume is not None:
            session, started, written = self._resume(job.resume)
        self.saver = Saver(
            job, network, self.optimizer_name, model.prediction_type,
            optimizer_state=self._optimizer_state, metrics=lambda: self.log.text(),
            say=lambda text: self.log.say(text), session_id=session, started_at=started, written=written,
        )  # fmt: skip

    def run(self) -> None:
        """Train from where the run is to its last step."""
        job, schedule = self.job, self.job.schedule
        job.output_dir.mkdir(parents=True, exist_ok=True)
        if self.workers.is_main:
            state.tidy(job.output_dir)
        logs = self.settings.logging_dir if self.workers.is_main else None
        tensorboard = logs / time.strftime("%Y%m%d%H%M%S") / "network_train" if logs else None
        with (
            StopSignal() as stop,
            RunLog(
                job.output_dir, job.total_steps, done=self.done, earlier=self.metrics,
                tensorboard=tensorboard, active=self.workers.is_main,
            ) as self.log,
        ):  # fmt: skip
            starting.training_begins()
            step = schedule.step(self.done)
            if self.done == 0:
                self._look_at_base()
            inputs = self._gather(step)
            while True:
                stopped = self._optimise(step, inputs, stop)
                self.done += 1
                at_end = self.done == job.total_steps
                if not stopped:
                    self._validate(step)
                if not (at_end or stopped):
                    # The next batch is collected while the GPU still works on this one.
                    following = schedule.step(self.done)
                    inputs = self._gather(following)
                self._read_losses(keep=0 if self.workers.device.type == "cpu" else 1)
                if not (at_end or stopped):
                    self._save_and_draw(step)
                    step = following
                    continue
                self._finish(step, stopped and not at_end)
                return

    def _gather(self, step: Step) -> list[tuple[int, Inputs]]:
        slots = self.workers.share(step.batches)
        wanted = {slot: self._wanted(step, slot) for slot in slots}
        for samples in wanted.values():
            self.latents.prepare(samples)
        gathered = [
            (
                slot,
                gather(
                    self.job, self.latents, self.text, self.workers.device, step.number, slot,
                    step.batches[slot],
                ),
            )
            for slot in slots
        ]  # fmt: skip
        if step.ends_epoch:
            self.latents.end_epoch()
        elif step.number + 1 < self.job.total_steps:
            # Decoded in worker threads while this step is computed.
            following = self.job.schedule.step(step.number + 1)
            for slot in self.workers.share(following.batches):
                self.latents.prepare(self._wanted(following, slot))
        return gathered

    def _wanted(self, step: Step, slot: int) -> list[tuple[Sample, bool]]:
        return [
            (sample, batches.is_flipped(sample, self.job.seed, step.number, slot, place))
            for place, sample in enumerate(samples_of(self.job, step.batches[slot]))
        ]

    def _optimise(self, step: Step, inputs: list[tuple[int, Inputs]], stop: StopSignal) -> bool:
        """Make one optimiser step; return whether all processes are to stop after it."""
        began = time.monotonic()
        device = self.workers.device
        total = torch.zeros((), device=device)
        for slot, one in inputs:
            # The LoRA's dropout draws from torch's global generator: a function of (seed, step) too.
            torch.manual_seed(derived_seed(self.job.seed, "dropout", step.number, slot))
            loss = batch_loss(self.job, self.model, one) / len(step.batches)
            self.scaler.scale(loss).backward()
            total = total + loss.detach()
        wish = torch.tensor(float(self._should_stop(stop)), device=device)
        report = self.workers.add_up(self.parameters, torch.stack([total, wish]))
        if self.settings.max_grad_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        rates, adapted = learning_rates(self.optimizer), adapted_rates(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        count = sum(len(batch.sample_indices) for batch in step.batches)
        self.pending.append(_StepReport(step, report, rates, adapted, count, began))
        # Several processes stop together: after the step in which they told each other.
        return self._should_stop(stop) if self.workers.count == 1 else bool(report[1] > 0)

    def _should_stop(self, stop: StopSignal) -> bool:
        if not stop.requested and self.overseer.is_gone():
            stop.requested = True
            self.log.say("the command that started this run is gone: stopping after this step")
        return stop.requested

    def _read_losses(self, keep: int) -> None:
        """Log the losses of all steps but the last `keep` ones; RunError if one is NaN or Inf.

        Reading a loss waits for the GPU. Reading it one step late finds it computed already, so the GPU
        never runs dry; nothing is saved before all are read.
        """
        while len(self.pending) > keep:
            report = self.pending.popleft()
            loss, number = report.loss(), report.step.number + 1
            if not math.isfinite(loss):
                raise _not_finite(self.settings, number, loss, number - 1 == self.first_step)
            self.log.record(
                step=number,
                epoch=report.step.epoch + 1,
                loss=loss,
                rates=report.rates,
                adapted=report.adapted,
                seconds=time.monotonic() - report.began - report.paused,
                samples=report.samples,
                validation_loss=report.validation_loss,
            )

    def _save_and_draw(self, step: Step) -> None:
        """After a step that is not the last: save and draw what the flags ask for."""
        s, number, epoch = self.settings, step.number + 1, step.epoch + 1
        saves = self._saves(step)
        draws = s.sample_every_n_steps and number % s.sample_every_n_steps == 0
        if not (saves or draws):
            return
        self._read_losses(keep=0)
        if self.workers.is_main:
            if draws:
                self._draw(number)
            for path in self.saver.after_step(number, epoch, step.ends_epoch) if saves else []:
                self.log.say(f"saved {printable(path.name)}")
        self.workers.wait_for_all()

    def _saves(self, step: Step) -> bool:
        """Tell whether the flags ask for a save after this step."""
        s = self.settings
        by_step = s.save_every_n_steps and (step.number + 1) % s.save_every_n_steps == 0
        by_epoch = s.save_every_n_epochs and step.ends_epoch and (step.epoch + 1) % s.save_every_n_epochs == 0
        return bool(by_step or by_epoch)

    def _look_at_base(self) -> None:
        """Before the first step: the base model's pictures and its validation loss, if they are asked for."""
        if self.workers.is_main:
            with validation.strength(self.network, 0.0):
                if self.settings.sample_at_first and self.job.prompts:
                    self._draw(0)
            if self.job.validation:
                value = self.validation.loss(multiplier=0.0)
                if math.isfinite(value):
                    self.log.record_base(value)
                    self.log.say(f"validation loss of the base model: {value:.4f}")
        self.workers.wait_for_all()

    def _validate(self, step: Step) -> None:
        """After a step: measure the validation loss, if it is due, and keep it for the step's line."""
        if not self.job.validation or not self.validation.is_due(step.number + 1, self._saves(step)):
            return
        self._read_losses(keep=1)  # so that the time of earlier steps does not count this
        if self.workers.is_main:
            began, report = time.monotonic(), self.pending[-1]
            value = self.validation.loss()
            report.paused = time.monotonic() - began
            if math.isfinite(value):
                report.validation_loss = value
                self.log.say(f"validation loss after step {step.number + 1}: {value:.4f}")
        self.workers.wait_for_all()

    def _finish(self, step: Step, stopped: bool) -> None:
        self._read_losses(keep=0)
        saved: list[Path] = []
        resumable = True
        if self.workers.is_main:
            epoch = step.epoch + 1
            self.saver.hurry = stopped
            saved, resumable = self.saver.finish(
                step.number + 1, epoch, step.ends_epoch, epoch if stopped else self.job.epochs
            )
            for path in saved:
                self.log.say(f"saved {printable(path)}")
            if self.workers.device.type == "cuda":
                most = torch.cuda.max_memory_reserved(self.workers.device)
                self.log.say(f"{GPU_MEMORY}: {most} bytes")
            if not stopped and self.job.prompts:
                self._draw(step.number + 1)
        self.workers.wait_for_all()
        if stopped:
            raise self._interrupted(step, saved, resumable)

    def _interrupted(self, step: Step, saved: list[Path], resumable: bool) -> Interrupted:
        lora = self.job.output_dir / f"{self.settings.name}.safetensors"
        at = f"stopped after step {step.number + 1} of {self.job.total_steps}"
        kept = "the LoRA as it was then is saved"
        if self.workers.is_main and lora not in saved:
            kept = "the LoRA had no effect yet and is not saved"
        if not resumable:
            kept += ", but not what is needed to go on from here"
        folder = self.saver.newest_state() if self.settings.save_state else None
        if folder is not None:
            how = f"go on with the same flags and --resume {printable(folder)}"
        else:
            how = "" if self.settings.save_state else "a run with --save_state can be resumed"
        return Interrupted(lora, f"{at}; {kept}", "" if driver_speaks() else how)

    def _draw(self, number: int) -> None:
        """Draw the sample pictures; if they cannot be, that is told and the training goes on."""
        try:
            self._draw_all(number)
        except OSError as error:
            folder = self.job.output_dir / sampling.FOLDER
            self.log.say(f"! sample pictures: {disk.write_failure(folder, error, '')}")
        except torch.OutOfMemoryError:
            self.log.say(
                "! sample pictures: the GPU's memory does not suffice for them; smaller ones may fit"
            )

    def _draw_all(self, number: int) -> None:
        """As if nothing had been, the training goes on afterwards."""
        vae = self.latents.vae
        modes = {module: module.training for module in (self.network, self.model.unet) if module is not None}
        encoder = self.model.text_encoder
        if encoder is not None:
            modes[encoder] = encoder.training
        for module in modes:
            module.eval()
        try:
            with torch.no_grad(), autocast(self.settings, self.workers.device):
                for index, prompt in enumerate(self.job.prompts):
                    picture = sampling.draw(
                        prompt,
                        unet=self.model.unet,
                        vae=vae,
                        embed=self._embed,
                        alphas_cumprod=self.model.alphas_cumprod,
                        scaling_factor=self.model.vae_scaling_factor,
                        prediction_type=self.model.prediction_type,
                        seed=sampling.prompt_seed(self.job.seed, index),
                    )
                    path = sampling.picture_path(self.job.output_dir, self.settings.name, number, index)
                    sampling.save_picture(picture, path)
        finally:
            for module, mode in modes.items():
                module.train(mode)
            empty_gpu_cache(self.workers.device)

    def _embed(self, text: str) -> Tensor:
        """A prompt's embedding on the device, [1, tokens, D] in the UNet's dtype."""
        if self.text is not None:
            made = self.text.embedding(text).unsqueeze(0)
        else:
            made = encode_captions(self.job, self.model, [text])
        return made.to(self.workers.device, self.model.unet.dtype)

    def _optimizer_state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def _resume(self, saved: state.SavedState) -> tuple[int, float, dict[int, str]]:
        """Put everything back as it was; returns session, start time and the files written so far."""
        try:
            tensors, optimizer = state.load_tensors(saved)
            self.network.load_state_dict(tensors)
            self.optimizer.load_state_dict(optimizer["optimizer"])
            self.scheduler.load_state_dict(optimizer["scheduler"])
            self.scaler.load_state_dict(optimizer["scaler"])
            self.metrics = state.load_metrics(saved)
            run = saved.run
            steps = {int(at): str(file) for at, file in run["written"].items()}
            self.done = self.first_step = saved.step
            written = {at: file for at, file in steps.items() if file == step_name(self.settings.name, at)}
            return int(run["session_id"]), float(run["started_at"]), written
        except Exception as error:
            raise InputError(
                saved.folder, f"cannot be taken up again: {printable(str(error))[:300]}",
                "resume from another state",
            ) from error  # fmt: skip

    first_step = 0
    """The step (from 0) that this process began with."""


class _StepReport:
    """What is logged of one step; the loss is on its way from the GPU until it is read."""

    def __init__(
        self, step: Step, report: Tensor, rates: dict[str, float], adapted: dict[str, float], samples: int,
        began: float,
    ) -> None:  # fmt: skip
        self.step, self.rates, self.adapted, self.samples, self.began = step, rates, adapted, samples, began
        self._arrived = None
        self.validation_loss: float | None = None
        self.paused = 0.0
        """Seconds that were spent on measuring, not on the step."""
        self._values = report
        if report.is_cuda:
            self._values = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
            self._values.copy_(report, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def loss(self) -> float:
        """Return the step's loss; waits only if the GPU is not there yet."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._values[0])


def random_session() -> int:
    """Return kohya's kind of session number: 32 random bits, not from any seed."""
    return int.from_bytes(os.urandom(4), "big")


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}"
    return f"CPU, {torch.get_num_threads()} threads"


def _memory_advice(job: Job) -> str:
    """Name the two settings that would save most."""
    s, largest = job.settings, max(one.config.batch_size for one in job.sets)
    options = [
        (not s.gradient_checkpointing, "--gradient_checkpointing (about half)"),
        (largest > 1, "batch_size = 1 in the TOML (nearly in proportion)"),
        (s.mixed_precision == "no", "--mixed_precision bf16 or fp16 (about half)"),
        (not s.caches_latents, "--cache_latents (about 1 GB)"),
        (s.trains_text_encoder, "--network_train_unet_only (about 0.7 GB)"),
        (True, "a smaller resolution in the TOML"),
    ]
    return "what would help most: " + " and ".join([words for useful, words in options if useful][:2])


def _not_finite(settings: TrainerSettings, step: int, loss: float, is_first: bool) -> RunError:
    what = "NaN (not a number)" if math.isnan(loss) else "infinite"
    if is_first:
        cause = "the base model's weights hold NaN or Inf, or are too large for this precision"
        remedy = "give another base model"
    else:
        cause = f"the learning rate {settings.learning_rate:g} is probably too high"
        remedy = "give a lower --learning_rate"
    if settings.mixed_precision == "fp16":
        cause += ", or half precision overflowed"
        remedy += ", or --mixed_precision bf16 or no"
    return RunError(f"step {step}", f"the loss is {what}: {cause}; this LoRA is not saved", remedy)
