"""The TOML: what is written comes back under every reader, and a typing error is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from noukii.dataset.buckets import BucketRule
from noukii.dataset.config_file import (
    DatasetConfig,
    SubsetConfig,
    TrainConfig,
    format_config,
    read_config,
    write_config,
)
from noukii.errors import InputError

OURS = BucketRule((512, 512), True, True, 64, 256, 2048)


def one(subset: SubsetConfig) -> TrainConfig:
    return TrainConfig((DatasetConfig(OURS, 4, (subset,)),))


def read(folder: Path, text: str) -> TrainConfig:
    path = folder / "config.toml"
    path.write_text(text)
    return read_config(path)


def test_the_layout_of_the_design(tmp_path: Path) -> None:
    subsets = (
        SubsetConfig(Path("/data/10_cat"), 10, "cat", ".txt"),
        SubsetConfig(Path("/data/5_dog"), 5, "dog", ".txt"),
    )
    write_config(tmp_path / "c.toml", TrainConfig((DatasetConfig(OURS, 4, subsets),)))
    assert tomlkit.parse((tmp_path / "c.toml").read_text()).unwrap() == {
        "general": {
            "enable_bucket": True,
            "bucket_no_upscale": True,
            "bucket_reso_steps": 64,
            "min_bucket_reso": 256,
            "max_bucket_reso": 2048,
            "caption_extension": ".txt",
        },
        "datasets": [
            {
                "resolution": 512,
                "batch_size": 4,
                "subsets": [
                    {"image_dir": "/data/10_cat", "num_repeats": 10, "class_tokens": "cat"},
                    {"image_dir": "/data/5_dog", "num_repeats": 5, "class_tokens": "dog"},
                ],
            }
        ],
    }


def test_kohyas_defaults_and_fall_backs(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [general]
        resolution = 256
        caption_extension = ".txt"
        num_repeats = 7
        [[datasets]]
        resolution = [512, 768]
        keep_tokens = 2
        [[datasets.subsets]]
        image_dir = "/a"
        num_repeats = 3
        caption_dropout_rate = 1
        [[datasets.subsets]]
        image_dir = "/b"
        is_reg = true
        [[datasets]]
        [[datasets.subsets]]
        image_dir = "/a"
        caption_extension = ".cap"
        """,
    )
    first, second = config.datasets
    assert (first.rule.resolution, second.rule.resolution) == ((512, 768), (256, 256))
    assert first.rule == BucketRule((512, 768), False, False, 64, 256, 1024) and first.batch_size == 1
    assert first.subsets[0] == SubsetConfig(
        Path("/a"), 3, None, ".txt", keep_tokens=2, caption_dropout_rate=1.0
    )
    assert first.subsets[1] == SubsetConfig(Path("/b"), 7, None, ".txt", keep_tokens=2, is_reg=True)
    assert second.subsets[0] == SubsetConfig(Path("/a"), 7, None, ".cap")
    plain = read(tmp_path, 'datasets = [{resolution = 512, subsets = [{image_dir = "/a"}]}]')
    assert plain.datasets[0].subsets[0] == SubsetConfig(Path("/a"))


