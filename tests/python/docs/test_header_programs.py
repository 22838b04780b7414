# SPDX-License-Identifier: MIT
"""Each page that shows public headers shows a program first, which CI compiles and runs; and each
public header is on such a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS, HEADERS, PROGRAMS = ROOT / "docs", ROOT / "csrc/include", ROOT / "examples/cpp/ops"
SHOWN = re.compile(r"\{literalinclude\} \S*/csrc/include/(\S+\.h)$", re.MULTILINE)
PROGRAM = re.compile(r"\{literalinclude\} \S*/examples/cpp/(\S+\.cpp)$", re.MULTILINE)
REFERENCE = re.compile(r"\{doxygen\w+\} transformer_kernels::(\w+)$", re.MULTILINE)
VOCABULARY = "cpp.md"  # shows the types that all headers share by their names
MOST_LINES = 40

PAGES = {
    page: text
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("[!_]*/*.md")])
    if SHOWN.search(text := page.read_text())
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_short_program_of_its_headers(page: Path) -> None:
    text = PAGES[page]
    program, header = PROGRAM.search(text), SHOWN.search(text)
    assert program is not None
    assert header is not None
    assert program.start() < header.start()
    lines = (ROOT / "examples/cpp" / program[1]).read_text().splitlines()
    assert len(lines) <= MOST_LINES
    included = {header for line in lines for header in re.findall(r"#include <(\S+\.h)>", line)}
    assert included
    assert included <= set(SHOWN.findall(text))


def test_every_program_has_a_page() -> None:
    shown = [name for text in PAGES.values() for name in PROGRAM.findall(text)]
    assert sorted(shown) == [f"ops/{program.name}" for program in sorted(PROGRAMS.glob("*.cpp"))]


def test_every_public_header_is_on_a_page_with_a_program() -> None:
    vocabulary = (DOCS / VOCABULARY).read_text()
    assert PROGRAM.search(vocabulary) is not None
    shown = {header for text in PAGES.values() for header in SHOWN.findall(text)}
    names = REFERENCE.findall(vocabulary)
    absent = [
        str(path.relative_to(HEADERS))
        for path in sorted(HEADERS.rglob("*.h"))
        if str(path.relative_to(HEADERS)) not in shown and not _declares(path.read_text(), names)
    ]
    assert absent == ["transformer_kernels/api.h"]  # macros of the build


def _declares(header: str, names: list[str]) -> bool:
    name = "|".join(names)
    types, functions = rf"(?:class|struct)(?: TFK_API)? (?:{name}) ", rf"TFK_API .*\b(?:{name})\("
    return re.search(f"^(?:{types}|{functions})", header, re.MULTILINE) is not None
