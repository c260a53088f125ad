"""What becomes a result, and what happens to results that are there already."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from noukii.driver import gather, outputs
from noukii.errors import InputError, RunError
from noukii.trainer.lora_file import verify_lora


def lora_bytes(up: float = 0.01, down: float = 0.01, modules: int = 2) -> bytes:
    """A small well-formed LoRA file; the arguments are the values in every matrix."""
    header: dict[str, object] = {"__metadata__": {"ss_base_model_version": "sd_v1", "ss_output_name": "cat"}}
    data = b""
    for number in range(modules):
        name = f"lora_unet_down_blocks_{number}_attentions_0_transformer_blocks_0_attn1_to_q"
        for part, shape, value in (
            ("lora_down.weight", [4, 32], down),
            ("lora_up.weight", [32, 4], up),
            ("alpha", [], 1.0),
        ):
            count = shape[0] * shape[1] if shape else 1
            block = struct.pack("<f", value) * count
            header[f"{name}.{part}"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(block)],
            }
            data += block
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


GOOD = lora_bytes()


@pytest.fixture
def run_folder(project_home: Path) -> Path:
    folder = outputs.new_run_folder("cat")
    (folder / "train.log").write_text("step 1\n")
    (folder / "config_sat_nouki.toml").write_text("[general]\n")
    return folder


def no_report(folder: Path) -> None:
    (folder / "report.html").write_text("report")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "did not write this file"),
        (b"", "0 bytes"),
        (GOOD[: len(GOOD) // 2], "bytes"),
        (lora_bytes(up=float("nan")), "2 of 2 modules hold NaN"),
        (lora_bytes(up=float("inf")), "2 of 2 modules hold NaN or infinite"),
        (lora_bytes(up=0.0), "no effect"),
        (lora_bytes(modules=0), "no tensors"),
    ],
    ids=["no file", "0 bytes", "half a file", "NaN", "Inf", "zero", "no tensors"],
)
def test_a_file_that_is_no_sound_lora_is_not_a_result(run_folder: Path, data: bytes | None, reason: str):
    if data is not None:
        (run_folder / "cat.safetensors").write_bytes(data)
    loras = gather.find_loras(run_folder, "cat", verify_lora)
    with pytest.raises(RunError) as error:
        gather.require_final(loras, run_folder, "cat", run_folder / "train.log")
    assert reason in error.value.reason
    assert "train.log" in error.value.next_step
    assert loras.all == ()


def test_only_files_of_that_name_are_taken_and_a_broken_earlier_save_is_named(run_folder: Path):
    for name in ("cat", "cat-000001", "cat-step00000010", "cat_v2", "catfish", "Cat-000009"):
        (run_folder / f"{name}.safetensors").write_bytes(GOOD)
    (run_folder / "cat-000002.safetensors").write_bytes(GOOD[:100])
    loras = gather.find_loras(run_folder, "cat", verify_lora)
    assert [path.stem for path in loras.all] == ["cat", "cat-000001", "cat-step00000010"]
    assert [path.stem for path, _ in loras.broken] == ["cat-000002"]


def test_the_result_folder_holds_everything_of_the_run(run_folder: Path, project_home: Path):
    (run_folder / "cat.safetensors").write_bytes(GOOD)
    (run_folder / "cat-step00000010.safetensors").write_bytes(GOOD)
    (run_folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (run_folder / "sample").mkdir()
    (run_folder / "sample" / "cat_000010_00.png").write_bytes(b"png")
    (run_folder / "cat-state").mkdir()
    sets = []
    for name in ("10_cat", "5_cat"):  # the same cue name twice: both survive
        folder = project_home / name
        folder.mkdir()
        (folder / "prompt_cue-cat.txt").write_text(name)
        sets.append(folder)
    gather.keep_prompt_cues(sets, run_folder)
    loras = gather.find_loras(run_folder, "cat", verify_lora)
    result = gather.assemble(run_folder, loras, "cat", {"exit_code": 0}, no_report)
    assert result == project_home / "trained_loras" / "cat"
    assert names(result) == [
        "cat-step00000010.safetensors", "cat.safetensors", "config_sat_nouki.toml", "metrics.jsonl",
        "prompt_cue-cat-2.txt", "prompt_cue-cat.txt", "report.html", "run.json", "sample", "train.log",
    ]  # fmt: skip
    assert (result / "prompt_cue-cat.txt").read_text() == "10_cat"
    assert (result / "prompt_cue-cat-2.txt").read_text() == "5_cat"
    assert (result / "cat.safetensors").read_bytes() == GOOD
    assert (result / "sample" / "cat_000010_00.png").is_file()
    assert names(project_home / "trained_loras") == ["cat"]
    assert (run_folder / "cat.safetensors").is_file()  # the working folder stays whole


def test_a_report_that_fails_does_not_cost_the_lora(run_folder: Path, capsys: pytest.CaptureFixture[str]):
    def broken(folder: Path) -> None:
        raise ValueError("template has a hole")

    (run_folder / "cat.safetensors").write_bytes(GOOD)
    loras = gather.find_loras(run_folder, "cat", verify_lora)
    result = gather.assemble(run_folder, loras, "cat", {}, broken)
    assert (result / "cat.safetensors").is_file()
    assert "template has a hole" in capsys.readouterr().out


def test_a_full_disk_while_gathering_leaves_older_results_and_names_path_and_need(
    run_folder: Path, project_home: Path
):
    old = project_home / "trained_loras" / "cat"
    old.mkdir(parents=True)
    (old / "cat.safetensors").write_bytes(b"precious")

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device", str(folder / "report.html"))

    (run_folder / "cat-2.safetensors").write_bytes(GOOD)
    loras = gather.find_loras(run_folder, "cat-2", verify_lora)
    with pytest.raises(RunError) as error:
        gather.assemble(run_folder, loras, "cat-2", {}, full)
    assert "report.html" in error.value.where
    assert "disk is full" in error.value.reason
    assert "KB" in error.value.next_step
    assert str(run_folder) in error.value.next_step
    assert names(project_home / "trained_loras") == ["cat"]
    assert (old / "cat.safetensors").read_bytes() == b"precious"


def test_what_a_killed_run_left_half_gathered_is_removed(run_folder: Path, project_home: Path):
    half = project_home / "trained_loras" / ".noukii-tmp-abc"
    half.mkdir(parents=True)
    (half / "cat.safetensors").write_bytes(b"half")
    (run_folder / "cat.safetensors").write_bytes(GOOD)
    gather.assemble(run_folder, gather.find_loras(run_folder, "cat", verify_lora), "cat", {}, no_report)
    assert names(project_home / "trained_loras") == ["cat"]


def finished(home: Path, name: str, exit_code: int = 0) -> None:
    folder = home / "trained_loras" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"exit_code": exit_code}))


def test_a_name_that_is_taken_gets_a_number(project_home: Path):
    assert outputs.free_result_name("cat", resuming=False) == "cat"
    finished(project_home, "cat")
    finished(project_home, "cat-2")
    assert outputs.free_result_name("cat", resuming=False) == "cat-3"
    assert outputs.free_result_name("cat", resuming=True) == "cat-3"


def test_a_resumed_run_takes_the_name_of_what_it_completes(run_folder: Path, project_home: Path):
    finished(project_home, "cat", exit_code=130)
    assert outputs.free_result_name("cat", resuming=False) == "cat-2"
    assert outputs.free_result_name("cat", resuming=True) == "cat"
    (run_folder / "cat.safetensors").write_bytes(GOOD)
    loras = gather.find_loras(run_folder, "cat", verify_lora)
    gather.assemble(run_folder, loras, "cat", {"exit_code": 0}, no_report)
    shelf = project_home / "trained_loras"
    assert names(shelf) == ["cat", "cat-interrupted"]
    assert json.loads((shelf / "cat-interrupted" / "run.json").read_text())["exit_code"] == 130
    assert json.loads((shelf / "cat" / "run.json").read_text())["exit_code"] == 0


def test_working_folders_are_never_shared(project_home: Path):
    assert len({outputs.new_run_folder("cat") for _ in range(3)}) == 3


def state(home: Path, run: str, name: str, step: int, when: int) -> Path:
    folder = home / "kohya_ss" / "outputs" / "cat" / run / name
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    os.utime(folder.parent, (when, when))
    return folder


def test_resume_finds_the_newest_state_of_that_name(project_home: Path):
    state(project_home, "1", "cat-state", 90, when=1000)
    state(project_home, "2", "cat-step00000010-state", 10, when=2000)
    newest = state(project_home, "2", "cat-step00000020-state", 20, when=2000)
    (newest.parent / "cat-step00000030-state").mkdir()  # empty: a killed save
    os.utime(newest.parent, (2000, 2000))
    assert outputs.newest_state("cat") == newest
    with pytest.raises(InputError) as error:
        outputs.newest_state("dog")
    assert "dog" in str(error.value)
    assert "cat" in str(error.value)


def test_space_is_checked_for_all_folders_of_a_disk_together(project_home: Path):
    free = shutil.disk_usage(project_home).free
    a, b = project_home / "not there yet", project_home / "b" / "c"
    outputs.check_space([(a, free // 2, 1), (b, free // 4, 1)])
    with pytest.raises(InputError) as error:
        outputs.check_space([(a, free // 2, 1), (b, free // 2, 1)])
    assert str(project_home) in error.value.where
    assert "too little space" in error.value.reason
    assert list(project_home.iterdir()) == []


def test_the_last_file_of_the_interrupted_part_is_not_the_result_of_the_resumed_one(run_folder: Path):
    (run_folder / "cat.safetensors").write_bytes(GOOD)
    (run_folder / "cat-step00000005.safetensors").write_bytes(GOOD)
    before = gather.fingerprints(run_folder)
    loras = gather.find_loras(run_folder, "cat", verify_lora, before)
    assert (loras.final, len(loras.earlier)) == (None, 1)
    (run_folder / "new").write_bytes(GOOD)
    (run_folder / "new").replace(run_folder / "cat.safetensors")
    assert gather.find_loras(run_folder, "cat", verify_lora, before).final is not None
