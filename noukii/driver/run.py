"""One training run from the command line to the LoRA: check, plan, stage, launch, verify, gather, report.

Nothing is written before all checks have passed; nothing is called a result before it was verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from noukii import disk, files, project
from noukii.dataset.config_file import write_config
from noukii.dataset.folders import record_repeats
from noukii.dataset.plan import Plan
from noukii.dataset.plan_text import describe
from noukii.dataset.staging import check_staging, stage, staged_config
from noukii.driver import child, diagnosis, estimate, gather, kohya_tokenizer, launch, outputs, prepare
from noukii.driver.options import parse, replaced_flags
from noukii.driver.prepare import Machine, Prepared
from noukii.driver.samples import default_prompts
from noukii.errors import Interrupted, RunError
from noukii.lock import folder_lock
from noukii.names import printable
from noukii.progress import duration

CONFIG_NAME = "config_sat_nouki.toml"
LOG_NAME = "train.log"
PACKAGES = ("torch", "transformers", "diffusers", "accelerate", "safetensors", "pillow")


def main(arguments: list[str]) -> int:
    """Run ./run_training.sh; returns the exit code or raises one of our own errors."""
    options = parse(arguments)
    with _looking(options.json) as advance:
        prepared = prepare.prepare(options, advance)
    if options.json:
        print(json.dumps(_plan_facts(prepared), indent=2))
        return 0
    _say_plan(prepared)
    if options.dry_run:
        print("dry run: nothing was written")
        return 0
    machine = prepare.fit_machine(prepared)
    _say_machine(prepared, machine)
    check_staging(prepared.plan)
    prepare.require_space(prepared)
    with folder_lock(project.kohya() / "dataset", "run_training.sh") as lock:
        return _Run(prepared, machine, lock).run()


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


def _plan_facts(prepared: Prepared) -> dict[str, Any]:
    options = prepared.options
    return {
        "output_name": options.output_name,
        "base_model": os.fspath(options.base_model) if options.base_model else None,
        "base_model_found": prepared.base is not None,
        "trainer": prepared.trainer,
        **prepared.plan.as_dict(),
    }


def _say_plan(prepared: Prepared) -> None:
    print(describe(prepared.plan))
    base = prepared.base
    if base is None:
        print(
            f"base model: {printable(prepared.options.base_model or '')} is not there yet;"
            " ./setup.sh fetches it (4.3 GB)"
        )
    else:
        print(f"base model: {printable(base.path)} ({disk.size(base.size_bytes)}, {base.dtype})")
    print(f"trainer: {'kohya, in its own environment' if prepared.trainer == 'kohya' else 'built-in'}")
    if replaced := replaced_flags(prepared.options):
        print(f"given behind -- and used instead of noukii's own: {', '.join(replaced)}")
    if prepared.resume:
        print(f"going on from {printable(prepared.resume)}")


def _say_machine(prepared: Prepared, machine: Machine) -> None:
    print(f"device: {machine.words}")
    if not machine.hardware.has_gpu:
        threads = prepare.cpu_threads(machine.hardware)
        seconds = estimate.cpu_seconds(machine.load, prepared.plan.steps, threads)
        about = f"very roughly {duration(seconds)}" if seconds > 120 else "a minute or so"
        print(
            f"! no CUDA device is used: {machine.hardware.why_no_gpu}. The CPU trains, slowly:"
            f" {about} for {prepared.plan.steps} steps"
        )


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
        record_repeats(self.prepared.data_sets)
        try:
            command = self._write_inputs()
        except BaseException:
            if self.is_new:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self._train(command)

    def _settle_names(self) -> None:
        """Choose the name and the working folder; a resumed run goes on in its own."""
        options, resume = self.prepared.options, self.prepared.resume
        assert options.output_name is not None
        self.name = outputs.free_result_name(options.output_name, resuming=resume is not None)
        if self.name != options.output_name:
            taken = project.trained_loras() / options.output_name
            print(f"{printable(taken)} is there already and stays as it is; this run is named {self.name}")
        self.is_new = resume is None or self.name != options.output_name
        self.folder = outputs.new_run_folder(self.name) if resume is None or self.is_new else resume.parent
        self.log = self.folder / LOG_NAME
        self.before = gather.fingerprints(self.folder)
        self.seed_given = options.seed is not None
        seed = options.seed if options.seed is not None else prepare.draw_seed()
        self.prepared = replace(
            self.prepared, options=replace(options, seed=seed, trainer=self.prepared.trainer)
        )

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
        outputs.write_record(folder, self._record())
        return launch.command(call)

    def _record(self) -> dict[str, Any]:
        """What --resume needs: the options, and the data sets even where they were found by themselves."""
        options = replace(self.prepared.options, output_name=self.name)
        if not options.explicit and not options.positional:
            options = replace(options, explicit=tuple((one.folder, None) for one in self.prepared.data_sets))
        return options.record()

    def _train(self, command: list[str]) -> int:
        shown = shlex.join(map(printable, command))
        print(f"\n$ {shown}\n", flush=True)
        self.command, self.started = command, time.time()
        with open(self.log, "ab", buffering=0) as log:
            log.write(f"$ {shown}\n".encode())
            end = child.run(
                command,
                environment=launch.environment(self.prepared.trainer),
                log=log,
                missing=diagnosis.SETUP,
                keep_open=[self.lock],
            )
        status = diagnosis.status_of(end.tail, end.exit_code)
        if status == 0:
            return self._finish()
        if end.stopped or status == outputs.INTERRUPTED:
            raise self._interrupted()
        raise self._failed(end.tail, status)

    def _finish(self) -> int:
        loras = self._loras()
        gather.require_final(loras, self.folder, self.name, self.log)
        _say_broken(loras)
        result = self._gather(loras, exit_code=0)
        self._say_result(result, loras)
        return 0

    def _interrupted(self) -> Interrupted:
        """Gather what the stopped run has saved, and say how to go on."""
        loras = self._loras()
        _say_broken(loras)
        states = [path for path in self.folder.glob(f"{self.name}*-state") if path.is_dir()]
        again = f"./run_training.sh --output-name {shlex.quote(self.name)} --resume"
        next_step = f"to go on: {again}" if states else "no state was saved, so it starts from the beginning"
        if not loras.all:
            return Interrupted(self.folder, "stopped before a LoRA was saved", next_step)
        result = self._gather(loras, exit_code=outputs.INTERRUPTED)
        return Interrupted(result, "stopped; what the run has learnt so far is saved there", next_step)

    def _failed(self, tail: str, status: int) -> RunError:
        """Show the trainer's last lines and return our reading of them."""
        reading = diagnosis.read_cause(tail, status, estimate.savings(self.machine.load))
        lines = diagnosis.last_lines(tail)
        print("\nthe trainer failed. Its last lines:", file=sys.stderr)
        for line in lines:
            print(f"  | {printable(line)}", file=sys.stderr)
        kept = ""
        if saves := sorted(self.folder.glob(f"{self.name}*.safetensors")):
            kept = f"\n  saved before it failed: {', '.join(printable(path.name) for path in saves)}"
        if any(self.folder.glob(f"{self.name}*-state")):
            kept += f"\n  next: ./run_training.sh --output-name {shlex.quote(self.name)} --resume goes on"
        return RunError(self.log, reading.reason + "; nothing was collected", reading.next_step + kept)

    def _loras(self) -> gather.Loras:
        from noukii.trainer.lora_file import verify_lora

        return gather.find_loras(self.folder, self.name, verify_lora, self.before)

    def _gather(self, loras: gather.Loras, exit_code: int) -> Path:
        from noukii.report.report import write_report

        facts = self._facts(loras, exit_code)
        return gather.assemble(self.folder, loras, self.name, facts, write_report)

    def _facts(self, loras: gather.Loras, exit_code: int) -> dict[str, Any]:
        from noukii.trainer.safetensors_header import read_header

        written = read_header(loras.all[0]).metadata
        finished = time.time()
        options = self.prepared.options
        return {
            "command": self.command,
            "trainer": self.prepared.trainer,
            "base_model": options.base_model.name if options.base_model else None,
            "base_model_sha256": written.get("ss_new_sd_model_hash"),
            "output_name": self.name,
            "seed": options.seed,
            "started_at": _utc(self.started),
            "finished_at": _utc(finished),
            "seconds": round(finished - self.started, 1),
            "exit_code": exit_code,
            "plan": self.prepared.plan.as_dict(),
            "versions": _versions() if self.prepared.trainer == "builtin" else {},
            "device": self.machine.hardware.gpu_name or "CPU",
            "precision": self.machine.precision,
            "peak_memory_bytes": None if self.machine.hardware.has_gpu else _peak_memory(),
        }

    def _say_result(self, result: Path, loras: gather.Loras) -> None:
        assert loras.final is not None
        lora = result / loras.final.name
        print(f"\ntrained in {duration(time.time() - self.started)}: {printable(lora)}")
        if loras.earlier:
            print(f"  and {len(loras.earlier)} earlier saves of it beside it")
        print(f"  images: {_counts(self.prepared.plan)}")
        print(f"  report: {printable(result / 'report.html')}    log: {printable(result / LOG_NAME)}")
        keyword = self.prepared.data_sets[0].keyword
        print("  use it: copy the file into models/Lora (A1111, Forge) or models/loras (ComfyUI);")
        print(f"          prompt: <lora:{printable(lora.stem)}:1> {printable(keyword)}")


def _say_broken(loras: gather.Loras) -> None:
    for path, reason in loras.broken:
        print(f"not collected: {printable(path.name)}: {reason}", file=sys.stderr)


def _counts(plan: Plan) -> str:
    found = sum(each.found for each in plan.sets)
    used = sum(len(each.images) for each in plan.sets)
    return f"found {found} = used {used} + skipped {found - used}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _peak_memory() -> int:
    """The most memory that the trainer has had, in bytes (of the GPU's nothing is known here)."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
