"""Tell what a file is that calls itself a model and is none, by its first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from noukii.names import printable

UNFINISHED = (".crdownload", ".part", ".partial", ".download", ".aria2", ".incomplete", ".tmp", ".!qb")
PICKLE_WHY = "a Python pickle, which can run code when it is opened"


def unfinished_download(path: Path) -> str | None:
    """Say so if the name is one that browsers and download tools give to an unfinished download."""
    if path.suffix.lower() in UNFINISHED:
        return f"is an unfinished download ({path.stat().st_size:,} bytes so far)"
    return None


def what_else_it_is(path: Path) -> tuple[str, str] | None:
    """Return (what it is, what to do) if the first bytes show something other than safetensors.

    Only the first 4096 bytes are read; raises OSError.
    """
    with open(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        head = stream.read(4096)
    again = "download the real file (through the download button, not the page's address)"
    if not head:
        return "is empty (0 bytes)", "download it again"
    if head.startswith(b"version https://git-lfs"):
        real = re.search(rb"\nsize (\d{1,18})\b", head)
        amount = f" of {int(real.group(1)) / 1e9:.2f} GB" if real else ""
        return (
            f"is a Git LFS pointer, {size:,} bytes",
            f"download the real file{amount}: git lfs pull, or by hand",
        )
    if head.startswith(b"PK\x03\x04") or head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        pickle = _is_pickle(path, head)
        named = "" if path.suffix.lower() != ".safetensors" else " under a wrong name"
        what = f"is a .ckpt file ({PICKLE_WHY}){named}" if pickle else "is a zip archive"
        return (
            what,
            "download the model's .safetensors version" if pickle else "unpack it and give the model inside",
        )
    if head.startswith((b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!")):
        return "is a compressed archive", "unpack it and give the model inside"
    if head.startswith(b"GGUF"):
        return "is a GGUF file (quantised weights)", "give a float16 or float32 .safetensors version"
    text = _text_of(head)
    if text is None:
        return None
    lowered = text.lstrip("\ufeff \t\r\n").lower()
    if lowered.startswith(("<!doctype", "<html", "<?xml", "<head", "<")):
        title = re.search(r"<title[^>]*>([^<]{1,80})", text, re.IGNORECASE)
        titled = f", titled {printable(title.group(1).strip())!r}" if title else ""
        return f"is a web page (HTML), {size:,} bytes{titled}", again
    kind = "a JSON text" if lowered.startswith(("{", "[")) else "a text file"
    return f"is {kind}, {size:,} bytes: {printable(' '.join(text.split())[:80])}", again


def _is_pickle(path: Path, head: bytes) -> bool:
    """torch.save writes a zip whose first entry is `<name>/data.pkl`; older versions a bare pickle."""
    return (
        not head.startswith(b"PK")
        or b"data.pkl" in head
        or path.suffix.lower() in (".ckpt", ".pt", ".pth", ".bin")
    )


def _text_of(head: bytes) -> str | None:
    """Return the beginning as text if it is text; a safetensors file has zero bytes in its first eight."""
    if b"\0" in head:
        return None
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character cut at the end is no reason
            return None
        text = head[: error.start].decode("utf-8")
    return text if sum(char.isprintable() or char in "\t\r\n" for char in text) >= 0.9 * len(text) else None
