"""What stands in ./setup.sh's way: odd values, stops, links, the user's settings, what is there already."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import setup_stand_ins as stand_ins
from setup_stand_ins import BASE_MODEL, git, site, tree
from test_setup import (  # noqa: F401 - fixtures
    MODEL,
    SHA256,
    Setup,
    checkout,
    environment,
    good,
    setup,
    sources,
    start,
    wait_for,
)

from noukii import project
from noukii.errors import InputError, RunError
from noukii.setup import options, transport
from noukii.setup.download import Wanted, fetch


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)
    return folder / name


def path_with(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


# --- values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-model", ""], "--base-model: needs a value"),
        (["--offline", ""], "--offline: needs a value"),
        (["--kohya-source="], "--kohya-source: needs a value"),
        (["--base-model", "~no-such-user/x"], "it is not there"),
        (["--base-model", "x" * 300], "--base-model: "),
        (["--offline", "x" * 300], "--offline: "),
        (["--janus", "x" * 300], "neither 1B nor 7B"),
        (["--base-model-source", "ftp://host/x"], "is no address"),
        (["--base-model-source", "http://[bad"], "not a valid address"),
        (["--base-model-source", "https://host:99999/x"], "not a valid address"),
        (["--base-model-source", "https://a b/c"], "not a valid address"),
        (["--base-model-source", "https://"], "not a valid address"),
        (["--kohya-source", "https://[bad"], "not a valid address"),
        (["--sd-scripts-source", "http://"], "not a valid address"),
        (["--index-url", "nonsense"], "no such folder"),
        (["--torch-index", "ftp://x"], "is no address"),
        (["--janus-source", "nonsense"], "neither a model on the Hub nor a folder"),
        (["--janus-source", "a/b@"], "neither a model on the Hub nor a folder"),
        (["--janus-source", "https://host/x"], "is no address"),
        (["--wheels", "nowhere"], "--wheels: there is no such folder"),
        (["--no-models", "--janus", "7B"], "exclude each other"),
        (["--no-models", "--base-model", "x"], "exclude each other"),
        (["--captioning-only", "--base-model", "x"], "exclude each other"),
        (["--training-only", "--janus", "1B"], "exclude each other"),
        (["NOUKII_INSTALLER=conda"], "choose from auto, uv, pip"),
        (["NOUKII_WHEELS=/no where"], "NOUKII_WHEELS: there is no such folder"),
        (["NOUKII_KOHYA_SOURCE=http://u:secret@[bad"], "NOUKII_KOHYA_SOURCE http://…@[bad: is not a valid"),
        (["NOUKII_KOHYA_COMMIT=-x"], "names no commit"),
        (["NOUKII_BASE_MODEL_SHA256=xyz"], "64 hex digits"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_and_refused(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, given, value = arguments[0].partition("=")
    if given and name.startswith("NOUKII_"):
        monkeypatch.setenv(name, value)
        arguments = []
    with pytest.raises(InputError) as refused:
        options.parse(arguments)
    assert words in str(refused.value) and "next: " in str(refused.value)


def test_paths_are_understood_as_a_shell_user_means_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("NOUKII_")]:
        monkeypatch.delenv(name)
    (tmp_path / "off" / "kohya_ss").mkdir(parents=True)
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = options.parse(["--offline", "~/off", "--base-model-source", "m:n.safetensors"])
    assert found.offline == tmp_path / "off" and found.kohya_source == str(tmp_path / "off" / "kohya_ss")
    assert found.base_model_source == str(tmp_path / "m:n.safetensors")
    found = options.parse(
        ["--janus-source", "~/off", "--kohya-source", "git@host:a/b", "--sd-scripts-source", "a:b"]
    )
    assert found.janus_source == str(tmp_path / "off")
    assert (found.kohya_source, found.sd_scripts_source) == ("git@host:a/b", str(tmp_path / "a:b"))
    assert options.parse(["--index-url", "HTTPS://Host/x"]).index_url == "https://Host/x"
    monkeypatch.setenv("NOUKII_INSTALLER", "pip")
    assert options.parse([]).installer == "pip" and options.parse(["--uv"]).installer == "uv"
    monkeypatch.setenv("NOUKII_HOME", "~no-such-user/x")
    assert project.home().name == "x"


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("socks5://user:secret@127.0.0.1:1080", "is not an HTTP proxy"),
        ("http://[bad", "is not a valid address"),
        ("http://host:99999", "is not a valid address"),
        ("http://127.0.0.1:1", ""),
        ("127.0.0.1:1", ""),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    proxy: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    if not words:
        transport.check_proxy("https://somewhere/x")
        return
    with pytest.raises(RunError) as refused:
        transport.check_proxy("https://somewhere/x")
    assert words in str(refused.value) and "https_proxy" in str(refused.value)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("no_proxy", "somewhere")
    transport.check_proxy("https://somewhere/x")


# --- downloads


def test_a_mirror_with_a_password_gets_it_and_nobody_reads_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    with site(tmp_path) as server:
        url = server.address.replace("http://", "http://me:a%20secret@") + "/file"
        assert fetch(Wanted(url, tmp_path / "there")).size == 100
        assert server.passwords == ["Basic bWU6YSBzZWNyZXQ="]
        with pytest.raises(RunError) as failed:
            fetch(Wanted(url + "-gone", tmp_path / "other"))
    assert "secret" not in str(failed.value) + "".join(capfd.readouterr())


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_download_killed_after_its_last_byte_is_not_begun_again(tmp_path: Path, spoilt: bool) -> None:
    data = os.urandom(200_000)
    (tmp_path / "file").write_bytes(data)
    target = tmp_path / "there"
    with site(tmp_path) as server:
        wanted = Wanted(f"{server.address}/file", target, -1, hashlib.sha256(data).hexdigest())
        server.stop_after = 150_000
        with pytest.raises(KeyboardInterrupt):
            fetch(wanted, sleep=lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        server.stop_after = -1
        part = target.with_name("there.part")
        part.write_bytes(bytes(200_000) if spoilt else data)
        server.asked.clear()
        fetch(wanted)
    assert target.read_bytes() == data
    assert [asked for _, asked in server.asked] == ["bytes=200000-", *([""] if spoilt else [])]


def test_what_is_no_whole_model_is_refused_before_anything_is_begun(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    shutil.copytree(sources / "Janus-Pro-1B", tmp_path / "half")
    with open(tmp_path / "half" / "pytorch_model.bin", "rb+") as stream:
        stream.truncate(1000)
    before = tree(checkout)
    for flags, words in (
        (["--training-only", "--base-model-source", tmp_path / "pipe"], "pipe is no file"),
        (["--training-only", "--base-model-source", tmp_path], "is no file"),
        (["--captioning-only", "--janus", tmp_path / "half"], "cut off"),
        (["--captioning-only", "--janus-source", tmp_path / "half"], "cut off"),
    ):
        refused = setup(*flags, "--no-kohya")
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
    assert tree(checkout) == before


def test_a_source_whose_name_is_not_utf8(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        shutil.copytree(sources / "Janus-Pro-1B", folder)
    except OSError:
        pytest.skip("this disk takes UTF-8 names alone")
    good(setup("--captioning-only", "--janus-source", folder))
    checked = good(setup("--check", "--captioning-only"))
    assert f"from {tmp_path}/\\xff" in checked.stdout


# --- stops


def test_a_stopped_installation_leaves_no_program_behind_and_is_finished_later(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Stopped while the environment is half made: by kill -9, then by kill."""
    pids = tmp_path / "pids"
    python = program(
        tmp_path / "shim",
        "python",
        f'if [[ "$*" != "-m venv -- "* ]]; then exec "{sys.executable}" "$@"; fi\n'
        'touch "$4/pyvenv.cfg"; mkdir "$4/bin"\n'
        f'sleep 600 & echo "$PPID $$ $!" >"{pids}.new"; mv "{pids}.new" "{pids}"; wait',
    )
    arguments = ["--training-only", "--no-models", "--offline", sources]

    process = start(checkout, *arguments, NOUKII_BASE_PYTHON=str(python))
    wait_for(pids.exists, process)
    process.kill()
    process.wait()
    beside = setup(*arguments)  # it would write into the same environment
    assert beside.returncode == 2 and "in this folder" in beside.stderr and "kill " in beside.stderr
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    wait_until_gone(pids)

    pids.unlink()
    process = start(checkout, *arguments, NOUKII_BASE_PYTHON=str(python))
    wait_for(pids.exists, process)
    process.terminate()
    said = process.communicate()[0]
    assert process.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
    wait_until_gone(pids)

    good(setup(*arguments))
    assert (checkout / "kohya_ss/venv/bin/accelerate").exists()
    assert not list((checkout / "kohya_ss").glob("*set-aside*"))  # what was half made was known as ours


