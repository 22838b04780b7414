# SPDX-License-Identifier: MIT
"""Each page that shows public headers shows a program first, which CI compiles and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page for page in (ROOT / "docs/ops").glob("*.md") if "../../csrc/include/" in page.read_text()
)
MOST_LINES = 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_short_program_of_its_headers(page: Path) -> None:
    text = page.read_text()
    program = ROOT / "examples/cpp/ops" / f"{page.stem}.cpp"
    assert text.index(f"../../examples/cpp/ops/{program.name}") < text.index("../../csrc/include/")
    lines = program.read_text().splitlines()
    assert len(lines) <= MOST_LINES
    shown = set(re.findall(r"csrc/include/(\S+\.h)", text))
    included = {header for line in lines for header in re.findall(r"#include <(\S+\.h)>", line)}
    assert included
    assert included <= shown


def test_every_program_has_a_page() -> None:
    assert [page.stem for page in PAGES] == sorted(
        program.stem for program in (ROOT / "examples/cpp/ops").glob("*.cpp")
    )
