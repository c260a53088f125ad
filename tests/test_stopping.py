"""How a run ends before its time: signals, a dead driver, a full disk. Whatever happens, the work is kept."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_models import make_tiny_sd
from tiny_training import CHECKOUT, SCRIPT, arguments, draw_data, environment, metrics_of, write_toml

from noukii.stop import StopSignal
from noukii.trainer.run_log import METRICS_NAME, RunLog

MANY = 100_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stop é")
    make_tiny_sd(home / "model")
    write_toml(home / "c.toml", draw_data(home / "2_disc"))
    return home


@dataclass
class Trainer:
    """The real command; `said` is what came on stderr so far."""

    process: subprocess.Popen[str]
    output: Path
    said: list[str] = field(default_factory=list)

    def wait_for(self, words: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return
        pytest.fail(f"ended without saying {words!r}: {''.join(self.said)}")

    def end(self) -> int:
        """The exit status; all that it said is in `said` then."""
        assert self.process.stderr is not None
        if not self.process.stderr.closed:
            self.said += self.process.stderr
        return self.process.wait()

    @property
    def text(self) -> str:
        return "".join(self.said)


@contextlib.contextmanager
def trainer(place: Path, output: Path, *flags: str, steps: int = MANY, **more: str) -> Iterator[Trainer]:
    given = arguments(place / "model", place / "c.toml", output, "--save_state", *flags, steps=steps)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *given], env={**os.environ, **environment(place), **more},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        encoding="utf-8",
    )  # fmt: skip
    try:
        yield Trainer(process, output)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def step_of(state: Path) -> int:
    return int(json.loads((state / "state.json").read_text())["step"])


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_that_follow_at_once_are_one_wish(first: signal.Signals) -> None:
    """A service manager signals the whole tree, and the driver passes its own wish on besides."""
    before = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), first)
        assert stop.requested
        for which in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), which)
    assert signal.getsignal(signal.SIGINT) == before


def test_only_a_second_interrupt_later_on_is_impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with StopSignal():
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += 60
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)  # the first of its kind
        now[0] += 0.9
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_is_taken_even_if_nobody_reads_what_is_said() -> None:
    script = (
        "import os, signal\nfrom noukii.stop import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "os._exit(7 if stop.requested else 1)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 7


def test_a_signal_to_the_whole_tree_saves_the_run(place: Path, tmp_path: Path) -> None:
    with trainer(place, tmp_path / "out", "--save_every_n_steps=1", NOUKII_DRIVER="1") as run:
        run.wait_for("-state")
        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            run.process.send_signal(which)
        assert run.end() == 130, run.text
    done = step_of(run.output / "disc-state")
    assert f"stopped after step {done} of {MANY}; the LoRA as it was then is saved" in run.text
    assert len(metrics_of(run.output)) == done
    assert (run.output / "disc.safetensors").is_file()
    # the step that was the last one would have been saved without the stop, too
    assert step_of(run.output / f"disc-step{done:08d}-state") == done
    assert "next:" not in run.text and "--resume" not in run.text  # the driver says it in its own words
    assert "Traceback" not in run.text


def test_the_death_of_the_driver_saves_the_run(place: Path, tmp_path: Path) -> None:
    """kill -9: nobody reads the output any more. A zombie is dead too; in a container nobody buries it."""
    driver = subprocess.Popen(["sleep", "1000"])
    try:
        with trainer(
            place, tmp_path / "out", "--save_every_n_steps=1", NOUKII_DRIVER_PID=str(driver.pid)
        ) as run:
            run.wait_for("-state")
            driver.kill()
            assert run.process.stderr is not None
            run.process.stderr.close()
            assert run.end() == 130
    finally:
        driver.kill()
        driver.wait()
    done = step_of(run.output / "disc-state")
    assert 1 <= done < MANY
    assert len(metrics_of(run.output)) == done
    assert (run.output / "disc.safetensors").is_file()


def test_a_reader_that_goes_away_does_not_end_the_run(place: Path, tmp_path: Path) -> None:
    with trainer(place, tmp_path / "out", "--save_every_n_steps=1", steps=30) as run:
        run.wait_for("-state")
        assert run.process.stderr is not None
        run.process.stderr.close()
        assert run.end() == 0
    assert step_of(run.output / "disc-state") == 30
    assert (run.output / "disc.safetensors").is_file()


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_in_the_first_seconds_is_one_line(place: Path, tmp_path: Path, which: signal.Signals) -> None:
    """Within an import of a library that takes its time."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "torch.py").write_text(
        "import sys, time\nprint('importing', file=sys.stderr, flush=True)\n"
        "try:\n    while True: time.sleep(1)\nexcept BaseException: raise ImportError('as libraries do')\n"
    )
    with trainer(place, tmp_path / "out", PYTHONPATH=str(tmp_path / "slow")) as run:
        run.wait_for("importing")
        run.process.send_signal(which)
        assert run.end() == 130, run.text
    assert run.said == ["importing\n", "stopped before the first step; nothing was trained\n"]
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of a running process is Linux's")
def test_a_full_disk_on_the_way_is_told_and_the_next_save_tries_again(place: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: LoRAs do not fit, the log does."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with trainer(place, tmp_path / "out", "--save_every_n_steps=1", steps=120) as run:
        run.wait_for("-state")
        good = run.output / "disc-step00000001.safetensors"
        content = good.read_bytes()
        small = (len(content) // 2, unlimited[1])
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, small)
        run.wait_for("training goes on, and the next save tries again")
        message = run.said[-1]
        assert message.startswith(f"! {run.output}/disc-step") and "could not be written: " in message
        assert "ulimit -f" in message and "it needs about " in message
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, unlimited)
        run.wait_for("saved disc-step")
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, small)
        assert run.end() == 1
    assert "Traceback" not in run.text
    last = run.text[run.text.index(f"{run.output}/disc.safetensors: could not be written: ") :]
    assert "next: ulimit -f unlimited, then go on with --resume" in last
    assert "saved before and whole: " in last
    assert good.read_bytes() == content
    assert not (run.output / "disc.safetensors").exists()
    assert not [path for path in run.output.iterdir() if path.name.startswith(".noukii-tmp-")]


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def record(log: RunLog, step: int) -> None:
    log.record(step=step, epoch=1, loss=0.5, rates={"unet": 1.0}, adapted={"unet": 1.0}, seconds=0, samples=1)