def wait_until_gone(pids: Path) -> None:
    """The processes end, or are dead and not yet asked for."""
    for pid in pids.read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        while stat.exists():
            try:
                if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                    break
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.01)


def test_two_at_once_do_not_work_in_one_folder(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
) -> None:
    arguments = ["--training-only", "--no-kohya", "--base-model-source"]
    part = checkout / "kohya_ss" / "models" / f"{BASE_MODEL}.part"
    with site(sources) as server:
        server.stall_after = 1_000_000
        first = start(checkout, *arguments, f"{server.address}/{BASE_MODEL}")
        wait_for(lambda: part.exists() and part.stat().st_size >= 1_000_000, first)
        second = setup(*arguments, sources / BASE_MODEL)
        assert second.returncode == 2 and f"process {first.pid} (./setup.sh)" in second.stderr
        server.go_on.set()
        assert first.wait() == 0
        first.communicate()
    assert (checkout / "kohya_ss" / "models" / BASE_MODEL).read_bytes() == MODEL


# --- what is there


def test_check_and_dry_run_change_nothing_at_all(checkout: Path, tmp_path: Path) -> None:  # noqa: F811
    """Not even compiled Python, and no Python is fetched by a uv that could."""

    def everything() -> list[str]:
        return sorted(f"{path} {path.lstat().st_mtime_ns}" for path in checkout.rglob("*"))

    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "readlink", "cksum", "cat"):
        (tools / name).symlink_to(shutil.which(name) or "")
    program(tools, "uv", f'echo "$*" >>"{tmp_path}/asked"; [[ $1 == --version ]]')
    before = everything()
    for flag in ("--check", "--dry-run", "--help"):
        done = subprocess.run(
            [checkout / "setup.sh", flag],
            env=environment(PYTHONDONTWRITEBYTECODE="", NOUKII_PYTHON="", NOUKII_INSTALLER=""),
            capture_output=True,
            text=True,
        )
        assert done.returncode == (1 if flag == "--check" else 0), done.stderr
        without = subprocess.run(
            [checkout / "setup.sh", flag],
            env={"PATH": str(tools)},
            capture_output=True,
            text=True,
        )
        assert without.returncode == 1 and "no Python 3.10" in without.stderr
        if flag != "--help":
            assert everything() == before
    assert set((tmp_path / "asked").read_text().splitlines()) == {"--version"}


