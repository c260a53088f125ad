"""report.html: what a person sees of a training run."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from noukii.dataset.folders import DataSet
from noukii.dataset.plan import make_plan
from noukii.driver import compare
from noukii.errors import InputError
from noukii.report import readable
from noukii.report.charts import Series, downsample, line_chart, path_data, ticks
from noukii.report.report import write_report
from noukii.report.run_files import find_samples, read_lora_header, read_metrics
from noukii.report.run_summary import command_text, shell_word, spread

CHECKOUT = Path(__file__).resolve().parent.parent


class Page(HTMLParser):
    """What the tests ask of a page: its text, its tables, its exact numbers, its attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self.exact: list[tuple[str, str]] = []
        """(all digits, as shown) of each number"""
        self.attributes: list[tuple[str, str, str]] = []
        self.definitions: dict[str, str] = {}
        self.all_text: dict[str, list[str]] = {}
        self._open: list[tuple[str, list[str]]] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self._open, "every tag is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag == "br":
            self.handle_data(" ")
        if tag in ("meta", "img", "br"):
            return
        self._open.append((tag, []))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag == "data":
            self.exact.append((dict(attributes)["value"] or "", ""))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        opened, parts = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        text = " ".join("".join(parts).split())
        self.all_text.setdefault(tag, []).append(text)
        if tag == "data":
            self.exact[-1] = (self.exact[-1][0], text)
        elif tag in ("th", "td"):
            self.tables[-1][-1].append(text)
        elif tag == "dd":
            self.definitions[self.all_text["dt"][-1]] = text

    def handle_data(self, data: str) -> None:
        if not any(tag in ("style", "script") for tag, _ in self._open):
            self.text += data
        for _, parts in self._open:
            parts.append(data)

    def table(self, heading: str) -> list[list[str]]:
        """The rows of the table that has this heading."""
        return next(table[1:] for table in self.tables if heading in table[0])


