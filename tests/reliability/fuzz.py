"""Random and damaged inputs for our own parsers: each ends in a result or in a refusal in plain words.

    python tests/reliability/fuzz.py [TARGET ...] --count 100000 --seed 0

Targets: header (safetensors), caption, toml-write, toml-read, folder (its name), manifest (captions.jsonl),
image. Every input follows from (seed, target, number) alone; --only N runs a single one. What fails is
printed with its number, its bytes are kept in --keep, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(CHECKOUT))

from noukii.captioning.manifest import Entry, Manifest, State, parse_entry  # noqa: E402
from noukii.dataset.captions import UnreadableCaption, read_caption  # noqa: E402
from noukii.dataset.config_file import (  # noqa: E402
    DatasetConfig,
    SubsetConfig,
    TrainConfig,
    format_config,
    read_config,
)
from noukii.dataset.decoding import UnusableImage, open_image  # noqa: E402
from noukii.dataset.folders import find_data_sets  # noqa: E402
from noukii.dataset.images import inspect_image  # noqa: E402
from noukii.dataset.plan import bucket_rule  # noqa: E402
from noukii.errors import InputError  # noqa: E402
from noukii.names import printable  # noqa: E402
from noukii.trainer.safetensors_header import BadHeader, read_header  # noqa: E402

Check = Callable[[random.Random, Path], tuple[str, bytes]]
"""Make an input in a scratch folder and parse it; returns how it ended, and the input's bytes.

AssertionError or any exception that is no refusal of ours is a failure."""

LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class Failed(Exception):
    """An input that was not dealt with; `data` is the input."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


@contextlib.contextmanager
def about(data: bytes) -> Iterator[None]:
    """Tie what goes wrong inside to the input."""
    try:
        yield
    except Exception as error:
        raise Failed(data) from error


# --- inputs ------------------------------------------------------------------------------------------

TEXT_PIECES = (
    "cat", ", ", " ", "\t", "\n", "\r\n", "\r", "é", "猫", "😺", "\u2028", "\x85", "\ufeff", "\u202e", "\x00",
    "\x07", "\x1b[31m", '"', "'", '""', "'''", '"""', "\\", "\\x41", "\\u0041", "\\n", "#", "= ", "[", "]",
    "[[", "{", "}", "$HOME", "$(touch x)", "`id`", ";", "&", "|", "../", "/", "~", "-", "--help", ".", "..",
    "10_", "_", "0", "9", "%s", "{0}", "<lora:x:1>", "(a:1.2)", "e\u0301", "\u00a0", "\u200b", "İ", "ß",
    "x" * 60,
)  # fmt: skip


def some_text(chance: random.Random, most: int = 8) -> str:
    """Return pieces that have made trouble before, and any character of Unicode between them."""
    pieces = []
    for _ in range(chance.randrange(most + 1)):
        if chance.random() < 0.8:
            pieces.append(chance.choice(TEXT_PIECES))
        else:
            code = chance.choice((chance.randrange(0x20, 0x7F), chance.randrange(0x110000)))
            pieces.append("" if 0xD800 <= code <= 0xDFFF else chr(code))
    return "".join(pieces)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return `data` with some bytes changed, cut out, doubled or put in, or cut off at the end."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(out):
                out[at] = chance.randrange(256)
            case 2:
                del out[at : at + chance.choice((1, 2, 7, 100))]
            case 3:
                out[at:at] = out[at : at + chance.choice((1, 5, 40))]
            case 4:
                out[at:at] = chance.choice((b"\0", b"\xff\xfe", b"{", b"}", b'"', b"[" * 50, b"9" * 30, b"-"))
            case 5 if chance.random() < 0.3:
                del out[at:]
    return bytes(out)


