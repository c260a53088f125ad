"""What a file is by its first bytes, in words a user understands; names that are not pictures."""

from __future__ import annotations

SNIFF_BYTES = 512

_PICTURES = (
    ".png .apng .jpg .jpeg .jpe .jfif .webp .bmp .dib .gif .tif .tiff .avif .avifs .jp2 .j2k .jpf .jpx .j2c"
    " .jpc .ppm .pgm .pbm .pnm .pfm .tga .icb .vda .vst .qoi .pcx .ico .sgi .bw .rgb .rgba .dds .mpo"
)
PICTURE_EXTENSIONS = frozenset(_PICTURES.split())
"""Extensions, lower case, whose files Pillow itself decodes to one picture."""

PLUGIN_EXTENSIONS = {
    ".heic": "pillow-heif",
    ".heics": "pillow-heif",
    ".heif": "pillow-heif",
    ".heifs": "pillow-heif",
    ".hif": "pillow-heif",
    ".jxl": "pillow-jxl-plugin",
}
"""Pictures that Pillow decodes only with the package named here."""

_RAW = (
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2"
    " .rwl .sr2 .srf .srw .x3f"
)
_VIDEO = ".mp4 .m4v .mov .avi .mkv .webm .wmv .flv .mpg .mpeg .mts .m2ts .3gp .ogv .insv"
_DOCUMENT = (
    ".psd .psb .xcf .kra .ai .svg .svgz .eps .ps .pdf .cdr .clip .afphoto .sai .exr .hdr .blend .wmf .emf"
)
_OTHER_PICTURES = (
    ".blp .cur .dcx .djv .djvu .dpx .ecw .fit .fits .flc .fli .fpx .ftc .ftu .gbr .icns .iff .im .jbig"
    " .jng .jxr .lbm .mic .mng .msp .palm .pat .pcd .pct .pic .pict .pxr .ras .spider .sun .wal .wbmp .wdp"
    " .xbm .xpm .xwd"
)
_ARCHIVE = ".zip .rar .7z .tar .gz .tgz .bz2 .xz .zst"
_UNFINISHED = ".crdownload .part .partial .download .!ut .opdownload"

UNSUPPORTED_EXTENSIONS = {
    **dict.fromkeys(_RAW.split(), "a camera's raw file; export it as JPEG or PNG"),
    **dict.fromkeys(_VIDEO.split(), "a video, not a picture"),
    **dict.fromkeys(_DOCUMENT.split(), "a drawing program's document; export it as PNG or JPEG"),
    **dict.fromkeys(
        _OTHER_PICTURES.split(), "a kind of picture that is not read here; export it as PNG or JPEG"
    ),
    **dict.fromkeys(_ARCHIVE.split(), "an archive; unpack it first"),
    **dict.fromkeys(_UNFINISHED.split(), "an unfinished download"),
}
"""Files that people keep among their pictures and expect to be used: named with the reason."""

CACHE_EXTENSIONS = frozenset((".npz", ".safetensors", ".npy"))
"""Latent caches of trainers."""

LITTER_NAMES = frozenset(("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r"))
LITTER_FOLDERS = frozenset(
    (
        "@eadir",
        "#recycle",
        "__macosx",
        "__pycache__",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    )
)


def is_litter(name: str, folder: bool = False) -> bool:
    """Tell whether an operating system, a NAS or a trainer left `name` beside the pictures."""
    lower = name.lower()
    if name.startswith("."):
        return True
    if folder:
        return lower in LITTER_FOLDERS
    return (
        lower in LITTER_NAMES
        or lower.endswith((":zone.identifier", "@synoeastream", "@synoresource"))
        or extension(name) in CACHE_EXTENSIONS
    )


def extension(name: str) -> str:
    """Return the extension of a file name in lower case, with its dot; empty if it has none."""
    stem, dot, last = name.rpartition(".")
    return f".{last.lower()}" if dot and stem else ""


def picture_format(head: bytes) -> str | None:
    """Return the format that a file's first bytes show beyond doubt, in Pillow's words, or None."""
    brand = head[8:12]
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] == b"RIFF" and brand == b"WEBP":
        return "WEBP"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    if head[:2] == b"BM" and head[14:18] in (
        bytes((size, 0, 0, 0)) for size in (12, 40, 52, 56, 64, 108, 124)
    ):
        return "BMP"
    if head[4:8] == b"ftyp":
        if brand in (b"avif", b"avis"):
            return "AVIF"
        if brand in (
            b"heic",
            b"heix",
            b"hevc",
            b"hevx",
            b"heim",
            b"heis",
            b"hevm",
            b"hevs",
            b"mif1",
            b"msf1",
        ):
            return "AVIF" if b"avif" in head[12:64] else "HEIF"
    if head.startswith((b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")):
        return "JPEG2000"
    if head.startswith((b"\0\0\0\x0cJXL ", b"\xff\x0a")):
        return "JXL"
    return "QOI" if head.startswith(b"qoif") else None


def describe_content(head: bytes) -> str:
    """Say what a file that could not be read as a picture is, from its first SNIFF_BYTES bytes."""
    lower = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        return "0 bytes"
    if head.startswith(b"version https://git-lfs"):
        return "not an image (a Git LFS pointer; the real file was not downloaded)"
    if lower.startswith((b"<!doctype html", b"<html")):
        return "not an image (a web page, probably a failed download)"
    if lower.startswith((b"<svg", b"<?xml")):
        return "not an image (XML or SVG); export it as PNG"
    kind = picture_format(head)
    if kind in ("HEIF", "JXL"):
        package = "pillow-heif" if kind == "HEIF" else "pillow-jxl-plugin"
        return f"a {'HEIC' if kind == 'HEIF' else 'JPEG XL'} picture; install {package} or export it as JPEG"
    if kind:
        return f"a damaged {kind} file"
    if head.startswith(b"8BPS"):
        return "a Photoshop document; export it as PNG or JPEG"
    if head.startswith((b"PK\x03\x04", b"Rar!", b"7z\xbc\xaf", b"\x1f\x8b")):
        return "not an image (an archive)"
    if head[4:8] == b"ftyp" or head.startswith(b"\x1aE\xdf\xa3"):
        return "not an image (a video)"
    if not head.strip(b"\0"):
        return "not an image (only zeros)"
    if b"\0" not in head and _is_text(head):
        return "not an image (text)"
    return "not an image, or damaged at its start"


def _is_text(head: bytes) -> bool:
    try:
        head[: len(head) - 4 if len(head) >= SNIFF_BYTES else None].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
