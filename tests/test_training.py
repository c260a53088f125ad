"""The trainer as a whole: it learns, repeats itself, writes what kohya's readers expect, and fails well."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import make_tiny_sd
from tiny_training import (
    CHECKOUT,
    arguments,
    draw_data,
    launch,
    metadata_of,
    metrics_of,
    tensors_of,
    train_here,
    write_toml,
)

from noukii.errors import InputError, RunError

LONG = 120
STILL = ("--lr_scheduler=constant_with_warmup", "--lr_warmup_steps=9")
"""The first step of a warm-up has rate 0."""


@dataclass(frozen=True)
class Trained:
    home: Path
    model: Path
    toml: Path
    output: Path
    stdout: str
    stderr: str

    @property
    def lora(self) -> Path:
        return self.output / "disc.safetensors"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an odd name that holds a base model, pictures and a TOML."""
    home = tmp_path_factory.mktemp("it's [here] é $(x)")
    make_tiny_sd(home / "model")
    write_toml(home / "c.toml", draw_data(home / "2_disc o'clock"))
    return home


@pytest.fixture(scope="module")
def trained(place: Path) -> Trained:
    """One run of the real command, long enough to learn something."""
    flags = arguments(place / "model", place / "c.toml", place / "out", steps=LONG)
    logs = ["--logging_dir", str(place / "logs"), "--log_with", "tensorboard"]
    cwd = place / "elsewhere"
    cwd.mkdir()
    done = launch(place, [*flags, "--learning_rate=4e-3", "--training_comment=by a test", *logs], cwd)
    assert done.returncode == 0, done.stderr
    return Trained(place, place / "model", place / "c.toml", place / "out", done.stdout, done.stderr)


def loss_at_fixed_noise(model: Path, toml: Path, lora: Path | None) -> float:
    """Mean loss over the pictures at the same noise and timesteps, with or without a LoRA."""
    import torch

    from noukii.dataset.config_file import read_config
    from noukii.dataset.images import open_image
    from noukii.dataset.samples import load_samples
    from noukii.trainer.base_model import encode_prompt, load_base_model
    from noukii.trainer.cache import to_pixels
    from noukii.trainer.checkpoint_header import inspect_base_model
    from noukii.trainer.lora import create_network
    from noukii.trainer.lora_file import read_lora
    from noukii.trainer.objective import training_loss

    base = load_base_model(inspect_base_model(model), dtype=torch.float32)
    if lora is not None:
        network = create_network(base.unet, base.text_encoder)
        network.load_kohya(read_lora(lora)[0])
        network.apply()
    numbers = torch.Generator().manual_seed(99)
    losses = []
    with torch.no_grad():
        for sample in load_samples(read_config(toml))[0].samples:
            pixels = to_pixels(open_image(sample.image.path), sample).unsqueeze(0)
            latents = base.vae.encode(pixels).latent_dist.mean * base.vae_scaling_factor
            ids = torch.tensor([base.tokenizer.chunks(sample.caption)])
            text = encode_prompt(base.text_encoder, ids, None)
            for timestep in (50, 250, 500, 750, 950):
                noise = torch.randn(latents.shape, generator=numbers)
                losses.append(
                    training_loss(
                        lambda noisy, t, text=text: base.unet(noisy, t, encoder_hidden_states=text).sample,
                        latents, noise, torch.tensor([timestep]), base.alphas_cumprod,
                    )
                )  # fmt: skip
    return float(torch.cat(losses).mean())


def test_it_learns(trained: Trained) -> None:
    before = loss_at_fixed_noise(trained.model, trained.toml, None)
    after = loss_at_fixed_noise(trained.model, trained.toml, trained.lora)
    assert after < 0.75 * before


