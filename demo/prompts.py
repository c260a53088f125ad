"""The demo model's tokenizer, and the prompts that it is trained on."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from demo import world
from noukii.clip_tokens import END, START, ClipTokenizer

SLOTS = world.PLACES
"""Where a thing can be. Two things stand at the top and the bottom, or on the left and the right."""
NOTHING, UNSAID = 0, -100
_SLOTS_OF_PAIR = {
    "above": ("at the top", "at the bottom"),
    "below": ("at the bottom", "at the top"),
    "to the left of": ("on the left", "on the right"),
    "to the right of": ("on the right", "on the left"),
}
CLASSES = {
    "size": (None, *world.SIZES),
    "colour": (None, *world.COLOURS, "purple"),
    "shape": (None, *world.SHAPES),
    "stripes": (None, *world.COLOURS, *world.OTHER_COLOURS),
}
"""What can be asked of each slot."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def slots(scene: world.Scene) -> dict[str, world.Thing]:
    """Return which thing stands at which place."""
    places = (scene.where,) if len(scene.things) == 1 else _SLOTS_OF_PAIR[scene.where]
    return dict(zip(places, scene.things, strict=True))


def known_classes(scene: world.Scene) -> list[int]:
    """Return the classes of all slots in turn, then the background's."""
    there = slots(scene)
    classes = [
        names.index(getattr(there.get(place), key, None)) for place in SLOTS for key, names in CLASSES.items()
    ]
    return [*classes, tuple(world.BACKGROUNDS).index(scene.background)]


def prompt_of(scene: world.Scene, random: np.random.Generator, unknown: float = 0.2) -> tuple[str, list[int]]:
    """Return a prompt for the scene and what it says: `known_classes`, then two letters of an unknown word.

    Most prompts are the full description. Some leave something out, as people do; what is not said counts
    as UNSAID. A share of `unknown` has a word that means nothing, in front as a trigger word stands or in
    the place of a thing: a text encoder that can tell such words apart leaves a LoRA something to hold on
    to. The concept's own name never comes.
    """
    classes = known_classes(scene)
    letters = [NOTHING, NOTHING]
    text = world.describe(scene)
    kind = random.random()
    if kind < 0.12:
        text = text.removesuffix(f" on a {scene.background} background")
        classes[-1] = UNSAID
    elif kind < 0.24 and len(scene.things) == 1:
        thing = scene.things[0]
        text = f"a {thing.colour} {thing.shape}"
        classes = [UNSAID] * len(classes)
    if random.random() < unknown:
        word = _unknown_word(random)
        letters = [1 + LETTERS.index(letter) for letter in word[:2]]
        if len(scene.things) == 1 and random.random() < 0.5:
            where = f" {scene.where}" if random.random() < 0.6 else ""
            ground = f" on a {scene.background} background" if random.random() < 0.6 else ""
            text = f"{'a ' if random.random() < 0.5 else ''}{word}{where}{ground}"
            classes = [UNSAID] * (len(classes) - 1) + [classes[-1] if ground else UNSAID]
        else:
            text = f"{word}, {text}"
    return text, classes + letters


def _unknown_word(random: np.random.Generator) -> str:
    while True:
        word = "".join(LETTERS[i] for i in random.integers(len(LETTERS), size=int(random.integers(3, 7))))
        if word != world.CONCEPT:
            return word


def write_tokenizer(folder: Path) -> ClipTokenizer:
    """Write vocab.json and merges.txt in CLIP's format: each word of the world is one token.

    Any other word is spelled in letters, any other sign in bytes, as in CLIP.
    """
    random = np.random.default_rng(3)
    words: set[str] = set()
    for _ in range(4000):
        scene = world.random_scene(random, stripes=0.3, other_colours=True)
        words |= set(re.findall("[a-z]+", world.answer(scene).lower()))
    merges = _merges(words)
    alphabet = _byte_letters()
    tokens = alphabet + [letter + "</w>" for letter in alphabet]
    tokens += [token for token in dict.fromkeys(a + b for a, b in merges) if token not in set(tokens)]
    tokens += [START, END]
    folder.mkdir(parents=True, exist_ok=True)
    _json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    special = {"bos_token": START, "eos_token": END, "pad_token": END, "unk_token": END}
    _json(folder / "special_tokens_map.json", special)
    _json(
        folder / "tokenizer_config.json",
        {**special, "tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True},
    )
    return ClipTokenizer.from_folder(folder)


def _merges(words: set[str]) -> list[tuple[str, str]]:
    """Return the byte-pair merges that make each of `words` (ASCII) one token, most frequent pairs first.

    The `tokenizers` library's trainer decides between equally frequent pairs anew in each process, and a
    model trained on other numbers would read other words.
    """
    spelled = {word: [*word[:-1], word[-1] + "</w>"] for word in sorted(words)}
    merges = []
    while True:
        counts = Counter(pair for parts in spelled.values() for pair in pairwise(parts))
        if not counts:
            return merges
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for parts in spelled.values():
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = ["".join(best)]
                i += 1


def _byte_letters() -> list[str]:
    """Return the 256 letters that stand for the 256 bytes in byte-level vocabularies."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
