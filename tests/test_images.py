"""Which files are pictures, what is wrong with the others, and what a training copy shows."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageDraw

from noukii.dataset.images import (
    ImageInfo,
    UnusableImage,
    inspect_image,
    inspect_images,
    list_images,
    open_image,
    safe_stems,
    write_training_copy,
)
from noukii.dataset.stems import safe_name
from noukii.errors import InputError


def picture(size: tuple[int, int] = (64, 48), colour: tuple[int, int, int] = (200, 40, 60)) -> Image.Image:
    image = Image.new("RGB", size, colour)
    ImageDraw.Draw(image).line((0, 0, *size), fill=(20, 220, 90), width=3)
    return image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photograph(size: tuple[int, int] = (400, 300)) -> Image.Image:
    small = Image.frombytes("RGB", (100, 75), random.Random(7).randbytes(100 * 75 * 3))
    return small.resize(size, Image.Resampling.BICUBIC)


def skipped(folder: Path) -> dict[str, str]:
    listing = list_images(folder)
    _, broken = inspect_images(listing.images)
    return {one.path.name: one.reason for one in [*listing.skipped, *broken]}


def used(folder: Path) -> list[str]:
    return [info.path.name for info in inspect_images(list_images(folder).images)[0]]


def digest(folder: Path) -> dict[str, str]:
    return {
        os.fsdecode(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# ------------------------------------------------------------------------------- what counts
def test_every_usual_extension_in_any_case_counts(tmp_path: Path) -> None:
    names = {
        "a.JPG": "JPEG", "b.Jpg": "JPEG", "c.jpeg": "JPEG", "d.jfif": "JPEG", "e.PNG": "PNG",
        "f.WebP": "WEBP", "g.jpe": "JPEG", "h.BMP": "BMP", "i.gif": "GIF", "j.TIF": "TIFF", "k.tiff": "TIFF",
        "l.avif": "AVIF", "m.tga": "TGA", "n.ppm": "PPM", "o.jp2": "JPEG2000",
    }  # fmt: skip
    for name, kind in names.items():
        picture().save(tmp_path / name, kind)
    assert used(tmp_path) == sorted(names)
    assert skipped(tmp_path) == {}


def test_content_decides_where_the_name_does_not(tmp_path: Path) -> None:
    (tmp_path / "no_extension").write_bytes(encoded(picture(), "JPEG"))
    (tmp_path / "photo.large").write_bytes(encoded(picture(), "WEBP"))
    (tmp_path / "from_phone.heic").write_bytes(encoded(picture(), "JPEG"))
    (tmp_path / "really_jpeg.png").write_bytes(encoded(picture(), "JPEG"))
    (tmp_path / "notes").write_text("no picture")
    infos, _ = inspect_images(list_images(tmp_path).images)
    assert [info.path.name for info in infos] == [
        "from_phone.heic",
        "no_extension",
        "photo.large",
        "really_jpeg.png",
    ]
    assert infos[3].extension == ".jpg" and infos[3].as_is and infos[3].notes == ("is really JPEG",)


def test_litter_is_counted_and_never_used(tmp_path: Path) -> None:
    picture().save(tmp_path / "good.png")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._good.png", "good.png:Zone.Identifier", "a.npz"):
        (tmp_path / name).write_bytes(b"\0\1Bud1" * 8)
    picture().save(tmp_path / ".hidden.png")
    for name in ("@eaDir", "__MACOSX", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        picture().save(tmp_path / name / "x.png")
    for recursive in (False, True):
        listing = list_images(tmp_path, recursive)
        assert [path.name for path in listing.images] == ["good.png"]
        assert listing.skipped == [] and listing.litter == 10


def test_captions_and_other_companions_are_neither(tmp_path: Path) -> None:
    for name in ("a.txt", "a.caption", "captions.jsonl", "review.html", "meta.json", "README.md"):
        (tmp_path / name).write_text("text")
    listing = list_images(tmp_path)
    assert (listing.images, listing.skipped, listing.litter) == ([], [], 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.cr2", "raw"),
        ("a.mp4", "video"),
        ("a.psd", "export"),
        ("a.zip", "unpack"),
        ("a.jpg.part", "unfinished"),
    ],
)
def test_files_people_expect_to_be_used_are_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"II*\0" + b"\1" * 100)
    assert words in skipped(tmp_path)[name]


def test_heic_names_the_package_or_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 64)
    (tmp_path / "b.jpg").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 64)
    reasons = skipped(tmp_path)
    assert reasons.keys() == {"a.heic", "b.jpg"}
    if "pillow-heif" not in sys.modules and not _has_heif():
        assert all("pillow-heif" in reason for reason in reasons.values())


def _has_heif() -> bool:
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        return False
    return True


def test_missing_folder_and_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        list_images(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        list_images(tmp_path / "file")


def test_links_pipes_and_loops(tmp_path: Path) -> None:
    inner = tmp_path / "sub"
    inner.mkdir()
    picture().save(inner / "real.png")
    (tmp_path / "link.png").symlink_to(inner / "real.png")
    (tmp_path / "dead.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    (inner / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    assert used(tmp_path) == ["link.png"]
    assert skipped(tmp_path).keys() == {"dead.png", "self.png", "pipe.png"}
    listing = list_images(tmp_path, recursive=True)
    assert [path.name for path in listing.images] == ["link.png", "real.png"]


# ------------------------------------------------------------------------------- what is broken
def test_broken_files_are_named_with_their_reason(tmp_path: Path) -> None:
    picture().save(tmp_path / "good.png")
    jpeg = encoded(photograph(), "JPEG", quality=92)
    png = encoded(photograph(), "PNG")
    (tmp_path / "half.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (tmp_path / "tail.png").write_bytes(png[: len(png) * 2 // 3])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "zeros.png").write_bytes(b"\0" * 4096)
    (tmp_path / "note.jpg").write_text("this is a text file, not a picture\n")
    (tmp_path / "page.webp").write_text("<!DOCTYPE html><html><title>403 Forbidden</title></html>\n")
    (tmp_path / "lfs.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    reasons = skipped(tmp_path)
    assert used(tmp_path) == ["good.png"]
    assert reasons["empty.png"] == "0 bytes"
    assert "cut off" in reasons["half.jpg"] and "cut off" in reasons["tail.png"]
    assert "text" in reasons["note.jpg"] and "web page" in reasons["page.webp"]
    assert "Git LFS pointer" in reasons["lfs.png"] and "zeros" in reasons["zeros.png"]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (1200, 900)])
def test_the_quick_jpeg_check_finds_what_a_full_decode_finds(
    tmp_path: Path, progressive: bool, size: tuple[int, int]
) -> None:
    data = encoded(photograph(size), "JPEG", quality=90, progressive=progressive)
    for lost in (1, 2, 3, 5, 10, 20, 60, 200, len(data) // 10, len(data) // 2, len(data) * 9 // 10):
        path = tmp_path / "cut.jpg"
        path.write_bytes(data[:-lost])
        try:
            with Image.open(path) as image:
                image.load()
            whole = True
        except OSError:
            whole = False
        if whole:
            assert inspect_image(path).width == size[0]
        else:
            with pytest.raises(UnusableImage, match=r"cut off|damaged"):
                inspect_image(path)


def png_of(width: int, height: int, chunks: bytes = b"") -> bytes:
    def chunk(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    packer = zlib.compressobj(9)
    row = b"\0" + b"\x0f" * ((width + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunks + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_named_with_its_size_and_the_limit(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_of(14000, 14000))
    (tmp_path / "big.png").write_bytes(png_of(12000, 8000))
    reason = skipped(tmp_path)["bomb.png"]
    assert "14000x14000" in reason and "178 million" in reason
    assert used(tmp_path) == ["big.png"]


def test_megabytes_of_text_in_a_png_do_no_harm(tmp_path: Path) -> None:
    text = b"workflow\0\0" + zlib.compress(b"x" * 3_000_000)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    (tmp_path / "comfy.png").write_bytes(png_of(80, 64, chunk))
    info = inspect_image(tmp_path / "comfy.png")
    assert (info.width, info.height, info.as_is) == (80, 64, False)
    assert open_image(tmp_path / "comfy.png").mode == "RGB"


def test_pillows_warnings_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(png_of(12000, 8000))
    palette = picture().quantize(16)
    palette.save(tmp_path / "p.png", transparency=bytes([0, 128] + [255] * 14))
    code = (
        "from pathlib import Path; from noukii.dataset.images import *; import sys\n"
        "infos, bad = inspect_images(list_images(Path(sys.argv[1])).images); open_image(infos[1].path)\n"
        "print(len(infos))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "2\n" and answer.stderr == ""


# ------------------------------------------------------------------------------- what is seen
def near(pixel: object, wanted: tuple[int, int, int], tolerance: int = 3) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, wanted, strict=True))  # type: ignore[call-overload]


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    hidden = Image.new("RGBA", (64, 64), (255, 0, 255, 0))
    ImageDraw.Draw(hidden).ellipse((16, 16, 48, 48), fill=(220, 30, 30, 255))
    hidden.save(tmp_path / "hidden.png")
    half = Image.new("RGBA", (64, 64), (0, 0, 255, 128))
    half.save(tmp_path / "half.png")
    grey = Image.new("LA", (64, 64), (40, 0))
    ImageDraw.Draw(grey).rectangle((20, 20, 44, 44), fill=(90, 255))
    grey.save(tmp_path / "grey.png")
    palette = picture((64, 64)).quantize(4)
    palette.save(tmp_path / "palette.png", transparency=palette.getpixel((60, 5)))
    named = Image.new("RGB", (64, 64), (1, 2, 3))
    named.save(tmp_path / "key.png", transparency=(1, 2, 3))
    hidden.save(tmp_path / "hidden.webp", lossless=True, exact=True)
    for name, place, colour in (
        ("hidden.png", (2, 2), (255, 255, 255)),
        ("hidden.png", (32, 32), (220, 30, 30)),
        ("hidden.webp", (2, 2), (255, 255, 255)),
        ("half.png", (32, 32), (127, 127, 255)),
        ("grey.png", (2, 2), (255, 255, 255)),
        ("grey.png", (32, 32), (90, 90, 90)),
        ("palette.png", (60, 5), (255, 255, 255)),
        ("key.png", (5, 5), (255, 255, 255)),
    ):
        image = open_image(tmp_path / name)
        assert image.mode == "RGB" and near(image.getpixel(place), colour), (
            name,
            place,
            image.getpixel(place),
        )
        assert not inspect_image(tmp_path / name).as_is


@pytest.mark.parametrize(
    ("orientation", "top_left"), [(2, "b"), (3, "d"), (4, "c"), (5, "a"), (6, "c"), (7, "d"), (8, "b")]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_turns_the_picture_upright(tmp_path: Path, kind: str, orientation: int, top_left: str) -> None:
    colours = {"a": (255, 0, 0), "b": (0, 0, 255), "c": (0, 160, 0), "d": (240, 240, 0)}
    image = Image.new("RGB", (160, 96))
    for letter, box in zip("abcd", ((0, 0), (80, 0), (0, 48), (80, 48)), strict=True):
        image.paste(colours[letter], (*box, box[0] + 80, box[1] + 48))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.bin"
    lossless = {"lossless": True} if kind == "WEBP" else {}
    image.save(path, kind, exif=exif, **lossless)
    info = inspect_image(path)
    size = (96, 160) if orientation >= 5 else (160, 96)
    assert (info.width, info.height) == size and not info.as_is
    copy = Image.open(write_training_copy(info, tmp_path, "copy"))
    assert copy.size == size and near(copy.getpixel((8, 8)), colours[top_left], 40)
    assert copy.getexif().get(0x0112) is None


def test_broken_exif_says_nothing_about_the_pixels(tmp_path: Path) -> None:
    data = encoded(picture((64, 48)), "JPEG")
    junk = b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01\0\0\0" + b"\xff" * 12
    path = tmp_path / "bad.jpg"
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(junk) + 2) + junk + data[2:])
    info = inspect_image(path)
    assert (info.width, info.height, info.as_is) == (64, 48, True)


def test_cmyk_without_a_profile(tmp_path: Path) -> None:
    image = Image.new("CMYK", (64, 64), (0, 0, 0, 0))
    ImageDraw.Draw(image).rectangle((16, 16, 48, 48), fill=(0, 255, 255, 0))
    image.save(tmp_path / "a.jpg", quality=95)
    image.save(tmp_path / "b.tif")
    plain = encoded(image, "JPEG", quality=95)
    marker = plain.index(b"\xff\xee")
    length = struct.unpack(">H", plain[marker + 2 : marker + 4])[0]
    # Without Adobe's mark the stored values are as they stand: this file holds the inverse picture.
    (tmp_path / "c.jpg").write_bytes(plain[:marker] + plain[marker + 2 + length :])
    for name in ("a.jpg", "b.tif"):
        assert near(open_image(tmp_path / name).getpixel((32, 32)), (255, 0, 0), 40), name
        assert near(open_image(tmp_path / name).getpixel((4, 4)), (255, 255, 255), 40), name
    assert near(open_image(tmp_path / "c.jpg").getpixel((4, 4)), (0, 0, 0), 40)


def test_colour_profiles(tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    # The same primaries with red and blue exchanged. Upstream reads RGB numbers as they stand, so do we.
    swapped = bytearray(srgb)
    red, blue = swapped.index(b"rXYZ"), swapped.index(b"bXYZ")
    swapped[red : red + 4], swapped[blue : blue + 4] = swapped[blue : blue + 4], swapped[red : red + 4]
    Image.new("RGB", (64, 64), (255, 0, 0)).save(tmp_path / "swapped.png", icc_profile=bytes(swapped))
    assert inspect_image(tmp_path / "swapped.png").as_is
    assert open_image(tmp_path / "swapped.png").getpixel((5, 5)) == (255, 0, 0)
    picture().save(tmp_path / "junk.png", icc_profile=b"no profile at all" * 20)
    assert open_image(tmp_path / "junk.png").getpixel((60, 5)) == (200, 40, 60)


def test_deep_and_floating_point_pictures(tmp_path: Path) -> None:
    import numpy as np

    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    Image.fromarray(ramp).save(tmp_path / "deep.tif")
    for name, values in (
        ("unit.tif", ramp / 65535),
        ("byte.tif", ramp / 257),
        ("range.tif", ramp.astype(float) * 3 - 500),
    ):
        Image.fromarray(values.astype(np.float32)).save(tmp_path / name)
    nan = (ramp / 65535).astype(np.float32)
    nan[0, 0] = np.nan
    Image.fromarray(nan).save(tmp_path / "nan.tif")
    for name in ("deep.png", "deep.tif", "unit.tif", "byte.tif", "range.tif", "nan.tif"):
        image = open_image(tmp_path / name)
        row = [image.getpixel((x, 3))[0] for x in (0, 21, 42, 63)]
        assert all(abs(a - b) <= 1 for a, b in zip(row, (0, 85, 170, 255), strict=True)), (name, row)
    flat = np.full((64, 64), 900.0, np.float32)
    Image.fromarray(flat).save(tmp_path / "flat.tif")
    assert open_image(tmp_path / "flat.tif").size == (64, 64)


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for kind, end in (("GIF", "gif"), ("WEBP", "webp"), ("PNG", "png"), ("TIFF", "tif")):
        frames[0].save(tmp_path / f"a.{end}", kind, save_all=True, append_images=frames[1:])
        info = inspect_image(tmp_path / f"a.{end}")
        assert not info.as_is and "first of 3 frames" in info.notes, kind
        assert near(open_image(tmp_path / f"a.{end}").getpixel((9, 9)), (255, 0, 0), 20), kind


# ------------------------------------------------------------------------------- the copy
@pytest.mark.parametrize(
    ("kind", "name", "end"),
    [("PNG", "a.PNG", ".png"), ("JPEG", "a.JPEG", ".jpeg"), ("JPEG", "a.jfif", ".jpg"),
     ("WEBP", "a.webp", ".webp"), ("BMP", "a.bmp", ".bmp"), ("PNG", "a.jpg", ".png")],
)  # fmt: skip
def test_what_is_right_is_copied_byte_for_byte(tmp_path: Path, kind: str, name: str, end: str) -> None:
    path = tmp_path / name
    path.write_bytes(encoded(picture(), kind))
    info = inspect_image(path)
    assert info.as_is and info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    target = tmp_path / "out"
    target.mkdir()
    copy = write_training_copy(info, target, "copy")
    assert copy.name == f"copy{end}" and copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16", "F"])
def test_every_other_mode_becomes_rgb_png(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode in ("CMYK", "F") else "a.png")
    Image.new(mode, (70, 50)).save(path)
    before = digest(tmp_path)
    info = inspect_image(path)
    target = tmp_path / "out"
    target.mkdir()
    copy = write_training_copy(info, target, "copy")
    with Image.open(copy) as image:
        image.load()
        assert (copy.name, image.mode, image.size) == ("copy.png", "RGB", (70, 50))
    assert digest(tmp_path).items() >= before.items()


def test_a_file_that_changes_after_the_check_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    picture().save(path)
    info = inspect_image(path)
    target = tmp_path / "out"
    target.mkdir()
    path.write_bytes(encoded(picture((64, 48), (1, 2, 3)), "PNG"))
    with pytest.raises(UnusableImage, match="changed"):
        write_training_copy(info, target, "copy")
    path.unlink()
    with pytest.raises(UnusableImage):
        write_training_copy(info, target, "copy")
    assert list(target.iterdir()) == []


def test_order_is_kept_and_nothing_is_lost(tmp_path: Path) -> None:
    paths = []
    for number in range(40):
        path = tmp_path / f"{number:02}.png"
        if number % 7 == 3:
            path.write_text("broken")
        else:
            picture((64 + number, 64)).save(path)
        paths.append(path)
    seen: list[None] = []
    infos, broken = inspect_images(paths, lambda: seen.append(None))
    assert [info.path for info in infos] == [path for n, path in enumerate(paths) if n % 7 != 3]
    assert [one.path for one in broken] == [path for n, path in enumerate(paths) if n % 7 == 3]
    assert [info.width for info in infos] == [64 + n for n in range(40) if n % 7 != 3]
    assert len(seen) == 40


# ------------------------------------------------------------------------------- names
def test_equal_stems_are_kept_apart() -> None:
    paths = [Path(name) for name in ("cat.webp", "cat.png", "cat.jpg", "Dog.png", "dog.png", "cat-2.bmp")]
    stems = {path.name: stem for path, stem in safe_stems(paths).items()}
    assert stems == {
        "cat.jpg": "cat", "cat.png": "cat-3", "cat.webp": "cat-4", "cat-2.bmp": "cat-2", "Dog.png": "Dog",
        "dog.png": "dog-2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("two words.png", "two words"), ("1 (1).png", "1 (1)"), ("[b] {c}.png", "[b] {c}"),
        ("-dash.png", "dash"), ("--help.png", "help"), ('it\'s "q".png', 'it\'s "q"'),
        ("emoji_\U0001f63a.png", "emoji_\U0001f63a"),
        ("new\nline.png", "new line"), ("end .png", "end"), (" start.png", "start"), ("a.b.png", "a.b"),
        ("$HOME;ls.png", "$HOME;ls"), ("back\\slash.png", "back\\slash"), ("no_extension", "no_extension"),
        ("photo.large", "photo.large"), (os.fsdecode(b"caf\xe9.png"), "caf_"), ("- -.png", "image"),
    ],
)  # fmt: skip
def test_names_stay_human(name: str, stem: str) -> None:
    assert safe_stems([Path(name)]) == {Path(name): stem}


def test_the_longest_name_fits() -> None:
    stem = safe_stems([Path("x" * 251 + ".png")])[Path("x" * 251 + ".png")]
    assert stem == "x" * 200
    stem = safe_stems([Path("é" * 125 + ".png")])[Path("é" * 125 + ".png")]
    assert stem == "é" * 100


file_names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=40
).filter(lambda name: name not in (".", ".."))


@given(st.lists(file_names, unique=True, max_size=12))
def test_any_names_give_stems_a_trainer_can_take(names: list[str]) -> None:
    paths = [Path(name) for name in names]
    stems = safe_stems(paths)
    assert list(stems) == list(dict.fromkeys(paths))
    folded = {stem.casefold() for stem in stems.values()}
    assert len(folded) == len(stems)
    for stem in stems.values():
        assert stem == stem.strip() and stem
        assert not stem.startswith(("-", ".")) and "\n" not in stem and len(stem.encode("utf-8")) <= 210
    assert stems == safe_stems(list(reversed(paths)))


@given(file_names)
def test_a_mended_name_needs_no_mending(name: str) -> None:
    assert safe_name(safe_name(name)) == safe_name(name)


def test_awkward_names_are_read_and_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    names = [
        b"new\nline.png",
        b"--help.png",
        b"caf\xe9.png",
        b"*.png",
        b"x" * 251 + b".png",
        b"trailing .png",
    ]
    for number, name in enumerate(names):
        data = encoded(picture((64 + number, 64)), "PNG")
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(data)
    before = digest(source)
    infos, broken = inspect_images(list_images(source).images)
    assert len(infos) == len(names) and not broken
    stems = safe_stems([info.path for info in infos])
    copies: list[ImageInfo] = [
        inspect_image(write_training_copy(info, target, stems[info.path])) for info in infos
    ]
    assert sorted(copy.sha256 for copy in copies) == sorted(before.values())
    assert digest(source) == before
