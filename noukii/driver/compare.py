"""`run_training.sh --compare NAME`: one sheet of prompts x checkpoints x strengths for a finished run.

Reads the run's folder in trained_loras/ and the base model; writes compare.html and compare.png there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noukii import hardware, project
from noukii.command_line import Parser, nearest
from noukii.dataset.arguments import whole_number
from noukii.dataset.caption_check import plural
from noukii.driver.options import default_base_model, demo_model
from noukii.driver.samples import default_prompts
from noukii.errors import InputError, Interrupted, RunError
from noukii.names import name_problem, printable
from noukii.progress import Progress
from noukii.report import checkpoints as saved_loras
from noukii.report.caption_records import whole
from noukii.report.run_data import dicts
from noukii.report.run_files import RunFiles, read_run
from noukii.trainer import sampling
from noukii.trainer.checkpoint_header import inspect_base_model
from noukii.trainer.comparing import Row, draw_rows

if TYPE_CHECKING:
    from PIL.Image import Image

FLAG = "--compare"
STRENGTHS = (0.5, 1.0)
MOST_CHECKPOINTS = 6
USAGE = f"./run_training.sh {FLAG} NAME [--strengths 0.5,1] [--sample-prompts FILE] [--base-model PATH]"


@dataclass(frozen=True)
class CompareOptions:
    """What is to be drawn. `base_model` None: the one that the run was trained on."""

    name: str
    strengths: tuple[float, ...] = STRENGTHS
    checkpoints: int = MOST_CHECKPOINTS
    sample_prompts: Path | None = None
    base_model: Path | None = None


def parse(arguments: Sequence[str]) -> CompareOptions:
    """Read the command line; InputError names what is wrong with it."""
    parser = Parser(prog="./run_training.sh", usage=USAGE)
    add = parser.add_argument
    add(FLAG, metavar="NAME", required=True, help="the run, as trained_loras/ names it")
    add("--strengths", type=_strengths, default=STRENGTHS, metavar="X,Y", help="of the LoRA (0.5,1)")
    add(
        "--checkpoints", type=whole_number("--checkpoints", 1, 100), default=MOST_CHECKPOINTS, metavar="N",
        help=f"draw at most so many, spread over the run ({MOST_CHECKPOINTS})",
    )  # fmt: skip
    add("--sample-prompts", type=Path, metavar="FILE", help="what to draw, a prompt a line")
    add("--base-model", type=Path, metavar="PATH", help="the base model, if it has moved")
    found, others = parser.parse_known_args(list(arguments))
    if others:
        raise InputError(others[0].partition("=")[0], f"has no meaning with {FLAG}", USAGE)
    name = _name(found.compare)
    if problem := name_problem(name):
        raise InputError(FLAG, f"'{printable(name)}' {problem}", "name a folder of trained_loras/")
    base = demo_model() if found.base_model == Path("demo") else found.base_model
    return CompareOptions(name, found.strengths, found.checkpoints, found.sample_prompts, base)


def compare(options: CompareOptions) -> int:
    """Draw the sheet and return 0.

    Raises:
        InputError: there is no such run, it has no LoRA, or base model or prompts are not there.
        Interrupted: the user stopped it; nothing was written.
    """
    folder = _folder(options.name)
    files = read_run(folder)
    saved = saved_loras.checkpoints(files)
    if not saved:
        raise InputError(folder, "holds no LoRA", "name a finished run")
    saved, left_out = _sound(folder, different(saved))
    for problem in left_out:
        print(f"left out: {problem}")
    if not saved:
        raise InputError(folder, "none of its LoRAs can be drawn with", "name another run")
    chosen = choose(saved, options.checkpoints)
    best = saved_loras.best(saved)
    prompts = _prompts(options, files)
    base = inspect_base_model(options.base_model or _base_model(files))
    rows = [Row(None, 0.0)]
    labels = ["base model"]
    for one in chosen:
        for strength in options.strengths:
            rows.append(Row(folder / one.name, strength))
            labels.append(f"{one.label}, strength {strength:g}")
    machine = hardware.detect()
    settings = files.run.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    grid: list[list[Image]] = [[] for _ in rows]
    try:
        with Progress("drawing", len(rows) * len(prompts), "pictures") as progress:
            for number, _, picture in draw_rows(
                base,
                rows,
                prompts,
                seed=whole(files.run.get("seed")) or 0,
                precision=machine.precision,
                use_gpu=machine.has_gpu,
                clip_skip=whole(settings.get("clip_skip")),
                token_length=whole(settings.get("max_token_length")) or 75,
            ):
                grid[number].append(picture)
                progress.advance()
    except KeyboardInterrupt:
        raise Interrupted(FLAG, "stopped; nothing was written", "the same command starts it again") from None
    from noukii.report.sheet import write_sheet

    texts = [prompt.prompt or "(no words)" for prompt in prompts]
    page, picture = write_sheet(folder, options.name, labels, texts, grid, best.label + "," if best else "")
    print(f"{len(chosen)} of {plural(len(saved), 'checkpoint')}, {plural(len(prompts), 'prompt')}, strengths"
          f" {', '.join(f'{one:g}' for one in options.strengths)}")  # fmt: skip
    print(f"the sheet: {printable(page)}\n           {printable(picture)}")
    return 0


def choose(saved: Sequence[saved_loras.Checkpoint], most: int) -> list[saved_loras.Checkpoint]:
    """Return at most `most` checkpoints, in order: the last, the best, and others spread over the run."""
    if len(saved) <= most:
        return list(saved)
    wanted = {len(saved) - 1}
    best = saved_loras.best(saved)
    if best is not None and len(wanted) < most:
        wanted.add(saved.index(best))
    for place in range(most):
        if len(wanted) < most:
            wanted.add(round(place * (len(saved) - 1) / max(1, most - 1)))
    return [one for place, one in enumerate(saved) if place in wanted]


def different(saved: Sequence[saved_loras.Checkpoint]) -> list[saved_loras.Checkpoint]:
    """Leave out a file that was saved at the last step under its number: it is the finished one again."""
    last = saved[-1]
    return [one for one in saved[:-1] if one.step is None or one.step != last.step] + [last]


def _sound(
    folder: Path, saved: Sequence[saved_loras.Checkpoint]
) -> tuple[list[saved_loras.Checkpoint], list[str]]:
    """Return those that can be read to their end and hold numbers, and what is wrong with the others."""
    from noukii.trainer.lora_file import verify_lora

    sound, problems = [], []
    for one in saved:
        try:
            verify_lora(folder / one.name)
        except RunError as error:
            problems.append(f"{error.where}: {error.reason}")
        else:
            sound.append(one)
    return sound, problems


def _name(given: str) -> str:
    """Return the name of a run that was given as the path of its folder, as a shell completes it."""
    name, path = given.rstrip("/"), Path(given).expanduser()
    is_there = "/" in name and path.name and path.resolve().parent == project.trained_loras().resolve()
    return path.name if is_there else name


def _folder(name: str) -> Path:
    shelf = project.trained_loras()
    folder = shelf / name
    if not folder.is_dir():
        beside = sorted(path.name for path in shelf.iterdir() if path.is_dir()) if shelf.is_dir() else []
        near = nearest(name, beside)
        step = (
            f"did you mean {printable(near)}?" if near else "finished runs are the folders in trained_loras/"
        )
        raise InputError(folder, "there is no such run", step)
    return folder


def _base_model(files: RunFiles) -> Path:
    """Return where the base model was when the run was trained."""
    words = files.run.get("repeat")
    words = [str(word) for word in words] if isinstance(words, list) else []
    named = words[words.index("--base-model") + 1] if "--base-model" in words[:-1] else ""
    path = project.CHECKOUT / named if named else default_base_model()
    if not path.exists():
        raise InputError(path, "the base model of that run is not there", "name it: --base-model PATH")
    return path


def _prompts(options: CompareOptions, files: RunFiles) -> list[sampling.SamplePrompt]:
    """Return the prompts: the file given, the run's own, else keyword and key concepts."""
    plan = files.run.get("plan")
    plan = plan if isinstance(plan, dict) else {}
    sides = plan.get("resolution")
    side = (whole(sides[0]) if isinstance(sides, list) and sides else None) or sampling.SIDE
    if options.sample_prompts is not None:
        if not options.sample_prompts.is_file():
            raise InputError(options.sample_prompts, "there is no such file", "one prompt a line is wanted")
        return sampling.read_prompts(options.sample_prompts, side)
    own = files.folder / "sample_prompts.txt"
    if own.is_file():
        return sampling.read_prompts(own)
    keywords = [str(one.get("keyword") or "") for one in dicts(plan.get("data_sets"))]
    lines = default_prompts(keywords or [options.name], files.cues, side).splitlines()
    return [sampling.parse_prompt(line) for line in lines]


def _strengths(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or len(found) > 8 or not all(-4 <= one <= 4 for one in found):
        raise InputError(
            f"--strengths {text}", "is no list of strengths", "numbers from -4 to 4, as in 0.5,0.75,1"
        )
    return tuple(dict.fromkeys(found))
