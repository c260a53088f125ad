"""Finding data sets, settling their repeats, and the arguments that name them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from PIL import Image

from noukii import project
from noukii.command_line import Parser
from noukii.dataset.arguments import add_data_set_arguments, data_sets_from, parse_mixed
from noukii.dataset.folders import DataSet, find_data_sets, record_repeats
from noukii.errors import InputError


def fill(folder: Path, count: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (64, 64), (number, 9, 9)).save(folder / f"img_{number}.png")
    return folder


def automatic() -> tuple[dict[str, DataSet], dict[str, str]]:
    found, ignored = find_data_sets([], [])
    return {one.folder.name: one for one in found}, {one.path.name: one.reason for one in ignored}


def test_folders_named_repeats_and_keyword_are_found(project_home: Path) -> None:
    for name in ("10_cat", "007_james bond", "5_jennifer o'neil [v2]", "3_under_score"):
        fill(project.image_datasets() / name)
    found, ignored = automatic()
    assert {name: (one.repeats, one.keyword) for name, one in found.items()} == {
        "10_cat": (10, "cat"),
        "007_james bond": (7, "james bond"),
        "5_jennifer o'neil [v2]": (5, "jennifer o'neil [v2]"),
        "3_under_score": (3, "under_score"),
    }
    assert ignored == {}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("100 cat", "100_cat"),
        ("10cat", "10_cat"),
        ("10-cat", "10_cat"),
        ("10.cat", "10_cat"),
        ("cat_10", "10_cat"),
        ("cat 10", "10_cat"),
        ("cat", "{repeats}_{keyword}"),
        ("10_", "{repeats}_{keyword}"),
    ],
)
def test_a_name_of_another_form_is_listed_with_the_wanted_one(
    project_home: Path, name: str, wanted: str
) -> None:
    fill(project.image_datasets() / name)
    with pytest.raises(InputError) as error:
        find_data_sets([], [])
    assert name in str(error.value) and wanted in str(error.value) and error.value.exit_code == 2
    fill(project.image_datasets() / "1_x")
    assert wanted in automatic()[1][name]


def test_what_lies_beside_a_data_set_is_listed(project_home: Path) -> None:
    parent = project.image_datasets()
    fill(parent / "10_cat", 3)
    fill(parent / "10_cat" / ".ipynb_checkpoints")
    for name in ("log", "model", ".ipynb_checkpoints", "__pycache__"):
        fill(parent / name)
    (parent / "4_empty").mkdir()
    Image.new("RGB", (64, 64)).save(parent / "loose.png")
    (parent / "README.md").write_text("text")
    found, ignored = automatic()
    assert list(found) == ["10_cat"]
    assert ignored.keys() == {"log", "model", "4_empty", "loose.png"}
    assert "no images" in ignored["4_empty"]


@pytest.mark.parametrize("name", ["reg", "1_reg", "reg_1_animal", "10_REG", "5_regularization", "1_reg_dog"])
def test_regularisation_sets_are_named_and_never_trained(project_home: Path, name: str) -> None:
    fill(project.image_datasets() / "10_cat")
    fill(project.image_datasets() / name)
    found, ignored = automatic()
    assert list(found) == ["10_cat"] and "regularisation" in ignored[name]
    with pytest.raises(InputError, match="regularisation"):
        find_data_sets([(project.image_datasets() / name, 3)], [])


@pytest.mark.parametrize("name", ["10_reggae", "10_regs", "10_regular man", "10_vreg"])
def test_other_words_are_no_regularisation(project_home: Path, name: str) -> None:
    fill(project.image_datasets() / name)
    assert list(automatic()[0]) == [name]


def test_a_suggested_path_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    inner = fill(tmp_path / "Tom's Series 1" / "1_outfit")
    with pytest.raises(InputError) as error:
        find_data_sets([(tmp_path / "Tom's Series 1", None)], [])
    words = shlex.split(error.value.next_step.partition("as in ")[2])
    assert words == ["--dataset", str(inner)]


def test_a_path_one_level_too_high_or_too_low(tmp_path: Path) -> None:
    fill(tmp_path / "sets" / "10_cat")
    fill(tmp_path / "sets" / "5_dog")
    fill(tmp_path / "inverted" / "10_girl" / "images")
    fill(tmp_path / "deep" / "Series 1" / "1_outfit")
    for path, words in (
        ("sets", ["10_cat", "5_dog"]),
        ("inverted/10_girl", ["images"]),
        ("deep", ["Series 1/1_outfit"]),
        ("nowhere", ["no such folder"]),
        ("sets/10_cat/img_0.png", ["is a file"]),
    ):
        with pytest.raises(InputError) as error:
            find_data_sets([(tmp_path / path, None)], [])
        assert str(tmp_path / path) in str(error.value)
        assert all(word in str(error.value) for word in words), str(error.value)


def test_an_empty_folder_and_one_of_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "10_cat").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        find_data_sets([], [tmp_path / "10_cat"])
    (tmp_path / "10_cat" / "a.cr2").write_bytes(b"II*\0 raw")
    with pytest.raises(InputError, match=r"a\.cr2: .*raw"):
        find_data_sets([], [tmp_path / "10_cat"])


def test_the_same_folder_twice(tmp_path: Path) -> None:
    folder = fill(tmp_path / "10_cat")
    (tmp_path / "link").symlink_to(folder)
    for other in (folder, tmp_path / "link", tmp_path / "x" / ".." / "10_cat"):
        with pytest.raises(InputError, match="twice"):
            find_data_sets([(folder, 10), (other, 5)], [])
    with pytest.raises(InputError, match="twice"):
        find_data_sets([(folder, 10)], [folder])


def test_no_image_datasets_folder(project_home: Path) -> None:
    with pytest.raises(InputError, match="--dataset"):
        find_data_sets([], [])


# ------------------------------------------------------------------------------- repeats
def repeats_of(folder: Path, given: int | None = None) -> tuple[int, str]:
    one = find_data_sets([(folder, given)], [])[0][0]
    return one.repeats, one.repeats_from


def test_the_priority_of_repeats(project_home: Path, tmp_path: Path) -> None:
    cat, plain = fill(tmp_path / "10_cat"), fill(tmp_path / "my photos")
    assert repeats_of(cat) == (10, "the folder's name")
    assert repeats_of(plain) == (30, "the default")
    assert find_data_sets([], [plain])[0][0].keyword == "my photos"
    number, words = repeats_of(cat, 3)
    assert number == 3 and "--repeats" in words and "10" in words
    record_repeats(find_data_sets([(cat, 3), (plain, 8)], [])[0])
    number, words = repeats_of(cat)
    assert number == 3 and "earlier run" in words and "10" in words
    assert repeats_of(plain)[0] == 8
    assert repeats_of(cat, 4)[0] == 4
    other = fill(tmp_path / "other" / "10_cat")
    assert repeats_of(other)[0] == 10
    (tmp_path / "link").symlink_to(cat)
    assert repeats_of(tmp_path / "link")[0] == 3


def test_only_given_repeats_are_recorded(project_home: Path, tmp_path: Path) -> None:
    record_repeats(find_data_sets([(fill(tmp_path / "10_cat"), None)], [])[0])
    assert list(project_home.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"repeats": 5}', '{"repeats": {"PATH": "x"}}', '{"repeats": {"PATH": 0}}']
)
def test_a_damaged_record_counts_for_nothing(project_home: Path, tmp_path: Path, content: str) -> None:
    folder = fill(tmp_path / "10_cat")
    record_repeats(find_data_sets([(folder, 3)], [])[0])
    record = project.kohya() / "dataset" / "noukii_repeats.json"
    assert record.is_file()
    record.write_text(content.replace("PATH", str(folder)))
    assert repeats_of(folder)[0] == 10


@pytest.mark.parametrize("name", ["20240131_trip", "0_cat"])
def test_a_number_that_cannot_be_meant(project_home: Path, name: str) -> None:
    folder = fill(project.image_datasets() / name)
    with pytest.raises(InputError, match="--repeats N"):
        find_data_sets([], [folder])
    assert repeats_of(folder, 5)[0] == 5
    fill(project.image_datasets() / "10_cat")
    assert name in automatic()[1]


def test_odd_bytes_in_a_name_leave_a_clean_keyword(tmp_path: Path) -> None:
    folder = fill(tmp_path / os.fsdecode(b"10_caf\xe9\nnoir"))
    assert find_data_sets([], [folder])[0][0].keyword == "caf_ noir"


# ------------------------------------------------------------------------------- arguments
def parse(*arguments: str) -> tuple[list[tuple[Path, int | None]], list[Path]]:
    parser = Parser(prog="x")
    add_data_set_arguments(parser)
    parser.add_argument("--steps", type=int)
    return data_sets_from(parse_mixed(parser, arguments))


def test_pairs_and_folders_in_any_order() -> None:
    assert parse() == ([], [])
    assert parse("--dataset", "a", "--repeats", "3", "--dataset", "b") == (
        [(Path("a"), 3), (Path("b"), None)],
        [],
    )
    answer = parse("x", "--dataset", "a", "y", "--repeats", "3", "--steps", "5", "z")
    assert answer == ([(Path("a"), 3)], [Path("x"), Path("y"), Path("z")])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--repeats", "5", "--dataset", "a"),
        ("a", "--repeats", "5"),
        ("--dataset", "a", "--repeats", "0"),
        ("--dataset", "a", "--repeats", "-3"),
        ("--dataset", "a", "--repeats", "2.5"),
        ("--dataset", "a", "--repeats", "many"),
        ("--dataset", "a", "--repeats"),
        ("--dataset", "a", "--repeats", "3", "--repeats", "4"),
        ("--dataset",),
        ("--dataset", ""),
        ("",),
        ("--dataset", "a", "--reepats", "5"),
        ("--dataset", "a", "--repeat", "5"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        parse(*arguments)


def test_a_typing_error_is_answered_with_the_right_flag() -> None:
    with pytest.raises(InputError, match="--repeats"):
        parse("--dataset", "a", "--reepats", "5")
