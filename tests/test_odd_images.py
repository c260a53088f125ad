"""Every kind of picture that Pillow knows, metadata bombs and pictures larger than any memory."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from conftest import CHECKOUT
from PIL import Image, ImageCms, PngImagePlugin

from noukii.dataset import colour, decoding
from noukii.dataset.content import PICTURE_EXTENSIONS, PLUGIN_EXTENSIONS, UNSUPPORTED_EXTENSIONS
from noukii.dataset.images import inspect_image, inspect_images, list_images, open_image, write_training_copy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "F")
NO_PICTURES = {"PDF", "BUFR", "GRIB", "HDF5", "IPTC", "MPEG"}
"""What Pillow has a plug-in for, and what holds no picture, or none that it can read by itself."""


def scene() -> Image.Image:
    """A picture that differs in every corner and channel."""
    grey = Image.linear_gradient("L").resize((96, 80))
    return Image.merge("RGB", (grey, grey.rotate(90).resize((96, 80)), grey.rotate(180)))


def in_mode(mode: str) -> Image.Image:
    rgb = scene()
    if mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        return ImageCms.applyTransform(rgb, ImageCms.buildTransform(srgb, lab, "RGB", "LAB")) or rgb
    if mode == "PA":
        return rgb.convert("P").convert("PA")
    if mode == "I;16":
        import numpy

        return Image.fromarray(numpy.asarray(rgb.convert("L")).astype(numpy.uint16) * 257)
    return rgb.convert(mode)


def wanted(mode: str) -> Image.Image:
    """What a person sees in it."""
    grey = mode in ("L", "LA", "I", "I;16", "F")
    return scene().convert("L").convert("RGB") if grey else scene()


def mean_difference(one: Image.Image, other: Image.Image) -> float:
    import numpy

    return float(numpy.abs(numpy.asarray(one).astype(int) - numpy.asarray(other).astype(int)).mean())


def saved_everyhow(folder: Path) -> dict[Path, str]:
    """Write the scene in every format and mode that this Pillow writes; path -> mode."""
    Image.init()
    endings: dict[str, str] = {}
    for ending, kind in sorted(Image.registered_extensions().items()):
        endings.setdefault(kind, ending)
    made = {}
    for kind in sorted(set(Image.SAVE) - NO_PICTURES):
        for mode in MODES:
            stream = io.BytesIO()
            try:
                in_mode(mode).save(stream, kind)
            except (OSError, ValueError, KeyError, TypeError, SystemError, AttributeError):
                continue  # not every format takes every mode
            path = folder / f"{kind}_{mode.replace(';', '')}{endings.get(kind, '.spider')}"
            path.write_bytes(stream.getvalue())
            made[path] = mode
    return made


def test_every_format_and_mode_is_used_or_named(tmp_path: Path) -> None:
    made = saved_everyhow(tmp_path)
    assert len(made) > 120 and {path.name.split("_")[0] for path in made} >= {
        "PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "ICO", "SGI", "DDS", "PCX", "MPO",
    }  # fmt: skip
    listing = list_images(tmp_path)
    infos, broken = inspect_images(listing.images)
    skipped = {one.path: one.reason for one in [*listing.skipped, *broken]}
    used = {info.path: info for info in infos}
    assert used.keys() | skipped.keys() == made.keys() and not used.keys() & skipped.keys()
    for path, reason in skipped.items():
        assert path.suffix in UNSUPPORTED_EXTENSIONS and "export it as" in reason, (path.name, reason)
    for path, info in used.items():
        image = open_image(path)
        assert image.mode == "RGB" and image.size == (info.width, info.height), path.name
        deep = made[path] in ("I", "I;16") and not path.name.startswith(
            ("GIF", "AVIF", "WEBP", "JPEG_", "MPO")
        )
        assert ("reduced to 8 bits" in info.notes) == (deep or "16" in info.notes), (path.name, info.notes)
        flattened = made[path] in ("I", "I;16", "F") and not deep and "scaled" not in "".join(info.notes)
        if path.suffix == ".ico" or made[path] in ("1", "P", "PA") or flattened:
            continue  # another size; dithered; cut to 8 bits by the format
        assert mean_difference(image, wanted(made[path])) < 8, path.name


def test_every_extension_that_pillow_knows_is_in_one_of_our_lists() -> None:
    Image.init()
    ours = PICTURE_EXTENSIONS | PLUGIN_EXTENSIONS.keys() | UNSUPPORTED_EXTENSIONS.keys()
    known = {end for end, kind in Image.registered_extensions().items() if kind not in NO_PICTURES}
    assert known - ours == set()
    assert not PICTURE_EXTENSIONS & UNSUPPORTED_EXTENSIONS.keys()


def test_a_dib_becomes_a_file_that_every_trainer_reads(tmp_path: Path) -> None:
    """A .dib without a file header is no .bmp: programs that look at the first bytes do not know it."""
    scene().save(tmp_path / "a.dib", "DIB")
    info = inspect_image(tmp_path / "a.dib")
    copy = write_training_copy(info, tmp_path, "copy")
    assert copy.name == "copy.png" and mean_difference(Image.open(copy), scene()) == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "I", "F"])
def test_large_pictures_made_in_bands_are_the_same(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, path = in_mode(mode), tmp_path / "a.tif"
    if "A" in mode:
        image.putalpha(scene().getchannel(1))
    if mode == "P":
        path = tmp_path / "a.png"
        image.save(path, transparency=bytes(range(256)))
    else:
        image.save(path)
    whole = open_image(path)
    for module in (colour, decoding):
        monkeypatch.setattr(module, "_BAND_PIXELS", 96 * 7)
    assert open_image(path).tobytes() == whole.tobytes()


# --- bombs --------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *before: bytes, rows: bytes | None = None, behind: bytes = b"") -> bytes:
    """A grey PNG written by hand; `rows` are the compressed lines."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = zlib.compress((b"\0" + b"\x80" * width) * height) if rows is None else rows
    body = b"".join(before) + chunk(b"IDAT", lines) + behind + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


