"""Janus-Pro from a folder: what is refused before loading, and what loading gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_janus import (
    EOS,
    IMAGE_SIZE,
    TEXT_LAYERS,
    TOKENS,
    VISION_LAYERS,
    WIDTH,
    make_tiny_janus,
    original_config,
    original_tensors,
    tiny_model,
)

from noukii.captioning import janus
from noukii.captioning.janus_tokenizer import SYSTEM_SENTENCE, JanusTokenizer
from noukii.captioning.janus_weights import targets, text_settings, vision_settings
from noukii.errors import InputError

CHECKOUT = Path(__file__).resolve().parent.parent
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4180000000\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_janus(tmp_path_factory.mktemp("janus") / "Janus tiny é")


@pytest.fixture
def broken(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(changes)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), encoding="utf-8")


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        janus.check_model(folder)
    return caught.value


# --- before loading


def test_whole_folder_is_taken_without_torch(original: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from noukii.captioning.janus import check_model\n"
        "files = check_model(Path(sys.argv[1]))\n"
        "assert files.layout == 'original' and files.weights[0].name == 'pytorch_model.bin', files\n"
        "assert files.name == 'Janus tiny é' and files.pixels.background == (127, 127, 127)\n"
        "heavy = {'torch', 'transformers', 'diffusers'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, original], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("damage", "where", "words"),
    [
        (lambda f: shutil.rmtree(f), "model", "no such model folder"),
        (lambda f: [p.unlink() for p in f.iterdir()], "model", "empty"),
        (lambda f: (f / "config.json").unlink(), "config.json", "missing"),
        (lambda f: (f / "config.json").write_text("{"), "config.json", "not JSON"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json", "not a JSON object"),
        (lambda f: edit_json(f / "config.json", model_type="llava"), "config.json", "llava, not Janus-Pro"),
        (lambda f: edit_json(f / "config.json", model_type=None), "config.json", "names no model_type"),
        (lambda f: edit_json(f / "config.json", quantization_config={"bits": 4}), "config.json", "quantised"),
        (lambda f: (f / "pytorch_model.bin").unlink(), "model", "holds no weights"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(POINTER), "pytorch_model.bin", "Git-LFS pointer"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b""), "pytorch_model.bin", "empty"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"<html>"), "pytorch_model.bin", "not a torch file"),
        (lambda f: cut_off(f / "pytorch_model.bin"), "pytorch_model.bin", "cut off"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json", "missing"),
        (lambda f: (f / "tokenizer.json").write_bytes(POINTER), "tokenizer.json", "Git-LFS pointer"),
        (lambda f: cut_off(f / "tokenizer.json"), "tokenizer.json", "cut off"),
        (lambda f: (f / "preprocessor_config.json").unlink(), "preprocessor_config.json", "missing"),
        (
            lambda f: edit_json(f / "preprocessor_config.json", image_size=512),
            "preprocessor_config.json",
            "512 pixels, but the vision tower wants 64",
        ),
        (
            lambda f: edit_json(f / "preprocessor_config.json", image_std=[0.5, 0.0, 0.5]),
            "preprocessor_config.json",
            "zero",
        ),
        *[
            (lambda f, name=name: (f / name).write_text("[" * 200_000), name, words)
            for name, words in (
                ("config.json", "not JSON"),
                ("preprocessor_config.json", "not JSON"),
                ("tokenizer_config.json", "not JSON"),
                ("special_tokens_map.json", "not JSON"),
                ("tokenizer.json", "not a tokenizer"),
            )
        ],
        *[
            (lambda f, bad=bad: edit_json(f / "tokenizer_config.json", **bad), "tokenizer_config.json", words)
            for bad, words in (
                ({"added_tokens_decoder": [1]}, "added_tokens_decoder is [1]"),
                ({"additional_special_tokens": 7}, "additional_special_tokens is 7"),
                ({"bos_token": 5}, "bos_token is 5; a token"),
                ({"eos_token": {"content": []}}, "eos_token is"),
            )
        ],
        *[
            (lambda f, bad=bad: edit_json(f / "config.json", **bad), "config.json", words)
            for bad, words in (
                ({"language_config": "llama"}, 'language_config is "llama"; an object'),
                ({"vision_config": [1]}, "vision_config is [1]; an object"),
                ({"vision_config": {"params": 3}}, "params is 3; an object"),
                ({"language_config": {"rope_scaling": "linear"}}, 'rope_scaling is "linear"; an object'),
                ({"language_config": {"max_position_embeddings": -5}}, "max_position_embeddings is -5"),
                ({"language_config": {"num_attention_heads": 4.5}}, "num_attention_heads is 4.5"),
                ({"language_config": {"rms_norm_eps": "small"}}, 'rms_norm_eps is "small"; a number'),
                ({"language_config": {"model_type": "gpt2"}}, "of type gpt2"),
                ({"model_type": ["janus"]}, "not Janus-Pro"),
            )
        ],
        (
            lambda f: edit_json(f / "preprocessor_config.json", min_size="x"),
            "preprocessor_config.json",
            'min_size is "x"; a whole number',
        ),
    ],
)
def test_damage_is_named_with_a_next_step(
    broken: Path, damage: Callable[[Path], object], where: str, words: str
) -> None:
    damage(broken)
    error = refusal(broken)
    assert Path(error.where).name == where
    assert words in error.reason
    assert error.exit_code == 2
    assert "setup.sh" in error.next_step


def test_a_file_in_place_of_the_folder(original: Path) -> None:
    error = refusal(original / "pytorch_model.bin")
    assert "is a file" in error.reason
    assert "folder it lies in" in error.next_step


def test_a_download_cache_is_pointed_into(original: Path, tmp_path: Path) -> None:
    inside = tmp_path / "models--deepseek-ai--Janus-Pro-1B" / "snapshots" / "1234abcd"
    shutil.copytree(original, inside)
    error = refusal(inside.parent.parent)
    assert error.next_step == f"--model {inside}"
    assert janus.check_model(inside).layout == "original"


def test_tokenizer_that_loses_spaces_is_refused(broken: Path) -> None:
    # What a Llama tokenizer class makes of this file: the pre-tokenizer swallows the spaces.
    path = broken / "tokenizer.json"
    edit_json(path, pre_tokenizer={"type": "WhitespaceSplit"})
    error = refusal(broken)
    assert Path(error.where) == path
    assert "does not give back a text" in error.reason


def test_tokenizer_of_another_model_is_refused(broken: Path) -> None:
    text = (broken / "tokenizer.json").read_text(encoding="utf-8")
    (broken / "tokenizer.json").write_text(text.replace("<begin_of_image>", "<other>"), encoding="utf-8")
    assert "begin of image token '<begin_of_image>'" in refusal(broken).reason


@pytest.mark.parametrize(
    ("damage", "where", "words"),
    [
        (
            lambda f: (f / "model-00002-of-00003.safetensors").unlink(),
            "model-00002-of-00003.safetensors",
            "missing",
        ),
        (
            lambda f: cut_off(f / "model-00003-of-00003.safetensors"),
            "model-00003-of-00003.safetensors",
            "cut off",
        ),
        (
            lambda f: (f / "model-00001-of-00003.safetensors").write_bytes(POINTER),
            "model-00001-of-00003.safetensors",
            "Git-LFS pointer",
        ),
        (
            lambda f: edit_json(f / "model.safetensors.index.json", weight_map={"a": "../../etc/passwd"}),
            "model.safetensors.index.json",
            "contains a slash",
        ),
    ],
)
def test_damaged_shards(tmp_path: Path, damage: Callable[[Path], object], where: str, words: str) -> None:
    folder = make_tiny_janus(tmp_path / "sharded", shards=3)
    assert len(janus.check_model(folder).weights) == 3
    damage(folder)
    error = refusal(folder)
    assert Path(error.where).name == where
    assert words in error.reason


# --- names and shapes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vision_model.vision_tower.blocks.3.norm1.weight", ["encoder.layers.3.layer_norm1.weight"]),
        (
            "vision_model.vision_tower.blocks.11.attn.qkv.bias",
            [f"encoder.layers.11.self_attn.{part}_proj.bias" for part in "qkv"],
        ),
        ("vision_model.vision_tower.attn_pool.mlp.fc1.weight", []),
    ],
)
def test_vision_names(name: str, expected: list[str]) -> None:
    assert targets(name, "original") == tuple("model.vision_model." + part for part in expected)


@pytest.mark.parametrize(
    "name", ["gen_embed.weight", "gen_aligner.layers.0.weight", "gen_vision_model.quantize.codebook_used"]
)
def test_generation_half_is_passed_over(name: str) -> None:
    assert targets(name, "original") == ()


def test_deeper_aligner_keeps_its_order() -> None:
    assert targets("aligner.layers.2.bias", "original") == ("model.aligner.hidden_layers.0.bias",)
    assert targets("aligner.layers.4.bias", "original") == ("model.aligner.hidden_layers.1.bias",)


def janus_shapes(width: int, inner: int, layers: int, keys: int) -> dict[str, tuple[int, ...]]:
    prefix = "model.language_model."
    shapes: dict[str, tuple[int, ...]] = {prefix + "embed_tokens.weight": (102400, width)}
    for layer in range(layers):
        shapes[f"{prefix}layers.{layer}.mlp.gate_proj.weight"] = (inner, width)
        shapes[f"{prefix}layers.{layer}.self_attn.q_proj.weight"] = (width, width)
        shapes[f"{prefix}layers.{layer}.self_attn.k_proj.weight"] = (keys, width)
    vision = "model.vision_model."
    shapes[vision + "embeddings.patch_embedding.weight"] = (1024, 3, 16, 16)
    shapes[vision + "embeddings.position_embedding.weight"] = (576, 1024)
    for layer in range(24):
        shapes[f"{vision}encoder.layers.{layer}.mlp.fc1.weight"] = (4096, 1024)
        shapes[f"{vision}encoder.layers.{layer}.self_attn.q_proj.bias"] = (1024,)
    shapes["model.aligner.fc1.weight"] = (width, 1024)
    shapes["model.aligner.hidden_layers.0.weight"] = (width, width)
    return shapes


def test_7b_config_is_silent_and_the_tensors_tell() -> None:
    # Janus-Pro-7B's language_config, whole: the rest are Llama's defaults.
    config = {
        "language_config": {
            "max_position_embeddings": 16384,
            "model_type": "llama",
            "num_hidden_layers": 30,
            "torch_dtype": "bfloat16",
            "vocab_size": 102400,
        },
        "vision_config": {"params": {"image_size": 384, "model_name": "siglip_large_patch16_384"}},
    }
    shapes = janus_shapes(4096, 11008, 30, 4096)
    text = text_settings(config, shapes)
    assert (text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"]) == (4096, 11008, 30)
    assert (text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]) == (32, 32, 128)
    assert text["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert text["max_position_embeddings"] == 16384
    vision = vision_settings(config, shapes, 384)
    assert (vision["hidden_size"], vision["num_hidden_layers"], vision["num_attention_heads"]) == (
        1024,
        24,
        16,
    )
    assert (vision["num_image_tokens"], vision["projection_dim"], vision["depth"]) == (576, 4096, 2)
    assert (vision["mlp_ratio"], vision["patch_size"]) == (4, 16)


def test_1b_config() -> None:
    config = {"language_config": {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16}}
    text = text_settings(config, janus_shapes(2048, 5632, 24, 2048))
    assert (text["num_attention_heads"], text["head_dim"], text["intermediate_size"]) == (16, 128, 5632)


def test_config_and_weights_of_two_models() -> None:
    config = {"language_config": {"hidden_size": 2048, "num_attention_heads": 16}}
    with pytest.raises(ValueError, match=r"config\.json says hidden_size 2048, but the weights have 4096"):
        text_settings(config, janus_shapes(4096, 11008, 30, 4096))


def test_wrong_picture_size() -> None:
    with pytest.raises(ValueError, match="576 positions of 16 x 16 pixels, which is not a picture of 512"):
        vision_settings({}, janus_shapes(4096, 11008, 30, 4096), 512)


# --- loading


def load(folder: Path, dtype: str = "float32") -> janus.Janus:
    return janus.load(janus.check_model(folder), "cpu", janus.choose_dtype("cpu", dtype), packed=False)


@pytest.mark.parametrize("layout", ["original", "converted"])
def test_a_file_that_is_mapped_anew_gives_every_tensor_once(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_janus(tmp_path / "model", layout)
    whole = load(folder).model.state_dict()
    monkeypatch.setattr(janus, "GROUP_BYTES", 20_000)
    pieces = load(folder).model.state_dict()
    assert whole.keys() == pieces.keys()
    assert all(value.equal(pieces[name]) for name, value in whole.items())


def test_original_layout_gives_the_same_weights(original: Path) -> None:
    import torch

    loaded = load(original)
    assert type(loaded.model).__name__ == "JanusForConditionalGeneration"
    assert (loaded.image_size, loaded.image_tokens) == (IMAGE_SIZE, TOKENS)
    vocabulary = loaded.tokenizer.backend.get_vocab_size()
    native = tiny_model(vocabulary).state_dict()
    found = loaded.model.state_dict()
    for name, tensor in found.items():
        assert torch.equal(tensor, native[name]), name
    left = {name.split(".")[1] for name in native.keys() - found.keys()}
    assert left == {"vqmodel", "generation_embeddings", "generation_aligner", "generation_head"}
    # lm_head and the embeddings are two matrices, not one under two names
    head, embeddings = loaded.model.lm_head.weight, loaded.model.get_input_embeddings().weight
    assert head.data_ptr() != embeddings.data_ptr()
    assert not torch.equal(head, embeddings)
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert not loaded.model.training


def test_heads_and_rope_come_from_the_config(original: Path) -> None:
    text = load(original).model.config.text_config
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim) == (4, 2, 16)
    assert text.rope_parameters["rope_theta"] == 5000.0
    assert text.rms_norm_eps == 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layout_and_packing_is_one_model(original: Path, tmp_path: Path, dtype: str) -> None:
    import torch

    first = load(original, dtype).model.state_dict()
    assert {tensor.dtype for tensor in first.values()} == {getattr(torch, dtype)}
    sharded_bin = Path(shutil.copytree(original, tmp_path / "sharded bin"))
    tensors = torch.load(sharded_bin / "pytorch_model.bin", weights_only=True)
    (sharded_bin / "pytorch_model.bin").unlink()
    table = {}
    for number, name in enumerate(tensors):
        table[name] = f"pytorch_model-0000{number % 2 + 1}-of-00002.bin"
    for shard in set(table.values()):
        torch.save({name: tensors[name] for name in table if table[name] == shard}, sharded_bin / shard)
    (sharded_bin / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    legacy = Path(shutil.copytree(original, tmp_path / "legacy"))
    torch.save(tensors, legacy / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    for folder in (
        make_tiny_janus(tmp_path / "converted", layout="converted"),
        make_tiny_janus(tmp_path / "sharded safetensors", shards=3),
        sharded_bin,
        legacy,
    ):
        other = load(folder, dtype).model.state_dict()
        assert other.keys() == first.keys(), folder.name
        for name in first:
            assert torch.equal(first[name], other[name]), (folder.name, name)


def test_converted_layout_without_its_generation_half(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_tiny_janus(tmp_path / "converted", layout="converted")
    whole = load(folder).model.state_dict()
    path = folder / "model.safetensors"
    kept = {name: t for name, t in load_file(path).items() if name in whole}
    assert len(kept) == len(whole)
    save_file(kept, path)
    assert load(folder).model.state_dict().keys() == whole.keys()


def rewrite(folder: Path, change: Callable[[dict], object]) -> None:
    import torch

    path = folder / "pytorch_model.bin"
    tensors = torch.load(path, weights_only=True)
    change(tensors)
    torch.save(tensors, path)


NAME = "language_model.model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(NAME), ["lacks 1 tensor", "model.language_model.layers.1.mlp.up_proj.weight"]),
        (
            lambda t: [t.pop(n) for n in list(t) if "blocks.1.norm" in n],
            ["lacks 4 tensor", "layers.1.layer_norm1.bias", "…"],
        ),
        (lambda t: t.pop("language_model.lm_head.weight"), ["lacks 1 tensor", "lm_head.weight"]),
        (lambda t: t.update(extra_adapter=t[NAME]), ["unknown 1 tensor", "extra_adapter"]),
        (
            lambda t: t.update({NAME: t[NAME][:-1].clone()}),
            ["up_proj.weight has the shape [95, 64]", "[96, 64]"],
        ),
        (lambda t: t.update({NAME: t[NAME].to(int)}), ["torch.int64"]),
        (lambda t: t.pop("vision_model.vision_tower.pos_embed"), ["have no", "position_embedding"]),
    ],
)
def test_weights_that_do_not_fill_the_model(
    broken: Path, change: Callable[[dict], object], words: list[str]
) -> None:
    rewrite(broken, change)
    with pytest.raises(InputError) as caught:
        load(broken)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.where.endswith("pytorch_model.bin" if words[0] != "torch.int64" else "model")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"hidden_act": "sillu"}, "sillu"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "config.json"),
        ({"num_attention_heads": 3}, "cannot be 3 attention heads"),
    ],
)
def test_a_config_that_no_model_can_be_built_from(
    broken: Path, setting: dict[str, object], words: str
) -> None:
    language = {**original_config()["language_config"], **setting}
    edit_json(broken / "config.json", language_config=language)
    with pytest.raises(InputError) as caught:
        load(broken)
    assert caught.value.where.endswith("config.json") and words in str(caught.value)
    assert "object has no" not in str(caught.value) and "Error" not in str(caught.value)


def test_torchs_remark_on_a_pickles_protocol_stays_inside(
    broken: Path, recwarn: pytest.WarningsRecorder
) -> None:
    import torch

    path = broken / "pytorch_model.bin"
    torch.save(torch.load(path, weights_only=True), path, pickle_protocol=4)
    with pytest.raises(InputError, match="an unusual kind of pickle"):
        load(broken)
    assert [str(warning.message) for warning in recwarn if "pickle" in str(warning.message)] == []


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


def test_a_pickle_that_carries_code_runs_nothing(broken: Path, tmp_path: Path) -> None:
    import torch

    target = tmp_path / "was run"
    torch.save({"weight": Evil(target)}, broken / "pytorch_model.bin")
    with pytest.raises(InputError) as caught:
        load(broken)
    assert not target.exists()
    assert "nothing of it was run" in caught.value.reason
    assert caught.value.where.endswith("pytorch_model.bin")


def test_code_beside_the_weights_is_not_imported(broken: Path, tmp_path: Path) -> None:
    target = tmp_path / "was run"
    (broken / "modeling_janus.py").write_text(f"import os; os.mkdir({str(target)!r})")
    edit_json(broken / "config.json", auto_map={"AutoModelForCausalLM": "modeling_janus.Janus"})
    assert load(broken).image_tokens == TOKENS
    assert not target.exists()


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {"a": 1}}])
def test_a_torch_file_of_another_kind(broken: Path, content: object) -> None:
    import torch

    torch.save(content, broken / "pytorch_model.bin")
    with pytest.raises(InputError, match="plain table of named tensors"):
        load(broken)


def test_damage_inside_a_whole_archive(broken: Path) -> None:
    path = broken / "pytorch_model.bin"
    data = bytearray(path.read_bytes())
    start = data.index(b"data.pkl") + 40
    data[start : start + 400] = b"\x00" * 400
    path.write_bytes(data)
    with pytest.raises(InputError):
        load(broken)


def test_tokenizer_larger_than_the_model(broken: Path) -> None:
    rewrite(
        broken,
        lambda t: t.update(
            {
                name: t[name][:2].clone()
                for name in ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight")
            }
        ),
    )
    with pytest.raises(InputError, match="beyond the model's vocabulary of 2"):
        load(broken)


def test_loading_says_nothing(original: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from noukii.captioning import janus\n"
        "janus.load(janus.check_model(Path(sys.argv[1])), 'cpu', janus.choose_dtype('cpu', 'float32'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, original], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_our_table_of_names_covers_upstreams_file(janus_tiny: Path) -> None:
    """The toy checkpoint of these tests names its tensors as upstream's code does."""
    import torch

    upstream = torch.load(janus_tiny / "pytorch_model.bin", weights_only=True, mmap=True)
    ours = original_tensors(tiny_model(400).state_dict())
    wanted = {name for name in upstream if targets(name, "original")}
    assert (VISION_LAYERS, TEXT_LAYERS) == (2, 2)
    assert wanted == {name for name in ours if targets(name, "original")}
    assert (
        original_config()["model_type"] == json.loads((janus_tiny / "config.json").read_text())["model_type"]
    )
    assert ours["vision_model.vision_tower.blocks.0.attn.qkv.weight"].shape == (3 * WIDTH, WIDTH)


