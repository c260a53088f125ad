"""The LoRA file: kohya's format, checked before it gets its name, readable by diffusers."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from PIL import Image  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tiny_models import make_tiny_sd  # noqa: E402

from noukii.dataset.config_file import read_config  # noqa: E402
from noukii.dataset.samples import load_samples  # noqa: E402
from noukii.errors import InputError, RunError  # noqa: E402
from noukii.trainer.base_model import BaseModel, load_base_model  # noqa: E402
from noukii.trainer.checkpoint_header import inspect_base_model  # noqa: E402
from noukii.trainer.lora import create_network  # noqa: E402
from noukii.trainer.lora_file import SAVE_DTYPES, read_lora, verify_lora, write_lora  # noqa: E402
from noukii.trainer.metadata import RunFacts, base_model_hashes, training_metadata  # noqa: E402
from noukii.trainer.safetensors_header import read_header  # noqa: E402
from noukii.trainer.settings import parse  # noqa: E402

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    folder = make_tiny_sd(tmp_path_factory.mktemp("models") / "tiny")
    return load_base_model(inspect_base_model(folder), dtype=torch.float32)


def trained(base: BaseModel, rank: int = 4, alpha: float = 1) -> Tensors:
    """LoRA weights as they are after training: nothing is zero."""
    random = torch.Generator().manual_seed(4)
    tensors = create_network(base.unet, base.text_encoder, rank=rank, alpha=alpha).state_dict_kohya()
    return {
        name: value if name.endswith("alpha") else torch.randn(value.shape, generator=random) * 0.2
        for name, value in tensors.items()
    }


# --- writing --------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(base: BaseModel, tmp_path: Path) -> None:
    tensors = trained(base)
    path = tmp_path / "mein 'LoRA' é.safetensors"
    report = write_lora(path, tensors, {"ss_output_name": "é", "note": "x"})
    assert (report.modules, report.without_effect, report.ranks, report.alphas) == (60, 0, (4,), (1.0,))
    found, metadata = read_lora(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[n], v) and found[n].dtype == v.dtype for n, v in tensors.items())
    assert metadata["ss_output_name"] == "é"
    assert list(tmp_path.iterdir()) == [path]


def test_full_size_layout_is_upstreams(reference: Path, tmp_path: Path) -> None:
    """Names, shapes and dtypes of the file that train_network.py wrote with the default flags."""
    from noukii.trainer.base_model import _empty_model

    with torch.device("meta"):
        models = _empty_model("unet"), _empty_model("text_encoder")
    network = create_network(*models, rank=4, alpha=1)
    with torch.no_grad():
        for value in network.parameters():
            value.fill_(0.5)
    path = tmp_path / "k.safetensors"
    write_lora(path, network.state_dict_kohya(), {})
    expected = json.loads((reference / "lora_layout_rank4.json").read_text())
    found = {name: [list(info.shape), info.dtype] for name, info in read_header(path).tensors.items()}
    assert found == expected


@pytest.mark.parametrize(("word", "kind"), [("float", "F32"), ("fp16", "F16"), ("bf16", "BF16")])
def test_save_precision_casts_everything(base: BaseModel, tmp_path: Path, word: str, kind: str) -> None:
    report = write_lora(tmp_path / "x.safetensors", trained(base), {}, SAVE_DTYPES[word])
    assert report.dtype == kind
    assert {info.dtype for info in read_header(tmp_path / "x.safetensors").tensors.values()} == {kind}


def test_the_two_hashes_follow_upstreams_rule(base: BaseModel, tmp_path: Path) -> None:
    tensors = {name: value.repeat(2, *[1] * (value.ndim - 1)) if value.ndim else value
               for name, value in trained(base, rank=64).items()}  # fmt: skip
    path, alone = tmp_path / "x.safetensors", tmp_path / "alone.safetensors"
    write_lora(path, tensors, {"ss_a": "1", "modelspec.title": "not hashed", "ss_b": "é"})
    metadata = read_header(path).metadata
    content = path.read_bytes()
    data = content[8 + struct.unpack("<Q", content[:8])[0] :]
    assert metadata["sshs_model_hash"] == hashlib.sha256(data).hexdigest()
    save_file(tensors, alone, {"ss_b": "é", "ss_a": "1"})
    window = alone.read_bytes()[0x100000:0x110000]
    assert len(window) == 0x10000
    assert metadata["sshs_legacy_hash"] == hashlib.sha256(window).hexdigest()[:8]


# --- a broken LoRA is never left under its name ---------------------------------------------------


def spoiled(tensors: Tensors, part: str, value: float, modules: int | None = None) -> Tensors:
    """Overwrite one matrix of the first `modules` modules (None: of all)."""
    names = [name for name in tensors if name.endswith(part)][:modules]
    return {n: torch.full_like(v, value) if n in names else v for n, v in tensors.items()}


UP, DOWN = ".lora_up.weight", ".lora_down.weight"
BROKEN = {
    "nan everywhere": ((UP, float("nan")), "60 of 60 modules hold NaN"),
    "nan in one": ((UP, float("nan"), 1), "1 of 60 modules hold NaN"),
    "inf in two": ((DOWN, float("inf"), 2), "2 of 60 modules hold NaN or infinite"),
    "up all zero": ((UP, 0.0), "no effect"),
    "down all zero": ((DOWN, 0.0), "no effect"),
    "alpha zero": ((".alpha", 0.0), "no effect"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_lora_is_refused_and_the_old_file_stays(base: BaseModel, tmp_path: Path, name: str) -> None:
    change, words = BROKEN[name]
    path = tmp_path / "cat.safetensors"
    write_lora(path, trained(base), {"note": "PRECIOUS"})
    before = path.read_bytes()
    with pytest.raises(RunError, match=words) as caught:
        write_lora(path, spoiled(trained(base), *change), {})
    assert caught.value.exit_code == 1
    assert caught.value.where == "cat.safetensors"
    assert caught.value.next_step
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_tensors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no tensors"):
        write_lora(tmp_path / "x.safetensors", {}, {})
    assert not list(tmp_path.iterdir())


def test_numbers_too_large_for_half_precision_are_noticed(base: BaseModel, tmp_path: Path) -> None:
    large = spoiled(trained(base), UP, 1e6, 1)
    write_lora(tmp_path / "float.safetensors", large, {})
    with pytest.raises(RunError, match="1 of 60 modules"):
        write_lora(tmp_path / "half.safetensors", large, {}, torch.float16)


def test_some_modules_without_effect_are_no_failure(base: BaseModel, tmp_path: Path) -> None:
    """With --clip_skip 2 the text encoder's last layer never learns: its lora_up stays zero."""
    report = write_lora(tmp_path / "x.safetensors", spoiled(trained(base), UP, 0.0, 6), {})
    assert (report.modules, report.without_effect) == (60, 6)