def test_an_environment_that_is_not_ours_and_settings_of_the_user_s(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "notes.txt").write_text("mine")
    program(tmp_path / "bin", "uv", '[[ $1 == --version ]] || { echo "this uv is broken"; exit 2; }')
    program(tmp_path / "bin", "nvidia-smi", f'echo asked >>"{tmp_path}/asked"; exit 9')
    arguments = ["--no-models", "--no-kohya", "--offline", sources]
    theirs = {"PIP_TARGET": str(tmp_path / "elsewhere"), "PIP_PREFIX": "/nowhere", "PYTHONHOME": "/nowhere"}
    theirs |= {"NOUKII_PYTHON": "", "PATH": path_with(tmp_path / "bin")}
    good(setup(*arguments, **theirs))
    assert (checkout / ".venv.set-aside-1" / "notes.txt").read_text() == "mine"
    packages = next((checkout / ".venv").glob("lib/python3*/site-packages"))
    assert (packages / "tinypackage.py").exists() and not (tmp_path / "elsewhere").exists()

    for gone in packages.glob("tinypackage*"):
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    (tmp_path / "asked").unlink()
    checked = setup("--check", *arguments, **theirs)
    assert checked.returncode == 1 and "tinypackage of requirements.txt is missing" in checked.stdout
    assert (tmp_path / "asked").read_text() == "asked\n"  # the driver, once
    good(setup(*arguments, **theirs))
    assert (packages / "tinypackage.py").exists()


def test_a_file_where_an_environment_belongs_is_renamed(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
) -> None:
    (checkout / ".venv").write_text("mine")
    arguments = ["--no-models", "--no-kohya", "--offline", sources]
    failed = setup(*arguments, NOUKII_PYTHON="", NOUKII_BASE_PYTHON="/bin/false")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert (checkout / ".venv").read_text() == "mine"  # nothing is moved before it is known to go on
    bad = program(
        checkout.parent / "bin", "python", f'[[ $2 != venv ]] && exec "{sys.executable}" "$@"; exit 1'
    )
    setup(*arguments, NOUKII_PYTHON="", NOUKII_BASE_PYTHON=str(bad))
    assert (checkout / ".venv.set-aside-1").read_text() == "mine" and (checkout / ".venv").is_dir()


