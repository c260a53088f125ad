"""What this machine can do, found without importing torch."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hardware:
    """`gpu_name` is empty where no CUDA device can be used; then `why_no_gpu` says why."""

    gpu_name: str
    gpu_bytes: int
    gpu_capability: tuple[int, int]
    why_no_gpu: str
    cpu_count: int
    cpu_bfloat16: bool
    memory_bytes: int

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_name)

    @property
    def computes_bfloat16(self) -> bool:
        """Whether bfloat16 is computed by the hardware; a processor without it emulates it, far slower."""
        return self.gpu_capability >= (8, 0) if self.has_gpu else self.cpu_bfloat16

    @property
    def precision(self) -> str:
        """kohya's word for the fastest mixed precision that is safe here: bf16, fp16 or no."""
        if self.computes_bfloat16:
            return "bf16"
        return "fp16" if self.has_gpu else "no"


def detect() -> Hardware:
    """Look at the driver, the installed torch build, the processor and the memory."""
    name, size, capability, why = _gpu()
    return Hardware(name, size, capability, why, cpu_count(), cpu_bfloat16(), memory_bytes())


def cpu_count() -> int:
    """Cores this process may use (a container's limit counts, hyper-threads as the system says)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory that is free for use now, in bytes; 0 where the system does not say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def cpu_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices itself (AVX-512 BF16, AMX, Arm BF16)."""
    try:
        return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text()))
    except OSError:
        return False


def _gpu() -> tuple[str, int, tuple[int, int], str]:
    none = ("", 0, (0, 0))
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return *none, "CUDA_VISIBLE_DEVICES hides every GPU"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except FileNotFoundError:
        return *none, "no NVIDIA driver is installed"
    except (subprocess.SubprocessError, OSError):
        return *none, "the NVIDIA driver does not answer (nvidia-smi fails)"
    rows = [
        [cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.count(",") == 2
    ]
    if not rows:
        return *none, "the NVIDIA driver finds no GPU"
    if not _torch_has_cuda():
        return *none, "the installed torch is a CPU build"
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    name, size, capability = rows[int(first)] if first.isdigit() and int(first) < len(rows) else rows[0]
    major, _, minor = capability.partition(".")
    return name, int(float(size)) * 2**20, (int(major), int(minor or 0)), ""


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda.*=\s*(.+)$", version.read_text(), re.MULTILINE) if version.exists() else None
    return found is not None and found.group(1).strip() != "None"