def test_a_file_of_another_program_is_verified_too(base: BaseModel, tmp_path: Path) -> None:
    good, cut, empty = (tmp_path / f"{name}.safetensors" for name in ("good", "cut", "empty"))
    save_file(trained(base), good)
    assert verify_lora(good).modules == 60
    cut.write_bytes(good.read_bytes()[:9000])
    with pytest.raises(RunError, match="cut off"):
        verify_lora(cut)
    empty.write_bytes(b"")
    with pytest.raises(RunError, match="too short"):
        verify_lora(empty)


# --- reading (--network_weights) ------------------------------------------------------------------


def test_what_is_no_lora_is_named(base: BaseModel, tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            read_lora(path)
        return str(caught.value)

    assert "no such file" in refusal(tmp_path / "gone.safetensors")
    assert "is a folder" in refusal(tmp_path)
    page = tmp_path / "page.safetensors"
    page.write_bytes(b"<html></html>")
    assert "web page" in refusal(page)
    peft_names = tmp_path / "peft.safetensors"
    save_file({"unet.mid_block.attn1.to_q.lora_A.weight": torch.ones(1)}, peft_names)
    assert "diffusers' naming" in refusal(peft_names)
    vae = tmp_path / "vae.safetensors"
    save_file({"decoder.conv_in.weight": torch.ones(1)}, vae)
    assert "is a VAE" in refusal(vae)


# --- diffusers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1, 2.0, 4.0])
def test_diffusers_loads_it_whole_and_computes_the_same(
    base: BaseModel, tmp_path: Path, alpha: float
) -> None:
    """No key is left over, alpha is honoured, text encoder included."""
    pytest.importorskip("peft", reason="diffusers needs peft to load a LoRA")
    from diffusers import DDPMScheduler, StableDiffusionPipeline
    from transformers import CLIPTokenizer

    tensors = trained(base, alpha=alpha)
    write_lora(tmp_path / "x.safetensors", tensors, {"ss_network_dim": "4"})
    ids = torch.tensor(base.tokenizer.chunks("a ginger cat"))
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(2))

    def answer() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            text = base.text_encoder(ids).last_hidden_state
            return text, base.unet(latents, torch.tensor([5, 700]), text.expand(2, -1, -1)).sample

    plain = answer()
    network = create_network(base.unet, base.text_encoder, rank=4, alpha=alpha)
    network.load_kohya(tensors)
    network.apply()
    ours = answer()
    network.remove()
    pipeline = StableDiffusionPipeline(
        vae=base.vae,
        text_encoder=base.text_encoder,
        tokenizer=CLIPTokenizer.from_pretrained(base.files.path / "tokenizer"),
        unet=base.unet,
        scheduler=DDPMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.load_lora_weights(str(tmp_path), weight_name="x.safetensors")
    try:
        theirs = answer()
        adapted = [
            m for model in (base.unet, base.text_encoder) for m in model.modules() if hasattr(m, "lora_A")
        ]
        assert len(adapted) == 60
        for before, our, their in zip(plain, ours, theirs, strict=True):
            assert torch.allclose(our, their, rtol=1e-4, atol=1e-5)
            assert (our - before).abs().mean() > 100 * (our - their).abs().mean()
            assert (our - before).abs().mean() > 1e-3
    finally:
        pipeline.unload_lora_weights()
    assert all(torch.equal(a, b) for a, b in zip(plain, answer(), strict=True))


def test_diffusers_understands_every_full_size_name(reference: Path) -> None:
    from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_lora_to_diffusers

    from noukii.trainer.base_model import _empty_model

    with torch.device("meta"):
        unet = _empty_model("unet")
    layout = json.loads((reference / "lora_layout_rank4.json").read_text())
    tensors = {
        name: torch.tensor(1) if name.endswith("alpha") else torch.zeros(shape)
        for name, (shape, _) in layout.items()
    }
    converted, alphas = _convert_non_diffusers_lora_to_diffusers(tensors)
    assert len(alphas) == 264
    paths = {name.removeprefix("unet.") for name in converted if name.startswith("unet.")}
    assert len(paths) == 2 * 192
    for path in paths:
        unet.get_submodule(path.rpartition(".lora")[0])


# --- metadata -------------------------------------------------------------------------------------

FOLDER_MODE = {
    "ss_batch_size_per_device", "ss_total_batch_size", "ss_resolution", "ss_color_aug", "ss_flip_aug",
    "ss_random_crop", "ss_shuffle_caption", "ss_enable_bucket", "ss_bucket_no_upscale", "ss_min_bucket_reso",
    "ss_max_bucket_reso", "ss_keep_tokens", "ss_reg_dataset_dirs", "ss_bucket_info",
}  # fmt: skip
SSHS = {"sshs_model_hash", "sshs_legacy_hash"}


@pytest.fixture
def upstream(reference: Path) -> dict[str, str]:
    """The metadata that train_network.py wrote."""
    return json.loads((reference / "lora_metadata.json").read_text())


@pytest.fixture
def photos_run(tmp_path: Path, upstream: dict[str, str], project_home: Path):  # type: ignore[no-untyped-def]
    """Upstream's run again: eight pictures in its buckets, its captions and its flags."""
    folder = tmp_path / "secret user name" / "20_photos"
    folder.mkdir(parents=True)
    captions = [tag for tag in json.loads(upstream["ss_tag_frequency"])["20_photos"] if tag != "sat_photos"]
    sizes = [(200, 200)] + [(300, 225)] * 4 + [(300, 300)] * 3
    for number, (caption, size) in enumerate(zip(captions, sizes, strict=True)):
        Image.new("RGB", size).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"sat_photos, {caption.capitalize()}")
    toml = tmp_path / "config.toml"
    toml.write_text(
        "[general]\nenable_bucket = true\nbucket_no_upscale = true\nbucket_reso_steps = 64\n"
        'min_bucket_reso = 256\nmax_bucket_reso = 2048\ncaption_extension = ".txt"\n'
        "[[datasets]]\nresolution = 256\nbatch_size = 1\n"
        f"[[datasets.subsets]]\nimage_dir = {json.dumps(str(folder))}\nnum_repeats = 20\n"
    )
    model = tmp_path / "secret user name" / "v1-5-pruned-emaonly.safetensors"
    model.write_bytes(bytes(range(256)) * 5000)
    flags = [
        "--network_module=networks.lora", "--output_name=k", "--max_train_steps=6", "--learning_rate=1e-4",
        "--seed=42", "--gradient_checkpointing", "--cache_latents", "--sdpa", "--prior_loss_weight=1.0",
        "--mixed_precision=no",
    ]  # fmt: skip

    def metadata(*more: str, **facts: object) -> dict[str, str]:
        settings = parse(
            [*flags, "--pretrained_model_name_or_path", str(model), "--dataset_config", str(toml),
             "--output_dir", str(tmp_path / "out"), *more]
        )  # fmt: skip
        run = RunFacts(
            **{
                "session_id": 2058562835, "started_at": 1796042509.4990387, "finished_at": 1796042574.2948835,
                "steps": 6, "epoch": 1, "num_epochs": 1, "num_batches_per_epoch": 160, "max_train_steps": 6,
                "optimizer": "torch.optim.adamw.AdamW", "seed": 42, "base_hashes": base_model_hashes(model),
                **facts,
            }
        )  # fmt: skip
        return training_metadata(settings, load_samples(read_config(toml)), run)

    return metadata