def test_what_is_told_before_and_after(trained: Trained) -> None:
    for line in (
        "data: 5 images, 10 samples per epoch with repeats", "steps per epoch: 5", "epochs: 24",
        f"total steps: {LONG}", "seed: 11", "LoRA: rank 4, alpha 1, for UNet and text encoder",
    ):  # fmt: skip
        assert line in trained.stdout.splitlines()
    assert re.search(r"^device: CPU, 1 threads, float32$", trained.stdout, re.MULTILINE)
    assert re.search(rf"training: {LONG}/{LONG} steps, .* left, loss 0\.\d+", trained.stderr)
    assert "Traceback" not in trained.stderr and "Warning" not in trained.stderr
    assert sorted(path.name for path in trained.output.iterdir()) == ["disc.safetensors", "metrics.jsonl"]


def test_each_step_is_logged_and_every_sample_was_used(trained: Trained) -> None:
    lines = metrics_of(trained.output, timed=True)
    assert [line["step"] for line in lines] == list(range(1, LONG + 1))
    assert [line["epoch"] for line in lines] == [step // 5 + 1 for step in range(LONG)]
    assert sum(line["samples"] for line in lines) == 10 * LONG // 5
    assert set(lines[0]) == {
        "step", "epoch", "loss", "loss_smoothed", "lr_unet", "lr_text_encoder", "seconds", "samples"
    }  # fmt: skip
    assert {line["lr_unet"] for line in lines} == {line["lr_text_encoder"] for line in lines} == {4e-3}
    early, late = (sum(line["loss"] for line in part) / 20 for part in (lines[:20], lines[-20:]))
    assert late < 0.8 * early
    assert 0 < lines[-1]["loss_smoothed"] < early


def test_tensorboard_has_kohyas_names(trained: Trained) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = {path.parent for path in (trained.home / "logs").rglob("events.out.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/current", "loss/average", "lr/unet", "lr/textencoder"}
    assert len(events.Scalars("loss/current")) == LONG


def test_metadata_has_upstreams_keys_and_no_private_path(trained: Trained, reference: Path) -> None:
    metadata = metadata_of(trained.lora)
    upstream = json.loads((reference / "lora_metadata.json").read_text())
    # a diffusers folder has no single file to hash; upstream leaves these two out then, too
    optional = {"ss_sd_model_hash", "ss_new_sd_model_hash"}
    assert upstream.keys() - optional <= metadata.keys()
    assert {"ss_bucket_info", "ss_resolution", "ss_enable_bucket"} <= metadata.keys()
    expected = {
        "ss_output_name": "disc", "ss_seed": "11", "ss_steps": str(LONG), "ss_epoch": "24",
        "ss_num_epochs": "24", "ss_num_batches_per_epoch": "5", "ss_max_train_steps": str(LONG),
        "ss_learning_rate": "0.004", "ss_network_dim": "None", "ss_network_alpha": "1",
        "ss_optimizer": "torch.optim.adamw.AdamW", "ss_lr_scheduler": "constant",
        "ss_num_train_images": "10", "ss_training_comment": "by a test", "ss_mixed_precision": "no",
        "ss_cache_latents": "True", "ss_sd_model_name": "model",
    }  # fmt: skip
    assert {key: metadata[key] for key in expected} == expected
    buckets = json.loads(metadata["ss_bucket_info"])["buckets"].values()
    assert {(tuple(one["resolution"]), one["count"]) for one in buckets} == {((64, 64), 6), ((128, 64), 4)}
    assert os.fsencode(trained.home.name) not in trained.lora.read_bytes()[:100_000]
    assert b"/tmp" not in trained.lora.read_bytes()[:100_000]


def test_the_same_seed_gives_the_same_run_in_any_process(trained: Trained, tmp_path: Path) -> None:
    """The rate is constant, so a shorter run is the longer one's beginning; a loss shows every weight."""
    flags = arguments(trained.model, trained.toml, tmp_path / "here", "--learning_rate=4e-3", steps=25)
    train_here(trained.home, flags)
    assert metrics_of(tmp_path / "here") == metrics_of(trained.output)[:25]


def test_the_same_seed_gives_the_same_bytes(place: Path, tmp_path: Path) -> None:
    outputs = [
        train_here(place, arguments(place / "model", place / "c.toml", tmp_path / name, steps=3))
        for name in ("one", "two")
    ]
    assert tensors_of(outputs[0] / "disc.safetensors") == tensors_of(outputs[1] / "disc.safetensors")


def test_another_seed_gives_another_lora(place: Path, tmp_path: Path) -> None:
    outputs = []
    for seed in (1, 2):
        flags = arguments(place / "model", place / "c.toml", tmp_path / str(seed), f"--seed={seed}", steps=1)
        outputs.append(train_here(place, flags))
    assert metrics_of(outputs[0])[0]["loss"] != metrics_of(outputs[1])[0]["loss"]


def test_checkpointing_changes_memory_not_the_lora(place: Path, tmp_path: Path) -> None:
    outputs = []
    for name, more in (("plain", []), ("checkpointed", ["--gradient_checkpointing"])):
        flags = arguments(place / "model", place / "c.toml", tmp_path / name, "--network_dropout=0.2", *more)
        outputs.append(train_here(place, flags))
    plain, checkpointed = (
        [line["loss"] for line in metrics_of(output) if "loss" in line] for output in outputs
    )
    assert plain == pytest.approx(checkpointed, rel=1e-4)  # the convolutions' rounding differs


def test_accumulated_batches_count_as_one_step(place: Path, tmp_path: Path) -> None:
    flags = ["--gradient_accumulation_steps=2", "--max_train_epochs=2"]
    output = train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags))
    lines = metrics_of(output)
    assert [line["epoch"] for line in lines] == [1, 1, 1, 2, 2, 2]  # 5 batches: 2, 2, 1
    assert [sum(line["samples"] for line in lines if line["epoch"] == epoch) for epoch in (1, 2)] == [10, 10]


