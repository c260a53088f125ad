"""The exact command lines that the driver gives to either trainer, and what it passes around them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from noukii.driver import launch

CALL = launch.TrainerCall(
    trainer="kohya",
    accelerate=(
        "/home/me/my noukii/kohya_ss/venv/bin/python",
        "-I",
        "-m",
        "accelerate.commands.launch",
    ),
    script=Path("/home/me/my noukii/kohya_ss/sd-scripts/train_network.py"),
    accelerate_config=Path("/out/accelerate.yaml"),
    base_model=Path("/models/my sd.safetensors"),
    dataset_config=Path("/out/config_sat_nouki.toml"),
    output_dir=Path("/out"),
    output_name="my lora",
    learning_rate=1e-4,
    seed=7,
    precision="no",
    gradient_checkpointing=True,
    cpu=False,
    threads=1,
    steps=400,
)

KOHYA_FLAGS = [
    *("--pretrained_model_name_or_path", "/models/my sd.safetensors"),
    *("--dataset_config", "/out/config_sat_nouki.toml"),
    *("--output_dir", "/out"),
    *("--output_name", "my lora"),
    *("--save_model_as", "safetensors"),
    *("--prior_loss_weight", "1.0"),
    *("--max_train_steps", "400"),
    *("--learning_rate", "0.0001"),
    "--sdpa",
    "--gradient_checkpointing",
    "--cache_latents",
    *("--mixed_precision", "no"),
    *("--network_module", "networks.lora"),
    *("--seed", "7"),
    *("--max_data_loader_n_workers", "0"),
]


def test_the_kohya_command_is_exactly_the_design_s():
    assert launch.command(CALL) == [
        *("/home/me/my noukii/kohya_ss/venv/bin/python", "-I", "-m", "accelerate.commands.launch"),
        *("--config_file", "/out/accelerate.yaml"),
        *("--num_processes", "1"),
        *("--num_machines", "1"),
        *("--mixed_precision", "no"),
        *("--dynamo_backend", "no"),
        *("--num_cpu_threads_per_process", "1"),
        "/home/me/my noukii/kohya_ss/sd-scripts/train_network.py",
        *KOHYA_FLAGS,
    ]


def test_the_builtin_command_for_a_small_gpu_or_a_cpu():
    call = dataclasses.replace(
        CALL,
        trainer="builtin",
        accelerate=("python", "-m", "accelerate.commands.launch"),
        script=launch.BUILTIN_SCRIPT,
        precision="bf16",
        gradient_checkpointing=False,
        cpu=True,
        threads=8,
        steps=None,
        epochs=10,
        rank=16,
        alpha=8.0,
        max_token_length=225,
        save_every=100,
        sample_every=50,
        sample_prompts=Path("/out/sample_prompts.txt"),
        resume=Path("/old/my lora-state"),
        extra=("--lr_scheduler", "cosine", "--training_comment", "two words"),
    )
    assert launch.command(call) == [
        *("python", "-m", "accelerate.commands.launch"),
        *("--config_file", "/out/accelerate.yaml"),
        *("--num_processes", "1"),
        *("--num_machines", "1"),
        *("--mixed_precision", "bf16"),
        *("--dynamo_backend", "no"),
        *("--num_cpu_threads_per_process", "8"),
        "--cpu",
        str(launch.BUILTIN_SCRIPT),
        *("--pretrained_model_name_or_path", "/models/my sd.safetensors"),
        *("--dataset_config", "/out/config_sat_nouki.toml"),
        *("--output_dir", "/out"),
        *("--output_name", "my lora"),
        *("--save_model_as", "safetensors"),
        *("--prior_loss_weight", "1.0"),
        *("--max_train_epochs", "10"),
        *("--learning_rate", "0.0001"),
        "--sdpa",
        "--cache_latents",
        *("--mixed_precision", "bf16"),
        *("--network_module", "networks.lora"),
        *("--seed", "7"),
        *("--max_data_loader_n_workers", "0"),
        *("--network_dim", "16"),
        *("--network_alpha", "8.0"),
        *("--max_token_length", "225"),
        *("--save_every_n_steps", "100"),
        "--save_state",
        *("--sample_every_n_steps", "50"),
        *("--sample_prompts", "/out/sample_prompts.txt"),
        "--sample_at_first",
        *("--resume", "/old/my lora-state"),
        *("--lr_scheduler", "cosine"),
        *("--training_comment", "two words"),
    ]


def test_the_builtin_trainer_takes_every_flag_the_driver_gives():
    from noukii.trainer import settings

    call = dataclasses.replace(
        CALL, trainer="builtin", rank=8, alpha=4.0, max_token_length=150, save_every=5, sample_every=5,
        sample_prompts=Path("/p.txt"), resume=Path("/s"),
    )  # fmt: skip
    parsed = settings.parse(launch.trainer_flags(call))
    assert (parsed.max_train_steps, parsed.network_dim, parsed.network_alpha) == (400, 8, 4.0)
    assert (parsed.seed, parsed.learning_rate, parsed.output_name) == (7, 1e-4, "my lora")


def test_a_resumed_kohya_run_counts_on_and_its_tokenizer_comes_from_the_disk():
    call = dataclasses.replace(CALL, resume=Path("/s"), tokenizer_cache=Path("/kohya_ss/tokenizer"))
    assert launch.trainer_flags(call) == [
        *KOHYA_FLAGS,
        *("--resume", "/s"),
        "--skip_until_initial_step",
        *("--tokenizer_cache_dir", "/kohya_ss/tokenizer"),
    ]


def test_a_flag_behind_the_dashes_comes_last_and_wins():
    from noukii.trainer import settings

    flags = launch.trainer_flags(dataclasses.replace(CALL, extra=("--learning_rate", "5e-5")))
    assert flags[-2:] == ["--learning_rate", "5e-5"]
    assert settings.parse(flags).learning_rate == 5e-5


def test_workers_asked_for_behind_the_dashes_are_not_forbidden_by_ours():
    flags = launch.trainer_flags(dataclasses.replace(CALL, extra=("--persistent_data_loader_workers",)))
    assert "--max_data_loader_n_workers" not in flags


@pytest.mark.parametrize("cpu", [True, False])
def test_accelerate_takes_our_config_without_a_warning_and_ignores_the_user_s(cpu: bool, tmp_path: Path):
    # The user's own config asks for four GPUs with DeepSpeed; the launched script tells what it got.
    theirs = tmp_path / "hf" / "accelerate"
    theirs.mkdir(parents=True)
    (theirs / "default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: fp16\n"
        "num_machines: 1\nnum_processes: 4\nuse_cpu: false\ndebug: false\n"
    )
    config = tmp_path / "our config.yaml"
    config.write_text(launch.accelerate_config(cpu, "no"))
    script = tmp_path / "train network.py"
    script.write_text(
        "import os, sys\n"
        "print(sys.argv[-1], os.environ['ACCELERATE_USE_CPU'], os.environ['ACCELERATE_MIXED_PRECISION'],"
        " os.environ['OMP_NUM_THREADS'], 'RANK' in os.environ)\n"
    )
    call = dataclasses.replace(
        CALL,
        accelerate=(sys.executable, "-m", "accelerate.commands.launch"),
        script=script,
        accelerate_config=config,
        cpu=cpu,
        threads=3,
        extra=("--x", "a b"),
    )
    answer = subprocess.run(
        launch.command(call),
        env={**launch.environment("builtin"), "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert answer.stdout.split("\n")[0] == f"a b {cpu} no 3 False", answer.stderr
    assert answer.stderr == ""


def test_upstream_is_started_where_the_folder_s_name_is_code_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first line of the script that pip writes, venv/bin/accelerate, breaks there."""
    home = tmp_path / 'a $HOME `id` "b" é'
    venv = home / "kohya_ss" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    package = next(venv.glob("lib/python3*/site-packages")) / "accelerate" / "commands"
    package.mkdir(parents=True)
    (package / "launch.py").write_text(
        "import subprocess, sys\nsubprocess.check_call([sys.executable, *sys.argv[1:]])\n"
    )
    (venv / "bin" / "accelerate").write_text("pip's script, which is not to be started\n")
    (home / "kohya_ss" / "sd-scripts" / "library").mkdir(parents=True)
    (home / "kohya_ss" / "sd-scripts" / "library" / "of_upstream.py").write_text("word = 'trains'\n")
    script = home / "kohya_ss" / "sd-scripts" / "train_network.py"
    script.write_text("from library.of_upstream import word\nimport sys\nprint(word, sys.argv[1])\n")
    (tmp_path / "accelerate.py").write_text("raise SystemExit('taken from where the user stands')\n")
    monkeypatch.setenv("NOUKII_HOME", str(home))
    monkeypatch.delenv("NOUKII_ACCELERATE", raising=False)
    answer = subprocess.run(
        [*launch.accelerate_program("kohya"), str(launch.kohya_script()), "a $b"],
        env=launch.environment("kohya"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "trains a $b\n", answer.stderr


def test_upstream_gets_nothing_of_our_own_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"):
        monkeypatch.setenv(name, "/ours")
    kohya, builtin = launch.environment("kohya"), launch.environment("builtin")
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONSAFEPATH"} & set(kohya)
    assert builtin["PYTHONPATH"] == str(launch.BUILTIN_SCRIPT.parent.parent.parent)
    assert (builtin["NOUKII_DRIVER"], builtin["NOUKII_DRIVER_PID"]) == ("1", str(os.getpid()))
    assert kohya["HF_HUB_OFFLINE"] == builtin["HF_HUB_OFFLINE"] == "1"
