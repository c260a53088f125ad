"""git, run without prompts and without what the user's own repository has set, its faults in plain words."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from noukii.errors import RunError
from noukii.names import printable
from noukii.setup import child
from noukii.setup.transport import proxy_words, shown

NO_GIT = "install git (sudo apt install git, or xcode-select --install), or leave kohya out with --no-kohya"

LOCAL = (
    *("GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_DEFAULT_HASH", "GIT_TEMPLATE_DIR", "GIT_TRACE"),
)
"""Variables that would lead git to another repository, or to another kind of one."""
OURS = tuple(
    word
    for setting in (
        *("advice.detachedHead=false", "core.autocrlf=false", "core.hooksPath=/dev/null"),
        *("submodule.recurse=false", "fetch.recurseSubmodules=false", "init.templateDir="),
    )
    for word in ("-c", setting)
)


def problem() -> str:
    """Say why git cannot be used; empty if it can. macOS has one that only offers an installation."""
    try:
        done = subprocess.run(
            ["git", "--version"], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError:
        return "is not installed"
    if done.returncode:
        return f"does not start ({printable((done.stderr or done.stdout).strip()[-200:])})"
    return ""


def run(folder: Path, *arguments: str, source: str = "") -> str:
    """Run git in `folder` and return what it printed; `source` is the repository that a message is to name.

    Raises:
        RunError: git is missing or fails.
    """
    clean = {key: value for key, value in os.environ.items() if key not in LOCAL}
    clean |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C", "GIT_LFS_SKIP_SMUDGE": "1"}
    try:
        done = child.run(
            ["git", *OURS, "-c", f"safe.directory={folder}", "-C", os.fspath(folder), *arguments],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise RunError("git", "is not installed", NO_GIT) from None
    if done.returncode:
        where = shown(source) if source else printable(folder)
        raise RunError(where, *_in_words(done.stderr.strip(), arguments))
    return done.stdout.strip()


def _in_words(said: str, arguments: tuple[str, ...]) -> tuple[str, str]:
    """Return the reason and the next step for what git printed."""
    lines = [line for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(fatal|error|ssh|remote|kex_\w+):", line)]
    last = printable(" / ".join((telling or lines)[-3:])) or "git failed without a word"
    network = "check the network, or name a mirror with --kohya-source and --sd-scripts-source"
    if re.search(r"No space left|Disk quota|File too large|[Ww]rite error|unable to write", said):
        return f"the disk is full ({last})", "make room there"
    if re.search(r"Could not resolve host|Temporary failure in name resolution", said):
        return f"there is no network, or no name service ({last})", network
    if re.search(
        r"resolve proxy|HTTP code 407|response 407|Unsupported proxy|Proxy CONNECT|CONNECT tunnel failed",
        said,
    ):
        return f"{proxy_words()} does not let git through ({last})", "correct https_proxy or git's http.proxy"
    if re.search(
        r"does not exist|not found|does not appear to be a git repository|unable to find remote", said
    ):
        return f"there is no such repository ({last})", "correct --kohya-source or --sd-scripts-source"
    if "dubious ownership" in said:
        step = "chown it to yourself, or: git config --global --add safe.directory FOLDER"
        return f"belongs to another user, and git does not read it then ({last})", step
    if re.search(r"repository corruption|bad object|missing blob", said):
        return f"the repository there is damaged ({last})", "name another source for it"
    if re.search(r"Failed to connect|Connection (refused|timed out)|early EOF|unexpected disconnect", said):
        return f"the connection failed ({last})", network
    if "would be overwritten by checkout" in said:
        return f"holds changes of yours ({last})", "commit or move them, then run it again"
    return f"git {arguments[0]} failed: {last}", "the words above say why"
