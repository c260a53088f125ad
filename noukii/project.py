"""Where things are: the checkout, and the folder that holds the user's data and results."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
ASSETS = CHECKOUT / "noukii" / "assets"


def home() -> Path:
    """The folder that holds image_datasets/, trained_loras/, kohya_ss/ and models/.

    It is the checkout itself, unless NOUKII_HOME names another (a larger disk, a test).
    """
    named = os.environ.get("NOUKII_HOME")
    return Path(os.path.expanduser(named)).absolute() if named else CHECKOUT


def image_datasets() -> Path:
    """Where data sets named `{repeats}_{keyword}` are looked for."""
    return home() / "image_datasets"


def trained_loras() -> Path:
    """Where finished LoRAs go, one folder each."""
    return home() / "trained_loras"


def kohya() -> Path:
    """Where setup.sh puts the upstream checkout; its dataset/ and models/ are ours in any case."""
    return home() / "kohya_ss"


def staging() -> Path:
    """Where the training copies of the data sets go."""
    return kohya() / "dataset" / "images" / "train"


def cache() -> Path:
    """Latents, text embeddings and file hashes that can be computed again at any time."""
    return home() / ".cache" / "noukii"
