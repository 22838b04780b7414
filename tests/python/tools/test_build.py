# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

import build


@pytest.mark.parametrize(
    ("choice", "nvcc", "driver", "preset"),
    [
        ("", True, True, "cuda"),
        ("", True, False, "cpu"),
        ("", False, True, "cpu"),
        ("0", True, True, "cpu"),
        ("1", True, False, "cuda"),
        ("1", False, True, "cpu"),
    ],
)
def test_cuda_needs_a_compiler_and_a_driver_or_the_users_word(
    choice: str, nvcc: bool, driver: bool, preset: str
) -> None:
    assert build.development_preset(choice, nvcc, driver) == preset


def test_a_build_folder_from_another_place_is_dropped(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    for folder, home in ((own, build.ROOT), (foreign, "/somewhere/else")):
        folder.mkdir()
        (folder / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
        build.drop_foreign_build(folder)
    assert own.exists()
    assert not foreign.exists()