def test_half_precision_trains_a_float32_lora(place: Path, tmp_path: Path) -> None:
    flags = ["--mixed_precision=bf16", "--gradient_checkpointing", "--max_token_length=150", "--clip_skip=2"]
    output = train_here(
        place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags, steps=2)
    )
    from safetensors.torch import load_file

    kinds = {str(v.dtype) for k, v in load_file(output / "disc.safetensors").items() if "lora_" in k[-20:]}
    assert kinds == {"torch.float32"}
    flags = ["--save_precision=fp16", "--no_metadata"]
    output = train_here(
        place, arguments(place / "model", place / "c.toml", tmp_path / "half", *flags, steps=2)
    )
    assert {str(v.dtype) for v in load_file(output / "disc.safetensors").values()} == {"torch.float16"}
    assert "ss_tag_frequency" not in metadata_of(output / "disc.safetensors")
    assert metadata_of(output / "disc.safetensors")["ss_network_module"] == "networks.lora"


@pytest.mark.parametrize(
    ("flags", "modules"),
    [(["--network_train_unet_only"], {"lora_unet"}), (["--network_train_text_encoder_only"], {"lora_te"})],
)
def test_only_the_part_asked_for_is_trained_and_written(
    place: Path, tmp_path: Path, flags: list[str], modules: set[str]
) -> None:
    output = train_here(
        place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags, steps=2)
    )
    names = {"_".join(name.split("_")[:2]) for name in tensors_of(output / "disc.safetensors")}
    assert names == modules
    line = metrics_of(output)[0]
    assert (line["lr_unet"] is None) == ("lora_te" in modules)
    assert (line["lr_text_encoder"] is None) == ("lora_unet" in modules)