ZEROS = zlib.compress(bytes(64 * 2**20), 9)
"""64 MiB in 64 KB."""


def metadata_bombs() -> dict[str, bytes]:
    stream = io.BytesIO()
    scene().save(stream, "JPEG")
    jpeg = stream.getvalue()

    def segment(number: int, data: bytes) -> bytes:
        return b"\xff" + bytes([number]) + struct.pack(">H", len(data) + 2) + data

    loop = b"II*\0\x08\0\0\0" + b"\x01\0" + struct.pack("<HHII", 0x8769, 4, 1, 8) + struct.pack("<I", 8)
    huge = b"II*\0\x08\0\0\0" + b"\xff\xff" + struct.pack("<HHII", 0x9286, 7, 2**31, 8) * 40
    return {
        "zTXt.png": png(64, 64, chunk(b"zTXt", b"Comment\0\0" + ZEROS)),
        "iTXt.png": png(64, 64, chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + ZEROS)),
        "zTXt behind.png": png(64, 64, behind=chunk(b"zTXt", b"Comment\0\0" + ZEROS)),
        "many texts.png": png(64, 64, *[chunk(b"zTXt", b"a\0\0" + ZEROS[:20_000])] * 40),
        "iCCP.png": png(64, 64, chunk(b"iCCP", b"profile\0\0" + ZEROS)),
        "eXIf.png": png(64, 64, chunk(b"eXIf", huge)),
        "exif loop.jpg": jpeg[:2] + segment(0xE1, b"Exif\0\0" + loop) + jpeg[2:],
        "exif huge.jpg": jpeg[:2] + segment(0xE1, b"Exif\0\0" + huge) + jpeg[2:],
        "many segments.jpg": jpeg[:2] + segment(0xE1, b"Exif\0\0" + loop) * 2000 + jpeg[2:],
        "xmp.jpg": jpeg[:2]
        + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<!DOCTYPE a [<!ENTITY b '&b;&b;'>]>" * 1000)
        + jpeg[2:],
        "icc.jpg": jpeg[:2] + segment(0xE2, b"ICC_PROFILE\0\1\xff" + bytes(60_000)) * 200 + jpeg[2:],
    }


MEASURED = """
import resource, sys
from pathlib import Path
from noukii.dataset.images import UnusableImage, inspect_image, open_image
import noukii.dataset.decoding as decoding
decoding._formats()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        info = inspect_image(path)
        said = "used " + str(open_image(path).size)
    except UnusableImage as error:
        said = str(error)
    print(f"{path.name}|{said}")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def measured(folder: Path) -> tuple[dict[str, str], int]:
    """Read all pictures of a folder in a process of its own; what became of each, and the memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, folder], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""  # a folder of a thousand such files must not flood the terminal
    *lines, memory = done.stdout.splitlines()
    return dict(line.split("|") for line in lines), int(memory)


def test_metadata_bombs_cost_neither_memory_nor_the_picture(tmp_path: Path) -> None:
    bombs = metadata_bombs()
    for name, data in bombs.items():
        (tmp_path / name).write_bytes(data)
    said, memory = measured(tmp_path)
    assert said == {name: f"used {(64, 64) if name.endswith('png') else (96, 80)}" for name in bombs}
    assert memory < 300


def test_gigapixel_pictures_are_named_without_being_decoded(tmp_path: Path) -> None:
    side = 60_000
    (tmp_path / "a.png").write_bytes(png(side, side, rows=ZEROS))
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + b"\0" * 6
    (tmp_path / "b.gif").write_bytes(gif + b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\2\1\4\0;")
    (tmp_path / "c.bmp").write_bytes(
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    )
    (tmp_path / "d.ppm").write_bytes(b"P6 60000 60000 255\n")
    tif = io.BytesIO()
    Image.new("L", (64, 64)).save(tif, "TIFF")
    grown = bytearray(tif.getvalue())
    for tag in (256, 257):  # width and height
        at = grown.index(struct.pack("<HHI", tag, 4, 1)) if struct.pack("<HHI", tag, 4, 1) in grown else -1
        if at < 0:
            at = grown.index(struct.pack("<HHI", tag, 3, 1))
            grown[at + 2 : at + 4] = struct.pack("<H", 4)
        grown[at + 8 : at + 12] = struct.pack("<I", side)
    (tmp_path / "e.tif").write_bytes(grown)
    said, memory = measured(tmp_path)
    for name, reason in said.items():
        assert "pixels, over the limit of 178 million" in reason, (name, reason)
    assert len(said) == 5 and memory < 100


def test_a_picture_inside_an_icon_is_bound_by_the_same_limit(tmp_path: Path) -> None:
    inner = png(60_000, 60_000, rows=ZEROS)
    head = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inner), 22)
    (tmp_path / "a.ico").write_bytes(head + inner)
    said, memory = measured(tmp_path)
    assert not said["a.ico"].startswith("used") and memory < 200


def test_text_in_a_picture_is_never_shown_as_it_is(tmp_path: Path) -> None:
    """A colour profile's name goes to the terminal; escape codes in it do not."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "\x1b]0;owned\x07$(touch owned)")
    grey = scene().convert("L")
    grey.save(tmp_path / "a.png", pnginfo=text, icc_profile=bytes(profile))
    info = inspect_image(tmp_path / "a.png")
    assert all(note.isprintable() for note in info.notes)
