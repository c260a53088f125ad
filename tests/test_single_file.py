"""Tensors copied out of one .safetensors file, also ahead of their time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from noukii.trainer import single_file
from noukii.trainer.single_file import ReadAhead, read_tensors

TENSORS = {f"{part}.{number}": torch.randn(3, number + 1) for part in ("unet", "vae") for number in range(9)}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(single_file, "GROUP_BYTES", 60)  # several groups
    save_file(TENSORS, tmp_path / "é model.safetensors")
    return tmp_path / "é model.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_stay_when_the_file_goes(path: Path, dtype: torch.dtype) -> None:
    found = read_tensors(path, TENSORS, dtype)
    path.write_bytes(b"")  # a mapped tensor would end the process here
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], value.to(dtype)) for name, value in TENSORS.items())


def test_only_what_was_asked_for_is_read_ahead(path: Path) -> None:
    found = ReadAhead(path, ("unet.",), torch.float32).wait()
    assert set(found) == {name for name in TENSORS if name.startswith("unet.")}


def test_a_file_that_cannot_be_read_is_left_to_the_loading(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])
    assert ReadAhead(path, ("unet.",), torch.float32).wait() == {}
    assert ReadAhead(path.with_name("none"), ("unet.",), torch.float32).wait() == {}
