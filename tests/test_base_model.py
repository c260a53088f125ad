"""What a base model is, told from its header, and loading one that is right."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_models import make_tiny_sd

from noukii.errors import InputError
from noukii.project import ASSETS, CHECKOUT
from noukii.trainer.checkpoint_header import inspect_base_model
from noukii.trainer.safetensors_header import BadHeader, read_header

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "F8_E4M3": 1}
UNET, TEXT = "model.diffusion_model.", "cond_stage_model.transformer."
Layout = dict[str, list[int]]


def sd15() -> Layout:
    return json.loads((ASSETS / "sd15" / "single_file_layout.json").read_text())


def write_sparse(path: Path, layout: Layout, dtype: str = "F16", cut: int | None = None) -> Path:
    """A safetensors file with a real header and a hole for its data: gigabytes that take no room."""
    header, offset = {}, 0
    for name, shape in layout.items():
        kind = "I64" if name.endswith("position_ids") else dtype
        size = SIZES[kind]
        for side in shape:
            size *= side
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        stream.truncate(8 + len(raw) + offset if cut is None else cut)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        inspect_base_model(path)
    error = caught.value
    assert error.exit_code == 2
    assert error.next_step
    assert path.name in error.where or str(path.name) in str(error)
    return str(error)


# --- one file: accepted ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "word", "gigabytes"),
    [("F32", "float32", 4.27), ("F16", "float16", 2.13), ("BF16", "bfloat16", 2.13)],
)
def test_sd15_in_one_file(tmp_path: Path, dtype: str, word: str, gigabytes: float) -> None:
    path = write_sparse(tmp_path / "v1-5 prunéd.safetensors", sd15(), dtype)
    found = inspect_base_model(path)
    assert (found.kind, found.dtype, found.default_resolution) == ("single-file", word, 512)
    assert found.size_bytes == path.stat().st_size == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_ema_and_leftovers_do_no_harm(tmp_path: Path) -> None:
    layout = sd15()
    ema = {"model_ema." + name.replace(".", ""): s for name, s in layout.items() if name.startswith(UNET)}
    extra = {f"{TEXT}text_model.embeddings.position_ids": [1, 77], "alphas_cumprod": [1000], "betas": [1000]}
    found = inspect_base_model(write_sparse(tmp_path / "full.safetensors", {**layout, **ema, **extra}))
    assert found.kind == "single-file"


def test_other_spellings_of_the_same_tensors(tmp_path: Path) -> None:
    """Some files lack the text_model level; the VAE's attention is convolutions in some, Linear in others."""
    layout = {name.replace(f"{TEXT}text_model.", TEXT): shape for name, shape in sd15().items()}
    layout = {
        name: [*shape[:2]] if ".attn_1." in name and len(shape) == 4 else shape
        for name, shape in layout.items()
    }
    assert inspect_base_model(write_sparse(tmp_path / "x.safetensors", layout)).kind == "single-file"


# --- one file: refused by what it is --------------------------------------------------------------


def without(layout: Layout, prefix: str) -> Layout:
    return {name: shape for name, shape in layout.items() if not name.startswith(prefix)}


def only(layout: Layout, prefix: str, cut_to: str = "") -> Layout:
    return {cut_to + n.removeprefix(prefix): s for n, s in layout.items() if n.startswith(prefix)}


def wide(layout: Layout, width: int) -> Layout:
    return {n: [s[0], width] if ".attn2.to_k" in n or ".attn2.to_v" in n else s for n, s in layout.items()}


def with_entry(layout: Layout, channels: int) -> Layout:
    return {**layout, f"{UNET}input_blocks.0.0.weight": [320, channels, 3, 3]}


