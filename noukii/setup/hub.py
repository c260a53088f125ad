"""What a model repository on the Hub holds at one revision, asked with huggingface_hub.

Only the list comes from the library; the files are fetched by download.py, because huggingface_hub 2.4
begins a file from the start again when its process was ended (a new temporary name for each attempt).
"""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from noukii.errors import RunError
from noukii.setup import addresses, sources
from noukii.setup.transport import PROXY_STEP, check_proxy, proxy_words, shown

USEFUL = ("*.json", "*.bin", "*.safetensors", "*.model", "*.txt", "LICENSE*", "README.md")
"""No code (R9), no pictures."""


@dataclass(frozen=True)
class HubFile:
    """One file of a repository; `sha256` is empty for the small ones that git itself keeps."""

    name: str
    url: str
    size: int
    sha256: str


def endpoint() -> str:
    """Return the Hub's address; HF_ENDPOINT names a mirror.

    Raises:
        InputError: HF_ENDPOINT is no address.
    """
    named = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    return addresses.url("HF_ENDPOINT", named) if named else sources.HUB


def list_files(repo: str, revision: str) -> tuple[str, list[HubFile]]:
    """Return the commit that `revision` means and the useful files of `repo` there.

    Raises:
        RunError: no network, no such repository or revision.
    """
    for name in ("HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ[name] = "1"
    os.environ.pop("HF_HUB_OFFLINE", None)  # this is the one command that is meant to use the network
    from huggingface_hub import HfApi, hf_hub_url

    where = f"{endpoint()}/{repo}"
    check_proxy(where)
    try:
        info = HfApi(endpoint=endpoint()).model_info(
            repo, revision=revision, files_metadata=True, token=False
        )
    except Exception as error:
        raise _in_words(where, revision, error) from None
    found = []
    for entry in info.siblings or ():
        path = PurePosixPath(entry.rfilename)
        if len(path.parts) != 1 or not any(fnmatch(path.name, pattern) for pattern in USEFUL):
            continue
        url = hf_hub_url(repo, path.name, revision=info.sha, endpoint=endpoint())
        checksum = entry.lfs.sha256 if entry.lfs else ""
        found.append(HubFile(path.name, url, -1 if entry.size is None else entry.size, checksum))
    if not found:
        raise RunError(where, "holds no model files at that revision", "name another with --janus-source")
    return info.sha or revision, sorted(found, key=lambda file: file.size)  # the small ones show faults first


def _in_words(where: str, revision: str, error: Exception) -> RunError:
    """The library's exceptions differ between its versions (requests, httpx); names and status do not."""
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    text = str(error)
    if "RevisionNotFoundError" in names:
        return RunError(where, f"has no revision {revision}", "correct --janus-source owner/name@revision")
    if "GatedRepoError" in names or status in (401, 403, 404):
        return RunError(
            where, f"there is no such open repository ({status})", "name another with --janus-source"
        )
    if "ProxyError" in names or status == 407:
        return RunError(where, f"{proxy_words()} does not let us through", PROXY_STEP)
    if status:
        return RunError(where, f"the Hub answers {status}", "try again later, or set HF_ENDPOINT to a mirror")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return RunError(
            where,
            "its certificate is not trusted",
            "a company's proxy signs connections itself: set SSL_CERT_FILE to its certificate",
        )
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    through = f" through {proxy_words()}" if urllib.request.getproxies() else ""
    return RunError(
        shown(where),
        f"the Hub could not be reached{through}: {reason}",
        "check network and proxy (https_proxy), or set HF_ENDPOINT to a mirror",
    )
