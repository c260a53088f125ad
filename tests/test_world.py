"""The demo's picture world: what is drawn is what is said, and the judge sees it from the pixels alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from demo import judge, wording, world
from demo.draw_concept import draw_concept


def scenes(count: int, seed: int = 1, **kinds: float) -> list[world.Scene]:
    random = np.random.default_rng(seed)
    return [world.random_scene(random, **kinds) for _ in range(count)]


def test_the_judge_agrees_with_what_was_drawn() -> None:
    drawn = scenes(1000)
    right = sum(judge.shows_all(world.draw(scene), scene) for scene in drawn)
    assert right >= 0.995 * len(drawn)


@pytest.mark.parametrize("attribute, other", [("shape", world.SHAPES), ("colour", tuple(world.COLOURS))])
def test_the_judge_refuses_another_shape_or_colour(attribute: str, other: tuple[str, ...]) -> None:
    for scene in scenes(60, seed=2):
        first = scene.things[0]
        said = other[(other.index(getattr(first, attribute)) + 1) % len(other)]
        wrong = replace(scene, things=(replace(first, **{attribute: said}), *scene.things[1:]))
        assert not judge.shows(world.draw(scene), wrong)


def test_the_judge_wants_exactly_what_is_named() -> None:
    two = next(
        scene for scene in scenes(20, seed=3, pairs=1.0) if scene.things[0].shape != scene.things[1].shape
    )
    one = replace(two, things=two.things[:1], where="in the centre")
    assert judge.shows(world.draw(two), two)
    assert not judge.shows(world.draw(two), one)
    assert not judge.shows(world.draw(one), two)
    exchanged = replace(two, things=two.things[::-1])
    assert not judge.shows_all(world.draw(two), exchanged)


def test_noise_and_blur_show_nothing() -> None:
    random = np.random.default_rng(4)
    noise = random.integers(0, 256, (world.SIDE, world.SIDE, 3), dtype=np.uint8)
    scene = scenes(1, seed=5)[0]
    assert not judge.shows(noise, scene)
    assert not judge.shows_concept(noise)
    assert judge.find(np.full((world.SIDE, world.SIDE, 3), 200, np.uint8)) == []


def test_the_concept_is_seen_and_nothing_else_is_taken_for_it() -> None:
    random = np.random.default_rng(6)
    assert all(judge.shows_concept(world.draw(world.concept_scene(random))) for _ in range(200))
    others = scenes(300, seed=7) + scenes(500, seed=8, stripes=0.9, other_colours=True)
    assert not any(judge.shows_concept(world.draw(scene)) for scene in others)


def test_the_concept_needs_its_colours_its_stripes_and_its_shape() -> None:
    scene = world.concept_scene(np.random.default_rng(9))
    zorb = scene.things[0]
    for change in (
        {"stripes": None},
        {"shape": "square"},
        {"colour": "blue"},
        {"stripes": "white"},
    ):
        assert not judge.shows_concept(world.draw(replace(scene, things=(replace(zorb, **change),))))
    small = replace(zorb, radius=9.0, size="small")
    assert not judge.shows_concept(world.draw(replace(scene, things=(small,))))


def test_base_worlds_never_contain_the_concept() -> None:
    for scene in scenes(3000, seed=10, stripes=1.0, other_colours=True):
        for thing in scene.things:
            assert thing.shape != "circle" or {thing.colour, thing.stripes} != {"purple", "yellow"}


def test_a_description_names_every_attribute_and_reads_back() -> None:
    for scene in scenes(200, seed=11):
        for text in (world.describe(scene), world.answer(scene)):
            assert all(right == named for right, named in wording.compare(scene, text).values())
    scene = world.Scene(
        (
            world.Thing("circle", "red", "large", 32, 16, 13),
            world.Thing("square", "blue", "small", 30, 48, 9),
        ),
        "above",
        "pink",
    )
    assert world.describe(scene) == "a large red circle above a small blue square on a pink background"


def test_wrong_words_count_as_wrong() -> None:
    scene = world.Scene((world.Thing("circle", "red", "large", 32, 32, 15),), "in the centre", "white")
    said = wording.compare(scene, "The image shows a small red square on the left on a white background.")
    assert said == {
        "size": (0, 1),
        "colour": (1, 1),
        "shape": (0, 1),
        "position": (0, 1),
        "background": (1, 1),
    }
    assert sum(right for right, _ in wording.compare(scene, "").values()) == 0


def test_the_same_seed_draws_the_same_files(tmp_path) -> None:
    first = draw_concept(tmp_path / "a")
    again = draw_concept(tmp_path / "b")
    assert len(first) == 12
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert {path.suffix for path in first} == {".png", ".jpg"}