def model_cases() -> dict[str, tuple[Layout, str]]:
    full = sd15()
    sdxl_text = {"conditioner.embedders.1.model.ln_final.weight": [1280]}
    sd2_text = {"cond_stage_model.model.ln_final.weight": [1024]}
    to_q = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    return {
        "sdxl": ({**wide(without(full, TEXT), 2048), **sdxl_text}, "Stable Diffusion XL"),
        "sdxl unet": (wide(only(full, UNET, UNET), 2048), "Stable Diffusion XL"),
        "sd2": ({**wide(without(full, TEXT), 1024), **sd2_text}, "Stable Diffusion 2.x"),
        "inpainting": (with_entry(full, 9), "inpainting model (9 input channels"),
        "pix2pix": (with_entry(full, 8), "instruct-pix2pix"),
        "sd3": ({f"{UNET}joint_blocks.0.x_block.attn.qkv.weight": [9, 9]}, "Stable Diffusion 3"),
        "flux": ({"double_blocks.0.img_attn.qkv.weight": [9, 9]}, "Flux"),
        "vae in ldm names": (only(full, "first_stage_model."), "is a VAE alone"),
        "vae with prefix": (only(full, "first_stage_model.", "first_stage_model."), "is a VAE alone"),
        "text encoder": (only(full, TEXT), "is a text encoder alone"),
        "diffusers unet": ({"conv_in.weight": [320, 4, 3, 3], "down_blocks.0.x": [1]}, "the UNet alone"),
        "lora": ({f"{to_q}.lora_down.weight": [4, 320]}, "is a LoRA"),
        "lora of diffusers": ({"unet.down_blocks.0.attn1.to_q.lora_A.weight": [4, 320]}, "is a LoRA"),
        "controlnet": ({"control_model.input_blocks.0.0.weight": [320, 4, 3, 3]}, "is a ControlNet"),
        "embedding": ({"emb_params": [4, 768]}, "textual-inversion"),
        "language model": ({"model.layers.0.mlp.up_proj.weight": [9, 9]}, "language model"),
        "something": ({"body.0.rdb1.conv1.weight": [9, 9]}, "no Stable Diffusion model"),
        "nothing": ({}, "without tensors"),
        "no vae": (without(full, "first_stage_model."), "no VAE"),
        "no text": (without(full, TEXT), "no text encoder"),
        "one missing": (without(full, f"{UNET}out.2.bias"), "lacks 1 of the 1130 tensors"),
        "other width": (
            {**full, f"{UNET}time_embed.0.weight": [640, 320]},
            "time_embed.0.weight is [640, 320]",
        ),
    }


@pytest.mark.parametrize("name", model_cases())
def test_other_models_are_refused_by_what_they_are(tmp_path: Path, name: str) -> None:
    layout, words = model_cases()[name]
    assert words in refusal(write_sparse(tmp_path / "model.safetensors", layout))


def test_eight_bit_weights_are_refused(tmp_path: Path) -> None:
    assert "F8_E4M3" in refusal(write_sparse(tmp_path / "m.safetensors", sd15(), "F8_E4M3"))


def torch_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": {}}, protocol=2))
        archive.writestr("archive/version", "3\n")
    return path


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"6c" * 32 + b"\nsize 4265146304\n"
    words = refusal(file("pointer.safetensors", pointer))
    assert f"Git LFS pointer, {len(pointer)} bytes" in words
    assert "4.27 GB" in words
    page = b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>\n"
    words = refusal(file("page.safetensors", page))
    assert f"web page (HTML), {len(page)} bytes" in words
    assert "Sign in" in words
    words = refusal(file("error.safetensors", b'{"error":"Repository not found"}'))
    assert "a JSON text, 32 bytes" in words
    assert "Repository not found" in words
    words = refusal(file("words.safetensors", b"Entry not found\x1b[31m"))
    assert "text file" in words
    assert "\x1b" not in words
    assert "0 bytes" in refusal(file("empty.safetensors", b""))
    assert "too short" in refusal(file("short.safetensors", b"\x01\x00\x00"))
    assert ".ckpt file" in refusal(torch_zip(tmp_path / "inside.safetensors"))
    words = refusal(torch_zip(tmp_path / "real.ckpt"))
    assert "run code" in words
    assert ".safetensors version" in words
    assert ".ckpt file" in refusal(file("old.ckpt", pickle.dumps({"a": 1}, protocol=2)))
    assert "GGUF" in refusal(file("q4.gguf", b"GGUF\x03\0\0\0\0\0\0\0"))
    assert "archive" in refusal(file("x.safetensors.gz", b"\x1f\x8b\x08\0\0\0\0\0"))
    assert "unfinished download (1,000 bytes" in refusal(file("m.safetensors.crdownload", b"\0" * 1000))
    assert "unfinished download" in refusal(file("m.safetensors.part", b"\0" * 10))
    reverse = write_sparse(tmp_path / "turned.ckpt", {"a": [1]})
    assert "safetensors file under another name" in refusal(reverse)


