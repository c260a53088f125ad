"""kill -9 at seeded moments of captioning, staging and training: the next run ends as an undisturbed one.

    python tests/reliability/kill.py [captioning staging trainer training] --moments 30 --seed 0

captioning, staging and trainer run in a forked child, which kills itself before its n-th change to the disk
(a file opened for writing, a rename, a removal, a flush …); n is drawn from all the changes of an undisturbed
run. `training` is ./run_training.sh with the built-in trainer, killed from outside at a drawn share of an
undisturbed run's time: all of its processes at once, or the trainer alone, or the driver alone.

After each kill no file or folder under a final name is a half one; then the same command (for training with
--resume, where a state was saved) runs to its end, and what it leaves is compared with the undisturbed run's,
byte for byte (times left out; LoRAs tensor by tensor). A caption that was edited by hand and an older LoRA of
the same name have to be there unchanged. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # results to the bit; and no threads that a fork would lose
TESTS = Path(__file__).resolve().parent.parent
CHECKOUT = TESTS.parent
sys.path[:0] = [str(CHECKOUT), str(TESTS)]

from tiny_janus import make_tiny_janus  # noqa: E402
from tiny_models import make_tiny_sd  # noqa: E402
from tiny_training import arguments, draw_data, environment, metrics_of, tensors_of, write_toml  # noqa: E402

from noukii.command_line import run_command  # noqa: E402
from noukii.driver import processes  # noqa: E402
from noukii.driver.outputs import PLACEHOLDER  # noqa: E402
from noukii.files import TEMPORARY_PREFIX  # noqa: E402

PRECIOUS = b"the LoRA of last week"
Tree = dict[str, object]


# --- dying at a change of the disk -------------------------------------------------------------------


def child(job: Callable[[], int], root: Path, log: Path, moment: int | None) -> tuple[int, int]:
    """Run `job` in a forked child that dies before its `moment`-th change below `root`.

    Returns (exit status, or -9 where it was killed; changes counted). What it prints goes to `log`.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        status = 99
        try:
            count = _count_changes(os.fspath(root), moment)
            status = job()
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(writing, str(count()).encode())
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    with open(reading, "rb") as stream:
        counted = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, int(counted or 0)