def test_metadata_has_upstreams_keys_and_values(photos_run, upstream: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    found = photos_run()
    assert found.keys() == upstream.keys() - SSHS | FOLDER_MODE
    assert all(type(value) is str for value in found.values())
    differs = {
        "ss_sd_model_hash", "ss_new_sd_model_hash", "ss_sd_scripts_commit_hash", "ss_datasets",
        "ss_tag_frequency", "modelspec.implementation_version", "modelspec.date", "modelspec.resolution",
    }  # fmt: skip
    for key in upstream.keys() - SSHS - differs:
        assert found[key] == upstream[key], key
    assert json.loads(found["ss_tag_frequency"]) == json.loads(upstream["ss_tag_frequency"])
    (ours,), (theirs,) = json.loads(found["ss_datasets"]), json.loads(upstream["ss_datasets"])
    error = ours["bucket_info"].pop("mean_img_ar_error")
    theirs["bucket_info"].pop("mean_img_ar_error")
    assert error == pytest.approx(0.0)  # every picture here has its bucket's aspect
    assert ours == theirs
    assert list(ours) == list(theirs)
    assert found["modelspec.resolution"] == "256x256"
    assert found["ss_resolution"] == "(256, 256)"
    assert json.loads(found["ss_bucket_info"])["buckets"]["1"] == {"resolution": [256, 192], "count": 80}
    assert found["ss_sd_scripts_commit_hash"].startswith("noukii ")


def test_no_private_path_is_written(photos_run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = json.dumps(photos_run())
    assert "secret user name" not in text
    assert str(tmp_path) not in text
    assert "20_photos" in text


def test_settings_show_in_the_metadata(photos_run) -> None:  # type: ignore[no-untyped-def]
    found = photos_run(
        "--network_dim", "16", "--network_alpha", "8", "--text_encoder_lr", "5e-5", "--clip_skip", "2",
        "--max_token_length", "225", "--min_snr_gamma", "5", "--training_comment", "für mich",
        "--gradient_accumulation_steps", "3", "--output_name", "cat", optimizer="x.Prodigy(decouple=True)",
    )  # fmt: skip
    assert found["ss_network_dim"] == "16"
    assert found["ss_network_alpha"] == "8.0"
    assert found["ss_text_encoder_lr"] == "5e-05"
    assert found["ss_unet_lr"] == "None"
    assert found["modelspec.encoder_layer"] == found["ss_clip_skip"] == "2"
    assert found["ss_max_token_length"] == "225"
    assert found["ss_min_snr_gamma"] == "5.0"
    assert found["ss_training_comment"] == "für mich"
    assert found["ss_total_batch_size"] == "3"
    assert found["ss_output_name"] == found["modelspec.title"] == "cat"
    assert found["ss_optimizer"] == "x.Prodigy(decouple=True)"


def test_no_metadata_keeps_what_programs_need(photos_run) -> None:  # type: ignore[no-untyped-def]
    found = photos_run("--no_metadata")
    assert {key for key in found if key.startswith("ss_")} == {
        "ss_v2", "ss_base_model_version", "ss_network_module", "ss_network_dim", "ss_network_alpha",
    }  # fmt: skip
    assert found["modelspec.title"] == "k"


def test_regularisation_and_two_folders_of_one_name(tmp_path: Path) -> None:
    for parent, name, count in (("a", "5_cat", 2), ("b", "5_cat", 1), ("c", "1_reg", 3)):
        folder = tmp_path / parent / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (64 + 64 * number, 64)).save(folder / f"{number}.png")
            (folder / f"{number}.txt").write_text("Cat, cat,, pet")
    toml = tmp_path / "c.toml"
    toml.write_text(
        '[general]\nresolution = 128\ncaption_extension = ".txt"\ncaption_prefix = "nice"\n[[datasets]]\n'
        + "".join(
            "[[datasets.subsets]]\n"
            f"image_dir = {json.dumps(str(tmp_path / where))}\nnum_repeats = {n}\n{more}\n"
            for where, n, more in (
                ("a/5_cat", 5, "flip_aug = true"), ("b/5_cat", 5, ""), ("c/1_reg", 1, "is_reg = true"),
            )
        )
    )  # fmt: skip
    settings = parse(
        ["--pretrained_model_name_or_path=m", "--dataset_config=c", "--output_dir=o",
         "--network_module=networks.lora"]
    )  # fmt: skip
    found = training_metadata(
        settings, load_samples(read_config(toml)), RunFacts(1, 1.0, 2.0, 3, 1, 1, 30, 3, "x", 0, processes=2)
    )
    assert json.loads(found["ss_dataset_dirs"]) == {
        "5_cat": {"n_repeats": 5, "img_count": 2}, "5_cat (2)": {"n_repeats": 5, "img_count": 1},
    }  # fmt: skip
    assert json.loads(found["ss_reg_dataset_dirs"]) == {"1_reg": {"n_repeats": 1, "img_count": 3}}
    assert (found["ss_num_train_images"], found["ss_num_reg_images"]) == ("15", "15")
    assert json.loads(found["ss_tag_frequency"])["1_reg"] == {"cat": 6, "pet": 3}
    assert found["ss_bucket_info"] == "null"
    assert found["ss_flip_aug"] == "True"
    assert found["ss_total_batch_size"] == "2"
    assert "ss_sd_model_hash" not in found


def test_base_model_hashes_are_remembered_until_the_file_changes(
    tmp_path: Path, project_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    content = bytes(range(256)) * 5000
    path.write_bytes(content)
    legacy = hashlib.sha256(content[0x100000:0x110000]).hexdigest()[:8]
    expected = legacy, hashlib.sha256(content).hexdigest()
    assert base_model_hashes(path) == expected
    cache = project_home / ".cache" / "noukii" / "base_model_hashes.json"
    cache.write_text(cache.read_text().replace(legacy, "remember"))
    assert base_model_hashes(path) == ("remember", expected[1])
    path.write_bytes(content + b"!")
    assert base_model_hashes(path) == (legacy, hashlib.sha256(content + b"!").hexdigest())
    cache.write_text("{broken")
    assert base_model_hashes(path)[0] == legacy
    assert base_model_hashes(tmp_path) is None


def test_metadata_needs_no_torch() -> None:
    import subprocess

    code = "import sys, noukii.trainer.metadata; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "False"
