"""Buckets agree with upstream's, row by row, and never lose a picture in silence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noukii.dataset.buckets import Bucket, BucketRule, fit, predefined_buckets

OURS = BucketRule((512, 512), True, True, 64, 256, 2048)


def test_every_row_of_upstreams_answers(reference: Path) -> None:
    rows = json.loads((reference / "buckets.json").read_text())["rows"]
    assert len(rows) == 34 * 3 * 2
    for row in rows:
        rule = replace(OURS, resolution=(row["resolution"],) * 2, no_upscale=row["bucket_no_upscale"])
        answer = fit(*row["image"], rule)
        assert (answer.bucket, list(answer.resized)) == (Bucket(*row["bucket"]), row["resized"]), row


def test_the_seventeen_buckets_of_512() -> None:
    """reference/kohya-contract.md, 3.3: with kohya's largest side of 1024."""
    half = {(256, 832), (256, 896), (256, 960), (256, 1024), (320, 704), (320, 768), (384, 640), (448, 576)}
    wanted = {(512, 512)} | half | {(height, width) for width, height in half}
    buckets = predefined_buckets(replace(OURS, no_upscale=False, max_size=1024))
    assert {(bucket.width, bucket.height) for bucket in buckets} == wanted
    assert len(buckets) == 17


@pytest.mark.parametrize(
    ("size", "bucket", "resized"),
    [
        ((1920, 1080), (640, 384), (683, 384)),
        ((3000, 2000), (576, 384), (576, 384)),
        ((500, 400), (448, 384), (500, 400)),
        ((4000, 500), (1024, 128), (1024, 128)),
    ],
)
def test_worked_examples(size: tuple[int, int], bucket: tuple[int, int], resized: tuple[int, int]) -> None:
    assert fit(*size, OURS).bucket == Bucket(*bucket)
    assert fit(*size, OURS).resized == resized


@pytest.mark.parametrize("size", [(1, 1), (122, 63), (500, 50), (63, 500), (8000, 100), (60, 300)])
def test_a_side_under_one_step_is_named(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{size[0]}x{size[1]}.*64"):
        fit(*size, OURS)


def test_without_buckets_everything_covers_the_resolution() -> None:
    rule = replace(OURS, enable=False, resolution=(512, 768))
    for size in ((1, 1), (4000, 300), (300, 4000), (512, 768)):
        answer = fit(*size, rule)
        assert answer.bucket == Bucket(512, 768)
        assert answer.resized[0] >= 512 and answer.resized[1] >= 768
    assert fit(1024, 768, rule).crop == (256, 0)


side = st.integers(1, 6000)


@given(side, side, st.sampled_from([256, 512, 640, 768, 1024]), st.booleans())
def test_a_bucket_lies_inside_the_resized_picture(
    width: int, height: int, resolution: int, no_upscale: bool
) -> None:
    rule = replace(OURS, resolution=(resolution, resolution), no_upscale=no_upscale)
    try:
        answer = fit(width, height, rule)
    except ValueError:
        assert no_upscale
        return
    bucket, (wide, high) = answer.bucket, answer.resized
    assert bucket.width % 64 == bucket.height % 64 == 0 and bucket.width and bucket.height
    assert bucket.width <= wide and bucket.height <= high
    assert bucket.width * bucket.height <= resolution * resolution
    if no_upscale:
        assert wide <= width and high <= height


@given(side, side)
def test_turned_pictures_get_turned_buckets(width: int, height: int) -> None:
    rule = replace(OURS, no_upscale=False)
    if width != height:  # the first of two equally near buckets wins, so compare their distances
        one, other = fit(width, height, rule).bucket, fit(height, width, rule).bucket
        error = abs(one.width / one.height - width / height)
        assert error <= abs(other.height / other.width - width / height) + 1e-9
