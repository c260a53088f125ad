"""./run_training.sh as a user calls it: real commands, odd names, stand-ins in the place of `accelerate`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
from conftest import CHECKOUT, Run
from PIL import Image
from test_gather import GOOD
from tiny_models import make_tiny_sd

from noukii.disk import size
from noukii.driver.outputs import RECORD_NAME

Result = subprocess.CompletedProcess  # for annotations

SCRIPT_HEAD = f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"
"""Of a script that Python runs: read by the shell first, as a path with a space is no interpreter line."""

STAND_IN = """{head}# In the place of accelerate: writes down what it got, then does what STAND_IN says.
import hashlib, json, os, signal, sys, time
arguments = sys.argv[1:]
def value(flag): return arguments[arguments.index(flag) + 1]
record = open(os.environ["STAND_IN_RECORD"], "w")
toml = open(value("--dataset_config"), encoding="utf-8").read()
folders = {{}}
for line in toml.splitlines():
    if line.strip().startswith("image_dir"):
        import tomlkit
        for data_set in tomlkit.parse(toml)["datasets"]:
            for subset in data_set["subsets"]:
                folder = str(subset["image_dir"])
                folders[folder] = {{
                    name: open(os.path.join(folder, name), "rb").read().hex() for name in os.listdir(folder)
                }}
        break
parent = os.getppid()
found = {{"pid": os.getpid(), "parent": parent, "argv": arguments, "toml": toml, "folders": folders}}
json.dump({{**found, "environment": dict(os.environ)}}, record)
record.close()
lora = bytes.fromhex("{lora}")
folder, name, mode = value("--output_dir"), value("--output_name"), os.environ["STAND_IN"]
def save(text, data=lora):
    with open(os.path.join(folder, text + ".safetensors"), "wb") as stream: stream.write(data)
if "--resume" in arguments or mode in ("waits", "at end"):
    # what the trainer itself makes of it, before any library of its is loaded
    from noukii.trainer import job as jobs, settings, state
    at = [number for number, word in enumerate(arguments) if word.endswith("train_network.py")][0]
    job = jobs.prepare_job(settings.parse(arguments[at + 1:]))
def write_state(step):
    made = os.path.join(folder, name + "-state")
    os.makedirs(made)
    hashes = {{}}
    for part in (state.NETWORK_NAME, state.OPTIMIZER_NAME, state.METRICS_NAME):
        open(os.path.join(made, part), "w").close()
        hashes[part] = hashlib.sha256(b"").hexdigest()
    content = {{"format": state.FORMAT, "version": state.VERSION, "step": step, "files": hashes,
                "fingerprint": job.fingerprint, "run": {{"seed": job.seed}}}}
    with open(os.path.join(made, state.JSON_NAME), "w") as stream: json.dump(content, stream)
print("stand-in at work", flush=True)
if mode == "fail":
    print("ValueError: the stand-in fails", file=sys.stderr)
    sys.exit(1)
