#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds comments and docstrings to sentences with a subject.

A comment that opens with "The same", "Of", "Those" or "What" compares or qualifies, and does not
name the thing itself. In the head of a file and in a public docstring such an opening is refused;
elsewhere the openings are counted, and `tools/word_budget.toml` says how many there may be. The
number there only falls.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from check_layout import CXX_SUFFIXES, files
from setup_env import ROOT

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

BUDGET = Path("tools/word_budget.toml")
CLAUSE = re.compile(r"(The same|Of|Those|What)\b(?![^.]*\?)")
LICENCE = re.compile(r"SPDX-License-Identifier")


class Opening(NamedTuple):
    """The first line of a comment or docstring."""

    path: Path  # below the root
    line: int
    text: str
    prominent: bool  # the head of a file, or the docstring of a public name

    @property
    def is_clause(self) -> bool:
        return CLAUSE.match(self.text) is not None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def comment_blocks(lines: list[str], mark: str) -> Iterator[tuple[int, str]]:
    """Yields the first line of each run of comment lines, and each comment behind code."""
    behind_code = re.compile(rf"\S\s{{2,}}{mark}\s+(?=\S)|[;,{{}})]\s{mark}\s+(?=\S)")
    inside = False
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        is_comment = stripped.startswith(mark) and not LICENCE.search(stripped)
        text = stripped.lstrip(f"{mark}!<").strip()
        if is_comment and not inside and text:
            yield number, text
        elif not is_comment and (match := behind_code.search(line)):
            yield number, line[match.end() :]
        inside = is_comment


def is_head(lines: list[str], number: int) -> bool:
    """Whether only the licence stands before the line."""
    before = (line.strip() for line in lines[: number - 1])
    return all(not line or line.startswith("#!") or LICENCE.search(line) for line in before)


def cxx_openings(path: Path, lines: list[str]) -> Iterator[Opening]:
    public = "include" in path.parts
    for number, text in comment_blocks(lines, "//"):
        prominent = public or is_head(lines, number)
        yield Opening(path, number, text, prominent)


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    """Yields each owner of a docstring, with the line where it begins and its text."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, owners) else None
        if isinstance(node, owners) and text:
            yield node, node.body[0].lineno, text


def is_public(path: Path, node: ast.AST) -> bool:
    name = getattr(node, "name", "")
    parts = (*path.parts, name)
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return path.parts[0] == "transformer_kernels" and not hidden and not name.startswith("__")


def python_openings(path: Path, lines: list[str]) -> Iterator[Opening]:
    for number, text in comment_blocks(lines, "#"):
        yield Opening(path, number, text, prominent=False)
    for node, number, text in docstrings(ast.parse("\n".join(lines))):
        prominent = isinstance(node, ast.Module) or is_public(path, node)
        yield Opening(path, number, text.split("\n")[0], prominent)


def openings(root: Path) -> Iterator[Opening]:
    for path in files(root, *CXX_SUFFIXES, ".py"):
        lines = path.read_text().splitlines()
        read = python_openings if path.suffix == ".py" else cxx_openings
        yield from read(path.relative_to(root), lines)


def violations(found: list[Opening], most: int) -> list[str]:
    clauses = [opening for opening in found if opening.is_clause]
    refused = [f"{o}: expected a sentence with a subject" for o in clauses if o.prominent]
    count = len(clauses) - len(refused)
    if count > most:
        refused += [str(opening) for opening in clauses if not opening.prominent]
        refused.append(f"{count} openings without a subject, expected at most {most} ({BUDGET})")
    if count < most:
        refused.append(f"{BUDGET}: allows {most} openings, expected {count}: the number only falls")
    return refused


def main() -> int:
    found = list(openings(ROOT))
    most = toml.loads((ROOT / BUDGET).read_text())["openings_without_a_subject"]
    refused = violations(found, most)
    summary = f"[words] {len(found)} openings, {most} without a subject"
    print("\n".join(refused) if refused else summary)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