def lora(path: Path, metadata: dict[str, str]) -> None:
    """A LoRA of one layer, as far as a reader of headers can tell."""
    header = {
        "__metadata__": metadata,
        "lora_unet_x.lora_down.weight": {"dtype": "F16", "shape": [4, 320], "data_offsets": [0, 2560]},
        "lora_unet_x.lora_up.weight": {"dtype": "F16", "shape": [320, 4], "data_offsets": [2560, 5120]},
        "lora_unet_x.alpha": {"dtype": "F16", "shape": [], "data_offsets": [5120, 5122]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(5122))


def metric(step: int, loss: float | None = 0.125, **more: object) -> str:
    """A line as the trainer writes it."""
    line = {
        "step": step, "epoch": 1, "loss": loss, "loss_smoothed": 0.25, "lr_unet": 1e-4,
        "lr_text_encoder": 5e-5, "seconds": 1.5, "samples": 4,
    }  # fmt: skip
    return json.dumps({**line, **more}) + "\n"


def run_json(folder: Path, **more: object) -> None:
    """A record as the driver writes it."""
    record = {
        "command": ["accelerate", "launch", "train_network.py", "--seed", "7"], "trainer": "builtin",
        "base_model": "v1-5.safetensors", "base_model_sha256": "ab12", "output_name": "car",
        "started_at": "2026-11-30T14:26:01+01:00", "finished_at": "2026-11-30T15:31:02+01:00",
        "seconds": 3901.0, "exit_code": 0, "plan": {}, "versions": {"torch": "2.13.0"},
        "device": "NVIDIA GeForce RTX 3060", "precision": "bf16", "peak_memory_bytes": 7_410_000_000,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps({**record, **more}), encoding="utf-8")


@pytest.fixture
def finished(tmp_path: Path, reference: Path, photos: Path) -> Path:
    """A finished run with everything that a run can leave."""
    folder = tmp_path / "car"
    (folder / "sample").mkdir(parents=True)
    metadata = json.loads((reference / "lora_metadata.json").read_text(encoding="utf-8"))
    lora(folder / "car-step00000002.safetensors", metadata)
    lora(folder / "car.safetensors", {**metadata, "ss_network_dim": "16"})
    (folder / "metrics.jsonl").write_text(
        metric(1, 0.1234567890123, loss_smoothed=0.3)
        + metric(2, 0.5, loss_smoothed=0.0987654321, epoch=2)
        + metric(3, 0.25, loss_smoothed=0.2, epoch=2, lr_unet=1.25e-7)
        + '{"step": 4, "loss": 0.',
        encoding="utf-8",
    )
    (folder / "config_sat_nouki.toml").write_text(
        '[general]\nenable_bucket = true\n[[datasets]]\nresolution = 256\nbatch_size = 3\n'
        '[[datasets.subsets]]\nimage_dir = "/home/anna/secret/20_photos"\nnum_repeats = 20\n'
        'class_tokens = "ohwx"\n',
        encoding="utf-8",
    )  # fmt: skip
    (folder / "prompt_cue-ohwx.txt").write_text("red car\nsnow\n", encoding="utf-8")
    for name in ("car_000002_00.png", "car_000003_00.png", "car_000003_01.png"):
        shutil.copy(photos / "coffee.png", folder / "sample" / name)
    run_json(folder)
    return folder


def test_numbers_equal_those_in_the_metrics(finished: Path) -> None:
    page = Page(write_report(finished))
    assert page.table("Loss of that step") == [
        ["first", "1", "0.3", "0.12346"],
        ["lowest", "2", "0.098765", "0.5"],
        ["last", "3", "0.2", "0.25"],
    ]
    for step in read_metrics(finished / "metrics.jsonl"):
        for value in (step.step, step.loss, step.loss_smoothed, step.lr_unet, step.lr_text_encoder):
            assert repr(value) in [exact for exact, _ in page.exact]
    assert len(page.exact) > 20
    for exact, shown in page.exact:
        assert float(shown.replace(",", "")) == pytest.approx(float(exact), rel=1e-4)
    assert page.table("Rate, UNet")[-1] == ["3", "2", "0.25", "0.2", "1.25e-7", "5e-5"]
    assert page.definitions["Steps"] == "3 in 2 epochs"
    assert page.definitions["Loss at the end"] == "0.2 smoothed"
    assert page.definitions["Time"] == "1 h 5 min 1.5 s a step"
    assert page.definitions["Most memory"] == "7.4 GB"


def test_settings_data_sets_files_and_command(finished: Path) -> None:
    page = Page(write_report(finished))
    assert page.table("Repeats") == [["20_photos trigger ohwx", "8", "20", "160"]]
    assert [row[:2] for row in page.table("Samples")] == [
        ["256 × 192", "80"],
        ["256 × 256", "60"],
        ["192 × 192", "20"],
    ]
    shown = page.definitions
    assert (shown["rank"], shown["alpha"], shown["seed"], shown["resolution"]) == ("16", "1", "42", "256")
    assert (shown["base model"], shown["base model's SHA-256"]) == ("v1-5.safetensors", "ab12")
    assert (shown["device"], shown["torch"], shown["started"]) == (
        "NVIDIA GeForce RTX 3060", "2.13.0", "2026-11-30 14:26",
    )  # fmt: skip
    assert "clip skip" not in {name.lower() for name in shown}, "what was not set is not shown"
    assert [row[0] for row in page.table("LoRA")] == [
        "car-step00000002.safetensors step 2",
        "car.safetensors finished",
    ]
    assert page.all_text["pre"] == ["accelerate launch train_network.py \\ --seed 7"]
    assert "red car, snow" in page.text
    assert "secret" not in page.text, "folders are shown by name"
    assert shown["ss_network_module"] == "networks.lora"


def test_the_plan_tells_of_data_sets_buckets_warnings_and_skipped_files(tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / "20_photos"
    shutil.copytree(photos, folder)
    for image in list(folder.glob("*.png"))[:5]:
        image.with_suffix(".txt").write_text("ohwx, a photograph", encoding="utf-8")
    (folder / "<b>.jpg").write_bytes(b"")
    plan = make_plan([DataSet(folder, "ohwx", 20, "the folder's name")], resolution=256)
    (tmp_path / "run").mkdir()
    run_json(tmp_path / "run", plan=plan.as_dict())
    page = Page(write_report(tmp_path / "run"))
    note = "20_photos trigger ohwx 6 of 7 files used, repeats: the folder's name"
    assert page.table("Repeats") == [[note, "6", "20", "120"]]
    assert sum(int(row[1]) for row in page.table("Samples")) == 120
    assert {(int(row[0].split(" × ")[0]), int(row[1])) for row in page.table("Samples")} == {
        (bucket.width, count) for bucket, count in plan.buckets.items()
    }
    assert ["20_photos/<b>.jpg", plan.sets[0].skipped[0].reason] in [
        row for table in page.tables for row in table
    ]
    said = [*plan.warnings, *plan.advice]
    assert page.all_text.get("li", []) == [" ".join(warning.split()) for warning in said]
    assert plan.warnings, "one image has no caption"


def test_the_images_of_the_plan_are_shown_with_captions_and_flags(tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / "20_photos"
    shutil.copytree(photos, folder)
    for number, image in enumerate(sorted(folder.glob("*.png"))):
        image.with_suffix(".txt").write_text(f"ohwx, soft light, <b>{number // 2}</b>", encoding="utf-8")
    (folder / "coffee.txt").unlink()
    plan = make_plan([DataSet(folder, "ohwx", 20, "the folder's name")], resolution=256, validation=0.2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "prompt_cue-ohwx.txt").write_text("soft light\nsnow\n")
    run_json(tmp_path / "run", plan=plan.as_dict())
    (folder / "retina.png").unlink()  # gone since: its name stands in its place
    page = Page(write_report(tmp_path / "run"))
    pictures = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert sorted(pictures) == sorted(path.name for path in folder.glob("*.png"))
    assert page.text.count("held out") == 3, "on its image, with its data set, in the settings"
    assert "no caption 1" in page.text and "duplicate caption" in page.text
    assert "<b>0</b>" in page.text, "markup is text"
    assert "soft light (83 %), snow (0 %)" in page.text
    assert page.definitions["held out for validation"] == "1 image (20 % of each data set)"


def measured(folder: Path, losses: dict[int, float], saved: tuple[int, ...], last: int) -> None:
    """A run that was measured at some steps and has saved LoRAs after some."""
    lines = [json.dumps({"step": 0, "epoch": 0, "validation_loss": losses[0]}) + "\n"]
    for step in range(1, last + 1):
        lines.append(metric(step, **({"validation_loss": losses[step]} if step in losses else {})))
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    for step in saved:
        lora(folder / f"car-step{step:08d}.safetensors", {"ss_steps": str(step)})
    lora(folder / "car.safetensors", {"ss_steps": str(last)})
    run_json(folder)


def test_the_validation_curve_and_the_best_of_the_saved(tmp_path: Path) -> None:
    losses = {0: 0.31, 10: 0.2123456789, 15: 0.15, 20: 0.19, 30: 0.25, 40: 0.29}
    measured(tmp_path, losses, (10, 20, 30), 40)
    page = Page(write_report(tmp_path))
    assert page.table("Validation loss") == [
        ["0", "0.31"], ["10", "0.21235"], ["15", "0.15"], ["20", "0.19"], ["30", "0.25"], ["40", "0.29"],
    ]  # fmt: skip
    exact = [exact for exact, _ in page.exact]
    assert all(repr(value) in exact for value in losses.values())
    assert page.definitions["Best checkpoint"] == "step 20 validation loss 0.19"
    words = next(text for text in page.all_text["p"] if "lowest validation loss" in text)
    assert words.startswith("car-step00000020.safetensors has") and "rises" in words
    files = next(table[1:] for table in page.tables if table[0][:1] == ["LoRA"])
    assert [row[1] for row in files] == ["0.21235", "0.19", "0.25", "0.29"]
    assert [("lowest" in row[0]) for row in files] == [False, True, False, False]
    assert page.definitions["Steps"].startswith("40")
    assert page.all_text["text"].count("validation loss") == 2


def test_a_curve_that_only_falls_names_the_last_and_speaks_of_no_rise(tmp_path: Path) -> None:
    measured(tmp_path, {0: 0.3, 10: 0.2, 20: 0.1}, (10,), 20)
    page = Page(write_report(tmp_path))
    assert page.definitions["Best checkpoint"] == "the last validation loss 0.1"
    assert "rises:" not in page.text
    assert "car.safetensors has the lowest" in page.text


def test_without_validation_nothing_is_called_the_best(finished: Path) -> None:
    page = Page(write_report(finished))
    assert "Best checkpoint" not in page.definitions and "alidation loss" not in page.text


def test_the_base_model_s_pictures_are_the_first_row_under_the_prompts(finished: Path, photos: Path) -> None:
    for name in ("car_000000_00.png", "car_000000_01.png"):
        shutil.copy(photos / "rocket.png", finished / "sample" / name)
    run_json(finished, sample_prompts=["ohwx on a <b>hill", "ohwx, snow"])
    grid = next(table for table in Page(write_report(finished)).tables if "ohwx, snow" in table[0])
    assert grid[0] == ["", "ohwx on a <b>hill", "ohwx, snow"]
    assert [row[0] for row in grid[1:]] == ["base model", "step 2", "step 3"]


def test_every_setting_and_the_command_to_repeat_it(finished: Path) -> None:
    run_json(
        finished,
        settings={"network_dim": 16, "sdpa": True, "noise_offset": None},
        repeat=["./run_training.sh", "--dataset", "my pictures", "--seed", "7"],
    )
    page = Page(write_report(finished))
    assert (page.definitions["network_dim"], page.definitions["sdpa"], page.definitions["noise_offset"]) == (
        "16", "yes", "–",
    )  # fmt: skip
    assert page.all_text["pre"][0] == "./run_training.sh \\ --dataset 'my pictures' \\ --seed 7"
    assert page.all_text["pre"][1].startswith("accelerate launch")


def test_the_page_of_a_run_that_goes_on_says_so_and_loads_itself_anew(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "metrics.jsonl").write_text(metric(1) + metric(2))
    target = tmp_path / "page.html"
    write_report(tmp_path / "work", target, {"output_name": "car", "plan": {"steps": 40}})
    page = Page(target)
    assert page.all_text["h1"] == ["car"]
    assert "This run is going on: step 2 of 40" in page.text
    assert ("meta", "http-equiv", "refresh") in page.attributes
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["metrics.jsonl"]


def test_samples_form_a_grid_of_checkpoint_and_prompt(finished: Path) -> None:
    page = Page(write_report(finished))
    grid = next(table for table in page.tables if "prompt 1" in table[0])
    assert grid == [["", "prompt 1", "prompt 2"], ["step 2", "", "–"], ["step 3", "", ""]]
    pictures = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert pictures == ["step 2, prompt 1", "step 3, prompt 1", "step 3, prompt 2"]


def test_nothing_outside_the_file_is_needed(finished: Path) -> None:
    page = Page(write_report(finished))
    assert all(
        value.startswith("data:image/")
        for _, name, value in page.attributes
        if name in ("src", "href", "srcset", "action", "data", "poster")
    )
    assert all("url(" not in text and "@import" not in text for text in page.all_text["style"])
    assert not {"link", "iframe", "script"} & page.all_text.keys()


def test_the_charts_have_axes_and_one_line_each(finished: Path) -> None:
    page = Page(write_report(finished))
    assert page.all_text["text"].count("loss") == 2  # for a desk and for a phone
    assert page.all_text["text"].count("learning rate") == 2
    assert page.all_text["title"][1:] == ["each step", "smoothed"] * 2 + ["UNet", "text encoder"] * 2


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path))
    assert "There is nothing of a training run in this folder." in page.text
    assert not page.tables and "svg" not in page.all_text


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        write_report(tmp_path / "none")


def test_damage_in_every_file_costs_that_part_only(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"trainer": ', encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[[[", encoding="utf-8")
    (tmp_path / "car.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "car_000001_00.png").write_bytes(b"half a pict")
    (tmp_path / "metrics.jsonl").write_text(
        "null\n" + metric(2, None) + '{"step": "x"}\n{"step": NaN}\n' + metric(1) + "{", encoding="utf-8"
    )
    page = Page(write_report(tmp_path))
    assert page.definitions["Steps"].startswith("2")
    assert [row[0] for row in page.table("LoRA")] == ["car.safetensors finished"]
    assert "prompt 1" not in page.text


@pytest.mark.parametrize(
    "lines",
    [
        '{"step": 1, "loss": %s}' % ("9" * 400),
        '{"step": 1, "loss": 1e308, "loss_smoothed": -1e308, "validation_loss": 1e-320}',
        '{"step": 1, "loss": 5e-324}',
        '{"step": %s, "loss": 1}' % ("9" * 250),
        '{"step": 2e299, "loss": 2, "lr_unet": Infinity, "seconds": NaN}',
    ],
    ids=range(5),
)
def test_numbers_that_no_run_has_do_not_cost_the_page(tmp_path: Path, lines: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(metric(1) + metric(2) + lines + "\n", encoding="utf-8")
    run_json(tmp_path, seconds=int("9" * 400), peak_memory_bytes=int("9" * 400))
    lora(tmp_path / "car.safetensors", {"ss_steps": "9" * 5000})
    page = Page(write_report(tmp_path))
    assert page.definitions["Steps"].startswith("2")
    assert "nan" not in "".join(page.all_text.get("path", [])).lower()
    (tmp_path / "metrics.jsonl").unlink()
    assert "Steps" not in Page(write_report(tmp_path)).definitions


def test_a_loss_that_is_no_number_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        metric(1) + metric(2, float("nan"), loss_smoothed=None) + metric(3, math.inf), encoding="utf-8"
    )
    page = Page(write_report(tmp_path))
    assert "The loss of 2 steps from step 2 on is not a finite number" in page.text
    assert "--learning-rate" in page.text
    (tmp_path / "metrics.jsonl").write_text(metric(1) + metric(2, None), encoding="utf-8")
    assert "finite" not in Page(write_report(tmp_path)).text


def test_a_name_that_turns_the_line_round_turns_itself_alone(tmp_path: Path) -> None:
    run_json(tmp_path, base_model="model \u202egnp.ckpt", finished_at="2026-11-30T14:26:00")
    page = Page(write_report(tmp_path))
    assert "on model \\u202egnp.ckpt" in page.text and "2026-11-30 14:26" in page.text


def test_a_run_to_compare_is_named_or_given_as_its_folder(
    project_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project_home / "trained_loras" / "my run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(project_home)
    for words in ("my run", "my run/", "trained_loras/my run/", os.fspath(folder), "./trained_loras/my run"):
        assert compare.parse(["--compare", words]).name == "my run"
    for words in ("", "/", "..", ".", "../my run", "elsewhere/my run", os.fspath(project_home)):
        with pytest.raises(InputError, match="name a folder of trained_loras"):
            compare.parse(["--compare", words])


def test_a_lora_of_upstream_alone(tmp_path: Path, reference: Path) -> None:
    lora(
        tmp_path / "k.safetensors", json.loads((reference / "lora_metadata.json").read_text(encoding="utf-8"))
    )
    page = Page(write_report(tmp_path))
    assert page.definitions["base model"] == "v1-5-pruned-emaonly.safetensors"
    assert page.table("Repeats") == [["20_photos", "8", "20", "160"]]
    assert page.definitions["Steps"] == "6"
    assert "svg" not in page.all_text


def test_markup_and_odd_bytes_stay_text(finished: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    run_json(
        finished, output_name=evil, base_model=evil, device=evil, versions={evil: evil}, command=["x", evil]
    )
    lora(
        finished / "zz.safetensors",
        {"ss_training_comment": evil, "ss_datasets": "[[", "bad\x00key": "\ud800"},
    )
    (finished / "prompt_cue-x.txt").write_bytes(evil.encode() + b" \xff\x00\n")
    page = Page(write_report(finished))
    assert "script" not in page.all_text
    assert page.all_text["h1"] == [evil]
    assert page.definitions["device"] == page.definitions[evil] == evil


@pytest.mark.parametrize(("code", "words"), [(130, "was stopped"), (1, "failed with exit code 1"), (0, None)])
def test_how_the_run_ended(tmp_path: Path, code: int, words: str | None) -> None:
    run_json(tmp_path, exit_code=code)
    page = Page(write_report(tmp_path))
    assert words in page.text if words else "run was" not in page.text and "failed" not in page.text


def test_a_long_run_stays_a_small_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        "".join(metric(step, math.sin(step) ** 2) for step in range(1, 20_001)), encoding="utf-8"
    )
    path = write_report(tmp_path)
    assert path.stat().st_size < 300_000
    assert "40 of 20,000 steps as numbers" in Page(path).text


def test_torch_is_not_imported(finished: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from noukii.report.report import write_report;"
        "write_report(Path(sys.argv[1]));"
        "print(sorted({'torch', 'transformers', 'diffusers', 'sklearn', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(finished)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_resumed_run_counts_a_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(metric(1, 0.1) + metric(2, 0.2) + metric(2, 0.3) + metric(3, 0.4), encoding="utf-8")
    assert [(step.step, step.loss) for step in read_metrics(path)] == [(1, 0.1), (2, 0.3), (3, 0.4)]


def test_the_header_of_a_lora_is_read_without_its_tensors(tmp_path: Path) -> None:
    lora(tmp_path / "a.safetensors", {"ss_seed": "42"})
    found = read_lora_header(tmp_path / "a.safetensors")
    assert found is not None
    assert (found.modules, found.parameters, found.dtypes, found.metadata) == (
        1,
        2560,
        ("F16",),
        {"ss_seed": "42"},
    )
    (tmp_path / "pointer.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\n", encoding="utf-8"
    )
    assert read_lora_header(tmp_path / "pointer.safetensors") is None


def test_sample_names_of_both_trainers(tmp_path: Path) -> None:
    for name in (
        "car_2_000100_00.png", "car_2_000100_01_20261130142601_42.png", "car_2_e000003_00_20261130142601.png",
        "000100_02_20261130142601.png", "notes.txt", "car.png",
    ):  # fmt: skip
        Image.new("RGB", (2, 2)).save(tmp_path / name, "PNG")
    found = [(sample.by_epoch, sample.at, sample.prompt) for sample in find_samples(tmp_path)]
    assert found == [(False, 100, 0), (False, 100, 1), (False, 100, 2), (True, 3, 0)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=0, max_size=20),
        min_size=1,
        max_size=4,
    )
)
@example(["caf\udce9", "tab\there", ""])
def test_a_shell_reads_the_command_as_it_was(words: list[str]) -> None:
    text = "printf '%s\\0' " + " ".join(map(shell_word, words))
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def test_a_damaged_record_gives_a_command_all_the_same() -> None:
    assert shell_word("\udd00x") == shell_word("?x")


def test_a_command_has_one_flag_a_line() -> None:
    assert command_text(["run", "a b", "--x", "it's", "--y"]) == "run 'a b' \\\n  --x 'it'\"'\"'s' \\\n  --y"
    assert command_text(None) == ""


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=300),
    st.integers(min_value=10, max_value=120),
)
def test_downsampling_keeps_ends_peaks_and_order(losses: list[float], most: int) -> None:
    points = [(float(step), loss) for step, loss in enumerate(losses)]
    kept = downsample(points, most)
    assert len(kept) <= max(most, 1)
    steps = [x for x, _ in kept]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == len(points) - 1
    finite = [y for y in losses if math.isfinite(y)]
    if finite:
        heights = [y for _, y in kept if math.isfinite(y)]
        assert (min(heights), max(heights)) == (min(finite), max(finite))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e6), st.integers(2, 9))