if mode == "no memory":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
if mode == "refuse": sys.exit(2)
if mode == "empty": save(name, b"")
if mode == "half":
    save(name, lora[: len(lora) // 2])
    save(name + "-000001")
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "good":
    for text in (name, name + "-000001", name + "-000002"): save(text)
if mode in ("good", "at end") and "STAND_IN_BLOCKS" in os.environ:
    import shutil
    shutil.rmtree(os.environ["STAND_IN_BLOCKS"], ignore_errors=True)  # it holds the page of this run
    open(os.environ["STAND_IN_BLOCKS"], "w").close()
if mode in ("waits", "at end"):
    def stop(*_):
        save(name)
        write_state(7)
        sys.exit(130)
    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    while mode == "waits":
        time.sleep(0.05)
        if os.getppid() != parent: stop()
    save(name)
    write_state(job.total_steps)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    while True: time.sleep(0.05)
"""

Launch = Callable[..., "Result[str]"]


@pytest.fixture(scope="session")
def tiny_sd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_sd(tmp_path_factory.mktemp("base models") / "tiny sd")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stand in") / "accelerate"
    path.write_text(STAND_IN.format(head=SCRIPT_HEAD, lora=GOOD.hex()))
    path.chmod(0o755)
    return path


class Driver:
    """Calls ./run_training.sh with a stand-in; `got` is what the stand-in got at last."""

    def __init__(self, run: Run, home: Path, base: Path, stand_in: Path, tmp_path: Path) -> None:
        self.home, self.base, self.tmp_path, self._run = home, base, tmp_path, run
        self._record = tmp_path / "got.json"
        self.environment = {"NOUKII_ACCELERATE": str(stand_in), "STAND_IN_RECORD": str(self._record)}

    def __call__(self, *arguments: str | Path, mode: str = "good", **options: object) -> Result[str]:
        return self._run(
            "run_training.sh",
            *self.full(arguments),
            **{**self.environment, "STAND_IN": mode, **options},  # type: ignore[arg-type]
        )

    def full(self, arguments: tuple[str | Path, ...]) -> tuple[str | Path, ...]:
        ours = () if "--base-model" in arguments or "--resume" in arguments else ("--base-model", self.base)
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return (*arguments[:at], *ours, *arguments[at:])

    @property
    def got(self) -> dict[str, object]:
        return json.loads(self._record.read_text())

    @property
    def argv(self) -> list[str]:
        return self.got["argv"]  # type: ignore[return-value]

    def value(self, flag: str) -> str:
        return self.argv[self.argv.index(flag) + 1]

    def written(self) -> list[str]:
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*"))

    def result(self, name: str) -> list[str]:
        return sorted(path.name for path in (self.home / "trained_loras" / name).iterdir())


@pytest.fixture
def driver(run: Run, project_home: Path, tiny_sd: Path, stand_in: Path, tmp_path: Path) -> Driver:
    return Driver(run, project_home, tiny_sd, stand_in, tmp_path)


def make_set(folder: Path, count: int = 2, size: tuple[int, int] = (64, 64), caption: str = "cat {}") -> Path:
    folder.mkdir(parents=True)
    for number in range(1, count + 1):
        Image.new("RGB", size, (40 * number % 256, 90, 200)).save(folder / f"img_{number}.png")
        (folder / f"img_{number}.txt").write_text(caption.format(number))
    return folder


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- the trainer's behaviour (R06) ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("fail", "ended with exit status 1; nothing was collected"),
        ("no memory", "the memory did not suffice"),
        ("silent", "ended without an error, but did not write this file"),
        ("empty", "cat.safetensors: is 0 bytes long"),
        ("half", "was killed (signal 9)"),
    ],
)
def test_a_trainer_that_leaves_no_sound_lora_is_a_failed_run(driver: Driver, mode: str, reason: str):
    make_set(driver.home / "image_datasets" / "10_cat")
    answer = driver("--output-name", "cat", mode=mode)
    assert answer.returncode == 1, answer.stderr
    assert reason in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "stand-in at work" in answer.stdout
    assert not (driver.home / "trained_loras").exists()
    (log,) = driver.home.glob("kohya_ss/outputs/cat/*/train.log")
    assert "stand-in at work" in log.read_text()
    assert "train.log" in answer.stderr
    if mode == "fail":
        assert "| ValueError: the stand-in fails" in answer.stderr
    if mode == "no memory":
        assert "next: --batch-size 1" in answer.stderr


def test_only_a_whole_file_counts_as_saved_before_a_failure(driver: Driver):
    make_set(driver.home / "image_datasets" / "10_cat")
    answer = driver("--output-name", "cat", mode="half")
    assert "not collected: cat.safetensors" in answer.stderr
    assert "saved before it failed, and whole: cat-000001.safetensors in" in answer.stderr


def test_flags_behind_the_dashes_are_checked_together_with_those_in_front(driver: Driver):
    make_set(driver.home / "image_datasets" / "10_cat")
    (driver.tmp_path / "rank 4.safetensors").write_bytes(GOOD)
    for flags in (
        ("--save-every", "2", "--", "--save_last_n_steps", "3"),
        ("--rank", "4", "--", "--network_train_unet_only", "--network_weights", "rank 4.safetensors"),
        ("--", "--clip_skip", "2"),
    ):
        answer = driver("--dry-run", *flags)
        assert answer.returncode == 0, answer.stderr


def test_a_good_run_is_gathered_whole(driver: Driver):
    folder = make_set(driver.home / "image_datasets" / "10_cat")
    (folder / "prompt_cue-cat.txt").write_text("red hat\nsea\n")
    before = tree(folder)
    answer = driver("--output-name", "cat", "--seed", "11")
    assert answer.returncode == 0, answer.stderr
    assert driver.result("cat") == [
        "cat-000001.safetensors", "cat-000002.safetensors", "cat.safetensors", "config_sat_nouki.toml",
        "prompt_cue-cat.txt", "report.html", "run.json", "train.log",
    ]  # fmt: skip
    assert (driver.home / "trained_loras/cat/cat.safetensors").read_bytes() == GOOD
    assert "found 2 = used 2 + skipped 0" in answer.stdout
    assert str(driver.home / "trained_loras/cat/cat.safetensors") in answer.stdout
    assert "<lora:cat:1> cat" in answer.stdout
    assert tree(folder) == before
    facts = json.loads((driver.home / "trained_loras/cat/run.json").read_text())
    assert facts["command"][1:] == ["launch", *driver.argv[1:]]
    assert (facts["exit_code"], facts["trainer"], facts["seed"]) == (0, "builtin", 11)
    assert (facts["base_model"], facts["output_name"]) == ("tiny sd", "cat")
    assert facts["plan"]["data_sets"][0]["used"] == 2
    assert driver.value("--max_train_steps") == "400"


# --- names (F07, O01, R03) ------------------------------------------------------------------------


def test_odd_names_arrive_in_one_piece(driver: Driver):
    names = ["10_jennifer o'neil person", "10_[cat] (v2)", "10_$USER & co", '10_"quoted"', "10_dash - end"]
    for name in names:
        make_set(driver.home / "image_datasets" / name)
    answer = driver("--output-name", "my lora")
    assert answer.returncode == 0, answer.stderr
    assert driver.value("--output_name") == "my lora"
    assert driver.value("--pretrained_model_name_or_path") == str(driver.base)
    assert "my lora.safetensors" in driver.result("my lora")
    subsets = tomlkit.parse(driver.got["toml"]).unwrap()["datasets"][0]["subsets"]  # type: ignore[arg-type]
    assert sorted(Path(subset["image_dir"]).name for subset in subsets) == sorted(names)
    for contents in driver.got["folders"].values():  # type: ignore[attr-defined]
        assert len([name for name in contents if name.endswith(".png")]) == 2


@pytest.mark.parametrize("name", ["styles/cat", "../evil", "/tmp/abs", "..", ".", "", "a\\b", "nul\tname"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(driver: Driver, name: str):
    make_set(driver.tmp_path / "10_cat")
    answer = driver("--dataset", driver.tmp_path / "10_cat", "--output-name", name)
    assert answer.returncode == 2
    assert "--output-name" in answer.stderr
    assert driver.written() == []


def test_an_older_lora_of_that_name_stays_and_nothing_else_is_collected(driver: Driver):
    make_set(driver.home / "image_datasets" / "10_cat")
    old = driver.home / "trained_loras" / "cat"
    old.mkdir(parents=True)
    (old / "cat.safetensors").write_bytes(b"PRECIOUS")
    stray = driver.home / "kohya_ss" / "outputs" / "cat"
    stray.mkdir(parents=True)
    for name in ("cat_v2", "cat-000009", "catfish"):
        (stray / f"{name}.safetensors").write_bytes(GOOD)
    answer = driver("--output-name", "cat")
    assert answer.returncode == 0, answer.stderr
    assert "this run is named cat-2" in answer.stdout
    assert driver.result("cat") == ["cat.safetensors"]
    assert (old / "cat.safetensors").read_bytes() == b"PRECIOUS"
    loras = [name for name in driver.result("cat-2") if name.endswith(".safetensors")]
    assert loras == ["cat-2-000001.safetensors", "cat-2-000002.safetensors", "cat-2.safetensors"]


# --- what is trained (R01, R02, T03, S03) ---------------------------------------------------------


def test_only_the_new_images_are_trained_without_what_earlier_runs_left(driver: Driver):
    staged = driver.home / "kohya_ss" / "dataset" / "images" / "train"
    make_set(staged / "10_cat", 3, caption="OLD {}")
    (staged / "10_cat" / "new_1.txt").write_text("")
    (staged / "10_cat" / "img_1_0512x0512_sd.npz").write_bytes(b"PK stale")
    make_set(staged / "7_dog")
    source = make_set(driver.home / "image_datasets" / "10_cat")
    for name in ("img_1.npz", "img_1_0512x0512_sd.npz", "_cached.npz"):
        (source / name).write_bytes(b"PK stale")
    answer = driver("--output-name", "cat")
    assert answer.returncode == 0, answer.stderr
    ((folder, contents),) = driver.got["folders"].items()  # type: ignore[attr-defined]
    assert Path(folder).parent == staged
    visible = sorted(name for name in contents if not name.startswith("."))
    assert visible == ["img_1.png", "img_1.txt", "img_2.png", "img_2.txt"]
    assert bytes.fromhex(contents["img_1.txt"]).decode().strip() == "cat 1"
    assert bytes.fromhex(contents["img_1.png"]) == (source / "img_1.png").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dataset", "10_cat", "--repeats", "10", "--dataset", "10_cat", "--repeats", "5"],
        ["--repeats", "5", "--dataset", "10_cat"],
        ["--dataset", "10_cat", "--repeats", "0"],
        ["--dataset", "10_cat", "--repeats", "-3"],
        ["--dataset", "10_cat", "--repeats", "2.5"],
        ["--dataset", "10_cat", "--repeats"],
        ["--dataset"],
        ["--output-name"],
        ["--dataset", "10_cat", "--steps", "0"],
        ["--dataset", "10_cat", "--steps", "10", "--epochs", "2"],
        ["--dataset", "10_cat", "--learning-rate", "0"],
        ["--dataset", "10_cat", "--learning-rate", "nan"],
        ["--dataset", "10_cat", "--resolution", "500"],
        ["--dataset", "10_cat", "--seed", "-1"],
        ["--dataset", "10_cat", "--precision", "half"],
        ["--dataset", "10_cat", "--trainer", "other"],
        ["--dataset", "10_cat", "--sample-prompts", "nowhere.txt", "--sample-every", "5"],
        ["--dataset", "no such folder"],
        ["--resume"],
        ["--resume", "--output-name", "never trained"],
    ],
    ids=" ".join,
)
def test_a_call_that_cannot_work_is_refused_with_a_next_step(driver: Driver, arguments: list[str]):
    make_set(driver.tmp_path / "10_cat")
    answer = driver(*arguments)
    assert answer.returncode == 2, answer.stdout
    assert "next: " in answer.stderr
    assert "Traceback" not in answer.stderr
    assert driver.written() == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--reepats", "5"], "did you mean --repeats?"),
        (["--network_dim", "8"], "did you mean --rank?"),
        (["--lr_scheduler", "cosine"], "go behind --"),
        (["--", "--lr_schedular", "cosine"], "did you mean --lr_scheduler?"),
        (["--", "--max_train_steps", "50"], "give --steps in front of the --"),
        (["--", "--output_dir=/tmp"], "give --output-name in front of the --"),
        (["--", "--network_module", "lycoris.kohya"], "leave it away"),
        (["--", "--network_dim", "0"], "whole number of 1 or more"),
        (["--", "--seed", "9"], "give --seed in front of the --"),
        (["--", "--out=/tmp"], "give --output-name in front of the --"),
        (["--", "--save_last_n_steps", "3"], "give --save-every too"),
        (["--", "--learning_rate", "0"], "a rate above 0"),
        (["--", "--optimizer_args", "foo=3"], "foo"),
        (["--", "--clip_skip", "5"], "2 layers"),
        (
            ["--rank", "8", "--", "--network_train_unet_only", "--network_weights", "rank4.safetensors"],
            "give --rank 4",
        ),
        (["--", "--network_weights", "nowhere.safetensors"], "there is no such file"),
        (["--steps", "9" * 20], "1 to 10000000"),
        (["--steps", "9" * 5000], "1 to 10000000"),
        (["--save-every", "1_0"], "1 to 10000000"),
        (["--learning-rate", "1e9"], "at most 10"),
        (["--resolution", "65"], "give --resolution 64"),
    ],
)
def test_a_wrong_flag_is_named_with_the_right_one(driver: Driver, arguments: list[str], hint: str):
    make_set(driver.tmp_path / "10_cat")
    (driver.tmp_path / "rank4.safetensors").write_bytes(GOOD)
    answer = driver("--dataset", driver.tmp_path / "10_cat", *arguments)
    assert answer.returncode == 2, answer.stdout
    assert "Traceback" not in answer.stderr
    if arguments[-1].endswith("safetensors"):
        assert arguments[-1] in answer.stderr
    else:
        assert next(word for word in arguments if word != "--").partition("=")[0] in answer.stderr
    assert hint in answer.stderr
    assert driver.written() == []


def test_empty_folders_and_folders_without_captions_are_refused(driver: Driver):
    (driver.tmp_path / "5_empty").mkdir()
    bare = make_set(driver.tmp_path / "5_bare")
    for caption in bare.glob("*.txt"):
        caption.unlink()
    for folder, reason in ((driver.tmp_path / "5_empty", "no images"), (bare, "no captions")):
        answer = driver("--dataset", folder)
        assert answer.returncode == 2
        assert reason in answer.stderr
        assert folder.name in answer.stderr
    assert driver.written() == []


def test_repeats_of_the_command_line_win_and_epochs_are_counted(driver: Driver):
    folder = make_set(driver.tmp_path / "1_person", 28)
    answer = driver("--dataset", folder, "--batch-size", "1", "--epochs", "200", "--dry-run", "--json")
    plan = json.loads(answer.stdout)
    assert (plan["steps_per_epoch"], plan["steps"]) == (28, 5600)
    answer = driver("--dataset", folder, "--repeats", "3", "--batch-size", "1", "--epochs", "10", "--dry-run")
    assert "28 images × 3 repeats" in answer.stdout
    assert "the name says 1" in answer.stdout
    assert "840 steps" in answer.stdout
    assert driver.written() == []
    answer = driver("--dataset", folder, "--batch-size", "1", "--epochs", "10", "--output-name", "p")
    assert answer.returncode == 0, answer.stderr
    assert driver.value("--max_train_epochs") == "10"
    assert "--max_train_steps" not in driver.argv


def test_a_dry_run_of_200_images_loads_no_large_library_and_writes_nothing(driver: Driver):
    make_set(driver.home / "image_datasets" / "3_many", 200)
    before = driver.written()
    answer = driver("--dry-run", PYTHONPROFILEIMPORTTIME="1")
    assert answer.returncode == 0
    assert "found 200 = used 200 + skipped 0" in answer.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in answer.stderr.splitlines()}
    assert "noukii" in imported
    assert not imported & {"torch", "transformers", "diffusers", "sklearn", "accelerate", "numpy"}
    assert driver.written() == before


# --- base model (M01, M02) ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "lfs.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"6c" * 32 + b"\nsize 4265146304\n",
            "LFS",
        ),
        ("page.safetensors", b"<!DOCTYPE html><html></html>\n", "HTML"),
        ("error.safetensors", b'{"error":"Repository not found"}', "JSON"),
        ("empty.safetensors", b"", "0 bytes"),
        ("cut.safetensors", GOOD[:-10], "bytes"),
        ("lora.safetensors", GOOD, "LoRA"),
    ],
)  # fmt: skip
def test_a_wrong_base_model_is_refused_by_what_it_is(driver: Driver, name: str, content: bytes, reason: str):
    make_set(driver.tmp_path / "10_cat")
    (driver.tmp_path / name).write_bytes(content)
    answer = driver("--dataset", driver.tmp_path / "10_cat", "--base-model", driver.tmp_path / name)
    assert answer.returncode == 2
    assert name in answer.stderr
    assert reason in answer.stderr
    assert driver.written() == []


def test_a_missing_base_model_names_setup_and_a_dry_run_shows_the_plan_all_the_same(run: Run, tmp_path: Path):
    make_set(tmp_path / "10_cat")
    answer = run("run_training.sh", "--dataset", tmp_path / "10_cat")
    assert answer.returncode == 2
    assert "v1-5-pruned-emaonly.safetensors" in answer.stderr
    assert "./setup.sh --training-only --no-kohya fetches it (4.3 GB)" in answer.stderr
    answer = run("run_training.sh", "--dataset", tmp_path / "10_cat", "--dry-run")
    assert answer.returncode == 0
    assert "2 images × 10 repeats" in answer.stdout
    assert "not there yet; ./setup.sh --training-only --no-kohya fetches it" in answer.stdout
    # a wrong folder is told together with the missing model
    answer = run("run_training.sh", "--dataset", tmp_path / "nothing")
    assert answer.returncode == 2
    assert "setup.sh" in answer.stderr
    assert "nothing" in answer.stderr


# --- trainers and the machine ---------------------------------------------------------------------


def test_kohya_is_the_default_where_it_is_installed(driver: Driver, stand_in: Path):
    make_set(driver.home / "image_datasets" / "10_cat")
    del driver.environment["NOUKII_ACCELERATE"]
    answer = driver("--trainer", "kohya")
    assert answer.returncode == 2
    assert "./setup.sh --training-only" in answer.stderr

    kohya = driver.home / "kohya_ss"
    for path in (kohya / "sd-scripts" / "train_network.py", kohya / "venv" / "bin" / "accelerate"):
        path.parent.mkdir(parents=True)
    (kohya / "sd-scripts" / "train_network.py").write_text("")
    shutil.copy(stand_in, kohya / "venv" / "bin" / "accelerate")
    answer = driver("--output-name", "cat", PYTHONPATH="/ours")
    assert answer.returncode == 0, answer.stderr
    argv = driver.argv
    assert str(kohya / "sd-scripts" / "train_network.py") in argv
    # upstream looks there for its tokenizer, under this name, before it asks the network
    assert driver.value("--tokenizer_cache_dir") == str(kohya / "tokenizer")
    tokenizer = kohya / "tokenizer" / "openai_clip-vit-large-patch14"
    assert json.loads((tokenizer / "tokenizer_config.json").read_text())["model_max_length"] == 77
    assert {"vocab.json", "merges.txt"} < {path.name for path in tokenizer.iterdir()}
    assert driver.value("--mixed_precision") == "no"
    assert "--gradient_checkpointing" in argv
    assert "--save_state" not in argv
    assert "PYTHONPATH" not in driver.got["environment"]  # type: ignore[operator]
    assert json.loads((driver.home / "trained_loras/cat/run.json").read_text())["trainer"] == "kohya"
    # and the built-in one is there when it is asked for
    driver.environment["NOUKII_ACCELERATE"] = str(stand_in)
    assert driver("--output-name", "dog", "--trainer", "builtin").returncode == 0
    assert str(CHECKOUT / "noukii" / "trainer" / "train_network.py") in driver.argv


def test_kohya_s_runs_are_compared_and_gathered_too(driver: Driver, stand_in: Path):
    folder = make_set(driver.tmp_path / "10_cat")
    kohya = driver.home / "kohya_ss"
    for path in (kohya / "sd-scripts" / "train_network.py", kohya / "venv" / "bin" / "accelerate"):
        path.parent.mkdir(parents=True)
    (kohya / "sd-scripts" / "train_network.py").write_text("")
    shutil.copy(stand_in, kohya / "venv" / "bin" / "accelerate")
    shelf = driver.home / "trained_loras"
    del driver.environment["NOUKII_ACCELERATE"]
    extra = ("--", "--its_own_flag", "7")
    answer = driver("--dataset", folder, "--output-name", "cat", *extra, STAND_IN_BLOCKS=str(shelf))
    assert answer.returncode == 1
    shelf.unlink()
    before = tree(driver.home)
    for flags, reason in (
        (("--rank", "8"), "network_dim (--rank) was 4, is 8"),
        (("--", "--its_own_flag", "8"), "flags behind -- was ['--its_own_flag', '7'], is"),
        (("--trainer", "builtin"), "trainer (--trainer) was kohya, is builtin"),
    ):
        answer = driver("--output-name", "cat", "--resume", *flags)
        assert answer.returncode == 2, answer.stdout
        assert reason in answer.stderr or "--its_own_flag" in answer.stderr
    assert tree(driver.home) == before
    answer = driver("--output-name", "cat", "--resume", mode="fail")
    assert answer.returncode == 0, answer.stderr
    assert "cat.safetensors" in driver.result("cat")


def test_without_a_gpu_it_says_so_at_once_and_uses_the_cores(driver: Driver):
    make_set(driver.home / "image_datasets" / "10_cat")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3"}
    answer = driver("--output-name", "cat", **hidden)
    assert "no CUDA device is used: CUDA_VISIBLE_DEVICES hides every GPU" in answer.stdout
    assert answer.stdout.index("no CUDA device") < answer.stdout.index("stand-in at work")
    assert "--cpu" in driver.argv
    assert driver.value("--num_cpu_threads_per_process") == "3"
    assert "--gradient_checkpointing" not in driver.argv
    answer = driver("--output-name", "dog", "--precision", "fp16", **hidden)
    assert answer.returncode == 2
    assert "needs an NVIDIA GPU" in answer.stderr


def test_flags_behind_the_dashes_go_through_and_what_they_replace_is_said(driver: Driver):
    make_set(driver.home / "image_datasets" / "10_cat")
    flags = ["--lr_scheduler", "cosine", "--learning_rate", "5e-5", "--training_comment", "two  words"]
    answer = driver("--output-name", "cat", "--", *flags)
    assert answer.returncode == 0, answer.stderr
    assert driver.argv[-6:] == flags
    assert "used instead of noukii's own: --learning_rate" in answer.stdout


def test_sample_prompts_are_made_of_keyword_and_key_concepts(driver: Driver):
    folder = make_set(driver.home / "image_datasets" / "10_blue cat")
    (folder / "prompt_cue-blue cat.txt").write_text("red hat\nsea --w 4\nsky\nhill\n")
    answer = driver("--output-name", "cat", "--sample-every", "50", "--resolution", "64")
    assert answer.returncode == 0, answer.stderr
    assert driver.value("--sample_every_n_steps") == "50"
    assert Path(driver.value("--sample_prompts")).read_text() == (
        "blue cat --w 64 --h 64 --d 42\nblue cat, red hat, sea -w 4, sky --w 64 --h 64 --d 42\n"
    )


# --- interruptions, resuming, full disks ----------------------------------------------------------


def start(driver: Driver, *arguments: str, mode: str = "waits") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [str(CHECKOUT / "run_training.sh"), *map(os.fspath, driver.full(arguments))],
        env={**os.environ, **driver.environment, "STAND_IN": mode},
        cwd=driver.tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return process
    raise AssertionError(process.communicate())


def test_a_stopped_run_is_gathered_and_resume_completes_it_under_its_name(driver: Driver):
    folder = make_set(driver.tmp_path / "10_cat")
    process = start(
        driver, "--dataset", folder, "--repeats", "4", "--steps", "40", "--rank", "8",
        "--output-name", "my cat",
    )  # fmt: skip
    first = driver.argv
    # a second copy meanwhile is refused, and disturbs nothing
    second = driver("--dataset", folder, "--output-name", "other")
    assert second.returncode == 2
    assert "run_training.sh" in second.stderr
    assert first == driver.argv

    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "./run_training.sh --output-name 'my cat' --resume" in err
    assert "Traceback" not in err
    shelf = driver.home / "trained_loras"
    assert "my cat.safetensors" in driver.result("my cat")
    assert json.loads((shelf / "my cat" / "run.json").read_text())["exit_code"] == 130

    answer = driver("--output-name", "my cat", "--resume")
    assert answer.returncode == 0, answer.stderr
    state = Path(driver.value("--output_dir")) / "my cat-state"
    assert driver.value("--resume") == str(state)
    record = json.loads((Path(driver.value("--output_dir")) / RECORD_NAME).read_text())
    assert record["gradient_checkpointing"] == ("on" if "--gradient_checkpointing" in first else "off")
    at = driver.argv.index("--resume")
    assert driver.argv[:at] + driver.argv[at + 2 :] == first  # the same seed, steps, folders
    subsets = tomlkit.parse(driver.got["toml"]).unwrap()["datasets"][0]["subsets"]  # type: ignore[arg-type]
    assert [subset["num_repeats"] for subset in subsets] == [4]
    assert sorted(path.name for path in shelf.iterdir()) == ["my cat", "my cat-interrupted"]
    assert json.loads((shelf / "my cat" / "run.json").read_text())["exit_code"] == 0


def stopped_run(driver: Driver, folder: Path) -> dict[str, str]:
    """Start a run on `folder`, stop it, and return what is there then."""
    process = start(driver, "--dataset", os.fspath(folder), "--steps", "40", "--rank", "4", "--seed", "5",
                    "--output-name", "cat")  # fmt: skip
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    return tree(driver.home)


def test_a_resume_that_is_another_run_is_refused_and_leaves_the_run_as_it_was(driver: Driver):
    folder = make_set(driver.tmp_path / "10_cat")
    photo = folder / "img_2.png"  # turned: its training copy is not the file itself
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 64), (9, 90, 200)).save(photo, exif=exif)
    other = driver.tmp_path / "other model"
    shutil.copytree(driver.base, other)
    weights = other / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\1\2\3\4")
    before = stopped_run(driver, folder)
    again = ("--output-name", "cat", "--resume")

    def refused(*flags: str | Path, reason: str) -> None:
        for more in ((), ("--dry-run",)):
            answer = driver(*again, *more, *flags)
            assert answer.returncode == 2, answer.stdout
            assert reason in answer.stderr
            assert "Traceback" not in answer.stderr
            assert tree(driver.home) == before

    refused("--rank", "8", reason="network_dim (--rank) was 4, is 8")
    refused("--seed", "6", reason="seed (--seed) was 5, is 6")
    refused("--base-model", other, reason="the base model is another file")
    refused("--", "--min_snr_gamma", "5", reason="min_snr_gamma was None, is 5.0")
    refused("--steps", "6", reason="holds step 7, and this run is to end at step 6")
    caption = folder / "img_1.txt"
    caption.write_text("another cat")
    refused(reason="img_1.png: the caption changed")
    caption.write_text("cat 1")
    picture = photo.read_bytes()
    exif[0x0112] = 8
    Image.new("RGB", (80, 64), (9, 90, 200)).save(photo, exif=exif)
    refused(reason="img_2.png: the image changed")
    photo.write_bytes(picture)
    (state,) = driver.home.glob("kohya_ss/outputs/cat/*/cat-state/optimizer.pt")
    state.write_bytes(b"damaged")
    before |= {str(state.relative_to(driver.home)): hashlib.sha256(b"damaged").hexdigest()}
    refused(reason="optimizer.pt: is missing or damaged")
    state.write_bytes(b"")
    answer = driver(*again)
    assert answer.returncode == 0, answer.stderr
    assert "cat-interrupted" in answer.stdout


def test_what_only_the_trainer_refuses_leaves_the_record_as_it_was(driver: Driver):
    before = stopped_run(driver, make_set(driver.tmp_path / "10_cat"))
    answer = driver("--output-name", "cat", "--resume", "--steps", "50", mode="refuse")
    assert answer.returncode == 1
    after = tree(driver.home)
    assert {path for path in before if before[path] != after.get(path)} == {
        path for path in before if path.endswith("train.log") and path.startswith("kohya_ss")
    }


def test_a_result_that_could_not_be_gathered_is_gathered_by_resume(driver: Driver):
    folder = make_set(driver.tmp_path / "10_cat")
    shelf = driver.home / "trained_loras"
    answer = driver(
        "--dataset", folder, "--steps", "30", "--seed", "3", "--output-name", "my cat",
        mode="at end", STAND_IN_BLOCKS=str(shelf),
    )  # fmt: skip
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "./run_training.sh --output-name 'my cat' --resume" in answer.stderr
    shelf.unlink()
    started = driver.got["pid"]
    answer = driver("--output-name", "my cat", "--resume", mode="fail")
    assert answer.returncode == 0, answer.stderr
    assert driver.got["pid"] == started  # nothing was trained
    assert (shelf / "my cat" / "my cat.safetensors").read_bytes() == GOOD
    facts = json.loads((shelf / "my cat" / "run.json").read_text())
    assert (facts["exit_code"], facts["seed"]) == (0, 3)
    assert facts["command"][1:] == ["launch", *driver.argv[1:]]
    before = driver.written()
    answer = driver("--output-name", "my cat", "--resume")
    assert answer.returncode == 2
    assert f"its LoRA is in {shelf / 'my cat'}" in answer.stderr
    assert driver.written() == before
    answer = driver("--output-name", "my cat", "--resume", "--steps", "50")
    assert answer.returncode == 0, answer.stderr
    assert driver.value("--max_train_steps") == "50"


@pytest.fixture
def launcher(driver: Driver, stand_in: Path) -> Path:
    """A program that starts the stand-in as accelerate's launcher does: all but 0 to 2 is closed."""
    path = driver.tmp_path / "launcher"
    path.write_text(
        f"{SCRIPT_HEAD}import subprocess, sys\nsubprocess.check_call([{str(stand_in)!r}, *sys.argv[1:]])\n"
    )
    path.chmod(0o755)
    driver.environment["NOUKII_ACCELERATE"] = str(path)
    return path


def test_a_run_whose_launcher_is_killed_is_gathered(driver: Driver, launcher: Path):
    folder = make_set(driver.tmp_path / "10_cat")
    process = start(driver, "--dataset", os.fspath(folder), "--output-name", "cat")
    os.kill(driver.got["parent"], signal.SIGKILL)  # type: ignore[arg-type]
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "what the run has learnt so far is saved there" in err
    assert "cat.safetensors" in driver.result("cat")


def test_the_lock_lasts_as_long_as_the_trainer_and_names_who_lives(driver: Driver, launcher: Path):
    folder = make_set(driver.tmp_path / "10_cat")
    process = start(driver, "--dataset", os.fspath(folder), "--output-name", "cat", mode="deaf")
    pids = [process.pid, driver.got["parent"], driver.got["pid"]]
    try:
        for dead in (0, 1):
            second = driver("--dataset", folder, "--output-name", "other")
            assert second.returncode == 2
            assert f"kill {pids[dead]}\n" in second.stderr
            os.kill(pids[dead], signal.SIGKILL)
            if dead == 0:
                process.wait()
        second = driver("--dataset", folder, "--output-name", "other")
        assert second.returncode == 2
        assert f"process {pids[2]} " in second.stderr
        assert not any(f"process {pid} " in second.stderr for pid in pids[:2])
    finally:
        os.kill(pids[2], signal.SIGKILL)


def test_ctrl_c_twice_says_what_is_lost(driver: Driver):
    folder = make_set(driver.tmp_path / "10_cat")
    process = start(driver, "--dataset", os.fspath(folder), "--output-name", "cat", mode="deaf")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=0.3)
        except subprocess.TimeoutExpired:
            continue
    _, err = process.communicate()
    assert process.returncode == 130
    assert "ended at once; nothing was saved to go on from" in err
    assert err.count("next: ") == 1
    assert "goes on where" not in err


def test_a_full_disk_is_told_before_anything_is_lost(driver: Driver, run: Run):
    folder = driver.tmp_path / "10_noise"
    folder.mkdir()
    for number in (1, 2):
        Image.frombytes("RGB", (512, 512), os.urandom(512 * 512 * 3)).save(folder / f"noise_{number}.png")
        (folder / f"noise_{number}.txt").write_text("noise")
    old = driver.home / "trained_loras" / "noise"
    old.mkdir(parents=True)
    (old / "noise.safetensors").write_bytes(b"PRECIOUS")
    script = CHECKOUT / "run_training.sh"
    command = [script, *driver.full(("--dataset", folder, "--output-name", "noise"))]
    answer = subprocess.run(
        ["bash", "-c", 'ulimit -f 256; exec "$@"', "bash", *map(str, command)],
        env={**os.environ, **driver.environment, "STAND_IN": "good"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (1, 2)
    assert str(driver.home) in answer.stderr
    assert "ulimit -f" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert tree(driver.home / "trained_loras") == {
        "noise/noise.safetensors": hashlib.sha256(b"PRECIOUS").hexdigest()
    }


# --- the wrapper ----------------------------------------------------------------------------------


def test_it_works_from_anywhere_through_a_link_and_imports_nothing_from_where_the_user_stands(
    driver: Driver, tmp_path: Path
):
    checkout = tmp_path / "my check out"
    shutil.copytree(CHECKOUT / "noukii", checkout / "noukii", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "scripts", checkout / "scripts")
    shutil.copy(CHECKOUT / "run_training.sh", checkout)
    shutil.copy(CHECKOUT / "requirements.txt", checkout)
    here = tmp_path / "user's folder"
    make_set(here / "5_cat")
    for name in ("json.py", "tomlkit.py", "torch.py", "noukii.py"):
        (here / name).write_text("raise SystemExit('imported from the user folder')\n")
    (here / "train").symlink_to(os.path.relpath(checkout / "run_training.sh", here))
    answer = subprocess.run(
        ["./train", "5_cat", "--base-model", str(driver.base), "--output-name", "cat"],
        cwd=here,
        env={**os.environ, **driver.environment, "STAND_IN": "good"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert str(checkout / "noukii" / "trainer" / "train_network.py") in driver.argv
    assert "cat.safetensors" in driver.result("cat")


def test_help_lists_every_flag_and_names_the_rest(run: Run):
    answer = run("run_training.sh", "--help")
    assert answer.returncode == 0
    for flag in (
        "--dataset", "--repeats", "--output-name", "--base-model", "--steps", "--epochs", "--learning-rate",
        "--resolution", "--batch-size", "--rank", "--alpha", "--seed", "--precision", "--trainer",
        "--dry-run", "--resume", "--sample-every", "--save-every", "-- FLAGS",
    ):  # fmt: skip
        assert flag in answer.stdout


# --- with the real trainer ------------------------------------------------------------------------


def test_from_folders_to_a_lora_with_the_real_trainer(
    run: Run, project_home: Path, tiny_sd: Path, tmp_path: Path
):
    first = make_set(tmp_path / "a" / "2_sat demo", 3, caption="sat demo, picture {}")
    second = make_set(tmp_path / "b" / "2_sat demo", 2, size=(80, 80), caption="sat demo, larger {}")
    (first / "broken.png").write_bytes(b"not a picture")
    for folder, cue in ((first, "red hat"), (second, "blue sea")):
        (folder / "prompt_cue-sat demo.txt").write_text(cue + "\n")
    before = tree(tmp_path / "a") | tree(tmp_path / "b")
    answer = run(
        "run_training.sh", first, second, "--base-model", tiny_sd, "--trainer", "builtin",
        "--resolution", "64", "--batch-size", "2", "--steps", "4", "--seed", "5", "--precision", "no",
        "--save-every", "2", "--learning-rate", "1e-3", "--output-name", "sat démo",
        OMP_NUM_THREADS="1", HF_HOME=str(tmp_path / "hf"),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    result = project_home / "trained_loras" / "sat démo"
    assert sorted(path.name for path in result.iterdir()) == [
        "config_sat_nouki.toml", "metrics.jsonl", "prompt_cue-sat demo-2.txt", "prompt_cue-sat demo.txt",
        "report.html", "run.json", "sat démo-step00000002.safetensors",
        "sat démo-step00000004.safetensors", "sat démo.safetensors", "train.log",
    ]  # fmt: skip
    assert "broken.png" in answer.stdout
    assert "found 6 = used 5 + skipped 1" in answer.stdout
    assert tree(tmp_path / "a") | tree(tmp_path / "b") == before

    from noukii.trainer.lora_file import verify_lora

    report = verify_lora(result / "sat démo.safetensors")
    assert report.ranks == (4,)
    assert (report.metadata["ss_seed"], report.metadata["ss_steps"]) == ("5", "4")
    facts = json.loads((result / "run.json").read_text())
    assert facts["precision"] == "no"
    assert facts["peak_memory_bytes"] > 10**7
    assert f"memory: {size(facts['peak_memory_bytes'])} at most (estimate: " in answer.stdout
    assert len((result / "metrics.jsonl").read_text().splitlines()) == 4
    log = (result / "train.log").read_text()
    assert "values were not passed" not in log
    assert "Warning" not in log
    config = tomlkit.parse((result / "config_sat_nouki.toml").read_text()).unwrap()
    assert config["general"]["caption_extension"] == ".txt"
    folders = [subset["image_dir"] for subset in config["datasets"][0]["subsets"]]
    assert len(set(folders)) == 2


def test_the_real_trainer_stops_at_ctrl_c_and_goes_on_from_there(
    project_home: Path, tiny_sd: Path, tmp_path: Path, run: Run
):
    folder = make_set(tmp_path / "2_cat")
    process = subprocess.Popen(
        [
            str(CHECKOUT / "run_training.sh"), "--dataset", str(folder), "--base-model", str(tiny_sd),
            "--resolution", "64", "--batch-size", "1", "--precision", "no", "--rank", "1",
            "--steps", "300", "--save-every", "1", "--output-name", "cat",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("saved "):
            process.send_signal(signal.SIGINT)
            break
    said += process.stdout.readlines()
    assert process.wait() == 130, "".join(said)
    (state,) = project_home.glob("kohya_ss/outputs/cat/*/cat-state/state.json")
    stopped_at = json.loads(state.read_text())["step"]
    assert 1 <= stopped_at < 300
    assert (project_home / "trained_loras" / "cat" / "cat.safetensors").is_file()

    more = ["--resume", "--steps", str(stopped_at + 2)]
    answer = run("run_training.sh", "--output-name", "cat", *more, OMP_NUM_THREADS="1")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    metrics = (project_home / "trained_loras" / "cat" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(1, stopped_at + 3))
    assert (project_home / "trained_loras" / "cat-interrupted" / "cat.safetensors").is_file()


def test_ctrl_c_before_the_first_step_ends_without_a_traceback(
    project_home: Path, tiny_sd: Path, tmp_path: Path
):
    folder = make_set(tmp_path / "2_cat")
    process = subprocess.Popen(
        [
            str(CHECKOUT / "run_training.sh"), "--dataset", str(folder), "--base-model", str(tiny_sd),
            "--resolution", "64", "--output-name", "cat", "--trainer", "builtin",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("$ "):
            process.send_signal(signal.SIGINT)
            break
    text = "".join([*said, *process.stdout.readlines()])
    assert process.wait() == 130, text
    assert "Traceback" not in text
    assert "Error" not in text
    assert "nothing was saved" in text
    assert text.count("next: ") == 1
