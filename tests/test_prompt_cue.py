"""Key concepts of realistic sets of captions: what these pictures share and others do not."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noukii.captioning.prompt_cue import GENERAL_CAPTIONS, concept_shares, key_concepts
from noukii.captioning.terms import lemma
from noukii.project import CHECKOUT

CAR = [
    "a red sports car parked on a city street. The car is shiny, with its headlights turned on.",
    "a red sports car driving along a coastal road with the sea in the background.",
    "a red sports car in front of a modern glass building at night, its lights reflecting on the wet ground.",
    "two red sports cars parked side by side in a parking lot.",
    "a red sports car on a race track, seen from the front. The sky is cloudy.",
    "a red convertible sports car with its top down parked near a beach with palm trees.",
    "a shiny red sports car in a showroom with white walls and bright lights.",
    "a red sports car covered in snow, in front of a mountain landscape.",
    "a close-up of the front of a red sports car, showing its headlights and the grille.",
    "a red sports car speeding through a desert, leaving a trail of dust behind it.",
    "a man in a black suit leaning on a red sports car in front of a hotel.",
    "a red car parked under a tree in an autumn park. The sports car has black wheels.",
]
CAT = [
    "a fluffy orange cat sitting on a wooden windowsill with bright green eyes.",
    "an orange tabby cat sleeping on a gray sofa next to a pillow.",
    "a close-up of an orange tabby cat with white whiskers and green eyes.",
    "an orange cat playing with a ball of yarn on a carpet.",
    "a tabby cat lying in a cardboard box, looking up at the camera.",
    "an orange tabby cat standing on a kitchen counter next to a bowl.",
    "an orange cat with a blue collar walking in the grass.",
    "two cats, an orange tabby and a black one, sitting on a bed.",
]
STYLE = [
    "a watercolor painting of mountains with a misty lake and pine trees in soft blue tones.",
    "a watercolor painting of a village by a river, with soft colors and loose brush strokes.",
    "a watercolor landscape with rolling hills, a small cottage and soft pastel colors.",
    "a watercolor painting of a forest path in autumn, with loose brush strokes.",
    "a watercolor painting of a stormy sea with cliffs, painted in loose brush strokes.",
    "a watercolor landscape of a field of lavender under a pastel sky.",
    "a watercolor painting of snowy mountains, soft pastel colors, visible paper texture.",
]
WOMAN = [
    "a young woman with long blond hair, wearing a white dress, standing in a field.",
    "a woman with long blond hair and blue eyes smiling at the camera, wearing a black jacket.",
    "a close-up portrait of a young woman with long blond hair and red lipstick.",
    "a woman with blond hair in a red dress sitting in a cafe with a cup of coffee.",
    "a woman with long blond hair wearing sunglasses on a beach, smiling.",
    "a young woman with long blond hair, wearing a gray sweater, reading a book.",
]
ZH = [
    "一辆红色的跑车停在街道旁。背景是高楼大厦。",
    "一辆红色跑车在海边的公路上行驶。",
    "红色的跑车，黑色的车轮，停在停车场里。",
    "图片展示了一辆红色跑车，背景是雪山。",
    "一位男子靠在红色跑车旁边，夜晚的城市。",
    "一辆跑车停在树下，红色的车身。",
]
ZHC = [
    "一只橘色的猫坐在窗台上。猫的眼睛是绿色的。",
    "一只猫躺在沙发上睡觉。",
    "橘色的猫在草地上玩耍，绿色的眼睛。",
    "一只橘色的猫看着镜头。",
]
JA = [
    "赤いスポーツカーが街の通りに駐車している",
    "海辺の道路を走る赤いスポーツカー",
    "雪の中のスポーツカー、赤い車",
    "赤いスポーツカーと男性",
]
RU = [
    "красный спортивный автомобиль на улице города",
    "красный спортивный автомобиль у моря, небо голубое",
    "человек рядом: красный спортивный автомобиль ночью",
]
TAGS = [
    "1girl, solo, long_hair, blue_eyes, (masterpiece:1.2), smile",
    "1girl, blue eyes, long hair, school uniform, smile",
    "1girl, long_hair, blue eyes, hat, outdoors",
    "1girl, solo, blue eyes, long hair, dress, <lora:x:0.8>",
]

LONG = [
    "The image shows a red fox sitting in a snowy forest at dawn. The fox has thick orange fur, a white "
    "chest "
    "and a bushy tail. The background is blurred and the trees are covered in snow.",
    "A red fox walking through deep snow, its bushy tail behind it. In the background, there is a snowy "
    "forest "
    "with pine trees. The scene is lit by golden light.",
    "A close-up of a red fox with orange fur, black ears and amber eyes. Snowflakes are on its whiskers. The "
    "background of the image is a blurred snowy forest.",
    "The image depicts a red fox sleeping, curled up in the snow. Its bushy tail covers its face. The fur is "
    "orange with a white chest.",
    "Two red foxes playing in a snowy forest. They have thick orange fur and black ears. Pine trees stand in "
    "the background.",
    "A red fox with amber eyes standing on a fallen pine tree in golden light. Snowflakes are falling. It "
    "has "
    "a bushy tail and black ears.",
]


def test_a_car_in_many_places() -> None:
    assert shared_concepts(CAR, "sks") == [
        "red sports car",
        "parked",
        "headlights",
        "lights",
        "black",
        "tree",
    ]
    assert concept_shares(CAR, "sks")[0] == ("red sports car", 10 / 12)


def test_a_full_list_of_seven() -> None:
    assert concept_shares(LONG, "sks") == [
        ("red fox", 1.0),
        ("bushy tail", 4 / 6),
        ("snowy forest", 4 / 6),
        ("black ears", 3 / 6),
        ("pine trees", 3 / 6),
        ("orange fur", 3 / 6),
        ("snow", 3 / 6),
    ]


def shared_concepts(captions: list[str], keyword: str) -> list[str]:
    """The concepts that lead: those of more than one caption (of a single caption: all)."""
    concepts = concept_shares(captions, keyword)
    least = 1.5 / len(captions) if len(captions) > 2 else 0.0
    shared = [concept for concept, share in concepts if share > least]
    assert [concept for concept, _ in concepts[: len(shared)]] == shared
    return shared


def test_seven_lines_even_where_little_is_shared() -> None:
    """What single captions say fills the list up, behind what is shared."""
    photos = [
        "a woman in an orange space suit in front of a flag",
        "a ginger cat with green eyes",
        "a cup of coffee on a wooden table",
        "a field of distant galaxies",
        "a retina with fine blood vessels",
        "a rocket on a launch pad, a flag beside it",
    ]
    concepts = key_concepts(photos, "sks")
    assert len(concepts) == 7 and concepts[0] == "flag"


def test_a_cat() -> None:
    assert shared_concepts(CAT, "sks") == ["cat", "orange", "tabby", "green eyes", "sitting"]


def test_a_style() -> None:
    assert shared_concepts(STYLE, "sks") == [
        "watercolor painting",
        "loose brush strokes",
        "soft pastel colors",
        "landscape",
        "mountains",
    ]


def test_a_person() -> None:
    assert shared_concepts(WOMAN, "sks") == ["long blond hair", "woman", "smiling", "dress", "red"]


def test_tags() -> None:
    assert shared_concepts(TAGS, "sks") == ["1girl", "long hair", "blue eyes", "smile", "solo"]


@pytest.mark.parametrize(
    ("captions", "concepts"),
    [
        (ZH, ["红色", "跑车"]),
        (ZHC, ["猫", "橘色", "眼睛", "绿色"]),
        (JA, ["スポーツカー", "赤", "車"]),
        (RU, ["красный спортивный автомобиль"]),
        (["قطة بيضاء، كرسي", "قطة بيضاء. نافذة", "قطة بيضاء"], ["قطة بيضاء"]),
        (["Straße, rotes Auto", "rotes Auto vor dem Haus", "ein rotes Auto"], ["rotes auto"]),
        (["กขค งจฉ", "กขค, ชซ", "กขค"], ["กขค"]),
    ],
)
def test_other_languages(captions: list[str], concepts: list[str]) -> None:
    assert shared_concepts(captions, "sks") == concepts


def test_the_joined_design_would_fail() -> None:
    """Fitted on one joined text, idf is 1 everywhere and the commonest words lead."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = ["The image shows a red car. The image has a car in the background."] * 3
    vectorizer = TfidfVectorizer(stop_words="english")
    row = vectorizer.fit_transform([" ".join(texts)]).toarray()[0]
    assert set(vectorizer.idf_) == {1.0}
    assert {"image", "car"} == {word for word, at in vectorizer.vocabulary_.items() if row[at] == max(row)}
    assert key_concepts(texts, "sks") == ["red car"]