def test_ticks_are_few_even_and_span_the_values(low: float, spread_of: float, count: int) -> None:
    found = ticks(low, low + spread_of, count)
    assert 2 <= len(found) <= 2 * count + 3
    assert found == sorted(found)
    slack = 1e-6 * (abs(low) + spread_of)
    assert found[0] <= low + slack and found[-1] >= low + spread_of - slack


def test_a_gap_interrupts_the_line_and_a_lone_point_is_a_dot() -> None:
    assert path_data([(0, 1), (1, 2), (2, math.nan), (3, 4)]) == "M0.0 1.0L1.0 2.0M3.0 4.0h0"
    assert path_data([(5, 5)]) == "M5.0 5.0h0"


def test_a_chart_of_nothing_is_nothing_and_one_step_is_a_chart() -> None:
    options = {"title": "t", "x_label": "step", "y_label": "loss"}
    assert line_chart([Series("a", "raw", [(1, math.nan)])], **options) == ""
    svg = line_chart([Series("<a>", "raw", [(7, 0.5)])], **options)
    assert "&lt;a&gt;" in svg and ">7</text>" in svg and "nan" not in svg


def test_spread_keeps_both_ends() -> None:
    assert spread(range(1000), 5) == [0, 250, 500, 749, 999]
    assert spread([1, 2], 5) == [1, 2]


def test_numbers_and_times_are_readable() -> None:
    values = (0.0001, 0.123456789, 12345.678, 3, 12000, 0.0, math.nan)
    assert [readable.number(value) for value in values] == [
        "1e-4", "0.12346", "12346", "3", "12,000", "0", "not a number",
    ]  # fmt: skip
    assert [readable.duration(value) for value in (0.25, 9.99, 59.6, 61, 3600, 7384)] == [
        "0.2 s", "10.0 s", "1 min", "1 min 1 s", "1 h", "2 h 3 min",
    ]  # fmt: skip
    assert [readable.file_size(value) for value in (12, 9_618_000, 999_999, 4_265_000_000)] == [
        "12 bytes", "9.6 MB", "1.0 MB", "4.3 GB",
    ]  # fmt: skip
    assert readable.moment("yesterday") == "yesterday"
    assert readable.moment(1796042574.29) == "2026-11-30 12:42 UTC"
