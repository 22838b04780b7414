# SPDX-License-Identifier: MIT
"""The article on lessons: each figure stands in a document that its paragraph links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ARTICLE = Path(__file__).parents[3] / "docs" / "lessons.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
PARAGRAPHS = [
    part
    for part in re.split(r"\n\n|\n(?=- )", ARTICLE.read_text().partition("## Self-assessment")[0])
    if NUMBER.search(LINK.sub("", part))
]


def test_the_article_has_figures() -> None:
    assert len(PARAGRAPHS) >= 10


@pytest.mark.parametrize("paragraph", PARAGRAPHS, ids=lambda text: " ".join(text.split()[:4]))
def test_a_figure_stands_in_a_document_that_is_linked(paragraph: str) -> None:
    linked = [(ARTICLE.parent / name).read_text() for name in LINK.findall(paragraph)]
    known = {number for text in linked for number in NUMBER.findall(text)}
    assert set(NUMBER.findall(LINK.sub("", paragraph))) <= known
