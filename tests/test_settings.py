"""The trainer's flags: kohya's names, types and defaults; refusals in plain words, before torch is loaded."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noukii.command_line import nearest
from noukii.errors import InputError
from noukii.trainer.settings import TrainerSettings, check_hardware, parse

CHECKOUT = Path(__file__).resolve().parent.parent
NEEDED = [
    "--pretrained_model_name_or_path", "model", "--dataset_config", "c.toml", "--output_dir", "out",
    "--network_module", "networks.lora",
]  # fmt: skip

DEFAULTS = {
    "save_model_as": "safetensors", "save_precision": None, "no_metadata": False, "training_comment": None,
    "max_train_steps": 1600, "max_train_epochs": None, "gradient_accumulation_steps": 1, "seed": None,
    "learning_rate": 2e-6, "unet_lr": None, "text_encoder_lr": None, "optimizer_type": "",
    "optimizer_args": None, "lr_scheduler": "constant", "lr_warmup_steps": 0, "lr_scheduler_num_cycles": 1,
    "max_grad_norm": 1.0, "network_dim": None, "network_alpha": 1, "network_dropout": None,
    "network_weights": None, "network_train_unet_only": False, "network_train_text_encoder_only": False,
    "min_snr_gamma": None, "noise_offset": None, "prior_loss_weight": 1.0, "clip_skip": None,
    "max_token_length": None, "mixed_precision": "no", "gradient_checkpointing": False, "sdpa": False,
    "cache_latents": False, "cache_latents_to_disk": False, "cache_text_encoder_outputs": False,
    "max_data_loader_n_workers": 8, "persistent_data_loader_workers": False, "save_every_n_steps": None,
    "save_every_n_epochs": None, "save_last_n_steps": None, "save_state": False, "resume": None,
    "sample_prompts": None, "sample_every_n_steps": None, "logging_dir": None, "log_with": None,
    "output_name": None, "sample_at_first": False, "validation_split": 0.0, "validate_every_n_steps": None,
}  # fmt: skip
"""Read in sd-scripts 48d368f, library/train_util.py and train_network.py."""


def refusal(*flags: str) -> str:
    with pytest.raises(InputError) as caught:
        parse([*NEEDED, *flags])
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults_are_upstreams_and_no_flag_is_missing_or_extra() -> None:
    settings = parse(NEEDED)
    names = {field.name for field in dataclasses.fields(TrainerSettings)}
    given = {"pretrained_model_name_or_path", "dataset_config", "output_dir", "network_module"}
    ours = {"validation_data_dir"}
    assert names == DEFAULTS.keys() | given | ours
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    assert (settings.name, settings.rank, settings.optimizer) == ("last", 4, "AdamW")


def test_values_are_read_in_both_spellings() -> None:
    settings = parse([
        *NEEDED, "--network_dim=16", "--network_alpha", "8", "--learning_rate=5e-4",
        "--text_encoder_lr", "1e-4", "--optimizer_type", "adamw",
        "--optimizer_args", "weight_decay=0.1", "betas=(0.9,0.99)",
        "--lr_scheduler", "cosine_with_restarts", "--lr_warmup_steps", "5%", "--max_token_length", "225",
        "--output_name", "my lora é", "--training_comment=--odd", "--seed", "0",
    ])  # fmt: skip
    assert (settings.rank, settings.network_alpha, settings.seed) == (16, 8.0, 0)
    assert (settings.lr_unet, settings.lr_text_encoder) == (5e-4, 1e-4)
    assert settings.optimizer == "AdamW"
    assert settings.optimizer_options == {"weight_decay": 0.1, "betas": (0.9, 0.99)}
    assert settings.lr_warmup_steps == 0.05
    assert settings.token_length == 225
    assert settings.training_comment == "--odd"
    assert parse([*NEEDED, "--lr_scheduler=linear", "--lr_warmup_steps=10"]).lr_warmup_steps == 10
    assert parse([*NEEDED, "--max_token_length", "75"]).max_token_length is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max_train_step", "3"], ["--max_train_step", "did you mean --max_train_steps"]),
        (["--min_snr_gama=5"], ["--min_snr_gama", "did you mean --min_snr_gamma"]),
        (["--lr", "1e-4"], ["--lr", "--learning_rate"]),
        (["--network_args", "conv_dim=4"], ["--network_args"]),
        (["--train_batch_size", "2"], ["--train_batch_size", "batch_size", "TOML"]),
        (["--resolution=512"], ["--resolution", "TOML"]),
        (["--xformers"], ["--xformers"]),
        (["--save_stat"], ["did you mean --save_state"]),
        (["loose"], ["loose", "not expected"]),
        (["--network_dim", "four"], ["--network_dim", "four"]),
        (["--network_dim", "0"], ["--network_dim", "less than 1"]),
        (["--learning_rate", "nan"], ["--learning_rate", "nan"]),
        (["--learning_rate", "-1e-4"], ["--learning_rate"]),
        (["--max_train_steps", "0"], ["--max_train_steps"]),
        (["--clip_skip", "0"], ["--clip_skip"]),
        (["--max_token_length", "100"], ["75, 150 or 225"]),
        (["--seed", "4294967296"], ["--seed", "out of range"]),
        (["--network_dropout", "1"], ["--network_dropout"]),
        (["--save_model_as", "ckpt"], ["ckpt", "safetensors"]),
        (["--save_precision", "int8"], ["--save_precision"]),
        (["--network_module", "lycoris.kohya"], ["lycoris.kohya", "networks.lora"]),
        (["--output_name", "a/b"], ["--output_name", "slash"]),
        (["--output_name", "a\\b"], ["--output_name", "slash"]),
        (["--output_name", ".."], ["--output_name"]),
        (["--output_name", "a\tb"], ["--output_name", "control"]),
        (["--output_name", ""], ["--output_name", "empty"]),
        (["--optimizer_type", "Lion"], ["Lion", "AdamW8bit"]),
        (["--optimizer_args", "weight_decay"], ["weight_decay", "KEY=VALUE"]),
        (["--optimizer_args", "foo=3"], ["AdamW has no argument foo", "weight_decay"]),
        (["--optimizer_args", "weight_deca=3"], ["did you mean weight_decay?"]),
        (["--optimizer_args", "lr=3"], ["--learning_rate"]),
        (["--optimizer_args", "weight_decay='x'"], ["weight_decay of AdamW is a number, not 'x'"]),
        (["--optimizer_args", "betas=0.9"], ["two numbers"]),
        (["--optimizer_args", "amsgrad=1"], ["True or False"]),
        (["--optimizer_type=Adafactor", "--optimizer_args", "betas=(0.9,0.99)"], ["Adafactor", "betas"]),
        (["--optimizer_type=Prodigy", "--optimizer_args", "amsgrad=True"], ["Prodigy", "amsgrad"]),
        (["--learning_rate", "0"], ["--learning_rate", "learns nothing"]),
        (["--unet_lr", "0", "--text_encoder_lr", "0"], ["--unet_lr, --text_encoder_lr"]),
        (["--unet_lr", "0", "--network_train_unet_only"], ["--unet_lr"]),
        (["--optimizer_args", "a=__import__('os')"], ["KEY=VALUE"]),
        (["--lr_scheduler", "magic"], ["magic", "cosine"]),
        (["--lr_warmup_steps", "10"], ["constant_with_warmup"]),
        (["--lr_warmup_steps", "ten"], ["ten"]),
        (["--log_with", "wandb"], ["wandb", "tensorboard"]),
        (["--log_with", "tensorboard"], ["--logging_dir"]),
        (["--network_train_unet_only", "--network_train_text_encoder_only"], ["nothing to train"]),
        (["--cache_text_encoder_outputs"], ["--network_train_unet_only"]),
        (["--save_last_n_steps", "5"], ["--save_every_n_steps"]),
        (["--sample_every_n_steps", "5"], ["--sample_prompts"]),
        (["--persistent_data_loader_workers", "--max_data_loader_n_workers=0"], ["no workers"]),
        (["--optimizer_type=Prodigy", "--unet_lr=1", "--text_encoder_lr=0.5"], ["Prodigy"]),
        (["--optimizer_type=Adafactor", "--lr_scheduler=linear", "--lr_warmup_steps=3"], ["relative_step"]),
        (["--text_encoder_lr", "1e-4", "2e-4"], ["one text encoder"]),
    ],
)  # fmt: skip
def test_refusals_name_flag_reason_and_next_step(flags: list[str], words: list[str]) -> None:
    message = refusal(*flags)
    assert "next: " in message
    for word in words:
        assert word in message


def test_one_part_may_stand_still_and_adafactor_needs_no_rate() -> None:
    assert parse([*NEEDED, "--text_encoder_lr", "0"]).lr_text_encoder == 0
    assert parse([*NEEDED, "--learning_rate=0", "--unet_lr=1e-4"]).lr_unet == 1e-4
    assert parse([*NEEDED, "--optimizer_type=Adafactor", "--learning_rate=0"]).learning_rate == 0


@pytest.mark.parametrize("name", ["AdamW", "Prodigy", "Adafactor", "AdamW8bit"])
def test_the_tables_of_optimiser_arguments_are_the_optimisers_own(name: str) -> None:
    import importlib
    import inspect

    from noukii.trainer.optimizer_arguments import ARGUMENTS

    module = {"AdamW": "torch.optim", "Prodigy": "prodigyopt", "Adafactor": "transformers.optimization",
              "AdamW8bit": "bitsandbytes.optim"}[name]  # fmt: skip
    made = getattr(pytest.importorskip(module) and importlib.import_module(module), name)
    theirs = set(inspect.signature(made.__init__).parameters) - {"self", "params", "lr"}
    if name == "AdamW8bit":  # which has some that are no plain values, and drops one now and then
        assert set(ARGUMENTS[name]) - {"percentile_clipping"} <= theirs
    else:
        assert set(ARGUMENTS[name]) == theirs


@pytest.mark.parametrize("missing", range(0, 8, 2))
def test_needed_flags_are_asked_for_by_name(missing: int) -> None:
    with pytest.raises(InputError) as caught:
        parse(NEEDED[:missing] + NEEDED[missing + 2 :])
    assert str(caught.value).startswith(f"{NEEDED[missing]}: is needed")


def test_a_missing_optional_package_names_the_pinned_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = __import__("importlib.util").util.find_spec
    hidden = ("bitsandbytes", "prodigyopt", "tensorboard")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name in hidden else real(name, *rest)
    )
    pins = (CHECKOUT / "requirements-optional.txt").read_text()
    for flags, package in (
        (["--optimizer_type", "AdamW8bit"], "bitsandbytes"),
        (["--optimizer_type", "Prodigy"], "prodigyopt"),
        (["--logging_dir", "logs"], "tensorboard"),
    ):
        message = refusal(*flags)
        command = message.rpartition("pip install ")[2].strip()
        assert command.startswith(f"{package}==")
        assert command in pins


def test_hardware_that_cannot_is_refused() -> None:
    fp16, bf16 = (parse([*NEEDED, "--mixed_precision", name]) for name in ("fp16", "bf16"))
    with pytest.raises(InputError, match="half precision needs an NVIDIA GPU"):
        check_hardware(fp16, has_gpu=False, gpu_capability=(0, 0))
    with pytest.raises(InputError, match="no bfloat16"):
        check_hardware(bf16, has_gpu=True, gpu_capability=(7, 5))
    check_hardware(fp16, has_gpu=True, gpu_capability=(7, 5))
    check_hardware(bf16, has_gpu=True, gpu_capability=(8, 0))
    check_hardware(bf16, has_gpu=False, gpu_capability=(0, 0))
    eight_bit = dataclasses.replace(bf16, optimizer_type="AdamW8bit")
    with pytest.raises(InputError, match="AdamW"):
        check_hardware(eight_bit, has_gpu=False, gpu_capability=(0, 0))


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=40))
def test_no_unknown_flag_is_ever_ignored(name: str) -> None:
    known = [field.name for field in dataclasses.fields(TrainerSettings)]
    if name in known or name == "help":
        return
    message = refusal(f"--{name}=1")
    assert message.startswith(f"--{name}: ")
    near = nearest(f"--{name}", ["-h", "--help", *(f"--{one}" for one in known)])
    assert near is None or near in message or "TOML" in message


def test_usage_errors_answer_without_torch() -> None:
    script = (
        "import sys; from noukii.trainer import settings, job\n"
        "try: settings.parse(['--nonsense'])\n"
        "except Exception as error: print(error)\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--nonsense" in done.stdout


def test_command_line_refusal_is_one_message_and_exit_code_2(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = run("noukii/trainer/train_network.py", "--resolution", "512", cwd=tmp_path)
    assert done.returncode == 2
    assert "--resolution" in done.stderr and "Traceback" not in done.stderr
    shown = run("noukii/trainer/train_network.py", "--help", cwd=tmp_path)
    assert shown.returncode == 0
    for field in dataclasses.fields(TrainerSettings):
        assert f"--{field.name}" in shown.stdout
