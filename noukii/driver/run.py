"""One training run from the command line to the LoRA: check, plan, stage, launch, verify, gather, report.

Nothing is written before all checks have passed; nothing is called a result before it was verified.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noukii import disk, files, project
from noukii.dataset.config_file import write_config
from noukii.dataset.folders import record_repeats
from noukii.dataset.plan import Plan
from noukii.dataset.plan_text import describe
from noukii.dataset.staging import check_staging, stage, staged_config
from noukii.driver import (
    child,
    costs,
    diagnosis,
    estimate,
    facts,
    gather,
    kohya_tokenizer,
    launch,
    outputs,
    prepare,
    resuming,
)
from noukii.driver.live_page import LivePage
from noukii.driver.measured_on import validation_lines
from noukii.driver.options import Options, in_our_words, parse, replaced_flags
from noukii.driver.outputs import LOG_NAME, RECORD_NAME
from noukii.driver.prepare import Machine, Prepared
from noukii.driver.samples import default_prompts
from noukii.errors import Interrupted, RunError
from noukii.lock import folder_lock
from noukii.names import printable
from noukii.progress import duration

CONFIG_NAME = "config_sat_nouki.toml"
COMMAND = "command"
"""The record's key for the trainer's command."""
REFUSED = 2
"""Our trainer's exit code where it would not begin."""


def main(arguments: list[str]) -> int:
    """Run ./run_training.sh; returns the exit code or raises one of our own errors."""
    if any(word.partition("=")[0] == "--compare" for word in arguments):
        from noukii.driver import compare

        return compare.compare(compare.parse(arguments))
    options = parse(arguments)
    try:
        prepared, machine, has_ended = _prepare(options)
    except KeyboardInterrupt:
        raise Interrupted("run_training.sh", "stopped before anything was done") from None
    if options.json:
        print(json.dumps(_plan_facts(prepared, machine), indent=2))
        return 0
    _say_plan(prepared)
    _say_machine(prepared, machine)
    if not has_ended:
        check_staging(prepared.plan)
    if options.dry_run:
        if has_ended:
            print("the run has ended; without --dry-run its LoRA is checked and gathered")
        print("dry run: nothing was written")
        return 0
    if not has_ended:
        prepare.require_space(prepared)
    with folder_lock(project.kohya() / "dataset", "run_training.sh") as lock:
        run = _Run(prepared, machine, lock)
        try:
            return run.gather_only() if has_ended else run.run()
        except KeyboardInterrupt:  # between two steps of ours; each has its own words
            raise Interrupted(
                "run_training.sh", "ended at once", "the same command starts it again"
            ) from None


def _prepare(options: Options) -> tuple[Prepared, Machine, bool]:
    """Check all that can be checked before anything is written; also say if only the gathering is left."""
    with _looking(options.json) as advance:
        prepared = prepare.prepare(options, advance)
    machine = prepare.fit_machine(prepared)
    return prepared, machine, prepared.earlier is not None and resuming.check(prepared, machine)


