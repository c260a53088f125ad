"""How noukii grows: start-up, dry run of many photographs, captioning and staging up to 10,000 images.

    .venv/bin/python benchmarks/scale.py [start] [dry-run] [captioning] [staging] [--counts 100,1000,10000]

start       --help and a usage error of both commands against Python's own start, seconds and their difference
dry-run     the plan of 1,000 photographs of 2 megapixels: seconds, peak memory
captioning  a tiny random Janus, small images, 4 tokens each; then a second run, with nothing to do
staging     run_training.sh's training copies, as the driver makes them

Linear means that the seconds per image stay the same from the smallest count to the largest; flat, that the
memory does. Everything goes to a folder of its own (--work), which is kept for the next run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from benchmarks import measuring, models  # noqa: E402

STAGE = """
import sys
from pathlib import Path
from noukii.dataset.folders import find_data_sets
from noukii.dataset.plan import make_plan
from noukii.dataset.staging import stage
sets, ignored = find_data_sets([(Path(sys.argv[1]), 1)], [])
stage(make_plan(sets, ignored, resolution=512, batch_size=4, steps=1, epochs=None))
"""


def environment(home: Path) -> dict[str, str]:
    """Return the environment in which our commands run here, without asking for a virtual environment."""
    return {**os.environ, "NOUKII_HOME": str(home), "NOUKII_PYTHON": sys.executable}


def measure_start(work: Path, rounds: int) -> list[dict[str, object]]:
    """Time Python alone, then our commands, in turns."""
    env = environment(work / "home")
    commands: dict[str, Sequence[str]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "run_training.sh --help": [str(CHECKOUT / "run_training.sh"), "--help"],
        "run_training.sh --no-such-flag": [str(CHECKOUT / "run_training.sh"), "--no-such-flag"],
        "run_captioning.sh --help": [str(CHECKOUT / "run_captioning.sh"), "--help"],
        "run_captioning.sh no-such-folder abc": [
            str(CHECKOUT / "run_captioning.sh"),
            "no-such-folder",
            "abc",
        ],
        "setup.sh --help": [str(CHECKOUT / "setup.sh"), "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    memory: dict[str, int] = {}
    codes: dict[str, int] = {}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds, peak, codes[name] = measuring.run_timed(command, env=env, cwd=work)
            times[name].append(seconds)
            memory[name] = max(memory.get(name, 0), peak.resident)
    alone = measuring.median(times["python -c pass"])
    return [
        {
            "command": name,
            "exit": codes[name],
            "seconds": measuring.spread(each, 3),
            "beyond Python": f"{measuring.median(each) - alone:.3f}",
            "resident": measuring.gigabytes(memory[name]),
        }
        for name, each in times.items()
    ]


def measure_dry_run(work: Path, rounds: int, count: int = 1000) -> list[dict[str, object]]:
    """Plan a run on few and on many photographs of 2 megapixels; the memory must not grow with them."""
    rows: list[dict[str, object]] = []
    for number in (count // 10, count):
        folder = work / f"photos_{number}" / "10_photo"
        models.photographs(folder, number, 1632, 1224)
        command = [str(CHECKOUT / "run_training.sh"), "--dry-run", "--dataset", str(folder)]
        found = [
            measuring.run_timed(command, env=environment(work / "home"), cwd=work) for _ in range(rounds)
        ]
        rows.append(_row(number, found))
    return rows


def measure_captioning(work: Path, counts: Sequence[int]) -> list[dict[str, object]]:
    """Caption folders of growing size with a model of toy dimensions, then once more (nothing to do)."""
    from tiny_janus import make_tiny_janus

    model = work / "tiny_janus"
    if not (model / "pytorch_model.bin").exists():
        make_tiny_janus(model)
    rows: list[dict[str, object]] = []
    for count in counts:
        folder, output = work / f"small_{count}", work / f"captioned_{count}"
        models.photographs(folder, count, 128, 96)
        shutil.rmtree(output, ignore_errors=True)
        command = [
            str(CHECKOUT / "run_captioning.sh"), str(folder), "abc", "--output", str(output),
            "--model", str(model), "--max-new-tokens", "4", "--temperature", "0", "--device", "cpu",
        ]  # fmt: skip
        for name in ("", "second run"):
            rows.append({"what": name, **_row(count, [_checked(command, environment(work / "home"), work)])})
        shutil.rmtree(output)
    return rows


def measure_staging(work: Path, counts: Sequence[int]) -> list[dict[str, object]]:
    """Copy folders of growing size for the trainer."""
    rows: list[dict[str, object]] = []
    for count in counts:
        folder = work / f"small_{count}"
        models.photographs(folder, count, 128, 96)
        env = {**environment(work / "home"), "PYTHONPATH": str(CHECKOUT)}
        command = [sys.executable, "-c", STAGE, str(folder)]
        for name in ("", "second run"):
            rows.append({"what": name, **_row(count, [_checked(command, env, work)])})
        shutil.rmtree(work / "home", ignore_errors=True)
    return rows


def _checked(command: Sequence[str], env: dict[str, str], work: Path) -> tuple[float, measuring.Usage, int]:
    with open(work / "last.log", "wb") as log:
        found = measuring.run_timed(command, env=env, cwd=work, stdout=log, stderr=log)
    if found[2]:
        raise SystemExit(f"{command} ended with {found[2]}: see {work / 'last.log'}")
    return found


def _row(count: int, found: Sequence[tuple[float, measuring.Usage, int]]) -> dict[str, object]:
    seconds = [each[0] for each in found]
    return {
        "images": count,
        "seconds": measuring.spread(seconds, 1),
        "ms per image": f"{1000 * measuring.median(seconds) / count:.1f}",
        "CPU ms per image": f"{1000 * measuring.median(one[1].cpu_seconds for one in found) / count:.1f}",
        "own memory": f"{max(each[1].own for each in found) / 1e6:.0f} MB",
        "resident": f"{max(each[1].resident for each in found) / 1e6:.0f} MB",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="default: all")
    parser.add_argument("--counts", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=measuring.CACHE / "scale")
    parser.add_argument("--output", type=Path, help="append the JSON to this file")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    counts = [int(word) for word in args.counts.split(",")]
    parts: dict[str, tuple[str, Callable[[], list[dict[str, object]]]]] = {
        "start": ("Start", lambda: measure_start(work, args.rounds)),
        "dry-run": (
            "Dry run, photographs of 2 megapixels",
            lambda: measure_dry_run(work, min(3, args.rounds)),
        ),
        "captioning": ("Captioning, tiny model", lambda: measure_captioning(work, counts)),
        "staging": ("Staging", lambda: measure_staging(work, counts)),
    }
    unknown = [name for name in args.parts if name not in parts]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(parts)}")
    facts: dict[str, Any] = measuring.machine()
    for name in args.parts or parts:
        title, measure = parts[name]
        measuring.show(title, measure(), facts, args.output)


if __name__ == "__main__":
    main()
