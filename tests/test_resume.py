"""A run that was stopped and resumed equals the run that was not, to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import make_tiny_sd
from tiny_training import (
    SCRIPT,
    arguments,
    draw_data,
    environment,
    metadata_of,
    metrics_of,
    tensors_of,
    train_here,
    write_toml,
)

from noukii.errors import InputError

STEPS = 8
HARD = (
    "--noise_offset=0.1", "--network_dropout=0.3", "--min_snr_gamma=5", "--lr_scheduler=cosine",
    "--lr_warmup_steps=0.2", "--gradient_accumulation_steps=2",
)  # fmt: skip
"""Everything that draws numbers or remembers something."""
TIMES = {"ss_training_finished_at", "modelspec.date"}


@dataclass(frozen=True)
class Setting:
    home: Path
    model: Path
    toml: Path
    whole: Path
    """Output folder of the run that was not stopped; it saved a state after each step."""

    def flags(self, output: Path, *more: str) -> list[str]:
        return arguments(self.model, self.toml, output, *HARD, "--save_state", *more, steps=STEPS)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    home = tmp_path_factory.mktemp("resume é")
    model = make_tiny_sd(home / "model")
    data = draw_data(home / "5_disc")
    subset = "shuffle_caption = true\nkeep_tokens = 1\ncaption_dropout_rate = 0.2\nflip_aug = true"
    toml = write_toml(home / "c.toml", data, subset=subset)
    made = Setting(home, model, toml, home / "whole")
    train_here(home, made.flags(made.whole, "--save_every_n_steps=1"))
    return made


def assert_same_run(one: Path, other: Path) -> None:
    assert tensors_of(one / "disc.safetensors") == tensors_of(other / "disc.safetensors")
    assert metrics_of(one) == metrics_of(other)
    first, second = (metadata_of(folder / "disc.safetensors") for folder in (one, other))
    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in second.items() if k not in TIMES
    }
    assert optimizer_of(one / "disc-state") == optimizer_of(other / "disc-state")


def optimizer_of(state: Path) -> str:
    import torch

    def plain(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.double().flatten().tolist()
        if isinstance(value, dict):
            return {str(key): plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

    return json.dumps(plain(torch.load(state / "optimizer.pt", weights_only=True)))


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resumed_after_any_step_it_equals_the_whole_run(setting: Setting, tmp_path: Path, step: int) -> None:
    state = setting.whole / f"disc-step{step:08d}-state"
    train_here(setting.home, setting.flags(tmp_path / "out", "--resume", str(state)))
    assert_same_run(tmp_path / "out", setting.whole)


def test_a_second_resume_is_as_right_as_the_first(setting: Setting, tmp_path: Path) -> None:
    state = setting.whole / "disc-step00000003-state"
    every = "--save_every_n_steps=3"
    train_here(setting.home, setting.flags(tmp_path / "first", "--resume", str(state), every))
    state = tmp_path / "first" / "disc-step00000006-state"
    assert json.loads((state / "state.json").read_text())["step"] == 6
    train_here(setting.home, setting.flags(tmp_path / "second", "--resume", str(state)))
    assert_same_run(tmp_path / "second", setting.whole)


def test_the_steps_in_between_are_equal_too(setting: Setting, tmp_path: Path) -> None:
    state = setting.whole / "disc-step00000002-state"
    out = tmp_path / "out"
    train_here(setting.home, setting.flags(out, "--resume", str(state), "--save_every_n_steps=1"))
    for step in range(3, STEPS):
        name = f"disc-step{step:08d}.safetensors"
        assert tensors_of(out / name) == tensors_of(setting.whole / name)


def test_interrupted_saved_resumed(setting: Setting, tmp_path: Path) -> None:
    """The real command, the real signal: it finishes its step, saves, exits 130, and goes on later."""
    out = tmp_path / "it's here"
    long = setting.flags(out, "--max_train_steps=24", "--lr_scheduler=constant", "--lr_warmup_steps=0")
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *long, "--save_every_n_steps=2"],
        cwd=tmp_path, env={**os.environ, **environment(setting.home)},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, encoding="utf-8",
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("saved ") and "state" in line:
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.read()
    assert process.wait() == 130, said
    assert "Traceback" not in said
    assert "stopped after step" in said and "--resume" in said
    assert (out / "disc.safetensors").is_file()
    done = json.loads((out / "disc-state" / "state.json").read_text())["step"]
    assert 2 <= done < 24
    assert len(metrics_of(out)) == done
    # goes on in the same folder; its own LoRA there may be replaced
    train_here(setting.home, [*long, "--resume", str(out / "disc-state")])
    whole = [flag if flag != str(out) else str(tmp_path / "whole") for flag in long]
    train_here(setting.home, whole)
    assert tensors_of(out / "disc.safetensors") == tensors_of(tmp_path / "whole" / "disc.safetensors")
    assert metrics_of(out) == metrics_of(tmp_path / "whole")


def test_more_steps_may_follow_where_the_rate_is_constant(setting: Setting, tmp_path: Path) -> None:
    base = setting.flags(tmp_path / "short", "--lr_scheduler=constant", "--lr_warmup_steps=0")
    train_here(setting.home, [*base, "--max_train_steps=3"])
    state = str(tmp_path / "short" / "disc-state")
    longer = [flag.replace("/short", "/longer") for flag in base]
    train_here(setting.home, [*longer, "--max_train_steps=6", "--resume", state])
    train_here(setting.home, [flag.replace("/short", "/once") for flag in [*base, "--max_train_steps=6"]])
    assert tensors_of(tmp_path / "longer/disc.safetensors") == tensors_of(tmp_path / "once/disc.safetensors")


def change_caption(setting: Setting) -> None:
    (setting.home / "5_disc" / "disc 1 é.txt").write_text("sat_disc, something else\n", encoding="utf-8")


def change_image(setting: Setting) -> None:
    shutil.copy(setting.home / "5_disc" / "disc 2 é.png", setting.home / "5_disc" / "disc 0 é.png")


def remove_image(setting: Setting) -> None:
    (setting.home / "5_disc" / "disc 4 é.png").unlink()


def change_model(setting: Setting) -> None:
    make_tiny_sd(setting.home / "other", seed=1)
    shutil.rmtree(setting.model)
    (setting.home / "other").rename(setting.model)


def change_toml(setting: Setting) -> None:
    setting.toml.write_text(setting.toml.read_text().replace("batch_size = 2", "batch_size = 1"))


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        (change_caption, [], ["disc 1 é.png: the caption changed"]),
        (change_image, [], ["disc 0 é.png: the image changed"]),
        (remove_image, [], ["disc 4 é.png is gone"]),
        (change_model, [], ["the base model is another file"]),
        (change_toml, [], ["batch_size was 2, is 1"]),
        (None, ["--learning_rate=2e-3"], ["unet_lr was 0.001, is 0.002"]),
        (None, ["--network_dim=8"], ["network_dim was 4, is 8"]),
        (None, ["--seed=12"], ["seed was 11, is 12"]),
        (None, ["--max_train_steps=13"], ["max_train_steps was 8, is 13"]),
        (None, ["--optimizer_type=Adafactor", "--lr_scheduler=constant", "--lr_warmup_steps=0"], ["AdamW"]),
    ],
)
def test_a_changed_run_is_not_resumed_and_told_what_changed(
    setting: Setting, tmp_path: Path, change: Callable[[Setting], None] | None, flags: list[str],
    words: list[str],
) -> None:  # fmt: skip
    home = tmp_path / "copy"
    shutil.copytree(setting.home, home, ignore=shutil.ignore_patterns("whole", ".cache"))
    moved = Setting(home, home / "model", home / "c.toml", setting.whole)
    moved.toml.write_text(moved.toml.read_text(encoding="utf-8").replace(str(setting.home), str(home)))
    if change:
        change(moved)
    state = setting.whole / "disc-step00000005-state"
    with pytest.raises(InputError) as caught:
        train_here(home, moved.flags(tmp_path / "out", "--resume", str(state), *flags))
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_same_data_elsewhere_may_go_on(setting: Setting, tmp_path: Path) -> None:
    home = tmp_path / "moved"
    shutil.copytree(setting.home, home, ignore=shutil.ignore_patterns("whole", ".cache"))
    toml = home / "c.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace(str(setting.home), str(home)))
    moved = Setting(home, home / "model", toml, setting.whole)
    state = setting.whole / "disc-step00000006-state"
    out = train_here(home, moved.flags(tmp_path / "out", "--resume", str(state)))
    assert tensors_of(out / "disc.safetensors") == tensors_of(setting.whole / "disc.safetensors")


@pytest.mark.parametrize("name", ["network.safetensors", "optimizer.pt", "metrics.jsonl", "state.json"])
def test_a_damaged_state_is_refused_by_name(setting: Setting, tmp_path: Path, name: str) -> None:
    state = tmp_path / "disc-state"
    shutil.copytree(setting.whole / "disc-step00000005-state", state)
    raw = (state / name).read_bytes()
    for broken in (raw[: len(raw) // 2], None):
        (state / name).unlink()
        if broken is not None:
            (state / name).write_bytes(broken)
        with pytest.raises(InputError) as caught:
            train_here(setting.home, setting.flags(tmp_path / "out", "--resume", str(state)))
        assert "disc-state" in str(caught.value) and "next:" in str(caught.value)
        if broken is not None:
            assert name in str(caught.value) and "damaged" in str(caught.value)
        (state / name).touch()
    assert not (tmp_path / "out").exists()


def test_other_folders_are_no_states(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, words in ((tmp_path / "none", "no such folder"), (tmp_path / "file", "not a folder"),
                        (setting.model, "not a state")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            train_here(setting.home, setting.flags(tmp_path / "out", "--resume", str(path)))


def test_a_state_that_was_put_aside_by_a_killed_run_is_found(setting: Setting, tmp_path: Path) -> None:
    """kill -9 between the two renames: the old state stands under a temporary name."""
    out = tmp_path / "out"
    out.mkdir()
    shutil.copytree(setting.whole / "disc-step00000005-state", out / ".noukii-tmp-old-disc-state")
    (out / ".noukii-tmp-halfwritten").mkdir()
    (out / ".noukii-tmp-halfwritten" / "optimizer.pt").write_bytes(b"half")
    train_here(setting.home, setting.flags(out, "--resume", str(out / "disc-state")))
    assert_same_run(out, setting.whole)
    assert not [path for path in out.iterdir() if path.name.startswith(".noukii-tmp-")]


def test_a_pickle_in_a_state_runs_no_code(setting: Setting, tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    state = tmp_path / "disc-state"
    shutil.copytree(setting.whole / "disc-step00000005-state", state)
    (state / "optimizer.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    content = json.loads((state / "state.json").read_text())
    content["files"]["optimizer.pt"] = hashlib.sha256((state / "optimizer.pt").read_bytes()).hexdigest()
    (state / "state.json").write_text(json.dumps(content))
    with pytest.raises(InputError):
        train_here(setting.home, setting.flags(tmp_path / "out", "--resume", str(state)))
    assert not (tmp_path / "ran").exists()


def test_no_private_path_is_in_a_state(setting: Setting) -> None:
    for path in (setting.whole / "disc-state").iterdir():
        assert os.fsencode(setting.home) not in path.read_bytes()