@pytest.mark.parametrize(
    ("flags", "rates"),
    [
        (["--lr_scheduler=constant_with_warmup", "--lr_warmup_steps=4"], [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
        (["--lr_scheduler=linear", "--lr_warmup_steps=0.25"], [0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (["--lr_scheduler=cosine_with_restarts", "--lr_scheduler_num_cycles=4"], [1, 0.5] * 4),
        (["--lr_scheduler=polynomial"], [1 - n / 8 for n in range(8)]),
    ],
)
def test_schedules_are_kohyas(place: Path, tmp_path: Path, flags: list[str], rates: list[float]) -> None:
    more = [*flags, "--unet_lr=1e-3", "--text_encoder_lr=5e-4"]
    output = train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "out", *more, steps=8))
    lines = metrics_of(output)
    assert [line["lr_unet"] for line in lines] == pytest.approx([rate * 1e-3 for rate in rates], abs=1e-7)
    assert [line["lr_text_encoder"] for line in lines] == pytest.approx(
        [rate * 5e-4 for rate in rates], abs=1e-7
    )


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--optimizer_type=Adafactor"], "transformers.optimization.Adafactor(relative_step=True)"),
        (["--optimizer_type=Adafactor", "--optimizer_args", "relative_step=False", "scale_parameter=False"],
         "transformers.optimization.Adafactor(relative_step=False,scale_parameter=False)"),
        (["--optimizer_type=prodigy", "--learning_rate=1", "--optimizer_args", "d_coef=2.0"],
         "prodigyopt.prodigy.Prodigy(d_coef=2.0)"),
        (["--optimizer_args", "weight_decay=0.1", "betas=(0.8,0.9)"],
         "torch.optim.adamw.AdamW(weight_decay=0.1,betas=(0.8, 0.9))"),
    ],
)  # fmt: skip
def test_other_optimisers_train_save_and_resume(
    place: Path, tmp_path: Path, flags: list[str], name: str
) -> None:
    base = arguments(place / "model", place / "c.toml", tmp_path / "out", *flags, "--save_state", steps=4)
    output = train_here(place, [*base, "--save_every_n_steps=2"])
    assert metadata_of(output / "disc.safetensors")["ss_optimizer"] == name
    state = str(output / "disc-step00000002-state")
    again = train_here(place, [*base, "--output_dir", str(tmp_path / "again"), "--resume", state])
    assert tensors_of(again / "disc.safetensors") == tensors_of(output / "disc.safetensors")


def test_optimiser_arguments_it_does_not_know_are_refused(place: Path, tmp_path: Path) -> None:
    flags = ["--optimizer_args", "weight_deca=0.1"]
    with pytest.raises(InputError, match="weight_deca"):
        train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags))


def test_files_saved_on_the_way_have_kohyas_names(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "disc-step00000001-mine.txt").write_text("the user's")
    (output / "other-step00000002.safetensors").write_bytes(b"another run's")
    flags = ["--save_every_n_steps=2", "--save_last_n_steps=3", "--save_every_n_epochs=1", "--save_state"]
    base = arguments(place / "model", place / "c.toml", output, *flags, "--max_train_epochs=3")
    train_here(place, base)
    # steps 2, 4, …, 14 were saved; kept are those of the last 3 before step 14, as upstream counts
    expected = {
        "disc.safetensors", "disc-state", "metrics.jsonl", "disc-step00000001-mine.txt",
        "other-step00000002.safetensors",
        *(f"disc-{epoch:06d}{end}" for epoch in (1, 2) for end in (".safetensors", "-state")),
        *(f"disc-step{step:08d}{end}" for step in (12, 14) for end in (".safetensors", "-state")),
    }  # fmt: skip
    assert {path.name for path in output.iterdir()} == expected
    assert metadata_of(output / "disc-step00000012.safetensors")["ss_steps"] == "12"
    assert metadata_of(output / "disc-000002.safetensors")["ss_epoch"] == "2"


def test_the_last_step_is_saved_under_its_number_too(place: Path, tmp_path: Path) -> None:
    """As upstream does: a script may wait for that name, and saves are compared by their steps."""
    flags = ["--save_every_n_steps=2", "--save_every_n_epochs=1", "--save_state", "--max_train_steps=10"]
    output = train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags))
    names = {path.name for path in output.iterdir()}
    assert {"disc-step00000010.safetensors", "disc-step00000010-state", "disc-000001.safetensors"} <= names
    assert "disc-000002.safetensors" not in names  # of epochs, upstream leaves out the last
    assert tensors_of(output / "disc-step00000010.safetensors") == tensors_of(output / "disc.safetensors")


