"""Where everything comes from, pinned. Sizes are bytes, for the disk check and the plan.

The pins were looked up in public sources, since the project's own machine has no network: Janus' revisions
and SD1.5's revision, size and SHA-256 are quoted alike by many independent projects. Janus' file
hashes are not pinned here: the Hub gives them for the pinned revision, and each file is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class HubModel:
    """A model repository on the Hub at one revision."""

    name: str
    repo: str
    revision: str
    size: int


JANUS = {
    "1B": HubModel(
        "Janus-Pro-1B", "deepseek-ai/Janus-Pro-1B", "960ab33191f61342a4c60ae74d8dc356a39fafcb", 4_190_000_000
    ),
    "7B": HubModel(
        "Janus-Pro-7B", "deepseek-ai/Janus-Pro-7B", "5c3eb3fb2a3b61094328465ba61fcd4272090d67", 14_850_000_000
    ),
}

BASE_MODEL_NAME = "v1-5-pruned-emaonly.safetensors"
BASE_MODEL_PATH = (
    "stable-diffusion-v1-5/stable-diffusion-v1-5/resolve/451f4fe16113bff5a5d2269ed5ad43b0592e9a14/"
    + BASE_MODEL_NAME
)
BASE_MODEL_SIZE = 4_265_146_304
BASE_MODEL_SHA256 = "6ce0161689b3853acaa03779ec93eafe75a02f4ced659bee03f50797806fa2fa"

KOHYA_URL = "https://github.com/bmaltais/kohya_ss.git"
KOHYA_COMMIT = "486c00f065b0f69d19a9f92575785bdbbbd3f651"
"""Release v26.0.0."""
SD_SCRIPTS_URL = "https://github.com/kohya-ss/sd-scripts.git"
SD_SCRIPTS_COMMIT = "48d368fa557731ad0488c07304dfeba8c07910eb"
"""The trainer that noukii was compared with; v26.0.0 of kohya_ss names a later one (6721028c)."""
UPSTREAM_SIZE = 40_000_000
"""Both at one commit, without their history, checked out."""

ENVIRONMENT_SIZES = {
    ("main", "cpu"): 1_700_000_000,
    ("main", "cuda12"): 6_500_000_000,
    ("main", "cuda13"): 6_500_000_000,
    ("kohya", "cpu"): 2_000_000_000,
    ("kohya", "cuda12"): 6_000_000_000,
    ("kohya", "cuda13"): 6_000_000_000,
}
"""On disk. Measured with Python 3.11 on x86_64: main, cpu and kohya, cuda13; the others by torch's size."""