GOOD = '[general]\nresolution = 512\n[[datasets]]\n[[datasets.subsets]]\nimage_dir = "/a"\n'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('image_dir = "/a"', 'image_dir = "/a"\nnum_repeat = 3'), ["datasets.subsets", "num_repeats"]),
        (("resolution = 512", "resolution = 512\nbatchsize = 2"), ["[general]", "batchsize", "batch_size"]),
        (("[general]", "[generell]"), ["generell", "general"]),
        (("resolution = 512", 'resolution = 512\nimage_dir = "/b"'), ["[general]", "image_dir", "subsets"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nresolution = 256'), ["resolution", "datasets"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nrandom_crop = true'), ["random_crop", "--trainer kohya"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nnum_repeats = 0'), ["num_repeats", "0"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nnum_repeats = 2.5'), ["num_repeats", "whole number"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nnum_repeats = true'), ["num_repeats", "whole number"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nnum_repeats = "5"'), ["num_repeats", "whole number"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nflip_aug = 1'), ["flip_aug", "true or false"]),
        (('image_dir = "/a"', 'image_dir = "/a"\nclass_tokens = 7'), ["class_tokens", "text"]),
        (('image_dir = "/a"', 'image_dir = "/a"\ncaption_extension = "txt"'), ["caption_extension", "dot"]),
        (('image_dir = "/a"', 'image_dir = "/a"\ncaption_dropout_rate = 1.5'), ["dropout_rate", "1.5"]),
        (('image_dir = "/a"', "num_repeats = 3"), ["image_dir is missing"]),
        (("resolution = 512", ""), ["resolution is missing"]),
        (("resolution = 512", "resolution = 500"), ["multiple of 64", "enable_bucket"]),
        (("resolution = 512", "resolution = [512]"), ["resolution", "[width, height]"]),
        (("resolution = 512", "resolution = [512, 512.0]"), ["resolution"]),
        (("resolution = 512", "resolution = 128\nenable_bucket = true"), ["min_bucket_reso"]),
        (("resolution = 512", "resolution = 1536\nenable_bucket = true"), ["max_bucket_reso"]),
        (
            ("resolution = 512", "resolution = 512\nenable_bucket = true\nbucket_reso_steps = 96"),
            ["bucket_reso_steps"],
        ),
        (("[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"/a\"\n", ""), ["[[datasets]]", "missing"]),
        (("[[datasets.subsets]]\n", ""), ["image_dir", "[[datasets.subsets]]"]),
        (("[[datasets]]\n[[datasets.subsets]]", "[datasets]\n[[datasets.subsets]]"), ["double brackets"]),
        (("resolution = 512", "resolution = "), ["not valid TOML"]),
        (
            ('image_dir = "/a"\n', 'image_dir = "/a"\n[[datasets.subsets]]\nimage_dir = "/a/"\n'),
            ["/a", "twice"],
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    assert read(tmp_path, GOOD)
    assert change[0] in GOOD
    with pytest.raises(InputError) as error:
        read(tmp_path, GOOD.replace(*change))
    assert str(tmp_path / "config.toml") in str(error.value) and error.value.exit_code == 2
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_config(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "name", ["10_new\nline", "10_cr\rx", "10_\x01", "10_\x7f", os.fsdecode(b"10_caf\xe9")]
)
def test_names_that_no_toml_reader_agrees_on_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="rename"):
        write_config(tmp_path / "c.toml", one(SubsetConfig(tmp_path / name)))
    assert list(tmp_path.iterdir()) == []


def all_readers(text: str) -> list[dict]:
    import toml

    answers = [tomlkit.parse(text).unwrap(), toml.loads(text)]
    if sys.version_info >= (3, 11):
        import tomllib

        answers.append(tomllib.loads(text))
    return answers


@pytest.mark.parametrize(
    "name",
    [
        "10_a\\x41b", "10_back\\slash", '10_quo"te', "10_ha#sh", "10_apos'trophe", "10_tab\there",
        "10_trail\\",         "10_\\\\",
        "10_\\u0041", "10_]x[", "10_=1", '10_"""', "10_'''", "10_é猫😺", "10_ # x = [1]", '10_a\\"b#c',
        "10_\\n", "10_{a}, b", "10_\x80\x9f", "10_a\\", '"', "10_\\xZZ\\q",
    ],
)  # fmt: skip
def test_every_toml_reader_gives_the_path_back(tmp_path: Path, name: str) -> None:
    config = one(SubsetConfig(tmp_path / name, 10, name, ".txt", caption_prefix=name))
    write_config(tmp_path / "c.toml", config)
    assert read_config(tmp_path / "c.toml") == config
    for answer in all_readers((tmp_path / "c.toml").read_text(encoding="utf-8")):
        subset = answer["datasets"][0]["subsets"][0]
        assert subset["image_dir"] == str(tmp_path / name)
        assert subset["class_tokens"] == subset["caption_prefix"] == name


CONTROL = "".join(map(chr, range(32))) + "\x7f"
NASTY = st.sampled_from("\\\"'#uUx0041[]{}=, ntb")
letters = st.characters(exclude_categories=("Cs",), exclude_characters=CONTROL + "\x85\u2028\u2029")
names = st.text(letters | NASTY, min_size=1)
texts = st.text(letters | NASTY | st.sampled_from("\n\t\r\x85\u2028"), max_size=30).filter(
    lambda text: not text.startswith('""')
)
rules = st.builds(
    BucketRule,
    st.tuples(st.sampled_from([512, 640]), st.sampled_from([512, 768])),
    st.booleans(),
    st.booleans(),
    st.just(64),
    st.integers(1, 512),
    st.integers(768, 4096),
)
subsets = st.builds(
    SubsetConfig,
    names.map(lambda name: Path("/", name)),
    st.integers(1, 99),
    st.none() | texts,
    st.sampled_from([".txt", ".caption", '.o"dd']),
    st.none() | texts,
    st.booleans(),
    st.integers(0, 9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    datasets = []
    for _ in range(draw(st.integers(1, 3))):
        few = draw(
            st.lists(subsets, min_size=1, max_size=3, unique_by=lambda one: os.path.realpath(one.image_dir))
        )
        datasets.append(DatasetConfig(draw(rules), draw(st.integers(1, 64)), tuple(few)))
    return TrainConfig(tuple(datasets))


@settings(max_examples=60, deadline=None)
@given(configs())
def test_any_settings_come_back(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig) -> None:
    path = tmp_path_factory.getbasetemp() / "hypothesis.toml"
    write_config(path, config)
    assert read_config(path) == config
    first, *others = all_readers(format_config(config))
    assert all(other == first for other in others)