# --- device and number format


@pytest.mark.parametrize("wanted", ["gpu", "cuda:x", "cuda:-1", "", "mps", "CPU\n"])
def test_unknown_device(wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        janus.choose_device(wanted)
    assert caught.value.where == "--device"
    assert "is no device" in caught.value.reason
    assert "\n" not in caught.value.reason


def test_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert janus.choose_device("auto") == "cpu"
    with pytest.raises(
        InputError, match=r"cuda:1 cannot be used: CUDA_VISIBLE_DEVICES hides every GPU"
    ) as caught:
        janus.choose_device("cuda:1")
    assert caught.value.next_step == "use --device cpu"


def test_number_formats_on_a_cpu() -> None:
    import torch

    from noukii import hardware

    best = torch.bfloat16 if hardware.detect().cpu_bfloat16 else torch.float32
    assert janus.choose_dtype("cpu") == best
    assert janus.choose_dtype("cpu", "float32") == torch.float32
    with pytest.raises(InputError, match="float16 is for GPUs"):
        janus.choose_dtype("cpu", "float16")
    with pytest.raises(InputError, match="'int8' is no number format"):
        janus.choose_dtype("cpu", "int8")


# --- the prompt


def test_prompt_is_upstreams(original: Path) -> None:
    tokenizer = JanusTokenizer.from_folder(original)
    ids = tokenizer.prompt_ids("what is\nthis?", TOKENS)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    start = ids.index(tokenizer.image_start_id)
    assert ids[start + 1 : start + 1 + TOKENS] == [tokenizer.image_id] * TOKENS
    assert ids[start + 1 + TOKENS] == tokenizer.image_end_id
    assert (
        tokenizer.backend.decode(ids[1:start], skip_special_tokens=False)
        == f"{SYSTEM_SENTENCE}\n\n<|User|>: "
    )
    after = tokenizer.backend.decode(ids[start + 2 + TOKENS :], skip_special_tokens=False)
    assert after == "\nwhat is\nthis?\n\n<|Assistant|>:"


def test_bos_is_there_once_whatever_the_tokenizer_adds(broken: Path) -> None:
    before = JanusTokenizer.from_folder(broken).prompt_ids("x", TOKENS)
    bos = "<｜begin▁of▁sentence｜>"
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos: {"id": bos, "ids": [before[0]], "tokens": [bos]}},
    }
    edit_json(broken / "tokenizer.json", post_processor=template)
    assert JanusTokenizer.from_folder(broken).prompt_ids("x", TOKENS) == before


@pytest.mark.parametrize(
    "question", [f"a {EOS}", "<image_placeholder> again", "<|User|>: hi", "bad \udcff byte"]
)
def test_question_that_would_change_the_conversation(original: Path, question: str) -> None:
    with pytest.raises(InputError) as caught:
        JanusTokenizer.from_folder(original).prompt_ids(question, TOKENS)
    assert caught.value.where == "--prompt"


def test_special_tokens_do_not_show_in_text(original: Path) -> None:
    tokenizer = JanusTokenizer.from_folder(original)
    words = tokenizer.backend.encode(" a red  car\n", add_special_tokens=False).ids
    assert tokenizer.decode([*words, tokenizer.eos_id, tokenizer.image_id]) == " a red  car\n"
