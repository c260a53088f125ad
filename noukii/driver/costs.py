"""What a run will cost, before it starts: memory, and time where it can be told."""

from __future__ import annotations

from typing import Any

from noukii import disk
from noukii.driver import estimate
from noukii.driver.prepare import Machine, Prepared, cpu_threads
from noukii.progress import duration

SAFE_SHARE = 0.92
"""Of a GPU's memory; the rest is the desktop's and the driver's."""


def available_bytes(machine: Machine) -> int:
    """Return the memory that a step can have: the GPU's, else what is free on this machine; 0 if unknown."""
    found = machine.hardware
    return int(found.gpu_bytes * SAFE_SHARE) if found.has_gpu else found.memory_bytes


def cost_lines(prepared: Prepared, machine: Machine) -> list[str]:
    """Return what is told of memory and time, and what helps if the memory is short."""
    need, there = machine.load.bytes(), available_bytes(machine)
    where = "of the GPU's" if machine.hardware.has_gpu else "of memory"
    lines = [f"memory: about {disk.size(need)} for a step (estimate), {disk.size(there)} {where} are there"]
    if not there:
        lines = [f"memory: about {disk.size(need)} for a step (estimate)"]
    lines.append(f"time: {_time_words(prepared, machine)}")
    if there and need > there:
        remedies = estimate.savings(machine.load, machine.hardware)
        what = "; ".join(remedies) if remedies else "a machine with more of it"
        lines.append(f"! the memory may not suffice; what saves most: {what}")
    return lines


def cost_facts(prepared: Prepared, machine: Machine) -> dict[str, Any]:
    """The same for JSON: bytes and seconds; None where it is not known."""
    return {
        "device": machine.hardware.gpu_name or "CPU",
        "precision": machine.precision,
        "gradient_checkpointing": machine.gradient_checkpointing,
        "memory_bytes_per_step": round(machine.load.bytes()),
        "memory_bytes_available": available_bytes(machine) or None,
        "seconds_estimated": None if machine.hardware.has_gpu else round(_cpu_seconds(prepared, machine)),
    }


def _time_words(prepared: Prepared, machine: Machine) -> str:
    if machine.hardware.has_gpu:
        return "told after the first few steps, which are timed"
    seconds = _cpu_seconds(prepared, machine)
    about = f"very roughly {duration(seconds)}" if seconds > 120 else "a minute or so"
    return f"{about} on this processor; told better after the first few steps, which are timed"


def _cpu_seconds(prepared: Prepared, machine: Machine) -> float:
    return estimate.cpu_seconds(machine.load, prepared.plan.steps, cpu_threads(machine))