def test_folders_that_are_links_to_another_disk(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == checkout.stat().st_dev:
        pytest.skip("there is no second disk")
    other = memory / f"noukii-test-{os.getpid()}"
    try:
        for name in ("models", "dataset"):
            (other / name).mkdir(parents=True)
            (checkout / "kohya_ss" / name).symlink_to(other / name)
        (other / "models" / ".keep").write_text("mine")
        arguments = ["--training-only", "--no-models", "--offline", sources]
        failed = setup(*arguments, NOUKII_BASE_PYTHON="/bin/false")  # this is not about the environment
        assert "step 4 of 4, kohya's Python environment" in failed.stderr, failed.stderr
        kohya = checkout / "kohya_ss"
        assert (kohya / "sd-scripts" / "train_network.py").is_file() and not (kohya / ".noukii-part").exists()
        assert (other / "dataset" / "images" / ".gitkeep").is_file()
        assert (other / "models" / ".keep").read_text() == "mine"
        assert git(kohya, "status", "--porcelain", "--ignored=no") == ""
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_links_to_a_disk_that_is_not_there_now(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    (checkout / "models").symlink_to(gone)
    refused = setup("--captioning-only", "--offline", sources)
    assert refused.returncode == 2 and f"is a link to {gone}, which is not there" in refused.stderr
    model = checkout / "kohya_ss" / "models" / BASE_MODEL
    model.parent.mkdir()
    model.symlink_to(gone)
    good(setup("--training-only", "--no-kohya", "--offline", sources))
    assert model.read_bytes() == MODEL and not model.is_symlink()
    assert os.readlink(f"{model}.set-aside-1") == str(gone)  # the user's link is renamed, not lost


# --- git


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('echo "no developer tools were found" >&2; exit 1', "git: does not start (no developer tools"),
        ('[[ $1 == --version ]] && exit; echo "Unknown option: -C" >&2; exit 129', "Unknown option: -C"),
        (
            '[[ $1 == --version ]] && exit; printf "fatal: not a Proxy\\n\\nPlease\\ncheck\\n" >&2; exit 128',
            "git init failed: fatal: not a Proxy",
        ),
    ],
)
def test_a_git_that_does_not_work_says_what_it_says(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
    answer: str,
    words: str,
) -> None:
    program(tmp_path / "bin", "git", answer)
    arguments = ["--training-only", "--no-models", "--offline", sources]
    failed = setup(*arguments, PATH=path_with(tmp_path / "bin"))
    assert failed.returncode in (1, 2) and words in failed.stderr and "Traceback" not in failed.stderr


def test_the_user_s_git_settings_do_not_reach_ours(
    setup: Setup,  # noqa: F811
    checkout: Path,  # noqa: F811
    sources: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[submodule]\n recurse = true\n[fetch]\n recurseSubmodules = true\n[init]\n templateDir = /no/where\n"
        "[core]\n hooksPath = /no/hooks\n autocrlf = true\n"
    )
    arguments = ["--training-only", "--no-models", "--offline", sources]
    failed = setup(
        *arguments,
        GIT_CONFIG_GLOBAL=str(settings),
        GIT_DIR="/no/repository",
        GIT_DEFAULT_HASH="sha256",
        NOUKII_BASE_PYTHON="/bin/false",
    )
    assert "step 4 of 4, kohya's Python environment" in failed.stderr, failed.stderr
    scripts = checkout / "kohya_ss" / "sd-scripts"
    assert git(scripts, "rev-parse", "HEAD") == git(sources / "sd-scripts.git", "rev-parse", "main")
    assert b"\r" not in (scripts / "train_network.py").read_bytes()


def test_what_the_readme_shows_of_a_fresh_clone_is_what_is_said_there(
    checkout: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The lines about this machine aside: its card, its free disk."""
    for name in ("requirements.txt", "requirements-kohya.txt"):
        shutil.copy(stand_ins.CHECKOUT / name, checkout)
    program(tmp_path / "bin", "nvidia-smi", "exit 9")
    shown = (stand_ins.CHECKOUT / "README.md").read_text(encoding="utf-8").split("```")
    for flag, first in (("--check", "\nMISSING "), ("--dry-run", "\nnothing is changed")):
        said = subprocess.run(
            [checkout / "setup.sh", flag],
            cwd=checkout,
            env={
                key: value
                for key, value in environment(NOUKII_PYTHON="", PATH=path_with(tmp_path / "bin")).items()
                if not key.startswith("NOUKII_")
            },
            capture_output=True,
            text=True,
        ).stdout
        (block,) = [block for block in shown if block.startswith(first)]
        assert about_every_machine(block) == about_every_machine(said)


def about_every_machine(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if "torch" not in line and " are free" not in line]
