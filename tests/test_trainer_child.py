"""The trainer as a child: what is shown, what is kept, how it is stopped, and why it failed."""

from __future__ import annotations

import dataclasses
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noukii.driver import diagnosis, estimate, prepare
from noukii.hardware import Hardware

CHECKOUT = Path(__file__).resolve().parent.parent
GIB = 2**30

# Runs `child.run` on a Python program and prints how it ended, as the driver does.
HARNESS = """
import os, sys
from noukii.driver import child
with open(sys.argv[1], "wb") as log:
    try:
        end = child.run(sys.argv[2:], environment=dict(os.environ), log=log, missing="./setup.sh")
        print("ENDING", end.exit_code, end.stopped, "orphaned" * end.orphaned, flush=True)
    except KeyboardInterrupt:
        print("AT ONCE", flush=True)
"""
# What accelerate's launcher is to the trainer: a parent that waits and raises.
LAUNCHER = "import subprocess, sys\nsubprocess.check_call([sys.executable, '-c', sys.argv[1]])\n"


def harness(log: Path, *command: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(log), *command],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
    )


def test_piped_output_is_plain_lines_and_the_log_is_whole(tmp_path: Path):
    program = (
        "import sys\n"
        "print('loading', flush=True)\n"
        "for step in range(3): sys.stderr.write(f'\\rsteps: {step}/3'); sys.stderr.flush()\n"
        "sys.stderr.write('\\nsaved\\n'); print('no end of line', end='')\n"
    )
    process = harness(tmp_path / "log", sys.executable, "-c", program)
    out, err = process.communicate()
    assert out == "loading\nsteps: 0/3\nsteps: 2/3\nsaved\nno end of lineENDING 0 False \n"
    assert err == ""
    log = (tmp_path / "log").read_bytes()
    assert log == b"loading\n\rsteps: 0/3\rsteps: 1/3\rsteps: 2/3\nsaved\nno end of line"


def test_on_a_terminal_the_trainer_sees_a_terminal_and_its_bar_arrives_as_it_is(tmp_path: Path):
    program = "import sys; sys.stderr.write(f'{sys.stderr.isatty()}\\r10%\\r20%\\ndone\\n')"
    mine, theirs = pty.openpty()
    process = harness(tmp_path / "log", sys.executable, "-c", program, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(mine, 4096):
            shown += block
    except OSError:
        pass
    os.close(mine)
    process.wait()
    assert shown == b"True\r10%\r20%\r\ndone\r\nENDING 0 False \r\n"
    assert (tmp_path / "log").read_bytes() == b"True\r10%\r20%\ndone\n"


def test_the_launcher_s_own_traceback_is_not_shown_but_the_trainer_s_is(tmp_path: Path):
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, "raise ValueError('bad rank')")
    out, _ = process.communicate()
    assert "ValueError: bad rank" in out
    assert "CalledProcessError" not in out
    assert "ENDING 1 False" in out
    log = (tmp_path / "log").read_text()
    assert "CalledProcessError" in log
    assert diagnosis.last_lines(log)[-1] == "ValueError: bad rank"


def test_a_trainer_killed_behind_the_launcher_is_known_as_killed(tmp_path: Path):
    program = "import os; print('step 3', flush=True); os.kill(os.getpid(), 9)"
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, program)
    process.communicate()
    log = (tmp_path / "log").read_text()
    assert diagnosis.signal_of(log, 1) == signal.SIGKILL
    assert "ran out of memory" in diagnosis.read_cause(log, 1).reason
    assert diagnosis.last_lines(log) == ["step 3"]


POLITE = """
import signal, time
wish = []
for which in (signal.SIGINT, signal.SIGTERM): signal.signal(which, lambda *_: wish.append(1))
print("ready", flush=True)
while not wish: time.sleep(0.01)
print("saved", len(wish), flush=True)
"""


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_stop_reaches_the_trainer_once_and_it_saves(tmp_path: Path, which: signal.Signals):
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, POLITE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, which)
    out, err = process.communicate()
    assert (tmp_path / "log").read_text() == "ready\nsaved 1\n"
    if which != signal.SIGHUP:  # then nobody is there to read
        assert out == "saved 1\nENDING 0 True \n"
        assert "finished and saved" in err


def press_until_it_ends(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C again and again, as impatient people do."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=0.3)[0]
        except subprocess.TimeoutExpired:
            continue


def test_a_trainer_whose_launcher_dies_is_waited_for(tmp_path: Path):
    go_on = tmp_path / "go on"
    program = (
        "import os, time\n"
        "print(os.getppid(), flush=True)\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "print('saved', flush=True)\n"
    )
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, program)
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert process.stdout.readline().startswith("the launcher has ended before the trainer; waiting for it")
    go_on.touch()
    out, _ = process.communicate()
    assert out == "saved\nENDING -9 False orphaned\n"


def test_a_stop_reaches_a_trainer_whose_launcher_is_dead(tmp_path: Path):
    process = harness(
        tmp_path / "log", sys.executable, "-c", LAUNCHER, "import os; print(os.getppid())\n" + POLITE
    )
    assert process.stdout is not None
    launcher = int(process.stdout.readline())
    assert process.stdout.readline() == "ready\n"
    os.kill(launcher, signal.SIGKILL)
    assert "waiting for it" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert out == "saved 1\nENDING -9 True orphaned\n"


def test_a_hang_up_that_comes_twice_is_one_wish(tmp_path: Path):
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, POLITE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
    process.communicate()
    assert (tmp_path / "log").read_text() == "ready\nsaved 1\n"