def test_a_cut_off_download_names_both_sizes(tmp_path: Path) -> None:
    layout = sd15()
    whole = write_sparse(tmp_path / "whole.safetensors", layout).stat().st_size
    words = refusal(write_sparse(tmp_path / "cut.safetensors", layout, cut=whole // 2))
    assert f"it has {whole // 2:,} bytes, {whole:,} were expected" in words
    words = refusal(write_sparse(tmp_path / "header.safetensors", layout, cut=5000))
    assert "cut off in its header: it has 5,000 bytes" in words
    longer = write_sparse(tmp_path / "longer.safetensors", layout, cut=whole + 3)
    assert "damaged" in refusal(longer)


def raw_file(path: Path, header: bytes, length: int | None = None, data: int = 0) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + b"\0" * data)
    return path


HOSTILE = {
    "absurd length": (b"{}", 1 << 62),
    "all ones": (b"{}", (1 << 64) - 1),
    "zero length": (b"{}", 0),
    "deep": (b'{"a":' + b"[" * 200_000, None),
    "deep objects": (b'{"a":' * 100_000, None),
    "not json": (b"{'a': 1}", None),
    "not utf-8": (b'{"\xff": 1}', None),
    "a list": (b"[1, 2]", None),
    "long number": (
        b'{"a":{"dtype":"F16","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,2]}}', None
    ),
    "overlap": (
        b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},'
        b'"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}', None,
    ),
    "gap": (b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}}', None),
    "negative": (b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[-2,0]}}', None),
    "backwards": (b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[4,2]}}', None),
    "wrong size": (b'{"a":{"dtype":"F16","shape":[9],"data_offsets":[0,4]}}', None),
    "huge shape": (b'{"a":{"dtype":"F16","shape":[9000000000,9000000000],"data_offsets":[0,4]}}', None),
    "true as number": (b'{"a":{"dtype":"F16","shape":[true],"data_offsets":[0,2]}}', None),
    "unknown dtype": (b'{"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,2]}}', None),
    "no dtype": (b'{"a":{"shape":[1],"data_offsets":[0,2]}}', None),
    "entry is null": (b'{"a":null}', None),
    "metadata is a list": (b'{"__metadata__":[]}', None),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_with_little_memory(tmp_path: Path, name: str) -> None:
    import tracemalloc

    header, length = HOSTILE[name]
    path = raw_file(tmp_path / "bad.safetensors", header, length, data=4)
    tracemalloc.start()
    with pytest.raises(BadHeader):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20
    refusal(path)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "runwayml" / "stable-diffusion-v1-5")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "gone")
    assert "link" in refusal(tmp_path / "link.safetensors")
    if os.geteuid():
        secret = write_sparse(tmp_path / "secret.safetensors", {"a": [1]})
        secret.chmod(0)
        assert "may not be read" in refusal(secret)


