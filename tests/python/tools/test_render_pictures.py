# SPDX-License-Identifier: MIT
from __future__ import annotations

import re
from pathlib import Path

import pytest

import render_pictures


@pytest.mark.parametrize("name", render_pictures.PICTURES)
def test_a_page_shows_the_picture(name: str) -> None:
    pages = (render_pictures.ROOT / "docs").glob("**/*.md")
    wanted = f"_generated/picture_{name}.md"
    assert any(wanted in page.read_text() for page in pages if "_generated" not in page.parts)


def test_a_block_has_the_drawing_and_its_machine() -> None:
    text = render_pictures.block("gpt2_race")
    result = render_pictures.shown(render_pictures.PICTURES["gpt2_race"])
    assert text.startswith("```{raw} html\n")
    assert text.count("<svg") == 2  # time and memory
    assert 'id="picture-gpt2_race"' in text  # none of the page's own
    assert f"Measured {result.date[:10]} on {result.machine.device_name}" in text
    assert "#1a1a1b" not in text  # it takes the text colour of the page


def test_a_picture_of_some_ops_has_no_others() -> None:
    result = render_pictures.shown(render_pictures.Picture("h200.json", "", ("softmax",)))
    assert {row.op for row in result.rows} == {"softmax"}


def test_the_picture_of_the_readme_is_fresh() -> None:
    assert render_pictures.is_fresh()


@pytest.mark.parametrize(
    "change", [(r"sha256:\w+", "sha256:0"), (r"(Matplotlib v).*?,", r"\g<1>0.1,")]
)
def test_a_stale_picture_is_seen(change: tuple[str, str], tmp_path: Path) -> None:
    stale = tmp_path / "picture.svg"
    render_pictures.write_readme_picture(stale)
    assert render_pictures.is_fresh(stale)
    stale.write_text(re.sub(*change, stale.read_text()))
    other_drawer = "Matplotlib" in change[0]
    assert render_pictures.is_fresh(stale) is other_drawer  # the result is the same one
    stale.write_text(re.sub(r"sha256:\w+", "sha256:0", stale.read_text()))
    assert not render_pictures.is_fresh(stale)


def test_a_missing_picture_is_not_fresh(tmp_path: Path) -> None:
    assert not render_pictures.is_fresh(tmp_path / "none.svg")