def odd_value(chance: random.Random, depth: int = 0) -> object:
    """Return a JSON value that hardly anybody expects."""
    kinds: list[Callable[[], object]] = [
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: chance.choice((0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 0.5, 1e308, float("nan"))),
        lambda: some_text(chance),
    ]
    if depth < 3:
        kinds.append(lambda: [odd_value(chance, depth + 1) for _ in range(chance.randrange(4))])
        kinds.append(lambda: {some_text(chance, 2): odd_value(chance, depth + 1) for _ in range(2)})
    return chance.choice(kinds)()


# --- targets -----------------------------------------------------------------------------------------


def header(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """safetensors: what is accepted lies inside the file, and the safetensors library takes it too."""
    table: dict[str, object] = {}
    end = 0
    for number in range(chance.randrange(5)):
        dtype, size = chance.choice((("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8), ("U8", 1), ("BOOL", 1)))
        shape = [chance.randrange(5) for _ in range(chance.randrange(4))]
        count = size
        for side in shape:
            count *= side
        name = chance.choice((f"layer.{number}.weight", some_text(chance, 3)))
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    if chance.random() < 0.5:
        table["__metadata__"] = {"ss_tag": some_text(chance), "n": "1"}
    for _ in range(chance.choice((0, 0, 1, 2))):  # a value of another kind somewhere
        if table and chance.random() < 0.8:
            name = chance.choice(list(table))
            entry = table[name]
            if isinstance(entry, dict) and entry and chance.random() < 0.8:
                entry[chance.choice(list(entry))] = odd_value(chance)
            else:
                table[name] = odd_value(chance)
    text = json.dumps(table).encode("utf-8", "replace")
    if chance.random() < 0.1:
        text += b" " * chance.randrange(9)
    length = len(text)
    if chance.random() < 0.1:
        length = chance.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
    data = struct.pack("<Q", max(length, 0)) + text + bytes(max(0, end + chance.choice((0, 0, 0, 0, -1, 1))))
    if chance.random() < 0.4:
        data = damaged(chance, data)
    path = folder / "m.safetensors"
    path.write_bytes(data)
    with about(data):
        try:
            found = read_header(path)
        except BadHeader as error:
            assert str(error) and "\n" not in str(error)
            return "refused", data
        for info in found.tensors.values():
            assert 0 <= found.data_begin + info.begin <= len(data)
        assert all(isinstance(v, str) for v in found.metadata.values())
        from safetensors import safe_open

        with safe_open(path, framework="np") as opened:
            assert set(opened.keys()) == set(found.tensors)
        return "accepted", data


def caption(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """A caption file: one line of UTF-8 without control characters, which reads the same once written."""
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "shift_jis",
                 "latin-1", "gb18030", "utf-7")  # fmt: skip
    data = some_text(chance, 14).encode(chance.choice(encodings), "replace")
    if chance.random() < 0.4:
        data = damaged(chance, data)
    if chance.random() < 0.05:
        data = chance.randbytes(chance.randrange(60))
    path = folder / "a.txt"
    path.write_bytes(data)
    with about(data):
        try:
            found = read_caption(path)
        except UnreadableCaption as error:
            assert str(error) and printable(str(error)) == str(error)
            return "refused", data
        text = found.text
        assert not any(char in LINE_BREAKS for char in text)
        assert text == text.strip()
        assert not any((char < " " and char != "\t") or char == "\x7f" for char in text)
        path.write_text(text, encoding="utf-8")
        again = read_caption(path)
        assert again.text == text.removeprefix("\ufeff").strip(), "the training copy reads otherwise"
        return "empty" if not text else "read with a note" if found.notes else "read", data


def toml_write(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """A data set file that we write says to every TOML reader what went in, or the name is refused."""
    import toml

    subsets = tuple(
        SubsetConfig(
            Path("/" + some_text(chance).replace("\0", "") + str(number)),
            chance.randrange(1, 10_001),
            chance.choice((None, some_text(chance))),
            ".txt",
            caption_prefix=chance.choice((None, None, some_text(chance))),
            keep_tokens=chance.randrange(3),
            caption_dropout_rate=chance.choice((0.0, 0.25)),
            flip_aug=chance.random() < 0.5,
        )
        for number in range(chance.randrange(1, 3))
    )
    config = TrainConfig((DatasetConfig(bucket_rule(chance.choice((256, 512, 768))), 4, subsets),))
    data = repr(config).encode("utf-8", "backslashreplace")
    with about(data):
        try:
            text = format_config(config)
        except InputError as error:
            assert error.next_step
            return "refused", data
        path = folder / "c.toml"
        path.write_text(text, encoding="utf-8")
        assert read_config(path) == config, "our own reader"
        readers = [("toml 0.10.2", toml.loads)]
        with contextlib.suppress(ImportError):
            import tomllib

            readers.append(("tomllib", tomllib.loads))
        for name, read in readers:
            for wanted, found in zip(subsets, read(text)["datasets"][0]["subsets"], strict=True):
                assert found["image_dir"] == str(wanted.image_dir), name
                assert found.get("class_tokens") == wanted.class_tokens, name
                assert found.get("caption_prefix") == wanted.caption_prefix, name
        return "written and read", data


TOML_LINES = (
    "[general]", "enable_bucket = true", "resolution = 512", "resolution = [512, 768]", "resolution = 0",
    "[[datasets]]", "batch_size = 4", "batch_size = 99999999999999999999", "[[datasets.subsets]]",
    "  [[datasets.subsets]]", 'image_dir = "x"', "image_dir = '/a b'", "num_repeats = 2", "num_repeats = 2.5",
    "num_repeats = true", "keep_tokens = -1", 'caption_extension = ".txt"', "caption_dropout_rate = nan",
    "caption_dropout_rate = 1e400", "class_tokens = 'c'", "unknown = 1", "datasets = 3", "general = []",
    "is_reg = true", "flip_aug = 1979-05-27", "[datasets]", "a.b.c = 1", "# note", "min_bucket_reso = 64",
    "max_bucket_reso = 100000000", 'image_dir = """\nx"""', "caption_prefix = 'p'", "[[general]]",
)  # fmt: skip


def toml_read(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """A data set file by another hand: settings, or a refusal that names the file."""
    lines = ["[general]", "enable_bucket = true", "[[datasets]]", "resolution = 512", "batch_size = 2",
             "[[datasets.subsets]]", 'image_dir = "x"', "num_repeats = 2"]  # fmt: skip
    for _ in range(chance.randrange(4)):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(TOML_LINES))
    if chance.random() < 0.3:
        del lines[chance.randrange(len(lines))]
    data = "\n".join(lines).encode()
    if chance.random() < 0.5:
        data = damaged(chance, data)
    path = folder / "c.toml"
    path.write_bytes(data)
    with about(data):
        try:
            read_config(path)
        except InputError as error:
            assert str(error).startswith(printable(path)) and error.next_step
            return "refused", data
        return "accepted", data


PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8\xcf\xc0\0\0\3\1"
    b"\1\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82"
)


def folder_name(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """A data set folder of any name: repeats in range and a keyword of one line, or a refusal."""
    starts = (
        "",
        "10_",
        "1_",
        "0_",
        "007_",
        "99999_",
        "٣_",
        "5 ",
        "5-",
        "5",
        "reg_",
        "1_reg",
        "-",
        ".",
        "10__",
    )
    raw = os.fsencode(chance.choice(starts)) + some_text(chance, 5).encode()
    if chance.random() < 0.3:
        raw = damaged(chance, raw)
    name = raw.replace(b"\0", b"").replace(b"/", b"")[:255]
    if name in (b"", b".", b".."):
        return "no name", name
    made = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
    made.mkdir()
    try:
        (made / "a.png").write_bytes(PNG)
        with about(name):
            try:
                (found,), ignored = find_data_sets([(made, None)], [])
            except InputError as error:
                assert (error.next_step and str(error).isprintable()) or "\n  next: " in str(error)
                return "refused", name
            assert found.folder == made and not ignored
            assert 1 <= found.repeats <= 10_000
            assert found.keyword and printable(found.keyword) == found.keyword == found.keyword.strip()
            assert found.keyword.encode("utf-8")
            return f"repeats from {found.repeats_from}", name
    finally:
        shutil.rmtree(made)


LINE = {
    "file": "a.png", "source": "a.png", "sha256": "0" * 64, "file_sha256": "0" * 64, "width": 5, "height": 6,
    "model": "janus", "prompt": "p", "seed": 1, "temperature": 0.1, "top_p": 0.9, "max_new_tokens": 9,
    "max_caption_tokens": 75, "keyword": "k", "raw": "r", "caption": "k, r", "clip_tokens": 3,
    "finish_reason": "stop", "tokens": 2, "seconds": 0.5, "model_id": None,
}  # fmt: skip


def manifest(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """captions.jsonl and .noukii.json: read whatever they hold; a line that is added leaves all others."""
    lines = []
    for _ in range(chance.randrange(5)):
        entry: dict[str, object] = dict(LINE, file=chance.choice(("a", "b", some_text(chance, 3))) + ".png")
        if chance.random() < 0.4:
            entry[chance.choice(list(entry))] = odd_value(chance)
        if chance.random() < 0.1:
            del entry[chance.choice(list(entry))]
        lines.append(json.dumps(entry, ensure_ascii=chance.random() < 0.5))
    data = "\n".join(lines).encode("utf-8", "replace") + chance.choice((b"\n", b""))
    if chance.random() < 0.5:
        data = damaged(chance, data)
    (folder / "captions.jsonl").write_bytes(data)
    state = json.dumps({"claims": {"a": "b"}, "own": {"x": ["y"]}, "input": "i"}).encode()
    (folder / ".noukii.json").write_bytes(
        damaged(chance, state) if chance.random() < 0.6 else json.dumps(odd_value(chance)).encode()
    )
    with about(data):
        state_read = State.read(folder)
        assert all("/" not in stem for stem in state_read.claims.values())
        read = Manifest.read(folder)
        for stem, one in read.entries.items():
            assert one.stem == stem and "/" not in one.file and "\0" not in one.file
            assert os.path.dirname(os.path.normpath(os.path.join("out", one.file))) == "out"
        before = dict(read.entries)
        added = parse_entry(json.dumps(LINE))
        assert isinstance(added, Entry)
        read.append(added)
        again = Manifest.read(folder)
        assert again.entries == {**before, "a": added}, "a line was lost"
        assert again.damaged == read.damaged
        return f"{len(before)} entries" if not read.damaged else "damaged lines left alone", data


def image(chance: random.Random, folder: Path) -> tuple[str, bytes]:
    """A damaged picture: 8-bit RGB of the size that was announced, or a reason."""
    name, data = chance.choice(_pictures())
    data = damaged(chance, data)
    path = folder / name
    path.write_bytes(data)
    with about(data):
        try:
            info = inspect_image(path)
        except UnusableImage as error:
            assert str(error)
            return "refused", data
        try:
            picture = open_image(path)
        except UnusableImage:
            # a JPEG is checked at an eighth of its size; what that lets through is skipped when it is copied
            return "refused late", data
        assert picture.mode == "RGB" and picture.size == (info.width, info.height)
        return "used", data


_made: list[tuple[str, bytes]] = []


def _pictures() -> list[tuple[str, bytes]]:
    """A small picture in every kind of file that is read."""
    if not _made:
        import io

        from PIL import Image

        base = Image.radial_gradient("L").resize((24, 18))
        rgb = Image.merge("RGB", (base, base.rotate(180), base))
        frames = {"save_all": True, "append_images": [rgb.rotate(90)]}
        exif = Image.Exif()
        exif[0x0112] = 6
        for kind, end, picture, options in (
            ("PNG", "png", rgb, {}), ("PNG", "png", rgb.convert("P"), {"transparency": bytes([0, 99])}),
            ("PNG", "png", base.convert("I;16"), {}), ("PNG", "png", rgb, frames),
            ("JPEG", "jpg", rgb, {"exif": exif}), ("JPEG", "jpg", rgb.convert("CMYK"), {}),
            ("JPEG", "jpg", rgb, {"progressive": True}), ("MPO", "jpg", rgb, frames),
            ("GIF", "gif", rgb, frames),
            ("TIFF", "tif", rgb, {"compression": "tiff_lzw"}), ("TIFF", "tif", base.convert("F"), {}),
            ("BMP", "bmp", rgb, {}), ("TGA", "tga", rgb, {"compression": "tga_rle"}), ("PPM", "ppm", rgb, {}),
            ("PCX", "pcx", rgb, {}), ("ICO", "ico", rgb.resize((32, 32)), {}), ("SGI", "sgi", rgb, {}),
            ("DDS", "dds", rgb, {}), ("WEBP", "webp", rgb.convert("RGBA"), {}), ("WEBP", "webp", rgb, frames),
            ("AVIF", "avif", rgb, {}), ("JPEG2000", "jp2", rgb, {}), ("QOI", "qoi", rgb, {}),
        ):  # fmt: skip
            stream = io.BytesIO()
            try:
                picture.save(stream, kind, **options)
            except (KeyError, OSError):
                continue  # this Pillow does not write it
            _made.append((f"a.{end}", stream.getvalue()))
    return _made


TARGETS: dict[str, Check] = {
    "header": header,
    "caption": caption,
    "toml-write": toml_write,
    "toml-read": toml_read,
    "folder": folder_name,
    "manifest": manifest,
    "image": image,
}


# --- running -----------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of one target's inputs."""

    target: str
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Number, input, traceback."""
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)

    def lines(self) -> list[str]:
        count = sum(self.ends.values()) + len(self.failures)
        said = [
            f"{self.target}: {count} inputs, {len(self.failures)} failures, {self.seconds:.0f} s,"
            f" slowest {self.slowest[0] * 1000:.0f} ms (number {self.slowest[1]})"
        ]
        said += [f"    {number:8} {end}" for end, number in self.ends.most_common(8)]
        return said


def fuzz(target: str, numbers: range, seed: int, most_failures: int = 20) -> Outcome:
    """Run a target on inputs of these numbers."""
    outcome = Outcome(target)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # 100,000 small files need no disk
    with tempfile.TemporaryDirectory(prefix="noukii-fuzz-", dir=base) as name:
        folder = Path(name)
        os.environ["NOUKII_HOME"] = str(folder / "home")
        began = time.monotonic()
        for number in numbers:
            at = time.monotonic()
            try:
                end, _ = TARGETS[target](random.Random(f"{seed}/{target}/{number}"), folder)
                outcome.ends[end] += 1
            except Failed as failure:
                told = "".join(traceback.format_exception(failure.__cause__))
                outcome.failures.append((number, failure.data, told))
                if len(outcome.failures) >= most_failures:
                    break
            outcome.slowest = max(outcome.slowest, (time.monotonic() - at, number))
        outcome.seconds = time.monotonic() - began
    return outcome


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help="all if none")
    parser.add_argument("--count", type=int, default=1000, help="inputs per target (1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="this input alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where failing inputs are kept")
    found = parser.parse_args(arguments)
    numbers = range(found.count) if found.only is None else range(found.only, found.only + 1)
    failed = 0
    for target in found.targets or TARGETS:
        outcome = fuzz(target, numbers, found.seed)
        print("\n".join(outcome.lines()), flush=True)
        failed += len(outcome.failures)
        for number, data, told in outcome.failures:
            print(f"  number {number}: {data[:300]!r}\n{told}", flush=True)
            if found.keep:
                found.keep.mkdir(parents=True, exist_ok=True)
                (found.keep / f"{target}-{found.seed}-{number}").write_bytes(data)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
