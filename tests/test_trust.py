"""Nothing that a stranger's file or name says is run, and no file outside is read."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Run
from PIL import Image, PngImagePlugin
from test_driver import stand_in  # noqa: F401  (a fixture)
from tiny_janus import make_tiny_janus
from tiny_models import make_tiny_sd

from noukii.captioning.janus_files import check_model
from noukii.captioning.manifest import MANIFEST, STATE, Manifest, State
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.config_file import read_config
from noukii.dataset.images import inspect_image, open_image
from noukii.driver import outputs
from noukii.errors import InputError
from noukii.trainer.checkpoint_header import inspect_base_model

_watching: list[list[str]] = []
_hooked = False


@contextmanager
def watched() -> Iterator[list[str]]:
    """What this process opens, starts or imports while the block runs, as one text each."""
    global _hooked
    if not _hooked:  # a hook stays for the life of a process
        sys.addaudithook(_note)
        _hooked = True
    events: list[str] = []
    _watching.append(events)
    try:
        yield events
    finally:
        _watching.remove(events)


def _note(event: str, values: tuple[object, ...]) -> None:
    if _watching and event in (
        "open", "import", "exec", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen",
        "socket.connect", "pickle.find_class", "ctypes.dlopen",
    ):  # fmt: skip
        for events in _watching:
            events.append(f"{event} {' '.join(str(value) for value in values)}")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that nothing of ours has any business with."""
    path = tmp_path / "outside" / "SECRET.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"password")
    return path


def climbing(secret: Path, folder: Path) -> list[str]:
    """Ways to name it from inside `folder`."""
    return [os.path.relpath(secret, folder), str(secret), "sub/../" + os.path.relpath(secret, folder)]