def test_few_pictures() -> None:
    assert shared_concepts(CAR[:1], "sks") == ["red sports car", "city street", "headlights", "parked"]
    assert key_concepts(CAR[:2], "sks")[0] == "red sports car"
    assert shared_concepts(CAR[:3], "sks") == ["red sports car"]
    assert key_concepts(["cat", "dog", "bird"], "sks") == [
        "bird",
        "cat",
        "dog",
    ]  # nothing shared: what there is


def test_a_picture_counts_once() -> None:
    captions = ["a tree, a tree, a tree, a tree, a lighthouse", "a lighthouse", "a lighthouse and a tree"]
    assert concept_shares(captions, "sks") == [("lighthouse", 1.0), ("tree", 2 / 3)]


def test_singular_and_plural_are_one_and_the_commonest_form_is_shown() -> None:
    assert concept_shares(["a zebra", "two zebras", "zebras", "a knife", "knives"], "sks") == [
        ("zebras", 0.6),
        ("knife", 0.4),
    ]
    pairs = {
        "cars": "car",
        "glasses": "glass",
        "glass": "glass",
        "cities": "city",
        "boxes": "box",
        "women": "woman",
        "leaves": "leaf",
        "shoes": "shoe",
        "tomatoes": "tomato",
        "houses": "house",
        "bus": "bus",
        "iris": "iris",
        "branches": "branch",
        "dresses": "dress",
        "grass": "grass",
        "gas": "gas",
        "машины": "машины",
    }
    assert {word: lemma(word) for word in pairs} == pairs


