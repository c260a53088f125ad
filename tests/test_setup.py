"""./setup.sh for real, in a copy of the checkout, with a small stand-in of everything that it fetches."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import setup_stand_ins as stand_ins
from setup_stand_ins import BASE_MODEL, git, site, tree

MODEL = random.Random(0).randbytes(3_500_000)
SHA256 = hashlib.sha256(MODEL).hexdigest()
Setup = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What --offline expects, laid out as docs/setup.md says."""
    folder = tmp_path_factory.mktemp("stand-ins") / "offline é dir"
    wheels = folder / "wheels"
    stand_ins.wheel(wheels, "tinypackage", "1.0", {"tinypackage.py": ""})
    stand_ins.wheel(
        wheels, "accelerate", "1.0", {"accelerate.py": "def main(): print('accelerate')\n"}, "accelerate"
    )
    stand_ins.janus(folder / "Janus-Pro-1B")
    (folder / BASE_MODEL).write_bytes(MODEL)
    stand_ins.upstream(folder)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return stand_ins.copy_checkout(tmp_path / "a checkout é it's")


@pytest.fixture
def setup(checkout: Path, sources: Path, tmp_path: Path) -> Setup:
    """Run ./setup.sh of the copy; the pins are those of the stand-ins, NOUKII_PYTHON this interpreter."""

    def run(*arguments: str | Path, limit_blocks: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        limit = f"ulimit -f {limit_blocks}; " if limit_blocks else ""
        return subprocess.run(
            ["bash", "-c", f'{limit}exec "$@"', "sh", checkout / "setup.sh", *map(os.fspath, arguments)],
            cwd=tmp_path,
            env=environment(**extra),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


def environment(**extra: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("NOUKII_", "HF_", "GIT_", "TRANSFORMERS_"))
    }
    kept |= {
        "PIP_NO_INDEX": "1",
        "NOUKII_PYTHON": sys.executable,
        "NOUKII_INSTALLER": "pip",
        "NOUKII_BASE_MODEL_SHA256": SHA256,
        "NOUKII_KOHYA_COMMIT": "main",
        "NOUKII_SD_SCRIPTS_COMMIT": "submodule",
        "NO_PROXY": "127.0.0.1",
        **extra,
    }
    return {key: value for key, value in kept.items() if value}


def start(checkout: Path, *arguments: str | Path, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [checkout / "setup.sh", *arguments],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not what():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def good(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_complete_run_then_a_second_one_that_fetches_nothing(
    setup: Setup, checkout: Path, sources: Path, tmp_path: Path
) -> None:
    before = tree(checkout)
    checked = setup("--check", NOUKII_PYTHON="")
    assert checked.returncode == 1 and checked.stdout.count("MISSING") == 6
    planned = good(setup("--dry-run", "--offline", sources, NOUKII_PYTHON=""))
    assert str(sources / BASE_MODEL) in planned.stdout and "3.5 MB" in planned.stdout
    assert tree(checkout) == before

    first = good(setup("--offline", sources, NOUKII_PYTHON=""))
    assert "[6/6] kohya's Python environment" in first.stdout and "next: ./run_training.sh" in first.stdout
    made = tree(checkout)
    assert (checkout / "kohya_ss" / "models" / BASE_MODEL).read_bytes() == MODEL
    for file in (sources / "Janus-Pro-1B").iterdir():
        assert (checkout / "models" / "Janus-Pro-1B" / file.name).read_bytes() == file.read_bytes()
    said = subprocess.run([checkout / "kohya_ss/venv/bin/accelerate"], capture_output=True, text=True)
    assert said.stdout == "accelerate\n"
    assert not [name for name in made if ".part" in name or ".done" in name or "set-aside" in name]
    assert set(os.listdir(tmp_path)) == {checkout.name}  # nothing beside the project

    empty = tmp_path / "empty"
    empty.mkdir()
    second = good(setup("--offline", empty, NOUKII_PYTHON=""))
    assert "[1/6]" not in second.stdout and tree(checkout) == made
    checked = good(setup("--check", NOUKII_PYTHON=""))
    assert "MISSING" not in checked.stdout and f"SHA-256 {SHA256[:10]}… checked" in checked.stdout

    model = checkout / "models" / "Janus-Pro-1B" / "pytorch_model.bin"
    with open(model, "rb+") as stream:
        stream.truncate(1000)
    (checkout / "kohya_ss" / "requirements").mkdir()
    (checkout / "requirements-kohya.txt").write_text("tinypackage==2.0\naccelerate==1.0\n")
    checked = setup("--check", NOUKII_PYTHON="")
    assert checked.returncode == 1 and "cut off" in checked.stdout
    assert "requirements-kohya.txt is not installed whole" in checked.stdout
    failed = setup("--training-only", "--offline", sources, NOUKII_PYTHON="")
    assert failed.returncode == 1 and "step 5 of 5, kohya's Python environment" in failed.stderr
    assert "then go on with: ./setup.sh --training-only --offline" in failed.stderr
    assert not (checkout / "kohya_ss/venv/bin/accelerate").exists()  # a half environment is not taken for one
    good(setup("--captioning-only", "--offline", sources, NOUKII_PYTHON=""))
    assert model.stat().st_size > 3_000_000 and (checkout / "models" / "Janus-Pro-1B.set-aside-1").is_dir()


def test_a_download_that_is_killed_goes_on_where_it_was(setup: Setup, checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "model file.safetensors").write_bytes(MODEL)
    target = checkout / "kohya_ss" / "models" / BASE_MODEL
    part = target.with_name(target.name + ".part")
    arguments = ["--training-only", "--no-kohya", "--base-model-source"]
    with site(folder) as server:
        server.answers["/gone"] = 404
        url = f"{server.address}/model file.safetensors".replace(" ", "%20")
        (folder / "model%20file.safetensors").write_bytes(MODEL)
        server.stall_after = 2_000_000
        process = start(checkout, *arguments, url)
        wait_for(lambda: part.exists() and part.stat().st_size >= 1_900_000, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        server.go_on.set()
        kept = part.stat().st_size
        assert not target.exists()
        assert "2 MB of it are fetched" in setup("--check", *arguments[:2]).stdout

        server.stall_after, server.stop_after = -1, 900_000  # and the connection breaks on the way
        done = good(setup(*arguments, url))
        assert "going on after 2 MB" in done.stdout
        ranges = [asked for _, asked in server.asked]
        assert ranges[:3] == ["", f"bytes={kept}-", f"bytes={kept + 900_000}-"]
        assert target.read_bytes() == MODEL and not part.exists()

        count = len(server.asked)
        good(setup(*arguments, url))
        assert len(server.asked) == count

        target.unlink()
        gone = setup(*arguments, f"{server.address}/gone")
    assert gone.returncode == 1 and "/gone: is not there (404)" in gone.stderr
    closed = setup(*arguments, server.address + "/x")
    assert closed.returncode == 1 and "127.0.0.1 refuses the connection" in closed.stderr
    assert "step 2 of 2, Stable Diffusion 1.5" in closed.stderr and "Traceback" not in closed.stderr


def test_a_part_of_another_version_of_the_file_is_not_continued(
    setup: Setup, checkout: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    target = checkout / "kohya_ss" / "models" / BASE_MODEL
    with site(folder) as server:
        (folder / "m.safetensors").write_bytes(b"old" * 500_000)
        server.stall_after = 1_000_000
        url = f"{server.address}/m.safetensors"
        process = start(checkout, "--training-only", "--no-kohya", "--base-model-source", url)
        part = target.with_name(target.name + ".part")
        wait_for(lambda: part.exists() and part.stat().st_size >= 1_000_000, process)
        process.kill()
        process.communicate()
        server.stall_after = -1
        (folder / "m.safetensors").write_bytes(MODEL)
        good(setup("--training-only", "--no-kohya", "--base-model-source", url))
    assert target.read_bytes() == MODEL


def test_a_wrong_checksum_is_told_and_leaves_nothing(setup: Setup, checkout: Path, sources: Path) -> None:
    models = checkout / "kohya_ss" / "models"
    arguments = ["--training-only", "--no-kohya", "--offline", sources]
    wrong = setup(*arguments, NOUKII_BASE_MODEL_SHA256="0" * 64)
    assert wrong.returncode == 1 and f"wrong checksum: SHA-256 {SHA256}" in wrong.stderr
    assert os.listdir(models) == []
    pinned = setup(*arguments, NOUKII_BASE_MODEL_SHA256="")  # the published file has another size
    assert pinned.returncode == 1 and "3,500,000 bytes, 4,265,146,304 are expected" in pinned.stderr
    unknown = setup(*arguments, NOUKII_BASE_MODEL_SHA256="any")  # then it must at least be such a model
    assert unknown.returncode == 1 and "next: name another with --base-model-source" in unknown.stderr
    good(setup(*arguments))
    assert (models / BASE_MODEL).read_bytes() == MODEL


def test_a_full_disk_is_told_before_and_on_the_way(
    setup: Setup, checkout: Path, sources: Path, tmp_path: Path
) -> None:
    """`ulimit -f` stands in for the disk: it refuses what goes beyond."""
    arguments = ["--training-only", "--no-kohya"]
    target = checkout / "kohya_ss" / "models" / BASE_MODEL
    early = setup(*arguments, "--offline", sources, limit_blocks=2000)
    assert early.returncode == 2 and "ulimit -f" in early.stderr and not target.parent.exists()
    with site(sources) as server:
        server.chunked = True  # then the size is not known beforehand
        url = f"{server.address}/{BASE_MODEL}"
        late = setup(*arguments, "--base-model-source", url, limit_blocks=2000)
        assert late.returncode == 1 and "larger than is allowed" in late.stderr, late.stderr
        assert "go on with: ./setup.sh" in late.stderr and "Traceback" not in late.stderr
        assert not target.exists()
        good(setup(*arguments, "--base-model-source", url))
    assert target.read_bytes() == MODEL


def test_without_git_it_says_so_before_anything_is_fetched(
    setup: Setup, checkout: Path, sources: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "readlink", "cksum", "cat", "sed", "grep", "rm"):
        (programs / name).symlink_to(shutil.which(name) or "")
    before = tree(checkout)
    done = setup("--offline", sources, PATH=str(programs))
    assert done.returncode == 2 and "git: is not installed" in done.stderr and "--no-kohya" in done.stderr
    assert tree(checkout) == before
    good(setup("--offline", sources, "--no-kohya", PATH=str(programs)))


@pytest.mark.parametrize("killed_at", ["fetch", "checkout", "ls-files"])
def test_a_clone_that_is_killed_is_finished_and_ours_is_kept(
    setup: Setup, checkout: Path, sources: Path, tmp_path: Path, killed_at: str
) -> None:
    """ls-files is asked between moving kohya_ss in and moving sd-scripts in."""
    mine = checkout / "kohya_ss" / "dataset" / "images" / "train" / "20_tom" / "a b.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    shim = tmp_path / "shim"
    shim.mkdir()
    real = shutil.which("git")
    (shim / "git").write_text(
        "#!/usr/bin/env bash\n"
        f'case " $* " in *sd-scripts*" {killed_at} "* | *" ls-files "*)\n'
        f'  if [[ " $* " == *" {killed_at} "* ]]; then "{real}" "$@"; kill -9 $PPID; exit 1; fi ;;\n'
        f'esac\nexec "{real}" "$@"\n'
    )
    (shim / "git").chmod(0o755)
    arguments = ["--training-only", "--no-models", "--offline", sources]
    stopped = setup(*arguments, PATH=f"{shim}:{os.environ['PATH']}")
    assert stopped.returncode == -signal.SIGKILL
    kohya = checkout / "kohya_ss"
    assert not (kohya / "sd-scripts" / "train_network.py").exists()  # never half a trainer

    failed = setup(*arguments, NOUKII_BASE_PYTHON="/bin/false")  # this test is not about the environment
    assert "[5/" not in failed.stdout and "step 4 of 4, kohya's Python environment" in failed.stderr
    assert (kohya / "sd-scripts" / "networks" / "lora.py").is_file() and (kohya / "gui.sh").is_file()
    assert (kohya / "README.md").read_text() == "our own words\n" and mine.read_text() == "mine"
    assert not (kohya / ".noukii-part").exists()
    assert (kohya / "tokenizer/openai_clip-vit-large-patch14/vocab.json").is_file()
    commit = git(sources / "sd-scripts.git", "rev-parse", "main")
    assert git(kohya / "sd-scripts", "rev-parse", "HEAD") == commit
    assert commit in git(kohya, "submodule", "status")
    assert git(kohya, "status", "--porcelain", "--ignored=no") == ""


def test_another_commit_is_moved_to_and_changes_of_the_user_are_not_lost(
    setup: Setup, checkout: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "upstream"
    folder.mkdir()
    stand_ins.upstream(folder)
    scripts, kohya = folder / "work" / "sd-scripts", checkout / "kohya_ss"
    arguments = ["--training-only", "--no-models", "--offline", folder]
    (folder / "wheels").mkdir()
    for name in ("one", "two"):
        setup(
            *arguments,
            NOUKII_BASE_PYTHON="/bin/false",
            NOUKII_SD_SCRIPTS_COMMIT="main" if name == "two" else "",
        )
        if name == "one":  # the pinned commit is not in this repository
            assert not (kohya / "sd-scripts").exists()
    assert (kohya / "sd-scripts" / "train_network.py").read_text() == "print('upstream 1')\n"
    (scripts / "train_network.py").write_text("print('upstream 2')\n")
    newer = stand_ins.commit(scripts, "second")
    git(scripts, "push", "--quiet", str(folder / "sd-scripts.git"), "main")
    good_commits = {"NOUKII_SD_SCRIPTS_COMMIT": newer, "NOUKII_BASE_PYTHON": "/bin/false"}
    assert "at other commits" in setup("--check", *arguments, **good_commits).stdout

    (kohya / "sd-scripts" / "train_network.py").write_text("print('mine')\n")
    refused = setup(*arguments, **good_commits)
    assert refused.returncode == 1 and "changes of yours" in refused.stderr
    assert (kohya / "sd-scripts" / "train_network.py").read_text() == "print('mine')\n"
    git(kohya / "sd-scripts", "checkout", "--", ".")
    setup(*arguments, **good_commits)
    assert (kohya / "sd-scripts" / "train_network.py").read_text() == "print('upstream 2')\n"


def test_a_trainer_that_the_user_put_there_is_kept(setup: Setup, checkout: Path, sources: Path) -> None:
    scripts = checkout / "kohya_ss" / "sd-scripts"
    scripts.mkdir()
    (scripts / "train_network.py").write_text("mine")
    (checkout / "kohya_ss/venv/bin").mkdir(parents=True)
    (checkout / "kohya_ss/venv/bin/accelerate").write_text("mine")
    done = good(setup("--training-only", "--no-models", "--offline", sources))
    assert "not from setup.sh; kept as it is" in done.stdout
    assert (scripts / "train_network.py").read_text() == "mine" and not (scripts / ".git").exists()


def test_a_base_model_elsewhere_is_linked_not_copied(
    setup: Setup, checkout: Path, sources: Path, tmp_path: Path
) -> None:
    models = checkout / "kohya_ss" / "models"
    refused = setup("--training-only", "--no-kohya", "--base-model", sources / BASE_MODEL)
    assert refused.returncode == 2 and str(sources / BASE_MODEL) in refused.stderr
    assert not models.exists()
    missing = setup("--training-only", "--base-model", tmp_path / "nothing")
    assert missing.returncode == 2 and "--base-model: it is not there" in missing.stderr

    mine = stand_ins.stable_diffusion(tmp_path / "a model é.safetensors")
    other = stand_ins.stable_diffusion(tmp_path / "other.safetensors")
    good(setup("--training-only", "--no-kohya", "--base-model", mine))
    place = models / BASE_MODEL
    assert place.is_symlink() and place.samefile(mine)
    assert "ok      Stable Diffusion 1.5: a link to" in setup("--check", "--training-only").stdout
    good(setup("--training-only", "--no-kohya", "--base-model", other))
    assert place.samefile(other)  # a link is exchanged, a file is not
    place.unlink()
    place.write_bytes(b"the user's")
    kept = setup("--training-only", "--no-kohya", "--base-model", mine)
    assert kept.returncode == 1 and "is there already and is no link" in kept.stderr
    assert place.read_bytes() == b"the user's"


def test_janus_from_a_hub_is_resumed_and_checked(setup: Setup, checkout: Path, tmp_path: Path) -> None:
    """A stand-in of the Hub behind HF_ENDPOINT; huggingface_hub itself asks it for the list of files."""
    folder = stand_ins.janus(tmp_path / "hub")
    (folder / "modeling.py").write_text("raise SystemExit('code from a model folder')\n")
    commit = "0123456789abcdef0123456789abcdef01234567"
    weights = folder / "pytorch_model.bin"

    def listing(sha256: str) -> bytes:
        files: list[dict[str, object]] = [
            {"rfilename": path.name, "size": path.stat().st_size, "blobId": "0" * 40}
            for path in sorted(folder.iterdir())
        ]
        for file in files:
            if file["rfilename"] == weights.name:
                file["lfs"] = {"sha256": sha256, "size": file["size"], "pointerSize": 134}
        about = {"id": "some/janus", "sha": commit, "siblings": files, "tags": [], "private": False}
        return json.dumps({**about, "downloads": 0, "likes": 0, "gated": False, "disabled": False}).encode()

    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    place = checkout / "models" / "Janus-Pro-1B"
    part = place.with_name(".Janus-Pro-1B.part") / (weights.name + ".part")
    with site(folder) as server:
        server.answers["/api/models/some/janus/revision/v1"] = listing("f" * 64)
        extra = {"HF_ENDPOINT": server.address, "NOUKII_JANUS_SOURCE": "some/janus@v1", "HF_HUB_OFFLINE": "1"}
        wrong = setup("--captioning-only", **extra)
        assert wrong.returncode == 1 and "wrong checksum" in wrong.stderr and not place.exists(), wrong.stderr
        server.answers["/api/models/some/janus/revision/v1"] = listing(digest)
        server.stall_after = 1_500_000
        process = start(checkout, "--captioning-only", **extra)
        wait_for(lambda: part.exists() and part.stat().st_size >= 1_500_000, process)
        process.kill()
        process.communicate()
        assert not place.exists() and "MB of it are fetched" in setup("--check", **extra).stdout
        server.stall_after = -1
        server.go_on.set()
        server.asked.clear()
        good(setup("--captioning-only", **extra))
        fetched = [(path.rsplit("/", 1)[-1], asked) for path, asked in server.asked if "resolve" in path]
        assert fetched == [(weights.name, "bytes=1500000-")]
        assert server.asked[-1][0] == f"/some/janus/resolve/{commit}/{weights.name}"
        absent = setup(
            "--captioning-only", "--janus", "7B", **{**extra, "NOUKII_JANUS_SOURCE": "some/janus@v9"}
        )
    assert absent.returncode == 1 and "Traceback" not in absent.stderr
    assert (
        not (place / "modeling.py").exists() and (place / weights.name).read_bytes() == weights.read_bytes()
    )
    assert json.loads((place / ".noukii-source.json").read_text())["source"] == f"some/janus@{commit}"
    shut = setup("--captioning-only", "--janus", "7B", HF_ENDPOINT=server.address)
    assert shut.returncode == 1 and "could not be reached" in shut.stderr and "HF_ENDPOINT" in shut.stderr


def test_a_janus_folder_elsewhere_is_linked(setup: Setup, checkout: Path, sources: Path) -> None:
    place = checkout / "models" / "Janus-Pro-1B"
    good(setup("--captioning-only", "--janus", sources / "Janus-Pro-1B"))
    assert place.is_symlink() and place.samefile(sources / "Janus-Pro-1B")
    assert "a link to" in setup("--check", "--captioning-only").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--captioning-only", "--training-only"], "exclude each other"),
        (["--uv", "--pip"], "exclude each other"),
        (["--offline", "/no/such folder"], "/no/such folder"),
        (["--janus", "3B"], "neither 1B nor 7B"),
        (["--base-model-sha256", "6ce0161689"], "64 hex digits"),
        (["--kohya-commit=--upload-pack=x"], "names no commit"),
        (["--no-koyha"], "did you mean --no-kohya?"),
        (["--python", "/no/python", "--check"], "/no/python is not a working Python"),
    ],
)
def test_a_wrong_call_is_refused(setup: Setup, checkout: Path, arguments: list[str], words: str) -> None:
    before = tree(checkout)
    python = "" if "--python" in arguments else sys.executable
    done = setup(*arguments, NOUKII_PYTHON=python)
    assert done.returncode in (1, 2) and words in done.stderr and "next: " in done.stderr
    assert tree(checkout) == before


def test_an_offline_folder_that_lacks_something_is_refused_as_a_whole(
    setup: Setup, checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "offline").mkdir()
    done = setup("--offline", tmp_path / "offline", NOUKII_PYTHON="")
    assert done.returncode == 2 and done.stderr.count("is not there") >= 6 and "docs/setup.md" in done.stderr
    assert not (checkout / ".venv").exists()
