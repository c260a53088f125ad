"""review.html: what a person sees of a captioned folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.near_duplicates import fingerprint, groups
from noukii.errors import InputError
from noukii.report import caption_checks as checks
from noukii.report.cues import mentions
from noukii.report.readable import percent
from noukii.report.review import write_review
from noukii.report.thumbnails import ThumbnailSpool

LONG = (
    "a wide valley under heavy clouds, steep rocks left and right, a narrow river with grey stones, pine "
    "trees along its banks, an old wooden bridge, two hikers with yellow backpacks, a brown dog that "
    "waits on the path, snow on distant peaks, dim morning light, mist above wet grass, low horizon, "
    "muted greens and blues, fine rain, a small hut with smoke from its chimney, a broken fence, sheep "
    "grazing far away, one eagle overhead"
)
VOID = {"meta", "img", "input", "br", "path"}


class Page(HTMLParser):
    """A page's elements with their text; `open_tags` is empty when every tag was closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open_tags: list[int] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes), []))
        if tag not in VOID:
            self.open_tags.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag: str) -> None:
        while self.open_tags and self.elements[self.open_tags.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for place in self.open_tags:
            self.elements[place][2].append(data)

    def texts(self, tag: str, style: str = "") -> list[str]:
        """The text of all elements of this tag and class, white space as a browser shows it."""
        return [
            " ".join("".join(text).split())
            for name, attributes, text in self.elements
            if name == tag and (not style or style in (attributes.get("class") or "").split())
        ]

    def tile(self, name: str) -> str:
        """The number under a heading at the top of the page."""
        return dict(zip(self.texts("dt"), self.texts("dd"), strict=True))[name]

    def values(self, attribute: str) -> list[str]:
        return [
            value for _, attributes, _ in self.elements if (value := attributes.get(attribute)) is not None
        ]

    def cards(self) -> dict[str, list[str]]:
        """Image name -> flags."""
        names = [name for name in self.texts("span", "name") if not name.startswith("from ")]
        return dict(zip(names, [flags.split() for flags in self.values("data-flags")], strict=True))


def assert_self_contained(page: Page) -> None:
    """No element may reach for anything outside the file."""
    for attribute in ("src", "href", "srcset", "action", "data", "poster"):
        assert all(value.startswith("data:image/") for value in page.values(attribute))
    assert not [tag for tag, _, _ in page.elements if tag in ("link", "iframe", "object", "base", "form")]
    assert all("url(" not in text and "@import" not in text for text in page.texts("style"))


def picture(path: Path, size: tuple[int, int] = (640, 640)) -> None:
    """An image of coloured blocks that no other name has."""
    numbers = random.Random(zlib.crc32(os.fsencode(path.name)))
    Image.frombytes("RGB", (6, 6), numbers.randbytes(108)).resize(size, Image.Resampling.NEAREST).save(path)


def record(name: str, caption: str, **more: object) -> str:
    """A line as the captioning writes it."""
    line = {
        "file": name, "source": name, "sha256": "0" * 64, "width": 640, "height": 640,
        "model": "Janus-Pro-1B", "prompt": "describe this image in detail", "seed": 42,
        "temperature": 0.1, "top_p": 0.95,
        "max_new_tokens": 512, "keyword": "sat", "raw": caption, "caption": caption, "clip_tokens": 9,
        "finish_reason": "stop", "tokens": 20, "seconds": 1.0,
    }  # fmt: skip
    return json.dumps({**line, **more}) + "\n"


def add(folder: Path, name: str, caption: str | None, size: tuple[int, int] = (640, 640)) -> None:
    """Put an image with its .txt into a folder."""
    picture(folder / name, size)
    if caption is not None:
        (folder / name).with_suffix(".txt").write_text(caption, encoding="utf-8")


def test_every_flag_is_on_its_image_and_on_no_other(tmp_path: Path) -> None:
    add(tmp_path, "fine.png", "sat, a barn")
    add(tmp_path, "cut.png", "sat, a mill")
    add(tmp_path, "loop.png", "sat, a boat, the water is very calm, the water is very calm")
    add(tmp_path, "twin1.png", "sat, a red car")
    add(tmp_path, "twin2.png", "sat,  a RED car\n")
    add(tmp_path, "small.png", "sat, a leaf", (511, 700))
    add(tmp_path, "wide.png", "sat, a fence", (1201, 600))
    add(tmp_path, "twice_as_wide.png", "sat, a wall", (1200, 600))
    add(tmp_path, "edited.png", "sat, what I wrote")
    add(tmp_path, "long.png", f"sat, {LONG}")
    add(tmp_path, "empty.png", " \n")
    add(tmp_path, "bare.png", None)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    (tmp_path / "captions.jsonl").write_text(
        record("cut.png", "sat, a mill", finish_reason="length")
        + record("edited.png", "sat, what the model wrote")
        + record("gone.png", "sat, a ghost"),
        encoding="utf-8",
    )
    cards = Page(write_review(tmp_path)).cards()
    assert cards == {
        "bare.png": ["no-caption"],
        "broken.png": ["no-caption", "no-picture"],
        "cut.png": ["cut-off"],
        "edited.png": ["hand-edited"],
        "empty.png": ["no-caption"],
        "fine.png": [],
        "gone.png": ["no-caption", "no-picture"],
        "long.png": ["over-limit"],
        "loop.png": ["repetitive"],
        "small.png": ["small"],
        "twice_as_wide.png": [],
        "twin1.png": ["duplicate-caption"],
        "twin2.png": ["duplicate-caption"],
        "wide.png": ["extreme-aspect"],
    }


def test_images_that_look_the_same_are_named_on_each_other_s_card(photos: Path, tmp_path: Path) -> None:
    original = Image.open(photos / "chelsea.png").convert("RGB")
    original.save(tmp_path / "cat.png")
    original.resize((original.width // 2, original.height // 2)).save(tmp_path / "cat small.jpg", quality=40)
    original.crop((3, 3, original.width - 3, original.height - 3)).save(tmp_path / "cat cut.webp")
    for other in ("coffee.png", "rocket.png"):
        shutil.copy(photos / other, tmp_path)
    Image.new("RGB", (640, 640), "teal").save(tmp_path / "plain teal.png")
    Image.new("RGB", (640, 640), "maroon").save(tmp_path / "plain maroon.png")
    page = Page(write_review(tmp_path))
    same = {name for name, flags in page.cards().items() if "near-duplicate" in flags}
    assert same == {"cat.png", "cat small.jpg", "cat cut.webp"}
    assert "looks like cat cut.webp, cat small.jpg" in page.texts("span")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from("aabbc"), max_size=12))
def test_groups_are_the_same_in_any_order_and_hold_each_picture_once(kinds: list[str]) -> None:
    colours = {"a": "red", "b": "green", "c": "blue"}
    prints = [fingerprint(Image.new("RGB", (40, 40), colours[kind])) for kind in kinds]
    found = groups(prints)
    assert sorted(place for group in found for place in group) == [
        place for place, kind in enumerate(kinds) if kinds.count(kind) > 1
    ]
    assert all(len({kinds[place] for place in group}) == 1 for group in found)


def test_what_the_script_gets_cannot_end_its_attribute(tmp_path: Path) -> None:
    text = "sat </script><script>x()</script> \"'> \u2028 é"
    add(tmp_path, "x&quot;<script>.png", text)
    page = Page(write_review(tmp_path))
    (known,) = (json.loads(value) for value in page.values("data-edit"))
    assert known == {"file": next(tmp_path.glob("*.png")).name, "caption": " ".join(text.split())}
    assert len(page.texts("script")) == 1


def test_numbers_caption_and_raw_text(tmp_path: Path) -> None:
    add(tmp_path, "a.png", "sat, a red car by the sea")
    add(tmp_path, "b.png", f"sat, {LONG}")
    (tmp_path / "captions.jsonl").write_text(
        record("a.png", "sat, a red car", raw="The image shows a red car.", source="in/a.HEIC"),
        encoding="utf-8",
    )
    page = Page(write_review(tmp_path))
    assert page.texts("p", "caption") == ["sat, a red car by the sea", f"sat, {LONG}"]
    tokens = [ClipTokenizer.bundled().count(text) for text in ("sat, a red car by the sea", f"sat, {LONG}")]
    assert page.texts("p", "tokens") == [f"{count} of 75 tokens" for count in tokens]
    assert page.texts("p", "over") == [f"{tokens[1]} of 75 tokens"]
    assert page.texts("p", "raw") == ["sat, a red car", "The image shows a red car."]
    assert "from in/a.HEIC" in page.texts("span", "name")
    assert page.texts("span", "size") == ["640 × 640"] * 2
    assert (page.tile("Images"), page.tile("With a caption"), page.tile("Worth a look")) == ("2", "2", "1")
    assert (page.tile("trigger"), page.tile("model")) == ("sat", "Janus-Pro-1B")
    assert not page.open_tags
    assert_self_contained(page)


def test_markup_in_captions_and_names_stays_text(tmp_path: Path) -> None:
    evil = """<script>alert("1")</script> & 'x' "y" </p><img src=http://evil/x>"""
    name = """<b>"it's" & 'that'.png"""
    add(tmp_path, name, evil)
    (tmp_path / "captions.jsonl").write_text(
        record(name, evil + " once", raw=evil, source=evil, model=evil, keyword=evil), encoding="utf-8"
    )
    (tmp_path / "prompt_cue-x.txt").write_text(f"{evil}\n", encoding="utf-8")
    page = Page(write_review(tmp_path, [(evil, evil)]))
    shown = " ".join(evil.split())
    assert page.texts("p", "caption") == [shown]
    assert page.texts("h1") == [shown]
    assert list(page.cards()) == [name]
    assert page.texts("td") == [shown, shown]
    assert len(page.texts("script")) == 1 and "alert" not in page.texts("script")[0]
    assert_self_contained(page)


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX alone")
def test_odd_names(tmp_path: Path) -> None:
    folder = tmp_path / "a 'folder' é\n#%"
    folder.mkdir()
    names = ["line\nbreak.png", "%41#?.png", os.fsdecode(b"caf\xe9.png"), "日本.png", "-rf.png"]
    for name in names:
        try:
            add(folder, name, f"sat, {len(name)}")
        except OSError:
            pytest.skip("this file system refuses such names")
    page = Page(write_review(folder))
    assert set(page.cards()) == {r"line\nbreak.png", "%41#?.png", r"caf\xe9.png", "日本.png", "-rf.png"}
    assert len(page.values("src")) == 5
    assert "\n" not in page.texts("h1")[0]


def test_a_control_character_in_the_manifest_does_not_end_the_page(tmp_path: Path) -> None:
    add(tmp_path, "a.png", "sat, a barn")
    (tmp_path / "captions.jsonl").write_text(
        record("a.png", "sat, a barn", raw="nul \x00 bell \x07 half \ud800 end"), encoding="utf-8"
    )
    page = Page(write_review(tmp_path))
    assert page.texts("p", "raw") == [r"nul \x00 bell \x07 half \ud800 end"]


def test_empty_folder(tmp_path: Path) -> None:
    page = Page(write_review(tmp_path))
    assert page.tile("Images") == "0"
    assert page.cards() == {}
    assert "There are no images in this folder." in page.texts("p", "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["review.html"]


def test_one_image_of_a_foreign_folder_without_manifest(photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "coffee.png", tmp_path)
    (tmp_path / "coffee.txt").write_bytes("sat, café".encode("cp1252"))
    page = Page(write_review(tmp_path))
    assert page.texts("p", "caption") == ["sat, café"]
    assert page.cards() == {"coffee.png": ["small"]}
    assert not page.texts("details")


def test_two_hundred_images_stay_under_ten_megabytes(photos: Path, tmp_path: Path) -> None:
    source = random.Random(0)
    for number in range(2):  # half of them noise, which compresses worst, half of them photographs
        noise = Image.frombytes("RGB", (420, 420), source.randbytes(420 * 420 * 3))
        noise.save(tmp_path / f"{number:03d}.png")
        Image.open(photos / "rocket.png").resize((420, 746)).save(tmp_path / f"{number + 2:03d}.png")
    for number in range(4, 200):
        os.link(tmp_path / f"{number % 4:03d}.png", tmp_path / f"{number:03d}.png")
    with open(tmp_path / "captions.jsonl", "w", encoding="utf-8") as manifest:
        for number in range(200):
            (tmp_path / f"{number:03d}.txt").write_text(f"sat, {LONG} {number}", encoding="utf-8")
            manifest.write(record(f"{number:03d}.png", f"sat, {LONG} {number}", raw=LONG * 6))
    path = write_review(tmp_path)
    assert path.stat().st_size < 10_000_000
    page = Page(path)
    assert len(page.cards()) == 200
    assert len([value for value in page.values("src") if len(value) > 1000]) == 200


def test_prompt_cues_and_words_that_melt_into_the_trigger(tmp_path: Path) -> None:
    texts = [
        "two red cars, soft light",
        "a red car, soft light",
        "a dog, light",
        "a cat in light",
        "light on a wall",
    ]
    for number, text in enumerate(texts):
        add(tmp_path, f"{number}.png", f"sat, {text}")
    (tmp_path / "captions.jsonl").write_text(
        "".join(record(f"{number}.png", f"sat, {text}") for number, text in enumerate(texts)),
        encoding="utf-8",
    )
    (tmp_path / "prompt_cue-sat.txt").write_text("red car\nsoft light\n\nzebra\n", encoding="utf-8")
    page = Page(write_review(tmp_path))
    assert page.texts("span", "share") == ["40 %", "40 %", "0 %"]
    assert page.values("data-word") == ["light", "red car", "soft light", "zebra"]
    assert "light (100 %)." in page.texts("div", "notice")[0]


def test_skipped_files_are_named_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / "captions.jsonl").write_text(
        json.dumps({"source": "a.heic", "skipped": "needs pillow-heif"}) + "\n", encoding="utf-8"
    )
    page = Page(write_review(tmp_path, [("b\n.jpg", "0 bytes"), ("b\n.jpg", "0 bytes")]))
    assert page.texts("td") == ["a.heic", "needs pillow-heif", r"b\n.jpg", "0 bytes"]
    assert page.tile("Skipped files") == "2"


def test_damaged_manifest_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    add(tmp_path, "a.png", "sat, new")
    (tmp_path / "captions.jsonl").write_bytes(
        b'\xff\xfe garbage\n[1]\n{"file": 3}\n{"file": "a.png", "raw": 7, "width": "x", "seed": NaN}\n'
        + record("a.png", "sat, old").encode()
        + record("a.png", "sat, new").encode()
        + b'{"file": "a.png", "capt'
    )
    page = Page(write_review(tmp_path))
    assert page.cards() == {"a.png": []}


def test_captions_made_for_a_longer_limit_are_held_against_that(tmp_path: Path) -> None:
    add(tmp_path, "a.png", f"sat, {LONG}")
    (tmp_path / "captions.jsonl").write_text(
        record("a.png", f"sat, {LONG}", max_caption_tokens=225), encoding="utf-8"
    )
    assert Page(write_review(tmp_path)).cards() == {"a.png": []}


def test_a_caption_the_user_wrote_is_hand_edited(tmp_path: Path) -> None:
    add(tmp_path, "a.png", "sat, mine")
    (tmp_path / "captions.jsonl").write_text(
        record("a.png", "sat, mine", finish_reason="hand", raw="", model=None), encoding="utf-8"
    )
    assert Page(write_review(tmp_path)).cards() == {"a.png": ["hand-edited"]}


def test_a_missing_folder_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        write_review(tmp_path / "none")
    assert not list(tmp_path.iterdir())


def test_thumbnails_are_upright_small_and_tell_the_original_size(photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # shown a quarter turn clockwise
    Image.open(photos / "rocket.png").resize((1600, 1200)).save(tmp_path / "turned.jpg", exif=exif)
    with ThumbnailSpool(1_000_000, 1, longest_side=200) as spool:
        turned = spool.add(tmp_path / "turned.jpg")
        tiny = spool.add(photos / "rocket.png")
        assert turned.original == (1200, 1600)
        assert turned.size == (150, 200)
        assert tiny.original == (120, 213)
        assert max(tiny.size) <= 200
        assert spool.data_uri(turned) != spool.data_uri(tiny)


@pytest.mark.parametrize(
    "text",
    [
        "a cat, a cat, a cat",
        "very very very red",
        "the sky is blue and the sky is blue and",
        "A man sits on a bench. Trees behind him. A man sits on a bench.",
        "红色的汽车，红色的汽车，红色的汽车",
    ],
)
def test_going_round_in_circles_is_noticed(text: str) -> None:
    assert checks.is_repetitive(text)


@pytest.mark.parametrize("text", ["", "a", "a red car and a blue car and a green car by the sea", LONG])
def test_ordinary_lists_are_not_called_repetitive(text: str) -> None:
    assert not checks.is_repetitive(text)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_any_text_can_be_checked(text: str) -> None:
    assert checks.is_repetitive(f"{text}\none two three four. {text}\none two three four.")
    assert checks.text_flags(text, 0, raw=text, generated=text, finish_reason=None) in (
        [],
        ["no-caption"],
        ["repetitive"],
        ["no-caption", "repetitive"],
    )


def test_a_share_is_meaningless_for_a_few_captions_and_exact_at_the_border() -> None:
    assert checks.common_words(["sat, a barn"] * 4, "sat") == []
    borderline = ["sat, barn"] * 17 + ["sat, mill"] * 3
    assert checks.common_words(borderline, "sat") == []  # exactly 85 %
    assert checks.common_words([*borderline, "sat, barn"], "SAT") == [("barn", 18 / 21)]


def test_a_concept_is_found_as_words_not_as_letters() -> None:
    assert mentions("sat, two Red Cars, parked", "red car")
    assert mentions("a box of berries", "boxes") and mentions("one berry", "berries")
    assert not mentions("a scarred car", "red car")
    assert not mentions("a cart", "car")


def test_a_share_is_called_all_or_none_only_if_it_is() -> None:
    assert [percent(share) for share in (0, 0.001, 0.5, 0.999, 1)] == ["0 %", "1 %", "50 %", "99 %", "100 %"]
