"""Why a trainer failed, read from what it printed and from how it ended."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

SETUP = "./setup.sh --training-only --no-models mends the trainer's environment"
LAST_LINES = 12


@dataclass(frozen=True)
class Reading:
    """The cause in plain words and what to do about it."""

    reason: str
    next_step: str


_OUT_OF_MEMORY = "the memory did not suffice"
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    # (what the trainer printed, the cause, the next step; {1} is the first group)
    (
        r"No module named '?([\w.]+)'?",
        "the Python package {1} is missing in the trainer's environment",
        SETUP,
    ),
    (
        r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver"
        r"|no CUDA-capable device|fp16 mixed precision requires a GPU",
        "the trainer found no usable CUDA device",
        "--precision no trains on the processor; ./setup.sh --check says what is wrong with the GPU",
    ),
    (
        r"CUDA driver version is insufficient|driver on your system is too old",
        "the NVIDIA driver is too old for the installed torch",
        "update the driver, or let ./setup.sh --training-only --no-models install a torch that it can run",
    ),
    (
        r"no kernel image is available|not compatible with the current PyTorch",
        "the installed torch has no code for this graphics card",
        "./setup.sh --training-only --no-models installs a torch that suits the card",
    ),
    (
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 27\]|File too large",
        "the disk is full",
        "free space there, then run the same command with --resume",
    ),
    (
        r"HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeader|Error while deserializing header"
        r"|invalid load key|size mismatch for|Missing key\(s\) in state_dict",
        "the base model is not a whole Stable Diffusion 1.5 checkpoint",
        "./setup.sh --training-only --no-kohya fetches one (4.3 GB), or --base-model names another",
    ),
    (
        r"(?i)\b(loss|gradient|latents?)\b[^\n]{0,60}\b(nan|inf|not finite)\b|NaN detected",
        "the numbers became NaN or infinite",
        "try --learning-rate 5e-5, or --precision no",
    ),
    (
        r"couldn't connect to|Can't load tokenizer|Can't load the (?:model|configuration)|LocalEntryNotFound"
        r"|offline mode|MaxRetryError|Temporary failure in name resolution",
        "the trainer asked for a file from the network",
        "./setup.sh --training-only --no-models puts the tokenizer into the local cache",
    ),
    (
        r"unrecognized arguments: ([^\n]+)",
        "the trainer does not know the flag {1}",
        "look at the flags behind --",
    ),
)


def read_cause(text: str, exit_code: int, savings: list[str] | None = None) -> Reading:
    """Return our reading of a failed run.

    `text` is what the trainer printed, `exit_code` its status (negative: the signal that ended it,
    as in subprocess), `savings` the settings that would save memory.
    """
    ended_by = signal_of(text, exit_code)
    said = last_lines(text)
    if said and said[-1].startswith("  next: "):  # our own trainer's message
        return Reading("the trainer says why above", said[-1].removeprefix("  next: "))
    if re.search(r"(?i)out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory"
                 r"|^MemoryError|not enough memory", text, re.MULTILINE):  # fmt: skip
        return Reading(_OUT_OF_MEMORY, _memory_advice(savings))
    if ended_by == signal.SIGKILL:
        return Reading(
            "the trainer was killed (signal 9); where nobody did so by hand, the system ran out of memory",
            _memory_advice(savings),
        )
    for pattern, reason, next_step in _PATTERNS:
        if found := re.search(pattern, text):
            first = found.group(1).strip() if found.groups() and found.group(1) else ""
            return Reading(reason.replace("{1}", first), next_step)
    if ended_by:
        name = signal.Signals(ended_by).name if ended_by in signal.valid_signals() else f"signal {ended_by}"
        return Reading(f"the trainer was ended by {name}", "run it again; the log has what it printed")
    return Reading(
        f"the trainer ended with exit status {exit_code}", "its last lines above and the log say why"
    )


def signal_of(text: str, exit_code: int) -> int:
    """Return the number of the signal that ended the trainer, 0 if none did.

    accelerate's launcher ends with status 1 then, and says which signal in its own last line.
    """
    if exit_code < 0:
        return -exit_code
    if exit_code > 128:
        return exit_code - 128
    found = re.findall(r"died with <Signals\.SIG\w+: (\d+)>", text)
    return int(found[-1]) if found else 0


def status_of(text: str, exit_code: int) -> int:
    """Return the trainer's own exit status (negative: the signal), which accelerate's launcher hides.

    The launcher ends with status 1 whatever happened, and says what in its last line.
    """
    if exit_code != 1:
        return exit_code
    if killed := signal_of(text, exit_code):
        return -killed
    found = re.findall(r"CalledProcessError: Command .* returned non-zero exit status (\d+)\.", text)
    return int(found[-1]) if found else exit_code


def last_lines(text: str, count: int = LAST_LINES) -> list[str]:
    """Return the last `count` lines that the trainer itself printed, progress bars left out.

    The traceback of accelerate's launcher says only that the trainer failed; it is left out too.
    """
    text = re.sub(
        r"^Traceback \(most recent call last\):\n(?:[ ][^\n]*\n)+"
        r"subprocess\.CalledProcessError: Command [^\n]*\n?",
        "",
        text,
        flags=re.MULTILINE,
    )
    lines = [line.split("\r")[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return [line for line in lines if line][-count:]


def _memory_advice(savings: list[str] | None) -> str:
    if not savings:
        return "--batch-size 1 and --resolution 384 need less"
    return "what saves most: " + ", ".join(savings)