def test_a_log_that_cannot_be_written_is_told_once_and_written_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / METRICS_NAME
    with RunLog(tmp_path, 9) as log:
        record(log, 1)
        line = path.stat().st_size
        with files_up_to(line * 2 + line // 2):
            for step in (2, 3, 4):
                record(log, step)
            assert [one["step"] for one in metrics_of(tmp_path)] == [1, 2]  # no half line
        assert log.text().count("\n") == 4
    assert [one["step"] for one in metrics_of(tmp_path)] == [1, 2, 3, 4]
    said = capfd.readouterr().err
    assert said.count(f"! {path}: could not be written") == 1
    assert said.count("metrics.jsonl is complete again") == 1


def test_a_log_that_can_never_be_written_does_not_end_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / METRICS_NAME).mkdir()  # a folder in its place
    with RunLog(tmp_path, 9) as log:
        for step in (1, 2):
            record(log, step)
    assert "metrics.jsonl lacks the last steps" in capfd.readouterr().err


def test_a_tensorboard_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("in the way")
    with RunLog(tmp_path, 9, tensorboard=tmp_path / "file" / "logs") as log:
        record(log, 1)
    with RunLog(tmp_path, 9, tensorboard=tmp_path / "logs") as log, files_up_to(400):
        for step in range(1, 4):
            record(log, step)
        log._board.close()  # type: ignore[union-attr]  (what is waiting is written now)
    said = capfd.readouterr().err
    assert said.count("! TensorBoard: ") == 2
    assert "Traceback" not in said
    assert len(metrics_of(tmp_path)) == 3