def test_a_part_is_dropped_where_the_phrase_covers_it_and_the_reverse() -> None:
    covered = ["a red lighthouse", "a red lighthouse", "a red lighthouse", "a lighthouse"]
    assert key_concepts(covered, "sks") == ["red lighthouse"]
    rare = ["a lighthouse"] * 8 + ["a red lighthouse"] * 2
    assert key_concepts(rare, "sks") == ["lighthouse", "red"]


@pytest.mark.parametrize("keyword", ["sat_cat", "SAT CAT", "SatCat", "sat-cat", "sat_cat2"])
def test_the_trigger_and_its_parts_are_left_out(keyword: str) -> None:
    captions = [f"{keyword}, {caption} A Sat_Cat, a sat cat." for caption in CAT]
    assert shared_concepts(captions, keyword) == ["orange", "tabby", "green eyes", "sitting"]


def test_a_chinese_trigger() -> None:
    assert shared_concepts(ZHC, "猫") == ["橘色", "眼睛", "绿色"]


def test_boilerplate_numbers_and_connectors_are_left_out() -> None:
    captions = [
        "The image shows a man wearing 3 hats, holding 2 cups. The background is blurred. The overall "
        "atmosphere "
        "of the scene is calm, 2024, 4k, masterpiece, best quality."
    ] * 4
    assert shared_concepts(captions, "sks") == ["cups", "hats", "man"]


def test_phrases_never_cross_punctuation() -> None:
    assert key_concepts(["red, car. lighthouse (tower)"] * 3, "sks") == ["lighthouse", "tower", "car", "red"]


def test_count_and_order_of_captions() -> None:
    assert key_concepts(CAR, "sks", 2) == ["red sports car", "parked"]
    assert key_concepts(CAR, "sks", 0) == []
    for seed in range(3):
        mixed = random.Random(seed).sample(CAR, len(CAR))
        assert concept_shares(mixed, "sks") == concept_shares(CAR, "sks")


ODD = [
    "",
    "  ",
    "...",
    "\U0001f600\U0001f600",
    "\ud800",
    "\x00",
    "1 2 3",
    "**",
    "<|x|>",
    "a",
    "\u0301",
    "x" * 5000,
]


@pytest.mark.parametrize("text", ODD)
def test_odd_captions_never_fail(text: str) -> None:
    assert key_concepts([text], "sks") == []
    assert key_concepts([text, "a lighthouse", text, "a lighthouse"], "sks") == ["lighthouse"]


def test_no_captions() -> None:
    assert key_concepts([], "sks") == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=60), st.sampled_from([*CAR, *ZH, *JA, *TAGS])), max_size=8),
    st.one_of(st.text(max_size=8), st.just("sks")),
)
def test_any_captions_and_keyword(captions: list[str], keyword: str) -> None:
    shares = concept_shares(captions, keyword)
    assert len(shares) <= 7
    assert len({concept for concept, _ in shares}) == len(shares)
    for concept, share in shares:
        assert concept == concept.lower() == " ".join(concept.split()) != ""
        assert 0 < share <= 1


def test_the_general_captions() -> None:
    lines = GENERAL_CAPTIONS.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) > 500
    assert GENERAL_CAPTIONS.stat().st_size < 200_000
    assert all(line.endswith(".") and len(line.split()) >= 5 for line in lines)


def test_sklearn_is_imported_late() -> None:
    code = "import sys, noukii.captioning.prompt_cue; print({'sklearn', 'numpy', 'scipy'} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "set()"
