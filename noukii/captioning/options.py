"""run_captioning.sh's flags, parsed once into a frozen dataclass and checked without any model."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path

from noukii import __version__, project
from noukii.command_line import Parser, nearest
from noukii.errors import InputError
from noukii.names import name_problem, printable

PROGRAM = "./run_captioning.sh"
QUESTION = "describe this image in detail"
DTYPES = ("auto", "bfloat16", "float16", "float32")
CAPTION_TOKENS = (75, 150, 225)
"""What kohya's max_token_length takes: one, two or three windows of CLIP's text encoder."""

MAX_NEW_TOKENS = 4096
"""Janus-Pro was trained on sequences of 4096 tokens; longer answers are noise."""

EXAMPLES = """
Each image gets one caption, written beside a copy of it; your folder is only read.
The copies go to KEYWORD/ beside FOLDER unless --repeats or --output says otherwise.
A second run does only what is missing. A caption that you edited is kept, always;
delete or empty its .txt to have it written again. The same settings give the same
text: for another one add --seed 7, or another --prompt.

examples:
  ./run_captioning.sh ~/Pictures/tom tomcat --repeats 20
  ./run_captioning.sh ~/Pictures/tom tomcat --recursive --dry-run
  ./run_captioning.sh -- -odd-folder-name tomcat
  ./run_captioning.sh --apply ~/Downloads/captions.jsonl image_datasets/20_tomcat
"""


@dataclass(frozen=True)
class CaptionOptions:
    """One captioning job. Paths are absolute; `batch_size` None means automatic."""

    folder: Path
    keyword: str
    output: Path
    model: Path
    prompt: str = QUESTION
    repeats: int | None = None
    batch_size: int | None = None
    max_new_tokens: int = 512
    temperature: float = 0.1
    top_p: float = 0.95
    seed: int = 42
    max_caption_tokens: int = 75
    raw_captions: bool = False
    recursive: bool = False
    overwrite: bool = False
    dry_run: bool = False
    device: str = "auto"
    dtype: str = "auto"
    model_id: str | None = None
    """Fingerprint of the model's files, see model_id.py; None while, or where, it is not known."""


def parse(arguments: list[str]) -> CaptionOptions:
    """Return the job that `arguments` describe.

    Raises:
        InputError: an unknown flag, a value out of range, a keyword that cannot be a folder's name,
            an output folder that is, holds or lies in the input folder.
    """
    parser = _parser()
    flags, after = _split(arguments)
    found, others = parser.parse_known_args(flags)
    for word in others:
        if word.startswith("-"):
            raise _unknown_flag(parser, word)
    words = [*others, *after]
    if not words:
        raise InputError(PROGRAM, "no image folder was named", f"{PROGRAM} FOLDER KEYWORD (--help shows all)")
    if len(words) > 2:
        raise InputError(
            words[2], "was not expected after FOLDER and KEYWORD", "put names with spaces in quotes"
        )
    if len(words) == 2 and found.keyword is not None and words[1] != found.keyword:
        raise InputError(
            words[1], f"the keyword is given twice; --keyword says {found.keyword!r}", "keep one"
        )
    keyword = words[1] if len(words) == 2 else "abc" if found.keyword is None else found.keyword
    folder = _absolute(words[0])
    _check_keyword(keyword)
    _check_numbers(found)
    return CaptionOptions(
        folder=folder,
        keyword=keyword,
        output=_output(folder, keyword, found.output, found.repeats),
        model=_model(found.model),
        prompt=found.prompt,
        repeats=found.repeats,
        batch_size=found.batch_size,
        max_new_tokens=found.max_new_tokens,
        temperature=found.temperature,
        top_p=found.top_p,
        seed=found.seed,
        max_caption_tokens=found.max_caption_tokens,
        raw_captions=found.raw_captions,
        recursive=found.recursive,
        overwrite=found.overwrite,
        dry_run=found.dry_run,
        device=found.device,
        dtype=found.dtype,
    )


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} FOLDER [KEYWORD] [flags]",
        description="Write one caption per image of FOLDER with Janus-Pro, and the folder's key concepts.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"noukii {__version__}", help="print the version and stop")
    add("--keyword", metavar="WORD", help="trigger word and name of the output folder (abc)")
    add(
        "--model",
        default="models/Janus-Pro-1B",
        metavar="DIR",
        help="Janus-Pro in either layout, or `demo` (models/Janus-Pro-1B)",
    )
    add("--prompt", default=QUESTION, metavar="TEXT", help=f"question put to the model ({QUESTION})")
    add("--repeats", type=int, metavar="N", help="write to image_datasets/N_KEYWORD, ready for training")
    add("--output", metavar="DIR", help="write to this folder")
    add("--batch-size", type=int, metavar="N", help="images at a time (as many as fit)")
    add("--max-new-tokens", type=int, default=512, metavar="N", help="the model's answer ends there (512)")
    add("--temperature", type=float, default=0.1, metavar="X", help="0 = always the likeliest word (0.1)")
    add("--top-p", type=float, default=0.95, metavar="X", help="share of likely words to draw from (0.95)")
    add("--seed", type=int, default=42, metavar="N", help="same seed, same captions (42)")
    add(
        "--max-caption-tokens",
        type=int,
        choices=CAPTION_TOKENS,
        default=75,
        help="CLIP tokens a caption may use, trigger included (75)",
    )
    add("--raw-captions", action="store_true", help="the model's text as it is: no trigger, no trimming")
    add("--recursive", action="store_true", help="take the images in sub-folders as well")
    add("--overwrite", action="store_true", help="caption again what has a caption; edited ones are kept")
    add("--apply", metavar="FILE", help="write the captions that were edited in FOLDER/review.html")
    add("--dry-run", action="store_true", help="say what would be done; load no model, write nothing")
    add("--device", default="auto", metavar="NAME", help="auto, cuda, cuda:1 or cpu (auto)")
    add("--dtype", default="auto", choices=DTYPES, help="how the model's numbers are kept (auto)")
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split at the first `--`: what follows are names, even if they begin with a dash."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _unknown_flag(parser: Parser, word: str) -> InputError:
    if os.path.isdir(word):
        return InputError(
            word, "a folder's name that begins with a dash reads like a flag", f"write ./{word}"
        )
    return parser.unknown_argument(word)


