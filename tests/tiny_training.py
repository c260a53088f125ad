"""Small training runs for tests: drawn pictures, a TOML, and the trainer in this process or in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
SCRIPT = CHECKOUT / "noukii" / "trainer" / "train_network.py"
COLOURS = ("red", "green", "blue", "orange", "black")


def draw_data(folder: Path, count: int = 5) -> Path:
    """Pictures of two shapes with a coloured disc, each with its caption."""
    from PIL import Image, ImageDraw

    folder.mkdir(parents=True)
    for number, colour in enumerate(COLOURS[:count]):
        image = Image.new("RGB", (128 if number % 2 else 64, 64), "white")
        ImageDraw.Draw(image).ellipse((8, 8 + number, 56, 52), fill=colour)
        image.save(folder / f"disc {number} é.png")
        caption = f"sat_disc, a {colour} disc, on white\n"
        (folder / f"disc {number} é.txt").write_text(caption, encoding="utf-8")
    return folder


def write_toml(path: Path, folder: Path, *, batch_size: int = 2, subset: str = "", more: str = "") -> Path:
    path.write_text(
        f"""[general]
enable_bucket = true
bucket_no_upscale = true
min_bucket_reso = 64
caption_extension = ".txt"

[[datasets]]
resolution = 128
batch_size = {batch_size}
  [[datasets.subsets]]
  image_dir = {json.dumps(str(folder), ensure_ascii=False)}
  num_repeats = 2
  class_tokens = "sat_disc"
  {subset}
{more}""",
        encoding="utf-8",
    )
    return path


def arguments(model: Path, toml: Path, output: Path, *flags: str, steps: int = 6) -> list[str]:
    """The flags of a short run; later ones win."""
    return [
        *("--pretrained_model_name_or_path", str(model), "--dataset_config", str(toml)),
        *("--output_dir", str(output), "--output_name", "disc", "--network_module", "networks.lora"),
        *("--learning_rate", "1e-3", "--seed", "11", "--max_train_steps", str(steps), "--cache_latents"),
        *flags,
    ]


def environment(home: Path) -> dict[str, str]:
    """One thread, no GPU, everything written below `home`: so that results are equal to the bit."""
    return {"NOUKII_HOME": str(home), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


@contextmanager
def settled(home: Path) -> Iterator[None]:
    """The environment of a run in this process."""
    import torch

    before, threads = dict(os.environ), torch.get_num_threads()
    os.environ.update(environment(home))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(before)


def train_here(home: Path, flags: list[str]) -> Path:
    """Train in this process (no start-up time); returns the output folder."""
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    from noukii.trainer.job import prepare_job
    from noukii.trainer.loop import train
    from noukii.trainer.settings import parse

    with settled(home):
        job = prepare_job(parse(flags))
        train(job)
        return job.output_dir


def launch(
    home: Path, flags: list[str], cwd: Path, *, accelerate: bool = True
) -> subprocess.CompletedProcess[str]:
    """Train with the real command."""
    command = [sys.executable]
    if accelerate:
        command += ["-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", "1"]
        command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        command += ["--num_cpu_threads_per_process", "1"]
    return subprocess.run(
        [*command, str(SCRIPT), *flags], cwd=cwd, env={**os.environ, **environment(home)},
        capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def tensors_of(path: Path) -> dict[str, bytes]:
    """Each tensor's bytes, so that equal means equal to the bit."""
    from safetensors.torch import load_file

    return {name: bytes(value.numpy().tobytes()) for name, value in load_file(path).items()}


def metadata_of(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as stream:
        return dict(stream.metadata())


def metrics_of(output: Path, *, timed: bool = False) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return lines if timed else [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