def test_looking_needs_no_torch(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "m.safetensors", sd15())
    code = (
        "import sys; from pathlib import Path;"
        "from noukii.trainer.checkpoint_header import inspect_base_model;"
        f"print(inspect_base_model(Path({str(path)!r})).kind);"
        "print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["single-file", "[]"]


# --- a diffusers folder ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return make_tiny_sd(tmp_path_factory.mktemp("models") / "tiny 'sd' é")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_diffusers_folder_of_any_size(tiny: Path) -> None:
    found = inspect_base_model(tiny)
    assert (found.kind, found.dtype, found.default_resolution, found.variant) == (
        "diffusers", "float32", 64, None,
    )  # fmt: skip
    assert found.size_bytes == sum(file.stat().st_size for file in tiny.rglob("*.safetensors"))


def test_without_model_index(copy: Path) -> None:
    (copy / "model_index.json").unlink()
    assert inspect_base_model(copy).kind == "diffusers"


def test_fp16_variant(copy: Path) -> None:
    torch = pytest.importorskip("torch")
    from noukii.trainer.base_model import load_base_model

    for file in copy.rglob("*.safetensors"):
        file.rename(file.with_name(file.stem + ".fp16.safetensors"))
    found = inspect_base_model(copy)
    assert found.variant == "fp16"
    assert load_base_model(found, dtype=torch.float32).unet.dtype == torch.float32
    (copy / "vae" / "diffusion_pytorch_model.fp16.safetensors").rename(
        copy / "vae" / "diffusion_pytorch_model.safetensors"
    )
    assert "mixes" in refusal(copy)


def test_wrong_folders_are_named(copy: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no model" in refusal(empty)
    write_sparse(empty / "one.safetensors", {"a": [1]})
    assert "give the file" in refusal(empty)
    assert "one part of a diffusers folder" in refusal(copy / "unet")
    edit(copy / "model_index.json", _class_name="StableDiffusionXLPipeline")
    assert "Stable Diffusion XL" in refusal(copy)
    edit(copy / "model_index.json", _class_name="FluxPipeline")
    assert "FluxPipeline" in refusal(copy)
    edit(copy / "model_index.json", _class_name="StableDiffusionPipeline")
    edit(copy / "unet" / "config.json", in_channels=9)
    assert "inpainting" in refusal(copy)
    edit(copy / "unet" / "config.json", in_channels=4, cross_attention_dim=1024)
    assert "Stable Diffusion 2.x" in refusal(copy)
    edit(copy / "unet" / "config.json", cross_attention_dim=32)
    edit(copy / "text_encoder" / "config.json", model_type="t5")
    assert "t5" in refusal(copy)
    (copy / "text_encoder" / "config.json").write_text("[" * 10)
    assert "not a JSON table" in refusal_at(copy, "config.json")
    shutil.rmtree(copy / "vae")
    assert "without vae" in refusal(copy)


def refusal_at(path: Path, name: str) -> str:
    with pytest.raises(InputError) as caught:
        inspect_base_model(path)
    assert caught.value.where.endswith(name)
    return str(caught.value)


def test_odd_configs_and_empty_weights_end_in_a_message(copy: Path) -> None:
    edit(copy / "unet" / "config.json", sample_size=[8, 8])
    edit(copy / "vae" / "config.json", block_out_channels=None)
    assert inspect_base_model(copy).default_resolution == 64 * 8
    edit(copy / "unet" / "config.json", in_channels="4")
    assert "input channels" in refusal(copy)
    edit(copy / "unet" / "config.json", in_channels=4)
    write_sparse(copy / "unet" / "diffusion_pytorch_model.safetensors", {})
    assert "stored as nothing" in refusal(copy)


def test_broken_weights_in_a_folder_are_named(copy: Path) -> None:
    weights = copy / "unet" / "diffusion_pytorch_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert f"{len(whole):,} were expected" in refusal_at(copy, weights.name)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 3438167540\n")
    assert "Git LFS pointer" in refusal_at(copy, weights.name)
    weights.rename(weights.with_suffix(".bin"))
    assert "pickles" in refusal_at(copy, "unet")


# --- loading --------------------------------------------------------------------------------------


def test_loading_a_folder(tiny: Path) -> None:
    torch = pytest.importorskip("torch")
    from diffusers import UNet2DConditionModel

    from noukii.trainer.base_model import load_base_model

    base = load_base_model(inspect_base_model(tiny), dtype=torch.bfloat16)
    for model in (base.unet, base.vae, base.text_encoder):
        assert not model.training
        assert all(not p.requires_grad and p.dtype == torch.bfloat16 for p in model.parameters())
    plain = UNet2DConditionModel.from_pretrained(tiny / "unet").state_dict()
    assert all(torch.equal(v, plain[k].bfloat16()) for k, v in base.unet.state_dict().items())
    assert base.vae_scaling_factor == 0.18215
    assert base.prediction_type == "epsilon"
    assert base.tokenizer.count("a cat") == 2
    part = load_base_model(inspect_base_model(tiny), dtype=torch.float32, parts=("vae",))
    assert part.unet is None
    assert part.text_encoder is None


def test_a_missing_tensor_in_a_folder_is_an_error(copy: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from noukii.trainer.base_model import load_base_model

    for part, file in (("unet", "diffusion_pytorch_model"), ("text_encoder", "model")):
        path = copy / part / f"{file}.safetensors"
        tensors = load_file(path)
        gone = next(name for name in tensors if name.endswith("norm1.weight"))
        save_file({name: v for name, v in tensors.items() if name != gone}, path, {"format": "pt"})
        with pytest.raises(InputError, match="lacks 1 tensors"):
            load_base_model(inspect_base_model(copy), dtype=torch.float32, parts=(part,))


def test_a_folder_with_the_names_of_older_libraries(tiny: Path, copy: Path) -> None:
    """SD1.5's own folder has the text_model level and the VAE's attention as query, key, value, proj_attn."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from noukii.trainer.base_model import load_base_model

    text = copy / "text_encoder" / "model.safetensors"
    plain = {name.removeprefix("text_model."): value for name, value in load_file(text).items()}
    older = {f"text_model.{name}": value for name, value in plain.items()}
    ids = torch.arange(77).unsqueeze(0)
    save_file({**older, "text_model.embeddings.position_ids": ids}, text, {"format": "pt"})
    vae = copy / "vae" / "diffusion_pytorch_model.safetensors"
    renames = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    older = {}
    for name, value in load_file(vae).items():
        for now, then in renames.items():
            name = name.replace(f"attentions.0.{now}.", f"attentions.0.{then}.")
        older[name] = value
    assert any("proj_attn" in name for name in older)
    save_file(older, vae, {"format": "pt"})
    one, two = (load_base_model(inspect_base_model(f), dtype=torch.float32) for f in (tiny, copy))
    for part in ("text_encoder", "vae"):
        ours, theirs = getattr(one, part).state_dict(), getattr(two, part).state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), part


def test_every_tensor_of_a_single_file_has_its_place() -> None:
    """Names map one to one onto our models, with SD1.5's shapes."""
    torch = pytest.importorskip("torch")
    from noukii.trainer.base_model import PARTS, PREFIXES, _empty_model, _renamed

    layout = sd15()
    for part in PARTS:
        with torch.device("meta"):
            model = _empty_model(part)
        names = _renamed(list(layout), part, model)
        wanted = model.state_dict()
        assert names.keys() == wanted.keys()
        assert sorted(names.values()) == sorted(n for n in layout if n.startswith(PREFIXES[part]))
        for ours, theirs in names.items():
            shape = layout[theirs]
            assert list(wanted[ours].shape) in (shape, shape[:2] if shape[2:] == [1, 1] else shape), ours


def test_no_network_is_asked(tiny: Path) -> None:
    """Loading works where every connection is refused."""
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise SystemExit('the network was asked')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from pathlib import Path\n"
        "from noukii.trainer.checkpoint_header import inspect_base_model\n"
        "from noukii.trainer.base_model import load_base_model\n"
        "import torch\n"
        f"base = load_base_model(inspect_base_model(Path({str(tiny)!r})), dtype=torch.float32)\n"
        "print(type(base.unet).__name__)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert answer.stdout.strip() == "UNet2DConditionModel", answer.stderr


# --- text -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_encoder(tiny: Path):  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch")
    from noukii.trainer.base_model import load_base_model

    return load_base_model(inspect_base_model(tiny), dtype=torch.float32, parts=("text_encoder",))


@pytest.mark.parametrize("length", [75, 150, 225])
def test_long_prompts_are_joined_as_kohya_joins_them(text_encoder, length: int) -> None:  # type: ignore[no-untyped-def]
    import torch

    from noukii.trainer.base_model import encode_prompt

    chunks = text_encoder.tokenizer.chunks("a ginger cat on a red sofa, " * 25, length)
    n = length // 75
    ids = torch.tensor([chunks, chunks[::-1]])
    assert ids.shape == (2, n, 77)
    found = encode_prompt(text_encoder.text_encoder, ids)
    assert found.shape == (2, n * 75 + 2, 32)
    alone = [text_encoder.text_encoder(torch.tensor([chunk])).last_hidden_state[0] for chunk in chunks]
    expected = torch.cat([alone[0][:1], *[state[1:-1] for state in alone], alone[-1][-1:]])
    assert torch.allclose(found[0], expected, atol=1e-5)


def test_clip_skip(text_encoder) -> None:  # type: ignore[no-untyped-def]
    import torch

    from noukii.trainer.base_model import encode_prompt
    from noukii.trainer.text_encoding import clip_layers, clip_text_body

    model = text_encoder.text_encoder
    ids = torch.tensor([text_encoder.tokenizer.chunks("a cat")])
    last = encode_prompt(model, ids)
    assert torch.equal(last, encode_prompt(model, ids, 1))
    seen = {}
    hook = clip_layers(model)[0].register_forward_hook(
        lambda _m, _i, out: seen.update(out=out[0] if isinstance(out, tuple) else out)
    )
    second = encode_prompt(model, ids, 2)  # of two layers: the first one's answer
    hook.remove()
    assert torch.allclose(second, clip_text_body(model).final_layer_norm(seen["out"]), atol=1e-6)
    assert not torch.allclose(second, last)


def test_both_layouts_of_transformers(text_encoder) -> None:  # type: ignore[no-untyped-def]
    """transformers before 5.6 keeps the layers one level deeper; names and answers are the same."""
    import torch

    from noukii.trainer.lora import create_network
    from noukii.trainer.text_encoding import clip_layers, clip_text_body

    class Older(torch.nn.Module):
        def __init__(self, body: torch.nn.Module) -> None:
            super().__init__()
            self.text_model = body

    body = clip_text_body(text_encoder.text_encoder)
    older = Older(body)
    assert clip_text_body(older) is body
    assert list(clip_layers(older)) == list(body.encoder.layers)
    assert create_network(None, older).state_dict_kohya().keys() == (
        create_network(None, text_encoder.text_encoder).state_dict_kohya().keys()
    )
