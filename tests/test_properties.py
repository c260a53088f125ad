"""Any names, captions and folder trees: what goes in comes out, and the user's folder is as it was."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from noukii.captioning.options import parse
from noukii.dataset.config_file import DatasetConfig, SubsetConfig, TrainConfig, format_config, read_config
from noukii.dataset.folders import find_data_sets
from noukii.dataset.images import open_image
from noukii.dataset.plan import bucket_rule, make_plan
from noukii.dataset.staging import MARKER, stage
from noukii.driver.options import parse as parse_training
from noukii.errors import InputError
from noukii.names import MAX_NAME_BYTES, name_problem, printable

PIECES = st.sampled_from(
    ["cat", " ", "-", "--help", ".", "..", "é", "e\u0301", "😺", "猫", "\n", "\t", "$(touch owned)", "`id`",
     "'", '"', "\\", "*", "?", "[", "]", ";", "&", "#", "%s", "~", "10_", "\u202e", "\u2028",
     "x" * 70, "\udce9", "\x7f"]
)  # fmt: skip
NAMES = (
    st.lists(PIECES, min_size=1, max_size=4).map("".join).filter(lambda name: len(os.fsencode(name)) < 240)
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


@dataclass(frozen=True)
class Made:
    """A file to be written: `kind` says what is in it."""

    name: str
    ending: str
    kind: str
    caption: str


FILES = st.builds(
    Made,
    NAMES,
    st.sampled_from(
        [".png", ".PNG", ".jpg", ".Jpeg", ".webp", ".gif", ".tif", ".bmp", ".heic", ".xbm", ".mp4"]
    ),
    st.sampled_from(["ok", "ok", "ok", "see-through", "broken", "empty", "small", "link", "loose link"]),
    st.sampled_from(
        ["cat, sitting", "  cat\r\nred hat ", "", "none", "cat\x07", "(a:1.2), {b|c}, tab\there"]
    ),
)


def write(folder: Path, made: Made, number: int) -> Path | None:
    """Write one file and its caption; None where the disk has no such name."""
    path = folder / (made.name.replace("/", "") + made.ending)
    if os.path.lexists(path):
        return None
    image = Image.new("RGB", (96, 72) if made.kind != "small" else (20, 20), (number * 20, 90, 200))
    if made.kind == "see-through":
        image.putalpha(100)
    try:
        if made.kind == "broken":
            path.write_bytes(b"\x89PNG\r\n\x1a\n and nothing else")
        elif made.kind == "empty":
            path.touch()
        elif made.kind == "loose link":
            path.symlink_to(folder / "nowhere")
        else:
            target = folder.parent / f"{number}.png" if made.kind == "link" else path
            image.save(target, "PNG")
            if made.kind == "link":
                path.symlink_to(target)
    except OSError:
        return None
    if made.caption != "none":
        (folder / (path.name.removesuffix(made.ending) + ".txt")).write_text(
            made.caption, encoding="utf-8", newline=""
        )
    return path


def digest(folder: Path) -> dict[bytes, str]:
    """Every name below `folder` with what is there: a link's target, a file's hash."""
    found = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            if os.path.islink(path):
                found[path] = f"link to {os.fsdecode(os.readlink(path))}"
            elif os.path.isfile(path):
                with open(path, "rb") as stream:
                    found[path] = hashlib.sha256(stream.read()).hexdigest()
            else:
                found[path] = "folder"
    return found


@pytest.mark.usefixtures("project_home")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FILES, min_size=1, max_size=7), NAMES)
def test_what_goes_in_comes_out_and_nothing_of_the_users_changes(files: list[Made], name: str) -> None:
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / ("3_" + name)[:200]
        folder.mkdir()
        made = {path for number, one in enumerate(files) if (path := write(folder, one, number)) is not None}
        (folder / "sub").mkdir()
        (folder / "sub" / "loop").symlink_to(folder)
        before = digest(Path(room))
        try:
            plan = make_plan(find_data_sets([], [folder])[0], resolution=128)
        except InputError as error:
            assert error.next_step
            assert digest(Path(room)) == before
            return
        (one,) = plan.sets
        used = {image.info.path for image in one.images}
        skipped = {each.path for each in one.skipped}
        hidden = {path for path in made if path.name.startswith(".")}
        assert used | skipped == made - hidden and not used & skipped
        assert one.found == len(used) + len(skipped)
        (subset,) = stage(plan)
        assert digest(Path(room)) == before
        check_copies(one.images, subset)
        shutil.rmtree(subset.image_dir)


def check_copies(images: tuple, subset: SubsetConfig) -> None:
    """R6: as many pictures as were used, upright RGB, each with its own one-line .txt; nothing else."""
    copies = {path.name for path in subset.image_dir.iterdir()} - {MARKER}
    assert len({name.casefold() for name in copies}) == len(copies) == 2 * len(images)
    for image in images:
        copy = subset.image_dir / (image.stem + image.info.extension)
        assert copy.suffix in (".png", ".jpg", ".jpeg", ".webp", ".bmp")
        assert printable(copy.name) == copy.name
        with Image.open(copy) as opened:
            assert opened.mode == "RGB"
        assert open_image(copy).tobytes() == open_image(image.info.path).tobytes()
        text = copy.with_name(image.stem + ".txt").read_bytes().decode("utf-8")
        assert text == image.caption.text and "\n" not in text and "\r" not in text and text
        assert text in ("cat, sitting", "cat red hat", "(a:1.2), {b|c}, tab\there", subset.class_tokens)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30) | NAMES)
@example("../up")
@example("a/b")
@example("..")
@example("~root")
@example("-rf")
@example("a" * 201)
@example("é" * 101)
def test_a_keyword_or_an_output_name_stays_inside_its_folder(name: str) -> None:
    """Taken as it is, or refused with a next step: never a path that leads elsewhere."""
    with tempfile.TemporaryDirectory() as room:
        (Path(room) / "in").mkdir()
        for read in (_keyword, _output_name):
            try:
                place = read(Path(room), name)
            except InputError as error:
                assert error.next_step and printable(str(error).replace("\n", "")) == str(error).replace(
                    "\n", ""
                )
                continue
            assert place.name == name and place.parent == Path(room)
            assert os.path.normpath(place) == os.fspath(place)
            assert name_problem(name) is None and len(os.fsencode(name)) <= MAX_NAME_BYTES
            place.mkdir()  # the disk takes it
            place.rmdir()


def _keyword(room: Path, name: str) -> Path:
    return parse([os.fspath(room / "in"), f"--keyword={name}"]).output


def _output_name(room: Path, name: str) -> Path:
    found = parse_training([f"--output-name={name}"]).output_name
    assert found is not None
    return room / found


@settings(max_examples=80, deadline=None)
@given(TEXTS, TEXTS, st.one_of(st.none(), TEXTS))
@example("a\\x41b", 'quo"te', "apos'trophe")
@example('""two', "tab\there", "'")
def test_strings_come_out_of_toml_as_they_went_in(folder: str, keyword: str, prefix: str | None) -> None:
    subset = SubsetConfig(Path("/" + folder), 3, keyword, ".txt", caption_prefix=prefix)
    config = TrainConfig((DatasetConfig(bucket_rule(512), 4, (subset,)),))
    try:
        text = format_config(config)
    except InputError as error:
        assert error.next_step == "rename it" or error.next_step == "rename the folder"
        return
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "c.toml"
        path.write_text(text, encoding="utf-8")
        assert read_config(path) == config
