"""A disk that fills up in the midst of the work: the path and the need are named, what was there stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image
from test_captioning import core, result
from tiny_janus import make_tiny_janus

from noukii import project
from noukii.dataset import staging
from noukii.dataset.folders import find_data_sets
from noukii.dataset.plan import make_plan
from noukii.errors import RunError
from noukii.progress import Progress

Fill = Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Fill]]:
    """A disk of its own, and what fills it to the last block; where the system lets us mount one."""
    place = tmp_path / "small disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a disk")

    def fill() -> None:
        with open(place / "filler", "wb", buffering=0) as stream:
            size = 1 << 20
            while size >= 1:
                try:
                    if stream.write(bytes(size)) < size:
                        size //= 2
                except OSError:
                    size //= 2

    try:
        yield place, fill
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def noise(folder: Path, count: int) -> Path:
    """Pictures that no compression makes smaller; the even ones have to be converted."""
    folder.mkdir()
    for number in range(count):
        image = Image.effect_noise((160, 120), 90)
        image.convert("RGB" if number % 2 else "L").save(folder / f"n {number}.png")
        (folder / f"n {number}.txt").write_text(f"cat, number {number}")
    return folder


def test_captioning_names_path_and_need_and_goes_on_later(
    small_disk: tuple[Path, Fill], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place, fill = small_disk
    model = make_tiny_janus(tmp_path / "janus")
    wishes = [
        noise(tmp_path / "in", 5),
        "cat",
        "--model",
        model,
        "--max-new-tokens",
        "6",
        "--batch-size",
        "1",
    ]
    wishes += ["--dtype", "float32"]
    assert core(*wishes, "--output", tmp_path / "undisturbed") == 0
    done = [0]
    with monkeypatch.context() as patch:

        def advance(self: Progress, *_: object) -> None:
            done[0] += self._title == "captioning"
            if done[0] == 2 and not (place / "filler").exists():
                fill()

        patch.setattr(Progress, "advance", advance)
        capsys.readouterr()
        assert core(*wishes, "--output", place / "out") == 1
    said = capsys.readouterr().err
    assert f"{place / 'out'}/" in said and "could not be written: the disk is full; about " in said
    assert "are needed, 0 KB are free" in said and "it goes on where this one ended" in said
    assert "Traceback" not in said
    kept = {path.name: path.read_bytes() for path in (place / "out").glob("*.txt")}
    assert len(kept) >= 2
    assert all(kept[name] == (tmp_path / "undisturbed" / name).read_bytes() for name in kept)
    (place / "filler").unlink()
    assert core(*wishes, "--output", place / "out") == 0
    assert result(place / "out") == result(tmp_path / "undisturbed")


def test_staging_names_path_and_need_and_leaves_nothing_that_is_trusted(
    small_disk: tuple[Path, Fill], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fill = small_disk
    monkeypatch.setenv("NOUKII_HOME", str(place))
    precious = place / "trained_loras" / "cat" / "cat.safetensors"
    precious.parent.mkdir(parents=True)
    precious.write_bytes(b"last week's")
    plan = make_plan(find_data_sets([], [noise(tmp_path / "3_cat", 6)])[0])
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", lambda *_: (place / "filler").exists() or fill())
        with pytest.raises(RunError) as caught:
            staging.stage(plan)
    assert f"{place}/kohya_ss/dataset/images/train" in caught.value.where
    assert "the disk is full; about " in caught.value.reason and "0 KB are free" in caught.value.reason
    assert precious.read_bytes() == b"last week's"
    (place / "filler").unlink()
    (subset,) = staging.stage(plan)
    staged = {path.name for path in subset.image_dir.iterdir()} - {staging.MARKER}
    assert staged == {f"n {number}{end}" for number in range(6) for end in (".png", ".txt")}
    for path in subset.image_dir.glob("*.png"):
        with Image.open(path) as image:
            image.load()
    assert sorted(os.listdir(project.staging())) == ["3_cat"]