def test_a_second_stop_ends_the_trainer_at_once(tmp_path: Path):
    deaf = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    process = harness(tmp_path / "log", sys.executable, "-c", LAUNCHER, deaf)
    assert process.stdout is not None
    trainer = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "heard\n"
    out = press_until_it_ends(process)
    assert out == "AT ONCE\n"
    with pytest.raises(ProcessLookupError):
        while True:  # until init has collected it
            os.kill(trainer, 0)
            os.sched_yield()


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path: Path):
    process = harness(Path("/dev/full"), sys.executable, "-c", "print('step 1'); print('step 2')")
    out, _ = process.communicate()
    assert "step 1\nstep 2\n" in out
    assert "the log cannot be written any more: No space left on device" in out
    assert "ENDING 0 False" in out


def test_a_program_that_is_not_there_is_named_with_the_next_step(tmp_path: Path):
    process = harness(tmp_path / "log", str(tmp_path / "no accelerate"))
    _, err = process.communicate()
    assert "no accelerate: cannot be started (No such file or directory)\n  next: ./setup.sh" in err


@pytest.mark.parametrize(
    ("text", "exit_code", "reason", "next_step"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried 20 MiB", 1, "memory", "--batch-size 1"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", 1, "memory", "--batch-size"),
        ("", -9, "killed (signal 9)", "--batch-size 1"),
        ("ModuleNotFoundError: No module named 'einops'", 1, "einops is missing", "--training-only"),
        ("AssertionError: Torch not compiled with CUDA enabled", 1, "no usable CUDA", "--precision"),
        ("RuntimeError: No CUDA GPUs are available", 1, "no usable CUDA device", "--check"),
        ("The NVIDIA driver on your system is too old (found 10020)", 1, "driver is too old", "update"),
        ("CUDA error: no kernel image is available for execution", 1, "no code for this", "setup"),
        ("OSError: [Errno 28] No space left on device: '/out/cat'", 1, "disk is full", "--resume"),
        ("SafetensorError: Error while deserializing header: HeaderTooLarge", 1, "not a whole", "--base"),
        ("step 17: the loss is NaN", 1, "became NaN", "--learning-rate"),
        ("OSError: We couldn't connect to 'https://huggingface.co'", 1, "the network", "--training"),
        ("train_network.py: error: unrecognized arguments: --rnak 4", 2, "flag --rnak 4", "behind --"),
        ("Fatal Python error: Segmentation fault", -11, "ended by SIGSEGV", "log"),
        ("something else", 3, "exit status 3", "log"),
    ],
)  # fmt: skip
def test_the_cause_is_read_from_the_output(text: str, exit_code: int, reason: str, next_step: str):
    reading = diagnosis.read_cause(text, exit_code)
    assert reason in reading.reason
    assert next_step in reading.next_step


def test_ordinary_output_is_not_taken_for_a_cause():
    text = (
        "INFO: nan checks are off\nstep 1 loss 0.1 lr 1e-4\nTraceback (most recent call last):\nKeyError: 'x'"
    )
    assert diagnosis.read_cause(text, 1).reason == "the trainer ended with exit status 1"


def test_bars_and_empty_lines_are_not_last_lines():
    assert diagnosis.last_lines("a\n\n\rsteps 1%\rsteps 2%\nValueError: x\n", 2) == [
        "steps 2%",
        "ValueError: x",
    ]


def load(**changes: object) -> estimate.Load:
    usual = estimate.Load(512, 4, "bf16", False, 4_300_000_000)
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def card(gib: int) -> Hardware:
    return Hardware("card", gib * GIB, (8, 6), "", 8, True, 32 * GIB)


def test_checkpointing_is_chosen_for_the_card():
    assert estimate.memory_is_short(load(), card(6))
    assert estimate.memory_is_short(load(), card(8))
    assert not estimate.memory_is_short(load(), card(24))
    assert not estimate.memory_is_short(load(batch_size=1), card(8))
    assert estimate.memory_is_short(load(resolution=768, batch_size=8), card(24))


@pytest.mark.parametrize(
    ("resolution", "peak_bytes"),
    [(256, 7.38e9), (512, 9.07e9)],
)
def test_the_estimate_on_a_processor_is_what_was_measured(resolution: int, peak_bytes: float):
    """docs/benchmarks.md: full-size SD1.5, float32, batch 1, no checkpointing."""
    asked = load(resolution=resolution, batch_size=1, precision="no", on_gpu=False)
    assert asked.bytes() == pytest.approx(peak_bytes, rel=0.15)


def test_the_two_settings_that_save_most_are_named_with_their_gain():
    first, second = estimate.savings(load(), card(8))
    assert first.startswith("--gradient-checkpointing on (about 4.")
    assert second.startswith("--batch-size 1 (about 4.")
    # what is on already is not advised again
    assert not any(
        "checkpointing" in words for words in estimate.savings(load(gradient_checkpointing=True), card(8))
    )
    assert estimate.savings(load(gradient_checkpointing=True, batch_size=1, resolution=256), card(8)) == []


def test_bfloat16_is_advised_only_where_the_hardware_computes_it():
    asked = load(precision="no", gradient_checkpointing=True, batch_size=1, resolution=256)
    assert any("--precision bf16" in words for words in estimate.savings(asked, card(8)))
    old_processor = Hardware("", 0, (0, 0), "no NVIDIA driver is installed", 8, False, 32 * GIB)
    assert estimate.savings(asked, old_processor) == []
    machine = prepare.Machine(old_processor, "bf16", False, asked)
    assert "give --precision no" in machine.words
    assert old_processor.precision == "no"