@contextlib.contextmanager
def _looking(quiet: bool) -> Iterator[Callable[[], object] | None]:
    """Show on a terminal how many images have been looked at; a large folder takes a while."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    seen = 0

    def advance() -> None:
        nonlocal seen
        seen += 1
        if seen % 20 == 0:
            print(f"\rlooking at the images: {seen}", end="", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if seen >= 20:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)


def _plan_facts(prepared: Prepared, machine: Machine) -> dict[str, Any]:
    options = prepared.options
    return {
        "output_name": options.output_name,
        "base_model": os.fspath(options.base_model) if options.base_model else None,
        "base_model_found": prepared.base is not None,
        "trainer": prepared.trainer,
        "seed": options.seed,
        "validation_folder": os.fspath(options.validation_folder) if options.validation_folder else None,
        **costs.cost_facts(prepared, machine),
        **prepared.plan.as_dict(),
    }


def _say_plan(prepared: Prepared) -> None:
    print(describe(prepared.plan))
    base = prepared.base
    if base is None:
        print(
            f"base model: {printable(prepared.options.base_model or '')} is not there yet;"
            " ./setup.sh --training-only --no-kohya fetches it (4.3 GB)"
        )
    else:
        print(f"base model: {printable(base.path)} ({disk.size(base.size_bytes)}, {base.dtype})")
    for line in validation_lines(prepared.options, prepared.plan):
        print(line)
    print(f"trainer: {'kohya, in its own environment' if prepared.trainer == 'kohya' else 'built-in'}")
    if replaced := replaced_flags(prepared.options):
        print(f"given behind -- and used instead of noukii's own: {', '.join(replaced)}")
    if prepared.resume and outputs.step_of(prepared.resume) != prepared.plan.steps:
        print(f"going on from {printable(prepared.resume)}")


def _say_machine(prepared: Prepared, machine: Machine) -> None:
    print(f"device: {machine.words}")
    for line in costs.cost_lines(prepared, machine):
        print(line)
    if not machine.hardware.has_gpu:
        print(f"! no CUDA device is used: {machine.hardware.why_no_gpu}. The CPU trains, slowly")


@dataclass
class _Run:
    """A run that has begun: what is written where."""

    prepared: Prepared
    machine: Machine
    lock: int

    def run(self) -> int:
        self._settle_names()
        options = self.prepared.options
        print(f"seed: {options.seed}" + ("" if self.seed_given else " (drawn; --seed repeats the run)"))
        kept = _contents(self.folder / RECORD_NAME, self.folder / CONFIG_NAME)
        try:
            record_repeats(self.prepared.data_sets)
            command = self._write_inputs()
        except BaseException as error:
            self._take_back(kept)
            if isinstance(error, KeyboardInterrupt):
                raise self._stopped_early() from None
            raise
        return self._train(command, kept)

    def gather_only(self) -> int:
        """Gather the result of a run that has ended, but whose result could not be put in its place."""
        options, folder = self.prepared.options, self.prepared.earlier
        assert options.output_name is not None and folder is not None
        self.name, self.folder, self.log, self.before = options.output_name, folder, folder / LOG_NAME, {}
        print("this run has ended; its LoRA is checked and gathered")
        record = outputs.read_record(folder)
        self.command = list(map(str, record.get(COMMAND) or []))
        self.started, self.finished = facts.times(folder / f"{self.name}.safetensors")
        return self._finish(trained_here=False)

    def _settle_names(self) -> None:
        """Choose the name and the working folder; a resumed run goes on in its own."""
        options, resume = self.prepared.options, self.prepared.resume
        assert options.output_name is not None
        self.name = outputs.free_result_name(options.output_name, resuming=resume is not None)
        if self.name != options.output_name:
            taken = project.trained_loras() / options.output_name
            print(
                f"{printable(taken)} is there already and stays as it is; this run is named"
                f" {printable(self.name)}"
            )
        self.is_new = resume is None or self.name != options.output_name
        self.folder = outputs.new_run_folder(self.name) if resume is None or self.is_new else resume.parent
        self.log = self.folder / LOG_NAME
        self.before = gather.fingerprints(self.folder)
        self.seed_given = options.seed is not None
        seed = options.seed if options.seed is not None else prepare.draw_seed()
        self.prepared = replace(
            self.prepared, options=replace(options, seed=seed, trainer=self.prepared.trainer)
        )

    def _take_back(self, kept: dict[Path, bytes]) -> None:
        """Leave things as they were before a run that was not begun."""
        if self.is_new:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.folder.parent.rmdir()
            return
        for path, content in kept.items():
            files.write_bytes(path, content)

    def _write_inputs(self) -> list[str]:
        """Stage the images, write what the trainer reads, and return its command."""
        prepared, folder = self.prepared, self.folder
        plan, options = prepared.plan, prepared.options
        subsets = stage(plan)
        write_config(folder / CONFIG_NAME, staged_config(plan, subsets))
        cues = gather.keep_prompt_cues([one.folder for one in prepared.data_sets], folder)
        prompts = None
        if options.sample_every is not None:
            prompts = folder / "sample_prompts.txt"
            if options.sample_prompts is not None:
                files.copy_file(options.sample_prompts, prompts)
            else:
                keywords = [one.keyword for one in prepared.data_sets]
                files.write_text(prompts, default_prompts(keywords, cues, plan.rule.resolution[0]))
        call = prepare.trainer_call(
            prepared,
            self.machine,
            run_folder=folder,
            output_name=self.name,
            dataset_config=folder / CONFIG_NAME,
            sample_prompts=prompts,
        )
        if prepared.trainer == "kohya":
            kohya_tokenizer.provide()
        files.write_text(call.accelerate_config, launch.accelerate_config(call.cpu, call.precision))
        command = launch.command(call)
        outputs.write_record(
            folder,
            self._record() | {COMMAND: command, resuming.MADE_OF: resuming.made_of(prepared, self.machine)},
        )
        return command

    def _record(self) -> dict[str, Any]:
        """What --resume needs: the options, and the data sets even where they were found by themselves.

        Whether to checkpoint is settled: the free memory may be another then, and the rounding with it.
        """
        checkpointing = "on" if self.machine.gradient_checkpointing else "off"
        options = replace(self.prepared.options, output_name=self.name, gradient_checkpointing=checkpointing)
        if not options.explicit and not options.positional:
            options = replace(options, explicit=tuple((one.folder, None) for one in self.prepared.data_sets))
        return options.record()

    def _train(self, command: list[str], kept: dict[Path, bytes]) -> int:
        shown = shlex.join(map(printable, command))
        self.command, self.started = command, time.time()
        page = self._live_page(command)
        try:
            return self._train_with(command, kept, shown, page)
        finally:
            page.close()

    def _live_page(self, command: list[str]) -> LivePage:
        known = facts.before_training(
            self.prepared, self.machine, self.folder, command=command, output_name=self.name,
            started=self.started,
        )  # fmt: skip
        return LivePage(self.folder, self.name, known)

    def _train_with(self, command: list[str], kept: dict[Path, bytes], shown: str, page: LivePage) -> int:
        try:
            print(f"how it goes: {printable(page.path)}")
            print(f"\n$ {shown}\n", flush=True)
            with open(self.log, "ab", buffering=0) as log:
                log.write(f"$ {shown}\n".encode())
                end = child.run(
                    command,
                    environment=launch.environment(self.prepared.trainer),
                    log=log,
                    missing=diagnosis.SETUP,
                    lock=self.lock,
                    tick=page.tick,
                )
        except KeyboardInterrupt:
            raise self._ended_at_once() from None
        self.finished = time.time()
        status = diagnosis.status_of(end.tail, end.exit_code)
        if status == REFUSED and self.prepared.trainer == "builtin" and not self.is_new:
            self._take_back(kept)
        launcher_died = end.orphaned or end.exit_code < 0
        try:
            if status == 0 or (launcher_died and self._has_trained_all()):
                return self._finish(trained_here=True)
            if end.stopped or status == outputs.INTERRUPTED:
                raise self._interrupted("stopped")
            if launcher_died and self._loras().final:
                raise self._interrupted("accelerate's launcher was ended from outside, and the run with it")
            raise self._failed(end.tail, status)
        except KeyboardInterrupt:
            raise Interrupted(
                self.folder, "stopped while the result was gathered; all that was trained is saved there",
                f"to gather it: {self._again}",
            ) from None  # fmt: skip

    @property
    def _again(self) -> str:
        return outputs.resume_command(self.name)

    def _has_trained_all(self) -> bool:
        final = self._loras().final
        return final is not None and facts.steps_of(final) == self.prepared.plan.steps

    def _finish(self, trained_here: bool) -> int:
        loras = self._loras()
        gather.require_final(loras, self.folder, self.name, self.log)
        _say_broken(loras)
        result = self._gather(loras, exit_code=0, trained_here=trained_here)
        self._say_result(result, loras, trained_here)
        return 0

    def _states(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{glob.escape(self.name)}*-state") if path.is_dir()]

    def _stopped_early(self) -> Interrupted:
        again = "the same command starts it again" if self.is_new else f"to go on: {self._again}"
        return Interrupted("run_training.sh", "stopped before the training began", again)

    def _interrupted(self, how: str) -> Interrupted:
        """Gather what the stopped run has saved, and say how to go on."""
        loras = self._loras()
        _say_broken(loras)
        again = f"to go on: {self._again}" if self._states() else "the same command starts it again"
        if not loras.all:
            nothing = "nothing was saved" if self.is_new else "nothing new was saved"
            return Interrupted(self.folder, f"{how}; {nothing}", again)
        result = self._gather(loras, exit_code=outputs.INTERRUPTED)
        return Interrupted(result, f"{how}; what the run has learnt so far is saved there", again)

    def _ended_at_once(self) -> Interrupted:
        """The second Ctrl-C: nothing is gathered, for that would take its time."""
        saved = [path.name for path in gather.changed(self.folder, self.name, self.before)]
        if not self._states():
            return Interrupted(
                self.folder, "ended at once; nothing was saved to go on from",
                "the same command starts from the beginning",
            )  # fmt: skip
        words = f"what came after the last save is lost; saved there: {', '.join(map(printable, saved))}"
        return Interrupted(
            self.folder,
            f"ended at once; {words if saved else 'what was trained since it was started is lost'}",
            f"to go on from the last saved state: {self._again}",
        )

    def _failed(self, tail: str, status: int) -> RunError:
        """Show the trainer's last lines and return our reading of them."""
        reading = diagnosis.read_cause(
            tail, status, estimate.savings(self.machine.load, self.machine.hardware)
        )
        lines = diagnosis.last_lines(tail)
        print("\nthe trainer failed. Its last lines:", file=sys.stderr)
        for line in lines:
            print(f"  | {printable(line)}", file=sys.stderr)
        kept = ""
        if any(self.folder.glob("*.safetensors")):
            loras = self._loras()
            _say_broken(loras)
            if loras.all:
                names = ", ".join(printable(path.name) for path in loras.all)
                kept = f"\n  saved before it failed, and whole: {names} in {printable(self.folder)}"
        if self._states():
            kept += f"\n  next: {self._again} goes on from the last saved state"
        advice = in_our_words(reading.next_step, self.prepared.options.extra)
        return RunError(self.log, reading.reason + "; nothing was collected", advice + kept)

    def _loras(self) -> gather.Loras:
        from noukii.trainer.lora_file import verify_lora

        return gather.find_loras(self.folder, self.name, verify_lora, self.before)

    def _gather(self, loras: gather.Loras, exit_code: int, trained_here: bool = True) -> Path:
        from noukii.report.report import write_report

        found = facts.collect(
            self.prepared,
            self.machine,
            loras.all[0],
            command=self.command,
            output_name=self.name,
            started=self.started,
            finished=self.finished,
            exit_code=exit_code,
            trained_here=trained_here,
        )
        return gather.assemble(self.folder, loras, self.name, found, write_report)

    def _say_result(self, result: Path, loras: gather.Loras, trained_here: bool) -> None:
        from noukii.report import checkpoints as saved_loras
        from noukii.report.run_files import read_run

        assert loras.final is not None
        lora = result / loras.final.name
        how = f"trained in {duration(self.finished - self.started)}" if trained_here else "gathered"
        print(f"\n{how}: {printable(lora)}")
        if loras.earlier:
            print(f"  and {len(loras.earlier)} earlier saves of it beside it")
        found = read_run(result)
        if named := saved_loras.best(saved_loras.checkpoints(found)):
            print(f"  lowest validation loss: {printable(named.name)} ({named.validation_loss:.4f})")
        if isinstance(most := found.run.get("peak_memory_bytes"), int):
            print(f"  memory: {disk.size(most)} at most (estimate: {disk.size(self.machine.load.bytes())})")
        print(f"  images: {_counts(self.prepared.plan)}")
        print(f"  report: {printable(result / 'report.html')}    log: {printable(result / LOG_NAME)}")
        keywords = dict.fromkeys(one.keyword for one in self.prepared.data_sets)
        print("  use it: copy the file into models/Lora (A1111, Forge) or models/loras (ComfyUI);")
        print(f"          prompt: <lora:{printable(lora.stem)}:1> {' or '.join(map(printable, keywords))}")


def _contents(*paths: Path) -> dict[Path, bytes]:
    """Return what stands in those of the files that are there."""
    return {path: path.read_bytes() for path in paths if path.is_file()}


def _say_broken(loras: gather.Loras) -> None:
    for path, reason in loras.broken:
        print(f"not collected: {printable(path.name)}: {reason}", file=sys.stderr)


def _counts(plan: Plan) -> str:
    found = sum(each.found for each in plan.sets)
    used = sum(len(each.images) for each in plan.sets)
    apart = sum(len(each.held_out) for each in plan.sets)
    held_out = f" + held out {apart}" if apart else ""
    return f"found {found} = used {used}{held_out} + skipped {found - used - apart}"
