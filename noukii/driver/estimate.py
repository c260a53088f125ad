"""How much memory a training step needs and how long it takes without a GPU, before the trainer starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from noukii import disk
from noukii.hardware import Hardware

GIB = 2**30
UNET_PARAMETERS, TEXT_ENCODER_PARAMETERS = 860_000_000, 123_000_000
"""Of SD1.5; the VAE is gone once the latents are cached."""
SD15_PARAMETERS = UNET_PARAMETERS + TEXT_ENCODER_PARAMETERS
PACKED_PARAMETERS = 541_000_000
"""Of the UNet's 3x3 convolutions, which a CPU keeps a second time (trainer/packed_convs.py)."""
ACTIVATIONS_FLOAT32 = 1.75 * GIB
"""What autograd keeps per sample of 512x512 pixels with LoRA on every attention layer and without
checkpointing. Counted with saved-tensor hooks on the SD1.5 UNet: 444 MiB at 256x256, linear in pixels."""
ACTIVATIONS_MIXED = 1.4 * GIB
"""The same under autocast: 225 MiB at 256x256 if all were half size; CUDA keeps norms in float32."""
CHECKPOINTED_SHARE = 0.2
RUNTIME = 1.5 * GIB
"""CUDA context, workspaces, fragmentation."""
CPU_RUNTIME = 0.8 * GIB
"""Python, the libraries and their workspaces: what was left of the peaks measured at 256 and 512 pixels."""
FLOPS_PER_SAMPLE = 1.37e12
"""Forward of SD1.5 with LoRA at 512x512, and backward to the inputs, counted (benchmarks/train.py)."""
CORE_FLOPS = {"no": 45e9, "fp16": 45e9, "bf16": 90e9}
"""What one core reaches in these layers: 52 to 65e9 measured in float32 on a server; older ones are slower.
bf16 on a processor with the instructions for it."""
CHECKPOINTED_TIME = 1.9
"""Against a step without, measured: all is computed forwards twice, and no convolution is packed."""
WORTH_TELLING = 50_000_000
"""Bytes that a setting must save to be advised."""
TOY_MODEL_BYTES = 500_000_000
"""A base model below this is a test model; its activations are small too."""
TOY_RUNTIME = 0.53 * GIB
"""CPU_RUNTIME of such a run, which needs no large workspaces: the demo's peaks are 0.59 GB."""


@dataclass(frozen=True)
class Load:
    """What decides the memory of one training step; `precision` is kohya's word (no, fp16, bf16)."""

    resolution: int
    batch_size: int
    precision: str
    gradient_checkpointing: bool
    base_model_bytes: int
    on_gpu: bool = True
    unet_only: bool = False
    """No text encoder is trained, so none is in memory."""
    builtin: bool = True
    """Whose trainer: kohya's packs nothing."""

    def bytes(self) -> float:
        """Estimate the peak of a step in bytes: on a CPU to about a tenth, on a GPU to about a third."""
        toy = self.base_model_bytes < TOY_MODEL_BYTES
        mixed = self.precision != "no"
        parameters = UNET_PARAMETERS if self.unet_only else SD15_PARAMETERS
        if self.builtin and not (self.on_gpu or self.gradient_checkpointing):
            parameters += PACKED_PARAMETERS
        weights = self.base_model_bytes * 2 if toy else parameters * (2 if mixed else 4)
        per_sample = ACTIVATIONS_MIXED if mixed else ACTIVATIONS_FLOAT32
        if toy:
            per_sample *= self.base_model_bytes / (4 * SD15_PARAMETERS)
        activations = self.batch_size * per_sample * (self.resolution / 512) ** 2
        if self.gradient_checkpointing:
            activations *= CHECKPOINTED_SHARE
        on_cpu = TOY_RUNTIME if toy else CPU_RUNTIME
        return weights + activations + (RUNTIME if self.on_gpu else on_cpu)


def memory_is_short(load: Load, hardware: Hardware) -> bool:
    """Say whether a step without gradient checkpointing may not fit into this machine."""
    there = hardware.gpu_bytes * 0.92 if hardware.has_gpu else hardware.memory_bytes * 0.8
    return bool(there) and replace(load, gradient_checkpointing=False).bytes() > there


def savings(load: Load, hardware: Hardware) -> list[str]:
    """Name the two settings that would save most memory and by about how much, best first."""
    trials = [
        ("--gradient-checkpointing on", replace(load, gradient_checkpointing=True)),
        ("--batch-size 1", replace(load, batch_size=1)),
    ]
    if hardware.computes_bfloat16 and load.precision == "no":
        trials.append(("--precision bf16", replace(load, precision="bf16")))
    if load.resolution > 384:
        trials.append(("--resolution 384", replace(load, resolution=384)))
    now = load.bytes()
    gains = sorted(((now - trial.bytes(), words) for words, trial in trials), reverse=True)
    worth = max(0.02 * now, WORTH_TELLING)
    return [f"{words} (about {disk.size(gain)} less)" for gain, words in gains[:2] if gain > worth]


def cpu_seconds(load: Load, steps: int, cores: int) -> float:
    """Estimate how long a run takes on the processor; right to about a factor of two."""
    share = load.base_model_bytes / (4 * SD15_PARAMETERS) if load.base_model_bytes < TOY_MODEL_BYTES else 1.0
    work = FLOPS_PER_SAMPLE * share * load.batch_size * (load.resolution / 512) ** 2 * steps
    work *= CHECKPOINTED_TIME if load.gradient_checkpointing else 1.0
    return work / (CORE_FLOPS[load.precision] * cores)
