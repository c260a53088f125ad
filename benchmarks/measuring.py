"""What all benchmarks share: the machine in words, children watched for memory, medians, tables."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache" / "benchmarks"
"""Where models and data sets are kept between runs; git ignores it."""
PACKAGES = ("torch", "transformers", "diffusers", "accelerate", "safetensors", "pillow")
SAMPLE_SECONDS = 0.05
CEILING = """
import json, time, torch
n, kind = 2048, getattr(torch, {dtype!r})
a, b = (torch.rand(n, n).to(kind) for _ in range(2))
v, w = torch.rand(16384, 16384).to(kind), torch.rand(16384).to(kind)
def best(run, count):
    times = []
    for _ in range(count):
        began = time.perf_counter(); run(); times.append(time.perf_counter() - began)
    return min(times)
print(json.dumps({{
    "flops": 2 * n**3 / best(lambda: a @ b, 8),
    "bytes_per_second": v.nbytes / best(lambda: v @ w, 5),
}}))
"""


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, card, versions, what else runs."""
    from noukii import hardware

    found = hardware.detect()
    cpuinfo = _read("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.+)", cpuinfo)
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    total = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    vector = [
        word for word in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flags and word in flags[1].split()
    ]
    return {
        "processor": f"{name[1] if name else platform.machine()}, {found.cpu_count} cores",
        "vector_instructions": vector,
        "memory_gb": round(int(total[1]) / 2**20, 1) if total else None,
        "gpu": found.gpu_name or f"none ({found.why_no_gpu})",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": versions(),
        "command": shlex.join([os.path.relpath(sys.executable), *sys.argv]),
    }


def versions(python: str = sys.executable) -> dict[str, str]:
    """Return the versions of the packages that matter, of this Python or another."""
    if python == sys.executable:
        found = {}
        for name in PACKAGES:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return found
    code = (
        "import json, importlib.metadata as m\nfound = {}\n"
        f"for name in {PACKAGES!r}:\n"
        "    try: found[name] = m.version(name)\n    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    return dict(json.loads(subprocess.check_output([python, "-I", "-c", code])))


def ceiling(dtype: str = "float32") -> dict[str, float]:
    """Return this processor's best matrix product (flop/s) and best rate of reading memory (bytes/s)."""
    return dict(json.loads(subprocess.check_output([sys.executable, "-c", CEILING.format(dtype=dtype)])))


@dataclass
class Usage:
    """The most that a process and all its children had, in bytes; 0 where the system does not say.

    own: the sum over them of what belongs to them alone. resident: of the largest process, the pages of
    mapped files counted, which the system takes back when it needs them (what the driver's report shows).
    cpu_seconds: processor time of all of them; does not grow where the disk or other jobs are waited for.
    """

    own: int = 0
    resident: int = 0
    cpu_seconds: float = 0.0


class Watched:
    """A child in a session of its own, whose memory is looked at twenty times a second."""

    def __init__(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> None:
        self.memory = Usage()
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [os.fspath(word) for word in command], start_new_session=True, **options
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None, tick: Callable[[], object] | None = None) -> int:
        """Wait for the end, calling `tick` fifty times a second; returns the exit code."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.process.poll() is None:
            if tick is not None:
                tick()
            if end is not None and time.monotonic() > end:
                self.stop()
                raise TimeoutError(f"{self.process.args} took more than {timeout:g} s")
            time.sleep(0.02)
        self._ended.set()
        self._thread.join()
        if tick is not None:
            tick()
        return int(self.process.returncode)

    def stop(self) -> None:
        """End the child and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            own = 0
            for pid in family(self.process.pid):
                status = _read(f"/proc/{pid}/status")
                own += _kilobytes(status, "RssAnon") + _kilobytes(status, "RssShmem")
                self.memory.resident = max(self.memory.resident, _kilobytes(status, "VmHWM") * 1024)
            self.memory.own = max(self.memory.own, own * 1024)


def family(pid: int) -> Iterable[int]:
    """Yield `pid` and all its living descendants."""
    yield pid
    for child in _read(f"/proc/{pid}/task/{pid}/children").split():
        yield from family(int(child))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of `pid` and its descendants, ended ones too; 0 where unknown."""
    ticks = 0
    for one in family(pid):
        fields = _read(f"/proc/{one}/stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _kilobytes(status: str, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def run_timed(command: Sequence[str | os.PathLike[str]], **options: Any) -> tuple[float, Usage, int]:
    """Run a command to its end, its output thrown away; returns seconds, usage, exit code."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = Watched(command, **options)
    code = child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    child.memory.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - child.began, child.memory, code


def median(values: Iterable[float]) -> float:
    """Return the median; NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return `median (least to most, count)`."""
    if not values:
        return "nothing measured"
    least, most = min(values), max(values)
    return f"{median(values):.{digits}f} ({least:.{digits}f} to {most:.{digits}f}, {len(values)})"


def gigabytes(size: float) -> str:
    """Return bytes as `1.23 GB`, `-` for none."""
    return f"{size / 1e9:.2f} GB" if size else "-"


def show(
    title: str, rows: Sequence[Mapping[str, object]], facts: Mapping[str, Any], output: Path | None
) -> None:
    """Print a Markdown table and, as one line, everything as JSON; write the JSON to `output` too."""
    print(f"\n## {title}\n")
    if rows:
        columns = list(rows[0])
        print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        for row in rows:
            print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")
    whole = json.dumps({"title": title, "rows": list(rows), **facts}, default=str, ensure_ascii=False)
    print(f"\n{whole}", flush=True)
    if output is not None:
        with open(output, "a", encoding="utf-8") as stream:
            stream.write(whole + "\n")
