"""Small stand-ins for everything that setup.sh fetches: packages, models, repositories, servers."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tiny_janus import _write_tokenizer, original_config

CHECKOUT = Path(__file__).resolve().parent.parent
BASE_MODEL = "v1-5-pruned-emaonly.safetensors"


def wheel(folder: Path, name: str, version: str, texts: dict[str, str], script: str = "") -> None:
    """Write a wheel with these files; `script` names a command that prints the package's name."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    texts = {
        **texts,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        texts[f"{about}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    lines = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for inside, text in texts.items():
            archive.writestr(inside, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{inside},sha256={digest},{len(text.encode())}")
        archive.writestr(f"{about}/RECORD", "\n".join([*lines, f"{about}/RECORD,,"]) + "\n")


def copy_checkout(root: Path) -> Path:
    """Copy what setup.sh needs of the checkout; its requirements ask for stand-ins without torch."""
    shutil.copytree(CHECKOUT / "noukii", root / "noukii", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "scripts", root / "scripts")
    shutil.copy(CHECKOUT / "setup.sh", root)
    (root / "kohya_ss").mkdir()
    (root / "kohya_ss" / "README.md").write_text("our own words\n")
    (root / "requirements.txt").write_text("tinypackage==1.0\n")
    (root / "requirements-kohya.txt").write_text("tinypackage==1.0\naccelerate==1.0\n")
    return root


def janus(folder: Path, size: int = 3_000_000) -> Path:
    """Write a folder that looks like Janus-Pro in every way that can be seen without loading it."""
    folder.mkdir(parents=True)
    _write_tokenizer(folder)
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255, "image_size": 64}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    (folder / "config.json").write_text(json.dumps(original_config()))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", random.Random(1).randbytes(size))
    return folder


def stable_diffusion(path: Path) -> Path:
    """Write a file whose header is SD1.5's; its 2 GB of zeros are a hole that takes no room."""
    layout = json.loads((CHECKOUT / "noukii" / "assets" / "sd15" / "single_file_layout.json").read_text())
    header, end = {}, 0
    for name, shape in layout.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return path


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", *identity, "-C", folder, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def upstream(folder: Path) -> tuple[str, str]:
    """Make kohya_ss.git with the submodule sd-scripts.git, both bare; returns their commits."""
    work = folder / "work"
    scripts, parent = work / "sd-scripts", work / "kohya_ss"
    for repository in (scripts, parent):
        repository.mkdir(parents=True)
        git(repository, "init", "--quiet", "-b", "main")
    (scripts / "networks").mkdir()
    (scripts / "networks" / "lora.py").write_text("# upstream\n")
    (scripts / "train_network.py").write_text("print('upstream 1')\n")
    commit(scripts, "first")
    git(folder, "clone", "--quiet", "--bare", str(scripts), str(folder / "sd-scripts.git"))
    for name in ("README.md", "gui.sh", "dataset/images/.gitkeep", "models/.keep"):
        (parent / name).parent.mkdir(parents=True, exist_ok=True)
        (parent / name).write_text(f"upstream's {name}\n")
    git(parent, "submodule", "--quiet", "add", str(folder / "sd-scripts.git"), "sd-scripts")
    commit(parent, "first")
    git(folder, "clone", "--quiet", "--bare", str(parent), str(folder / "kohya_ss.git"))
    return git(parent, "rev-parse", "HEAD"), git(scripts, "rev-parse", "HEAD")


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "-A")
    git(repository, "commit", "--quiet", "-m", message)
    return git(repository, "rev-parse", "HEAD")


class Site:
    """An HTTP server for a folder: Range and ETag, what was asked, and connections that stall or stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        """Path and Range header of each GET"""
        self.passwords: list[str] = []
        """Authorization header of each GET"""
        self.answers: dict[str, bytes | int] = {}
        """Texts (or a status) for addresses that are no files"""
        self.stall_after = -1
        """Send so many bytes of a file, then nothing until `go_on` is set"""
        self.stop_after = -1
        """Send so many bytes, then close the connection"""
        self.chunked = False
        self.go_on = threading.Event()
        self.address = ""


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Serve `folder` on a free port of this machine."""
    state = Site(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            state.asked.append((path, self.headers.get("Range", "")))
            state.passwords.append(self.headers.get("Authorization", ""))
            if path in state.answers:
                self.text(state.answers[path])
            elif (folder / path.rsplit("/", 1)[-1]).is_file():
                self.file((folder / path.rsplit("/", 1)[-1]).read_bytes())
            else:
                self.text(404)

        def text(self, answer: bytes | int) -> None:
            body = b"" if isinstance(answer, int) else answer
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def file(self, data: bytes) -> None:
            start = 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start and start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            self.send_header("ETag", '"' + hashlib.sha256(data).hexdigest() + '"')
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            if state.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            body = data[start:]
            stops = [stop for stop in (state.stall_after, state.stop_after) if 0 <= stop < len(body)]
            first = body[: stops[0]] if stops else body
            try:
                self.write(first)
                if stops and stops[0] == state.stall_after:
                    state.go_on.wait(60)
                    self.write(body[len(first) :])
                if state.chunked:
                    self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass
            self.close_connection = True

        def write(self, data: bytes) -> None:
            if state.chunked and data:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                self.wfile.write(data)
            self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        state.go_on.set()
        server.shutdown()
        server.server_close()


def tree(folder: Path) -> dict[str, int]:
    """Every file below a folder with its time of change, compiled Python left out."""
    return {
        os.path.relpath(path, folder): path.lstat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and not path.is_dir()
    }