def _count_changes(root: str, moment: int | None) -> Callable[[], int]:
    """Count changes below `root` in this process from now on; SIGKILL comes before number `moment`."""
    done = [0]
    watched = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.chmod"}
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def change() -> None:
        done[0] += 1
        if done[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, values: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = values
            if not (isinstance(flags, int) and flags & writes):
                return
        elif event in watched:
            path = values[0]
        else:
            return
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(root):
            change()

    for name in ("fsync", "write", "ftruncate"):
        real = getattr(os, name)

        def call(handle: int, *rest: object, _real: Callable[..., object] = real) -> object:
            if handle > 2:
                change()
            return _real(handle, *rest)

        setattr(os, name, call)
    sys.addaudithook(audit)
    return lambda: done[0]


# --- the jobs ----------------------------------------------------------------------------------------


def files_of(folder: Path) -> Tree:
    """Every file below `folder` with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def whole_picture(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        image.load()


def draw_pictures(folder: Path, count: int, first: int = 0) -> Path:
    """Pictures that are copied as they are (PNG, JPEG), and some that become PNG (palette, transparent)."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        shade = Image.radial_gradient("L").resize((96 + number, 96)).rotate(37 * number)
        image = Image.merge(
            "RGB", (shade, shade.rotate(90).resize(shade.size), shade.point(lambda v: 255 - v))
        )
        match number % 4:
            case 0:
                image.save(folder / f"p {number}.png")
            case 1:
                image.save(folder / f"p {number}.JPG")
            case 2:
                image.quantize(20).save(folder / f"p {number}.gif")
            case 3:
                image.putalpha(shade)
                image.save(folder / f"p {number}.webp", lossless=True)
    return folder


class Captioning:
    """janus_pro_caption_core.py with a tiny Janus-Pro: new, changed, renamed images, an edited caption."""

    def __init__(self, room: Path) -> None:
        self.root = room / "work"
        self.source, self.output = self.root / "in", self.root / "sat"
        self.model = make_tiny_janus(room / "janus")
        import noukii.captioning.decoding
        import noukii.captioning.folder
        import noukii.captioning.janus  # noqa: F401  (once, for all children)

    def prepare(self) -> None:
        draw_pictures(self.source, 4)
        assert child(self.run, self.root, self.root.parent / "log", None)[0] == 0
        (self.output / "p 1.txt").write_text("sat, HAND EDITED one", encoding="utf-8")
        draw_pictures(self.source, 3, 4)
        shutil.copy(self.source / "p 4.png", self.source / "twin.png")
        (self.source / "p 2.gif").rename(self.source / "renamed.gif")
        draw_pictures(self.root / "new", 1, 8)
        (self.root / "new" / "p 8.png").rename(self.source / "p 0.png")
        (self.source / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut off")

    def run(self) -> int:
        import janus_pro_caption_core

        wishes = ["sat", "--model", str(self.model), "--max-new-tokens", "6", "--batch-size", "2"]
        wishes += ["--dtype", "float32", "--output", str(self.output), "--device", "cpu"]
        return run_command(janus_pro_caption_core.main, [str(self.source), *wishes])

    def check(self) -> None:
        """Whole or not at all, and what the user wrote is as it was."""
        for path in self.output.iterdir():
            if not path.name.startswith(".") and path.suffix in (".png", ".jpg"):
                whole_picture(path)
        assert (self.output / "p 1.txt").read_text(encoding="utf-8") == "sat, HAND EDITED one"

    def result(self) -> Tree:
        found = files_of(self.output)
        found.pop("review.html")
        state = json.loads(found[".noukii.json"])  # type: ignore[arg-type]
        state["own"].pop("review.html")
        lines = found["captions.jsonl"].decode().splitlines()  # type: ignore[attr-defined]
        entries = [{**json.loads(line), "seconds": 0} for line in lines]
        assert entries and not [name for name in found if TEMPORARY_PREFIX in name]
        return {**found, ".noukii.json": state, "captions.jsonl": entries, "source": files_of(self.source)}


class Staging:
    """The driver up to the trainer, over what an earlier run left, and the gathering after a stand-in."""

    def __init__(self, room: Path) -> None:
        from test_driver import SCRIPT_HEAD, STAND_IN
        from test_gather import GOOD

        import noukii.driver.run
        import noukii.report.report  # noqa: F401  (once, for all children)

        self.root = room / "home"
        self.model = make_tiny_sd(room / "sd")
        stand_in = room / "accelerate"
        stand_in.write_text(STAND_IN.format(head=SCRIPT_HEAD, lora=GOOD.hex()))
        stand_in.chmod(0o755)
        self.variables = {
            "NOUKII_HOME": str(self.root), "NOUKII_ACCELERATE": str(stand_in), "STAND_IN": "good",
            "STAND_IN_RECORD": str(room / "got.json"),
        }  # fmt: skip
        self.sets = self.root / "image_datasets"

    def prepare(self) -> None:
        draw_pictures(self.sets / "3_cat", 5)
        for path in list((self.sets / "3_cat").iterdir()):
            path.with_suffix(".txt").write_bytes("cat, été\r\nsecond line".encode("cp1252"))
        (self.sets / "3_cat" / "prompt_cue-cat.txt").write_text("red\n")
        assert child(self.run, self.root, self.root.parent / "log", None)[0] == 0
        draw_pictures(self.sets / "2_dog", 3, 10)
        for path in list((self.sets / "2_dog").iterdir()):
            path.with_suffix(".txt").write_text("dog")
        (self.sets / "3_cat" / "p 1.JPG").unlink()
        (self.sets / "3_cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")
        train = self.root / "kohya_ss" / "dataset" / "images" / "train"
        draw_pictures(train / "2_dog", 2)  # somebody else's, and in the way
        precious = self.root / "trained_loras" / "tom" / "tom.safetensors"
        precious.write_bytes(PRECIOUS)

    def run(self) -> int:
        from noukii.driver.__main__ import main

        os.environ.update(self.variables)
        flags = [
            "--base-model",
            str(self.model),
            "--trainer",
            "builtin",
            "--output-name",
            "tom",
            "--seed",
            "1",
        ]
        return run_command(main, [*flags, "--steps", "4", "--resolution", "128"])

    def check(self) -> None:
        from noukii.trainer.safetensors_header import read_header

        for folder in self._staged():
            for path in folder.iterdir():
                if path.name.startswith("."):
                    continue
                if path.suffix != ".txt":
                    whole_picture(path)
                else:
                    assert path.read_text(encoding="utf-8") in ("cat, été second line", "dog"), path
        for folder in (self.root / "trained_loras").iterdir():
            if (folder / PLACEHOLDER).exists():  # a page of a run that goes on, and nothing else
                assert not list(folder.glob("*.safetensors"))
            elif folder.name.startswith("tom-"):
                read_header(folder / f"{folder.name}.safetensors")
                assert {"run.json", "report.html", "config_sat_nouki.toml"} <= {
                    p.name for p in folder.iterdir()
                }
        assert (self.root / "trained_loras" / "tom" / "tom.safetensors").read_bytes() == PRECIOUS

    def _staged(self) -> list[Path]:
        folders = (self.root / "kohya_ss" / "dataset" / "images" / "train").iterdir()
        return [path for path in folders if "set-aside" not in path.name and not path.name.startswith(".")
                and (path / ".noukii-staged.json").exists()]  # fmt: skip

    def result(self) -> Tree:
        train = self.root / "kohya_ss" / "dataset" / "images" / "train"
        left = [path for path in self.root.rglob(f"{TEMPORARY_PREFIX}*") if "outputs" not in path.parts]
        left += self.root.glob(f"trained_loras/*/{PLACEHOLDER}")
        assert not left, left
        newest = max(path.name for path in (self.root / "trained_loras").iterdir() if path.name != "tom")
        toml = (self.root / "trained_loras" / newest / "config_sat_nouki.toml").read_bytes()
        return {**files_of(train), "sets": files_of(self.sets), "toml": toml}


class Trainer:
    """noukii/trainer in one process: a LoRA and a state every two steps; goes on from the newest state."""

    def __init__(self, room: Path) -> None:
        from noukii.quiet import prepare_libraries

        prepare_libraries()
        import noukii.trainer.job
        import noukii.trainer.loop  # noqa: F401  (once, for all children)

        self.root = room / "run"
        self.home = room
        self.model = make_tiny_sd(room / "sd")
        subset = "shuffle_caption = true\nkeep_tokens = 1\ncaption_dropout_rate = 0.2\nflip_aug = true"
        self.toml = write_toml(room / "c.toml", draw_data(room / "5_disc"), subset=subset)

    def prepare(self) -> None:
        self.root.mkdir()

    def run(self) -> int:
        import torch

        from noukii.trainer.job import prepare_job
        from noukii.trainer.loop import train
        from noukii.trainer.settings import parse

        os.environ.update(environment(self.home))
        torch.set_num_threads(1)
        more = ["--noise_offset=0.1", "--network_dropout=0.3", "--lr_scheduler=cosine", "--save_state",
                "--save_every_n_steps=2", "--save_last_n_steps=4"]  # fmt: skip
        flags = arguments(self.model, self.toml, self.root, *more, steps=12)
        if state := self._newest():
            flags += ["--resume", str(state)]
        elif left := sorted(self.root.glob("disc*.safetensors")):
            self._refused(flags, left)
        train(prepare_job(parse(flags)))
        return 0

    def _refused(self, flags: list[str], left: list[Path]) -> None:
        """Killed between the first checkpoint and its state: the next run names that LoRA and does not start.

        Then do what a user does who wants the same name again: take the file away.
        """
        from noukii.errors import InputError
        from noukii.trainer.job import prepare_job
        from noukii.trainer.settings import parse

        before = {path: path.read_bytes() for path in left}
        try:
            prepare_job(parse(flags))
        except InputError as error:
            assert str(left[0]) in str(error), error
        else:
            raise AssertionError("a run of the same name would have written over a LoRA")
        assert before == {path: path.read_bytes() for path in left}
        for path in left:
            path.unlink()

    def _newest(self) -> Path | None:
        """The state that was saved last, as --resume of the driver finds it."""
        from noukii.driver.outputs import step_of

        states = [path for path in self.root.glob("disc*-state") if step_of(path) is not None]
        steps = [(step_of(path) or 0, path) for path in states]
        below = [pair for pair in steps if pair[0] < 12]  # the last one has nothing left to do
        return max(below)[1] if below else None

    def check(self) -> None:
        check_run_folder(self.root)

    def result(self) -> Tree:
        assert not list(self.root.glob(f"{TEMPORARY_PREFIX}*"))
        loras = {path.name: tensors_of(path) for path in self.root.glob("*.safetensors")}
        return {
            **loras,
            "metrics": metrics_of(self.root),
            "folders": sorted(p.name for p in self.root.iterdir()),
        }


def check_run_folder(folder: Path) -> None:
    """Every LoRA and every state under a final name is whole."""
    from noukii.trainer.lora_file import verify_lora
    from noukii.trainer.state import read_state

    for path in folder.glob("*.safetensors"):
        if not path.name.startswith(TEMPORARY_PREFIX):
            verify_lora(path)
    for path in folder.glob("*-state"):
        if not path.name.startswith(TEMPORARY_PREFIX):
            read_state(path)


# --- loops -------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What came of the kills of one job."""

    job: str
    moments: int = 0
    hit: int = 0
    """Kills that came before the run had ended."""
    where: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        where = ", ".join(f"{count} x {what}" for what, count in self.where.most_common(12))
        return [
            f"{self.job}: {self.moments} moments, {self.hit} kills, {len(self.failures)} failures,"
            f" {self.seconds:.0f} s",
            f"    {where}",
            *(f"    FAILED {text}" for text in self.failures),
        ]


def differences(one: Tree, other: Tree) -> str:
    names = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    return ", ".join(names[:8])


FORKED = {"captioning": Captioning, "staging": Staging, "trainer": Trainer}


def forked(name: str, moments: int, seed: int, room: Path) -> Report:
    """Kill a job before drawn changes of the disk."""
    job, log, report = FORKED[name](room), room / "log", Report(name)
    began = time.monotonic()
    job.prepare()
    start = room / "start"
    shutil.copytree(job.root, start, symlinks=True)
    status, total = child(job.run, job.root, log, None)
    assert status == 0, log.read_text(errors="replace")
    expected = job.result()
    drawn = random.Random(f"{seed}/{name}")
    chosen = sorted(drawn.sample(range(1, total + 1), min(moments, total)))
    for moment in chosen:
        shutil.rmtree(job.root)
        shutil.copytree(start, job.root, symlinks=True)
        log.write_bytes(b"")
        report.moments += 1
        status, _ = child(job.run, job.root, log, moment)
        report.hit += status == -signal.SIGKILL
        report.where[f"quarter {(moment - 1) * 4 // total + 1} of {total} changes"] += 1
        try:
            assert status in (0, -signal.SIGKILL), f"ended with {status}"
            job.check()
            status, _ = child(job.run, job.root, log, None)
            assert status == 0, f"the next run ended with {status}"
            job.check()
            different = differences(expected, job.result())
            assert not different, f"differs: {different}"
        except Exception as error:
            report.failures.append(f"before change {moment} of {total}: {type(error).__name__}: {error}\n"
                                   + log.read_text(errors="replace")[-1500:])  # fmt: skip
    report.seconds = time.monotonic() - began
    return report


WHO = ("all", "trainer", "driver")


class Training:
    """./run_training.sh with the real trainer."""

    STEPS = 10

    def __init__(self, room: Path) -> None:
        self.home = room / "home"
        self.model = make_tiny_sd(room / "sd")
        self.data = draw_data(room / "3_disc")
        self.log = room / "log"

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        flags = ["--output-name", "disc", *more]
        if "--resume" not in more:
            flags += ["--dataset", str(self.data), "--base-model", str(self.model), "--trainer", "builtin",
                      "--steps", str(self.STEPS), "--save-every", "2", "--seed", "7", "--precision", "no",
                      "--resolution", "64", "--batch-size", "2"]  # fmt: skip
        variables = {**environment(self.home), "NOUKII_PYTHON": sys.executable}
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [str(CHECKOUT / "run_training.sh"), *flags], env={**os.environ, **variables},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def prepare(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        old = self.home / "trained_loras" / "other"
        old.mkdir(parents=True)
        (old / "other.safetensors").write_bytes(PRECIOUS)

    def begun(self) -> bool:
        """The first step has been logged: from here on there is something to lose."""
        return any(self.home.glob("kohya_ss/outputs/disc/*/metrics.jsonl"))

    def check(self) -> None:
        for folder in self.home.glob("kohya_ss/outputs/disc/*"):
            check_run_folder(folder)
        for page in self.home.glob(f"trained_loras/*/{PLACEHOLDER}"):
            assert not list(page.parent.glob("*.safetensors"))
        for lora in self.home.glob("trained_loras/disc*/disc.safetensors"):
            if not lora.parent.name.startswith(TEMPORARY_PREFIX):
                assert (lora.parent / "run.json").is_file(), lora
        assert (self.home / "trained_loras/other/other.safetensors").read_bytes() == PRECIOUS

    def result(self) -> Tree:
        folder = self.home / "trained_loras" / "disc"
        assert not list((self.home / "trained_loras").glob(f"{TEMPORARY_PREFIX}*"))
        names = ["disc.safetensors", *(f"disc-step{step:08d}.safetensors" for step in range(2, 11, 2))]
        loras = {name: tensors_of(folder / name) for name in names if (folder / name).exists()}
        return {"lora": loras.pop("disc.safetensors"), "steps": loras, "metrics": metrics_of(folder)}


def tree_of(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    for one in found:
        found += [each.pid for each in processes.children(one)]
    return found


def _victims(run: subprocess.Popen[bytes], who: str) -> list[int]:
    below = tree_of(run.pid)
    return {"all": below, "driver": below[:1], "trainer": below[-1:]}[who]


@contextlib.contextmanager
def nothing_left(run: subprocess.Popen[bytes]) -> Iterator[None]:
    """End whatever of a run is left when the block ends badly."""
    try:
        yield
    except BaseException:
        for pid in tree_of(run.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.wait()
        raise


def real(moments: int, seed: int, room: Path) -> Report:
    """Kill ./run_training.sh from outside."""
    job, report, drawn = Training(room), Report("training"), random.Random(f"{seed}/training")
    began = time.monotonic()
    job.prepare()
    run = job.start()
    with nothing_left(run):
        at = _wait_for(job.begun, run)
        assert run.wait() == 0, job.log.read_text(errors="replace")
    lasts = time.monotonic() - at
    expected = job.result()
    for number in range(moments):
        who, share = WHO[number % 3], drawn.random()
        job.prepare()
        job.log.write_bytes(b"")
        report.moments += 1
        run = job.start()
        with nothing_left(run):
            at = _wait_for(job.begun, run)
            while time.monotonic() < at + share * lasts and run.poll() is None:
                time.sleep(0.001)
            everyone = tree_of(run.pid)
            if run.poll() is None:
                report.hit += 1
                for pid in _victims(run, who):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            run.wait()
            while any(_lives(pid) for pid in everyone):  # a trainer that has lost its driver saves and ends
                time.sleep(0.01)
        try:
            job.check()
            newest = _newest_step(job.home)
            report.where[f"{who} killed, newest state at step {newest}"] += 1
            _go_on(job, newest)
            job.check()
            different = differences(expected, _same_steps(expected, job.result()))
            assert not different, f"differs: {different}"
        except Exception as error:
            report.failures.append(
                f"{who} killed at {share:.3f} of {lasts:.1f} s: {type(error).__name__}: {error}\n"
                + job.log.read_text(errors="replace")[-1500:]
            )
    report.seconds = time.monotonic() - began
    return report


def _same_steps(expected: Tree, found: Tree) -> Tree:
    """Saves on the way of an interrupted part lie in its own result; those that are here must be right."""
    steps: dict[str, object] = {**expected["steps"], **found["steps"]}  # type: ignore[dict-item]
    return {**found, "steps": steps}


def _go_on(job: Training, newest: int | None) -> None:
    """Do as a user does: --resume where something was saved, else the same command."""
    result = job.home / "trained_loras" / "disc" / "run.json"
    if result.is_file() and json.loads(result.read_text())["exit_code"] == 0:
        return  # it was killed after its end
    run = job.start("--resume") if newest is not None else job.start()
    with nothing_left(run):
        status = run.wait()
    assert status == 0, f"the next run ended with {status}"


def _newest_step(home: Path) -> int | None:
    from noukii.driver.outputs import step_of

    steps = [step_of(path) for path in home.glob("kohya_ss/outputs/disc/*/disc*-state")]
    return max((step for step in steps if step is not None), default=None)


def _wait_for(begun: Callable[[], bool], run: subprocess.Popen[bytes]) -> float:
    while not begun():
        assert run.poll() is None, "it ended before its first step"
        time.sleep(0.001)
    return time.monotonic()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def kill(name: str, moments: int, seed: int, room: Path) -> Report:
    """Run one job's loop in an empty folder."""
    room.mkdir(parents=True)
    before = dict(os.environ)
    try:
        return real(moments, seed, room) if name == "training" else forked(name, moments, seed, room)
    finally:
        os.environ.clear()
        os.environ.update(before)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "jobs", nargs="*", choices=[*FORKED, "training", []], metavar="JOB", help="all if none"
    )
    parser.add_argument("--moments", type=int, default=30, help="kills per job (30)")
    parser.add_argument("--seed", type=int, default=0)
    found = parser.parse_args(given)
    failed = 0
    for name in found.jobs or [*FORKED, "training"]:
        with tempfile.TemporaryDirectory(prefix="noukii-kill-") as room:
            report = kill(name, found.moments, found.seed, Path(room) / "é room")
        print("\n".join(report.lines()), flush=True)
        failed += len(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