def test_pictures_that_cannot_be_written_do_not_end_the_run(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("a disc --w 64 --h 64 --s 1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sample").write_text("in the way")
    flags = ["--sample_prompts", str(tmp_path / "p.txt"), "--sample_every_n_steps=2"]
    output = train_here(
        place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags, steps=3)
    )
    assert (output / "disc.safetensors").is_file() and len(metrics_of(output)) == 3
    assert f"! sample pictures: {output / 'sample'}: could not be written" in capfd.readouterr().err


def test_an_earlier_lora_is_never_written_over(place: Path, tmp_path: Path) -> None:
    for name in ("disc.safetensors", "disc-000001.safetensors", "disc-step00000002-state"):
        output = tmp_path / name
        output.mkdir()
        (output / name).write_bytes(b"PRECIOUS")
        with pytest.raises(InputError, match=re.escape(name)):
            train_here(place, arguments(place / "model", place / "c.toml", output))
        assert (output / name).read_bytes() == b"PRECIOUS"


def test_a_rate_far_too_high_stops_with_its_step_and_leaves_nothing(place: Path, tmp_path: Path) -> None:
    flags = ["--learning_rate=1e38", "--save_every_n_steps=1", "--save_state"]
    with pytest.raises(RunError) as caught:
        train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "out", *flags))
    assert re.search(r"step \d+: the loss is (NaN|infinite)|NaN or infinite numbers", str(caught.value))
    assert "learning" in str(caught.value)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.jsonl"]


def test_a_broken_base_model_stops_at_the_first_step(place: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(place / "model", model)
    path = model / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    tensors["conv_in.bias"][0] = float("inf")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(RunError, match="step 1") as caught:
        train_here(place, arguments(model, place / "c.toml", tmp_path / "out"))
    assert "base model" in str(caught.value)
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_lora_without_effect_is_a_failed_run(place: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no effect"):
        train_here(
            place,
            arguments(place / "model", place / "c.toml", tmp_path / "out", *STILL, steps=1),
        )
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_training_goes_on_from_given_weights(place: Path, tmp_path: Path) -> None:
    first = train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "first", steps=5))
    lora = first / "disc.safetensors"
    still = ["--network_weights", str(lora), *STILL]
    again = train_here(
        place, arguments(place / "model", place / "c.toml", tmp_path / "again", *still, steps=1)
    )
    assert tensors_of(again / "disc.safetensors") == tensors_of(lora)