def _absolute(text: str) -> Path:
    if not text:
        raise InputError(PROGRAM, "the image folder's name is empty", f"{PROGRAM} FOLDER KEYWORD")
    path = Path(text).absolute()
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(text, "the name is too long for this disk", "use a shorter one") from None
    return path.resolve() if ".." in path.parts else path


def _check_keyword(keyword: str) -> None:
    problem = name_problem(keyword)
    if problem is None and keyword.startswith("."):
        problem = "starts with a dot; a folder so named is hidden and would not be trained"
    if problem is None and "," in keyword:
        problem = "contains a comma; what stands before the first comma would be the trigger"
    if problem:
        raise InputError(
            f"keyword '{printable(keyword)}'", problem, "use one short invented word, like tomcat"
        )


def _check_numbers(found: object) -> None:
    limits = {
        "repeats": (1, 10_000),
        "batch_size": (1, 4096),
        "max_new_tokens": (1, MAX_NEW_TOKENS),
        "seed": (0, 2**63 - 1),
    }
    for name, (low, high) in limits.items():
        value = getattr(found, name)
        if value is not None and not low <= value <= high:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} {value}", f"is not between {low} and {high}", "give a number in range")
    temperature, top_p, device = (getattr(found, name) for name in ("temperature", "top_p", "device"))
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"--temperature {temperature}", "is not 0 or more", "0 is greedy, 0.1 the default")
    if not 0 < top_p <= 1:
        raise InputError(f"--top-p {top_p}", "is not above 0 and at most 1", "0.95 is the default")
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (":" in device and not (kind == "cuda" and number.isdigit())):
        raise InputError(f"--device {device}", "is not a device", "auto, cpu, cuda or cuda:1")
    if any("\ud800" <= char <= "\udfff" for char in str(getattr(found, "prompt", ""))):
        raise InputError("--prompt", "holds bytes that are not UTF-8", "write it as UTF-8 text")
    if not str(getattr(found, "prompt", "")).strip():
        raise InputError("--prompt", "the question is empty", f'leave it out for "{QUESTION}"')


def _output(folder: Path, keyword: str, output: str | None, repeats: int | None) -> Path:
    if output is not None and repeats is not None:
        raise InputError(
            f"--repeats {repeats}",
            f"writes to image_datasets/{repeats}_{printable(keyword)}, and --output names another folder",
            "leave out one of the two",
        )
    if output is not None:
        if not output:
            raise InputError("--output", "the folder's name is empty", "name the folder to write to")
        path = _absolute(output)
    elif repeats is not None:
        path = project.image_datasets() / f"{repeats}_{keyword}"
    else:
        path = folder.parent / keyword
    if path.is_symlink() and not path.exists():
        raise InputError(
            path,
            f"is a link to {printable(os.readlink(path))}, which is not there",
            "make that folder or remove the link, or use --output",
        )
    if path.exists() and not path.is_dir():
        raise InputError(path, "is a file; the output is a folder", "choose another keyword, or use --output")
    _check_apart(folder, path)
    return path


def _check_apart(folder: Path, output: Path) -> None:
    """Refuse an output that is the input, holds it or lies in it (links and letter case seen through)."""
    inside, outside = folder.resolve(), output.resolve()
    remedy = "choose another keyword, or name a folder elsewhere with --output"
    if inside == outside or (output.exists() and folder.exists() and os.path.samefile(folder, output)):
        raise InputError(output, "the output would be the input folder itself, which is only read", remedy)
    if _holds(folder, outside):
        raise InputError(output, "the output would lie inside the input folder, which is only read", remedy)
    if _holds(output, inside):
        raise InputError(output, "the output folder would hold the input folder", remedy)


def _holds(outer: Path, inner: Path) -> bool:
    """Whether `inner` (resolved) lies somewhere below `outer`."""
    if outer.resolve() in inner.parents:
        return True
    return outer.exists() and any(part.exists() and os.path.samefile(outer, part) for part in inner.parents)


def _model(text: str) -> Path:
    if not text:
        raise InputError("--model", "the folder's name is empty", "name a Janus-Pro folder, or `demo`")
    if text == "demo":
        path = project.CHECKOUT / "demo" / "models" / "janus"
        if not path.is_dir():
            step = "./setup.sh --captioning-only fetches the real one"
            raise InputError(path, "the demo model is not in this checkout", step)
        return path
    path = Path(text).expanduser()
    if path.is_absolute() or path.exists():
        return path.absolute()
    return project.home() / path


def missing_folder(folder: Path) -> InputError:
    """Return the refusal of an input folder that is not there, with the nearest name beside it."""
    if folder.exists():
        return InputError(folder, "is a file, not a folder", "name the folder that holds the images")
    if folder.is_symlink():
        return InputError(folder, "is a link to something that is not there", "name the folder itself")
    try:
        beside = [entry.name for entry in os.scandir(folder.parent) if entry.is_dir()]
    except OSError:
        beside = []
    near = nearest(folder.name, beside)
    return InputError(
        folder,
        "there is no such folder",
        f"did you mean {printable(folder.parent / near)}?" if near else "check the spelling, or drag it here",
    )
