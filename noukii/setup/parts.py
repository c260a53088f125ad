"""The parts of an installation: how each stands, where it comes from, how large it is, how it is brought."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from noukii import project
from noukii.driver import kohya_tokenizer
from noukii.setup import environments, git, hub, models, sources, torch_build, transport, upstream
from noukii.setup.download import bytes_there
from noukii.setup.models import State
from noukii.setup.options import SetupOptions


@dataclass(frozen=True)
class Part:
    """One thing that setup.sh brings. `size`: bytes it takes; `largest`: its largest file, 0 if not known."""

    name: str
    title: str
    state: State
    origin: str
    target: Path
    size: int
    bring: Callable[[], None]
    largest: int = 0
    source_problem: str = ""
    """Why it cannot be brought from where it was to come, if that can be known"""
    begun: int = 0
    """Bytes of it that an interrupted run has left"""
    python: Path | None = None
    """For an environment: its interpreter"""


def parts(options: SetupOptions) -> list[Part]:
    """Return what `options` ask for, in the order of installation."""
    wanted = [_environment(options)]
    if options.janus_wanted:
        wanted.append(_janus(options))
    if options.base_model_wanted:
        wanted.append(_base_model(options))
    if options.kohya_wanted:
        wanted += [_upstream(options), _tokenizer(), _kohya_environment(options)]
    return wanted


def _environment(options: SetupOptions) -> Part:
    return Part(
        "environment",
        "Python environment",
        environments.main_state(options),
        _packages_from(options, "requirements.txt"),
        environments.main_python() if os.environ.get("NOUKII_PYTHON") else environments.main_venv(),
        _environment_size(options, "main"),
        lambda: environments.bring_main(options),
        source_problem=_wheels_problem(options),
        python=environments.main_python(),
    )


def _packages_from(options: SetupOptions, requirements: str) -> str:
    where = (
        str(options.wheels) if options.wheels else transport.shown(options.index_url) or "the package index"
    )
    return f"{where} ({requirements})"


def _wheels_problem(options: SetupOptions) -> str:
    if options.wheels and not options.wheels.is_dir():
        return f"{options.wheels} is not there"
    return ""


def _environment_size(options: SetupOptions, which: str) -> int:
    if options.wheels:  # unpacked they take about twice their size
        kept = options.wheels.glob("*") if options.wheels.is_dir() else ()
        return 2 * sum(file.stat().st_size for file in kept)
    name = "requirements.txt" if which == "main" else environments.KOHYA_REQUIREMENTS
    if not environments.needs_torch(project.CHECKOUT / name):
        return 0
    return sources.ENVIRONMENT_SIZES[which, torch_build.here().kind]


def _janus(options: SetupOptions) -> Part:
    model, origin = models.janus_model(options), models.janus_origin(options)
    size, largest, problem = model.size, model.size * 2 // 3, ""
    if options.janus not in sources.JANUS:
        size = largest = 0
        problem = models.janus_problem(Path(options.janus))
    elif not models.janus_from_hub(options):
        folder = transport.local_path(origin)
        files = (
            [file.stat().st_size for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
        )
        size, largest = sum(files), max(files, default=0)
        problem = models.janus_problem(folder) if folder.is_dir() else f"{folder} is not there"
    return Part(
        "janus",
        model.name,
        models.janus_state(options),
        f"{hub.endpoint()} {origin}" if models.janus_from_hub(options) else origin,
        models.janus_folder(options),
        size,
        lambda: models.bring_janus(options),
        largest,
        problem,
        models.janus_begun(options),
    )


def _base_model(options: SetupOptions) -> Part:
    origin, size = models.base_model_origin(options), models.base_model_size(options)
    problem = ""
    if options.base_model:
        problem = models.base_model_problem(options.base_model)
    elif not transport.is_remote(origin):
        problem = transport.local_problem(transport.local_path(origin))
    return Part(
        "base model",
        "Stable Diffusion 1.5",
        models.base_model_state(options),
        transport.shown(origin),
        models.base_model_path(),
        max(0, size),
        lambda: models.bring_base_model(options),
        max(0, size),
        problem,
        bytes_there(models.base_model_path()),
    )


def _upstream(options: SetupOptions) -> Part:
    problems = [
        f"{source} is not there"
        for source in (options.kohya_source, options.sd_scripts_source)
        if source.startswith("/") and not Path(source).exists()
    ]
    return Part(
        "kohya_ss",
        "kohya_ss with sd-scripts",
        upstream.state(options),
        f"{git.shown(options.kohya_source)} {options.kohya_commit[:8]}, "
        f"{git.shown(options.sd_scripts_source)} {options.sd_scripts_commit[:8]}",
        project.kohya(),
        sources.UPSTREAM_SIZE,
        lambda: upstream.bring(options),
        source_problem="; ".join(problems),
    )


def _tokenizer() -> Part:
    return Part(
        "tokenizer",
        "CLIP tokenizer for kohya",
        upstream.tokenizer_state(),
        "noukii/assets/clip_vocab",
        kohya_tokenizer.folder(),
        2_000_000,
        kohya_tokenizer.provide,
    )


def _kohya_environment(options: SetupOptions) -> Part:
    return Part(
        "kohya environment",
        "kohya's Python environment",
        environments.kohya_state(options),
        _packages_from(options, environments.KOHYA_REQUIREMENTS),
        environments.kohya_venv(),
        _environment_size(options, "kohya"),
        lambda: environments.bring_kohya(options),
        source_problem=_wheels_problem(options),
        python=environments.kohya_venv() / "bin" / "python",
    )
