# SPDX-License-Identifier: MIT
"""Sources that were clean are not looked at again, until something about them changes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import lint

# Notes its call, and finds fault with sources that say so.
TIDY = """#!/bin/sh
if [ "$1" = --version ]; then echo 1; exit; fi
echo called >> "$(dirname "$0")/calls"
! grep -q fault "$4"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source, its header, and a linter."""
    (tmp_path / "clang-tidy").write_text(TIDY)
    (tmp_path / "clang-tidy").chmod(0o755)
    monkeypatch.setattr(lint, "SCRIPTS", tmp_path)
    monkeypatch.setattr(lint, "CLEAN", tmp_path / "cache" / "clean")
    lint.tidy_version.cache_clear()
    return fill(tmp_path / "one", monkeypatch)


def fill(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root.mkdir()
    (root / ".clang-tidy").write_text("Checks: '*'\n")
    (root / "x.h").write_text("int x();  // a comment\n")
    (root / "x.cpp").write_text('#include "x.h"\nint x() { return 1; }\n')
    monkeypatch.setattr(lint, "ROOT", root)
    return root


def entry(root: Path, *options: str) -> dict[str, str]:
    source = str(root / "x.cpp")
    command = ["c++", f"-I{root}", *options, "-o", "x.o", "-c", source]
    return {"directory": str(root), "command": shlex.join(command), "file": source}


def calls(root: Path) -> int:
    return (root.parent / "calls").read_text().count("called")


def test_a_clean_source_is_looked_at_once(project: Path) -> None:
    assert lint.tidy_one(entry(project))
    assert lint.tidy_one(entry(project))
    assert calls(project) == 1


def test_a_source_with_findings_is_looked_at_again(project: Path) -> None:
    (project / "x.cpp").write_text("int fault;\n")
    assert not lint.tidy_one(entry(project))
    assert not lint.tidy_one(entry(project))
    assert calls(project) == 2


@pytest.mark.parametrize("changed", [".clang-tidy", "x.h", "x.cpp"])
def test_a_change_is_looked_at(project: Path, changed: str) -> None:
    """A comment counts, as one may switch a check off."""
    before = lint.digest_of(entry(project))
    path = project / changed
    path.write_text(path.read_text().replace("comment", "NOLINT") + "// more\n")
    assert lint.digest_of(entry(project)) != before
    assert lint.digest_of(entry(project, "-DX")) != lint.digest_of(entry(project))


def test_the_folder_does_not_matter(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lint.digest_of(entry(project))
    assert lint.digest_of(entry(fill(project.parent / "two", monkeypatch))) == before
