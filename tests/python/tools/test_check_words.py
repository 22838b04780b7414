# SPDX-License-Identifier: MIT
"""The rule that a comment or docstring opens with a sentence that has a subject."""

from __future__ import annotations

from pathlib import Path

import pytest

import check_words

HEADER = """\
// SPDX-License-Identifier: MIT
// {head}
#pragma once

// {comment}
int f();  // {behind}
"""
MODULE = '''\
# SPDX-License-Identifier: MIT
"""{head}"""


def f() -> None:
    """{docstring}"""
    g()  # {comment}
'''


def clauses(root: Path, name: str, text: str) -> list[tuple[int, bool]]:
    """(line, whether it is prominent) of each opening without a subject in one file."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = [opening for opening in check_words.openings(root) if opening.is_clause]
    return sorted((opening.line, opening.prominent) for opening in found)


@pytest.mark.parametrize(
    ("text", "is_clause"),
    [
        ("Of what product() leaves.", True), ("The same for rows.", True), ("Those of x.", True),
        ("What a thread owns.", True), ("What may fail?", False), ("The rows of x.", False),
        ("Offsets into x.", False), ("Whatever comes first.", False),
    ],
)  # fmt: skip
def test_a_clause_is_told_from_a_sentence(text: str, is_clause: bool) -> None:
    assert check_words.Opening(Path("x.h"), 1, text, prominent=False).is_clause is is_clause


def test_comments_of_cxx(tmp_path: Path) -> None:
    text = HEADER.format(head="Of rows.", comment="What f does.", behind="Those of x.")
    assert clauses(tmp_path, "csrc/norm/x.h", text) == [(2, True), (5, False), (6, False)]


def test_every_comment_of_a_public_header_is_prominent(tmp_path: Path) -> None:
    text = HEADER.format(head="Rows.", comment="What f does.", behind="A number.")
    public = "csrc/include/transformer_kernels/norm/x.h"
    assert clauses(tmp_path, public, text) == [(5, True)]


@pytest.mark.parametrize(
    ("name", "docstring_is_prominent"),
    [
        ("transformer_kernels/x.py", True), ("transformer_kernels/_x.py", False),
        ("tests/python/x.py", False),
    ],
)  # fmt: skip
def test_docstrings_of_python(tmp_path: Path, name: str, docstring_is_prominent: bool) -> None:
    text = MODULE.format(head="Of rows.", docstring="What f does.", comment="The same again.")
    found = clauses(tmp_path, name, text)
    assert found == [(2, True), (6, docstring_is_prominent), (7, False)]


def test_the_count_only_falls() -> None:
    clause = check_words.Opening(Path("x.h"), 3, "Of rows.", prominent=False)
    sentence = check_words.Opening(Path("x.h"), 4, "The rows of x.", prominent=True)
    found = [clause, clause, sentence]
    assert check_words.violations(found, 2) == []
    assert "allows 3 openings, expected 2" in check_words.violations(found, 3)[0]
    refusals = check_words.violations(found, 1)
    assert "2 openings without a subject, expected at most 1" in refusals[-1]
    head = check_words.Opening(Path("x.h"), 1, "Of rows.", prominent=True)
    assert check_words.violations([head], 0) == [f"{head}: expected a sentence with a subject"]