def test_start_weights_that_do_not_fit_are_refused_from_their_header(place: Path, tmp_path: Path) -> None:
    """Before torch is loaded and images are encoded, each with the flag that would make it fit."""
    from safetensors.torch import load_file, save_file

    made = train_here(place, arguments(place / "model", place / "c.toml", tmp_path / "first", steps=1))
    tensors = load_file(made / "disc.safetensors")
    files = {"good": tensors}
    files["half"] = {name: value.bfloat16() for name, value in tensors.items()}
    files["unet"] = {name: value for name, value in tensors.items() if name.startswith("lora_unet")}
    files["no alpha"] = {name: value for name, value in tensors.items() if not name.endswith("alpha")}
    files["xl"] = {name.replace("lora_te_", "lora_te1_"): value for name, value in tensors.items()}
    wide = dict(tensors)
    name = next(name for name in tensors if name.endswith("attn2_to_k.lora_down.weight"))
    import torch

    wide[name] = torch.zeros(4, 2048)
    files["wide"] = wide
    for word, content in files.items():
        save_file(content, tmp_path / f"{word} é.safetensors")
    (tmp_path / "cut é.safetensors").write_bytes((made / "disc.safetensors").read_bytes()[:-9])
    (tmp_path / "text é.safetensors").write_text("a LoRA")
    script = (
        "import sys\n"
        "from noukii.errors import InputError\n"
        "from noukii.trainer.job import check_without_data\n"
        "from noukii.trainer.settings import parse\n"
        "try: check_without_data(parse(sys.argv[1:])); print('fits')\n"
        "except InputError as error: print(error)\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )

    def verdict(file: str, *flags: str) -> str:
        given = ["--network_weights", str(tmp_path / f"{file} é.safetensors"), *flags]
        done = subprocess.run(
            [sys.executable, "-c", script,
             *arguments(place / "model", place / "c.toml", tmp_path / "no", *given)],
            cwd=CHECKOUT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "[]"
        return done.stdout

    assert verdict("good").startswith("fits") and verdict("half").startswith("fits")
    assert verdict("unet", "--network_train_unet_only").startswith("fits")
    for file, flags, words in (
        ("good", ["--network_dim=8"], ["has rank 4, this run has 8", "--network_dim 4"]),
        ("good", ["--network_alpha=2"], ["has alpha 1, this run has 2", "--network_alpha 1"]),
        ("half", ["--network_alpha=0"], ["has alpha 1, this run has 4"]),
        ("good", ["--network_train_unet_only"], ["text encoder", "leave --network_train_unet_only out"]),
        ("unet", [], ["text encoder", "give --network_train_unet_only"]),
        ("no alpha", [], ["no alphas"]),
        ("xl", [], ["Stable Diffusion XL"]),
        ("wide", [], ["2048 wide", "XL"]),
        ("cut", [], ["cut off"]),
        ("text", [], ["text"]),
        ("missing", [], ["there is no such file"]),
    ):
        said = verdict(file, *flags)
        assert said.startswith(str(tmp_path / f"{file} é.safetensors: ")) and "next: " in said, said
        for word in words:
            assert word in said


def test_regularisation_images_weigh_what_is_asked(place: Path, tmp_path: Path) -> None:
    """With weight 0 their pictures cannot matter; with weight 1 they do."""
    losses = {}
    for colour in ("black", "white"):
        from PIL import Image

        reg = tmp_path / colour
        reg.mkdir()
        Image.new("RGB", (64, 64), colour).save(reg / "a.png")
        (reg / "a.txt").write_text("a thing\n")
        more = f"  [[datasets.subsets]]\n  image_dir = {json.dumps(str(reg))}\n  is_reg = true\n"
        toml = write_toml(tmp_path / f"{colour}.toml", place / "2_disc o'clock", more=more)
        for weight in (0, 1):
            flags = arguments(
                place / "model",
                toml,
                tmp_path / f"{colour}{weight}",
                f"--prior_loss_weight={weight}",
                steps=8,
            )
            output = train_here(place, flags)
            losses[colour, weight] = tensors_of(output / "disc.safetensors")
            assert metadata_of(output / "disc.safetensors")["ss_num_reg_images"] == "10"
    assert losses["black", 0] == losses["white", 0]
    assert losses["black", 1] != losses["white", 1]


def test_mistakes_are_told_before_anything_is_written(place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    no_images = write_toml(tmp_path / "empty.toml", tmp_path / "empty")
    unknown = tmp_path / "unknown.toml"
    unknown.write_text(
        (place / "c.toml").read_text(encoding="utf-8") + "color_aug = true\n", encoding="utf-8"
    )
    model, toml = place / "model", place / "c.toml"
    for flags, words in (
        (arguments(tmp_path / "none.safetensors", toml, tmp_path / "out"), "none.safetensors"),
        (arguments(model, tmp_path / "none.toml", tmp_path / "out"), "none.toml"),
        (arguments(model, no_images, tmp_path / "out"), "empty"),
        (arguments(model, unknown, tmp_path / "out"), "color_aug"),
        (arguments(model, toml, tmp_path / "out", "--mixed_precision=fp16"), "NVIDIA"),
        (arguments(model, toml, tmp_path / "out", "--clip_skip=3"), "2 layers"),
        (arguments(model, toml, tmp_path / "out", "--sample_prompts", "none.txt"), "none.txt"),
        (
            arguments(model, toml, tmp_path / "out", "--network_weights", "none.safetensors"),
            "none.safetensors",
        ),
    ):
        with pytest.raises(InputError) as caught:
            train_here(place, flags)
        assert words in str(caught.value) and "next: " in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_nothing_in_the_users_folder_changes(place: Path, tmp_path: Path) -> None:
    folder = place / "2_disc o'clock"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    train_here(
        place,
        arguments(place / "model", place / "c.toml", tmp_path / "out", "--cache_latents_to_disk", steps=1),
    )
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
