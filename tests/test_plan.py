"""What a run will do, said before it is done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from noukii.dataset.folders import DataSet
from noukii.dataset.plan import Plan, bucket_rule, describe, make_plan
from noukii.errors import InputError


def fill(folder: Path, sizes: dict[str, tuple[int, int]], caption: str | None = "cat, a picture") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        Image.new("RGB", size, (9, 9, 99)).save(folder / name)
        if caption is not None:
            (folder / name).with_suffix(".txt").write_text(caption)
    return folder


def plan_of(folder: Path, repeats: int = 10, **options: int) -> Plan:
    return make_plan([DataSet(folder, "cat", repeats, "the folder's name")], **options)


def test_steps_epochs_and_buckets(tmp_path: Path) -> None:
    sizes = {f"{n}.png": (512, 512) for n in range(3)} | {"w.png": (640, 384), "h.png": (300, 300)}
    folder = fill(tmp_path / "10_cat", sizes)
    plan = plan_of(folder)
    assert {str(bucket): count for bucket, count in plan.buckets.items()} == {
        "256x256": 10, "512x512": 30, "640x384": 10,
    }  # fmt: skip
    assert plan.samples_per_epoch == 50
    assert plan.steps_per_epoch == 3 + 8 + 3  # not ceil(50 / 4) = 13
    assert (plan.steps, plan.epochs) == (400, 29)
    assert (plan_of(folder, epochs=2).steps, plan_of(folder, epochs=2).epochs) == (28, 2)
    assert plan_of(folder, steps=15).epochs == 2
    assert plan_of(folder, epochs=2, steps=15).steps == 28
    half = plan_of(folder, epochs=3, accumulation=4)
    assert (half.steps_per_epoch, half.steps) == (4, 12)
    assert plan_of(folder, batch_size=1, repeats=1).steps_per_epoch == 5


def test_data_sets_share_their_buckets(tmp_path: Path) -> None:
    cat = DataSet(fill(tmp_path / "3_cat", {"a.png": (512, 512)}), "cat", 3, "")
    dog = DataSet(fill(tmp_path / "5_dog", {"a.png": (512, 512)}), "dog", 5, "")
    assert make_plan([cat, dog]).steps_per_epoch == 2  # ceil(8 / 4), not ceil(3 / 4) + ceil(5 / 4) = 3


@pytest.mark.parametrize(("resolution", "low"), [(512, 256), (256, 256), (192, 192), (100, 64), (2048, 256)])
def test_the_smallest_bucket_never_exceeds_the_resolution(resolution: int, low: int) -> None:
    assert bucket_rule(resolution).min_size == low


def test_every_skipped_picture_is_named(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "10_cat", {"good.png": (512, 512), "thin.png": (500, 50), "long.png": (8000, 100)}
    )
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    (folder / "raw.cr2").write_bytes(b"II*\0")
    (folder / ".DS_Store").write_bytes(b"\0")
    fill(folder, {"sjis.png": (512, 512)})
    (folder / "sjis.txt").write_bytes("猫, 座っている".encode("shift_jis"))
    one = plan_of(folder).sets[0]
    assert one.found == 6 and len(one.images) == 1
    assert {each.path.name for each in one.skipped} == {
        "thin.png",
        "long.png",
        "broken.jpg",
        "raw.cr2",
        "sjis.png",
    }
    text = describe(plan_of(folder))
    assert "found 6 = used 1 + skipped 5" in text
    for each in one.skipped:
        assert each.path.name in text
    assert "500x50" in text and "8000x100" in text and "sjis.txt" in text


def test_captions_missing_empty_and_under_other_names(tmp_path: Path) -> None:
    names = [
        "img_1.png",
        "img_2.png",
        "img_3.png",
        "img_4.png",
        "img_5.png",
        "img_6.png",
        "trip_2024_01_02_03.png",
    ]
    folder = fill(tmp_path / "10_cat", dict.fromkeys(names, (512, 512)), None)
    (folder / "img_1.txt").write_text("cat, one")
    (folder / "img_2.caption").write_text("cat, two")
    (folder / "img_3.TXT").write_text("cat, three")
    (folder / "img_4.png.txt").write_text("cat, four")
    (folder / "img_6.txt").write_text("\n")
    (folder / "trip.txt").write_text("this caption belongs to no image")
    plan = plan_of(folder)
    texts = {image.info.path.name: image.caption.text for image in plan.sets[0].images}
    assert list(texts.values()) == ["cat, one", "cat, two", "cat, three", "cat, four", "cat", "cat", "cat"]
    text = describe(plan)
    assert "captions: 4 found, 2 missing, 1 empty" in text
    assert "missing for img_5.png, trip_2024_01_02_03.png" in text and "empty: img_6.txt" in text
    assert any("3 of 7 images" in warning for warning in plan.warnings)


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_no_caption_at_all_is_refused(tmp_path: Path, content: str | None) -> None:
    folder = fill(tmp_path / "10_dog", {f"{n}.png": (512, 512) for n in range(3)}, content)
    with pytest.raises(InputError, match="no captions") as error:
        plan_of(folder)
    assert error.value.exit_code == 2 and "run_captioning.sh" in str(error.value)
    assert str(folder) in str(error.value)


def test_nothing_usable_is_refused_with_every_reason(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"thin.png": (500, 50)})
    (folder / "empty.png").touch()
    with pytest.raises(InputError) as error:
        plan_of(folder)
    assert "thin.png" in str(error.value) and "empty.png: 0 bytes" in str(error.value)


@pytest.mark.parametrize(
    ("words", "limit", "wanted", "unwanted"),
    [
        (100, 75, "--max-token-length 150", "225"),
        (190, 75, "--max-token-length 225", "150"),
        (190, 150, "--max-token-length 225", "length 150"),
        (300, 75, "shorten what is longer (up to 300 tokens)", "150"),
        (300, 225, "225 are the most", "--max-token-length"),
    ],
)
def test_the_advised_token_length_is_one_that_suffices(
    tmp_path: Path, words: int, limit: int, wanted: str, unwanted: str
) -> None:
    folder = fill(tmp_path / "10_cat", {"1.png": (64, 64)})
    (folder / "1.txt").write_text("cat " * words)
    (warning,) = plan_of(folder, max_token_length=limit).warnings
    assert wanted in warning and unwanted not in warning.replace(f"over {limit}", "")


def test_long_captions_and_a_keyword_behind_the_limit(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {f"{n}.png": (512, 512) for n in (1, 2, 3)})
    long = "a very long and detailed description of a small orange cat that sits near the window " * 12
    (folder / "1.txt").write_text("cat, " + long)
    (folder / "2.txt").write_text(long + ", cat")
    plan = plan_of(folder)
    report = plan.sets[0].captions
    assert [path.name for path, _ in report.too_long] == ["1.txt", "2.txt"]
    assert all(tokens > 190 for _, tokens in report.too_long)
    assert [path.name for path in report.keyword_cut] == ["2.txt"]
    warnings = " ".join(plan.warnings)
    assert "2 captions over 75 tokens" in warnings and "2.txt" in warnings
    assert "--max-token-length 225" in warnings  # 150 would cut them too
    wide = plan_of(folder, max_token_length=225)
    assert wide.sets[0].captions.too_long == [] and wide.warnings == ()


def test_a_caption_of_just_75_tokens_is_not_too_long(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"a.png": (512, 512), "b.png": (512, 512)})
    (folder / "a.txt").write_text("cat " * 75)
    (folder / "b.txt").write_text("cat " * 76)
    report = plan_of(folder).sets[0].captions
    assert [(path.name, tokens) for path, tokens in report.too_long] == [("b.txt", 76)]


def test_two_pictures_that_share_one_caption_are_named(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"cat.jpg": (512, 512), "cat.png": (512, 512)})
    plan = plan_of(folder)
    assert [image.stem for image in plan.sets[0].images] == ["cat", "cat-2"]
    assert "cat.txt is the caption of cat.jpg and cat.png" in plan.warnings[0]
    (folder / "cat.png.txt").write_text("cat, blue")
    plan = plan_of(folder)
    assert plan.warnings == () and plan.sets[0].images[1].caption.text == "cat, blue"


def test_captions_of_no_picture_are_named_in_the_plan(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"a.png": (512, 512)})
    (folder / "trip.txt").write_text("belongs to nobody")
    (folder / "a.caption").write_text("another text")
    text = " ".join(describe(plan_of(folder)).split())
    assert "trip.txt belongs to no image by its name and is not used" in text
    assert "a.caption: not used, since the image has another caption file that comes first" in text


def test_a_keyword_that_no_caption_has(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"a.png": (512, 512)}, "a concatenation of things")
    assert any("'cat' is missing" in warning for warning in plan_of(folder).warnings)


def test_the_text_fits_a_terminal_and_the_dictionary_is_json(tmp_path: Path) -> None:
    names = {f"{'long name ' * 12}{n}.png": (500, 50) for n in range(30)}
    folder = fill(tmp_path / ("10_" + "x" * 180), {**names, "gôod\n.png": (512, 512)})
    plan = plan_of(folder)
    text = describe(plan)
    assert max(map(len, text.splitlines())) <= 100
    content = json.loads(json.dumps(plan.as_dict()))
    one = content["data_sets"][0]
    assert one["found"] == 31 == one["used"] + len(one["skipped"])
    assert content["steps_per_epoch"] == plan.steps_per_epoch and content["steps"] == 400


def test_a_plan_needs_no_torch_and_no_tokenizer(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat", {"a.png": (512, 512)})
    code = (
        "import sys; from pathlib import Path; from noukii.dataset.plan import *\n"
        "from noukii.dataset.folders import find_data_sets; import noukii.dataset.staging\n"
        "print(describe(make_plan(find_data_sets([], [Path(sys.argv[1])])[0])))\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


side = st.sampled_from([20, 63, 64, 100, 300, 512, 700])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(side, side, st.sampled_from(["ok", "none", "empty", "broken"])), min_size=1, max_size=8
    )
)
def test_found_is_always_used_and_skipped(
    tmp_path_factory: pytest.TempPathFactory, pictures: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("plan") / "10_cat"
    for number, (width, height, kind) in enumerate(pictures):
        fill(folder, {f"{number}.png": (width, height)}, {"ok": "cat", "empty": ""}.get(kind))
        if kind == "broken":
            (folder / f"{number}.png").write_bytes(b"broken")
    try:
        one = plan_of(folder).sets[0]
    except InputError as error:
        assert "no usable image" in str(error) or "no captions" in str(error)
        return
    assert len(one.images) + len(one.skipped) == len(pictures)
    assert one.captions.found + len(one.captions.missing) + len(one.captions.empty) == len(one.images)
