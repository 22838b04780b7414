#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the tables of docs/migration.md, docs/_generated/migration_<library>.md."""

from __future__ import annotations

from migration import LIBRARIES, Library, Row
from render_results import GENERATED

_HEADINGS = ("theirs", "ours", "what differs")


def _row(row: Row) -> str:
    code = (f"`{text}`".replace("|", "\\|") for text in (row.theirs, row.ours))
    return f"| {' | '.join([*code, row.differs or 'nothing else'])} |"


def table(library: Library) -> str:
    lines = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    return "\n".join([library.note, "", *lines, *map(_row, library.rows), ""])


def write_pages() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        (GENERATED / library.page).write_text(table(library))


if __name__ == "__main__":
    write_pages()
