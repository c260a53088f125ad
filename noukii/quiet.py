"""Libraries kept quiet and off the network, so that our own messages are seen (R9)."""

from __future__ import annotations

import os
import warnings


def prepare_libraries() -> None:
    """Call before the first import of torch, transformers or diffusers in a process."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        os.environ[name] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module=r"(transformers|diffusers|accelerate|torch)\b.*"
    )
    warnings.filterwarnings("ignore", category=DeprecationWarning)