def test_a_diffusers_folder_cannot_name_files_outside(secret: Path, tmp_path: Path) -> None:
    model = make_tiny_sd(tmp_path / "sd")
    unet = model / "unet"
    (unet / "diffusion_pytorch_model.safetensors").unlink()
    for name in climbing(secret, unet):
        index = {"weight_map": {"conv_in.weight": name}}
        (unet / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
        with watched() as events, pytest.raises(InputError):
            inspect_base_model(model)
        assert any("index.json" in event for event in events)
        assert not any("SECRET" in event for event in events if event.startswith("open"))


def test_a_janus_folder_cannot_name_files_outside(secret: Path, tmp_path: Path) -> None:
    model = make_tiny_janus(tmp_path / "janus", shards=2)
    for name in climbing(secret, model):
        index = {"weight_map": {"language_model.lm_head.weight": name}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with watched() as events, pytest.raises(InputError):
            check_model(model)
        assert any("index.json" in event for event in events)
        assert not any("SECRET" in event for event in events if event.startswith("open"))


def test_tokenizer_files_are_data(secret: Path, tmp_path: Path) -> None:
    """auto_map, code beside it, paths in it: a CLIP tokenizer is a table of words, whatever else is said."""
    folder = make_tiny_sd(tmp_path / "sd") / "tokenizer"
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = {"auto_map": {"AutoTokenizer": ["evil.Evil"]}, "tokenizer_class": "evil.Evil",
              "vocab_file": str(secret), "tokenizer_file": str(secret), "name_or_path": "evil"}  # fmt: skip
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        (folder / name).write_text(json.dumps(config if name == "tokenizer_config.json" else {}))
    with watched() as events:
        tokenizer = ClipTokenizer.from_folder(folder)
    assert tokenizer.count("a red cat") == 3
    assert not any("SECRET" in event or "evil" in event for event in events)
    for broken in ("[" * 100_000, '{"a": 1e999}', '{"a": [1]}', "\x00", '{"bos_token": {"content": 5}}'):
        (folder / "vocab.json").write_text(broken)
        with pytest.raises(InputError) as caught:
            ClipTokenizer.from_folder(folder)
        assert caught.value.next_step
    assert not (tmp_path / "ran").exists()


def test_custom_pipelines_of_a_base_model_are_not_imported(tmp_path: Path) -> None:
    model = make_tiny_sd(tmp_path / "sd")
    ran = tmp_path / "ran"
    for place in (model, model / "unet", model / "scheduler"):
        (place / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
        (place / "__init__.py").write_text(f"open({str(ran)!r}, 'w')")
    for file in (model / "unet" / "config.json", model / "scheduler" / "scheduler_config.json"):
        content = json.loads(file.read_text()) | {"auto_map": {"AutoModel": "evil.Evil"}, "_module": "evil"}
        file.write_text(json.dumps(content))
    index = json.loads((model / "model_index.json").read_text())
    index |= {"unet": ["evil", "Evil"], "safety_checker": ["evil", "Evil"], "custom_pipeline": "evil"}
    (model / "model_index.json").write_text(json.dumps(index))
    import torch

    from noukii.trainer.base_model import load_base_model

    with watched() as events:
        loaded = load_base_model(inspect_base_model(model), dtype=torch.float32)
    assert type(loaded.unet).__module__.startswith("diffusers.")
    assert not any("evil" in event for event in events if event.startswith(("open", "import", "exec")))
    assert not ran.exists()


def test_what_lies_in_an_output_folder_names_nothing_outside(secret: Path, tmp_path: Path) -> None:
    """captions.jsonl, .noukii.json and a run's record from a stranger."""
    folder = tmp_path / "out"
    folder.mkdir()
    line = {"file": "../outside/SECRET.safetensors", "source": str(secret), "sha256": "0" * 64,
            "file_sha256": "0" * 64, "width": 1, "height": 1, "model": None, "prompt": None, "seed": None,
            "temperature": None, "top_p": None, "max_new_tokens": None, "max_caption_tokens": None,
            "keyword": "k", "raw": "", "caption": "c", "clip_tokens": 1, "finish_reason": "stop", "tokens": 1,
            "seconds": 0.0}  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(line) + "\n" + json.dumps({**line, "file": str(secret)}) + "\n")
    (folder / STATE).write_text(json.dumps({"claims": {"a": "../outside/SECRET"}, "own": {"../x": ["0"]}}))
    with watched() as events:
        assert Manifest.read(folder).entries == {}
        assert State.read(folder).claims == {}
        (folder / outputs.RECORD_NAME).write_text("[" * 100_000)
        assert outputs.read_record(folder) == {}
    assert not any("SECRET" in event for event in events if event.startswith("open"))
    assert secret.read_bytes() == b"password"


def test_a_toml_file_is_data(secret: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for text in (
        "[general]\nenable_bucket = true\n" + "[[datasets]]\n" * 5 + "a." * 5000 + "b = 1",
        "x = " + "[" * 100_000,
        f"include = {str(secret)!r}",
        "[general]\ncaption_extension = '/../outside/SECRET.safetensors'\n[[datasets]]\nresolution = 512\n"
        "[[datasets.subsets]]\nimage_dir = 'x'\n__class__ = 1",
    ):
        path.write_text(text)
        with watched() as events, pytest.raises(InputError) as caught:
            read_config(path)
        assert caught.value.next_step
        assert not any("SECRET" in event for event in events if event.startswith("open"))


def test_text_inside_pictures_starts_nothing(secret: Path, tmp_path: Path) -> None:
    """PNG texts, EPS under another name (which Pillow would hand to Ghostscript), an SVG that names files."""
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", f"$(touch {tmp_path / 'ran'})")
    text.add_itxt("XML:com.adobe.xmp", f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]><a>&x;</a>')
    Image.new("RGB", (64, 64), (1, 2, 3)).save(tmp_path / "a.png", pnginfo=text)
    (tmp_path / "b.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n" + f"({secret}) run\nshowpage\n".encode()
    )
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="file://{secret}"/></svg>'
    (tmp_path / "c.png").write_text(svg)
    with watched() as events:
        assert open_image(tmp_path / "a.png").getpixel((5, 5)) == (1, 2, 3)
        for name in ("b.png", "c.png"):
            with pytest.raises(Exception, match="not an image"):
                inspect_image(tmp_path / name)
    assert not any("SECRET" in event for event in events if event.startswith("open"))
    assert not any(event.startswith(("subprocess", "os.")) for event in events)
    assert not (tmp_path / "ran").exists()


SHELL = [
    "$(touch owned)",
    "`touch owned`",
    ";touch owned;",
    "a\ntouch owned\n",
    "|touch owned",
    "&& touch owned",
]


def test_names_and_captions_are_never_shell_commands(
    run: Run,
    project_home: Path,
    tmp_path: Path,
    stand_in: Path,  # noqa: F811
) -> None:
    """Through the real command: folders, files, captions, cues, the output name and what is printed."""
    sets = project_home / "image_datasets"
    for number, name in enumerate(SHELL):
        folder = sets / f"{number + 2}_{name}"
        folder.mkdir(parents=True)
        Image.new("RGB", (64, 64), (number, 2, 3)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(f"cat, {name} <script>owned()</script>")
        (folder / f"prompt_cue-{name}.txt").write_text(name)
    done = run(
        "run_training.sh", "--base-model", make_tiny_sd(tmp_path / "sd"), "--trainer", "builtin",
        "--output-name", SHELL[0], "--sample-every", "5", NOUKII_ACCELERATE=str(stand_in), STAND_IN="good",
        STAND_IN_RECORD=str(tmp_path / "got.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    got = json.loads((tmp_path / "got.json").read_text())
    assert got["argv"][got["argv"].index("--output_name") + 1] == SHELL[0]
    assert len(got["folders"]) == len(SHELL)
    result = project_home / "trained_loras" / SHELL[0]
    assert "<script>owned" not in (result / "report.html").read_text(encoding="utf-8")
    again = run("run_training.sh", "--output-name", SHELL[0], "--resume", "--dry-run")
    assert "Traceback" not in again.stderr
    assert not list(tmp_path.rglob("owned*"))


def test_a_prepared_home_cannot_lead_writes_elsewhere(
    run: Run,
    project_home: Path,
    tmp_path: Path,
    secret: Path,
    stand_in: Path,  # noqa: F811
) -> None:
    """Links that wait under the names we are going to write."""
    folder = project_home / "image_datasets" / "2_cat"
    folder.mkdir(parents=True)
    Image.new("RGB", (64, 64), (1, 2, 3)).save(folder / "a.png")
    (folder / "a.txt").write_text("cat")
    train = project_home / "kohya_ss" / "dataset" / "images" / "train"
    train.mkdir(parents=True)
    (train / "2_cat").symlink_to(secret.parent)
    (train.parent.parent / "noukii_repeats.json").symlink_to(secret)
    before = secret.read_bytes()
    done = run(
        "run_training.sh", "--base-model", make_tiny_sd(tmp_path / "sd"), "--trainer", "builtin",
        "--output-name", "cat", "--dataset", folder, "--repeats", "3",
        NOUKII_ACCELERATE=str(stand_in), STAND_IN="good", STAND_IN_RECORD=str(tmp_path / "got.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert secret.read_bytes() == before and os.listdir(secret.parent) == [secret.name]
    assert not (train / "2_cat").is_symlink()
    shutil.rmtree(train)
