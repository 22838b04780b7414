# SPDX-License-Identifier: MIT
"""Reads the edits that a document shows, and carries them out on a copy of the tree.

An edit is a line of the form

    `path`, below `text`:

followed by a fenced block. The block's lines go below the only line of the file that contains the
text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_PLACE = re.compile(r"^`(?P<path>[^`\n]+)`, below `(?P<anchor>[^`\n]+)`:$", re.MULTILINE)
_BLOCK = re.compile(r"\n\n(?:<!--[^\n]*-->\n)?```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Edit(NamedTuple):
    path: str
    anchor: str
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def read_edits(document: str, heading: str) -> list[Edit]:
    """The edits in the section under a heading."""
    _, found, rest = document.partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"the document has no section {heading!r}")
    section, *_ = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)
    return [_edit(place, section) for place in _PLACE.finditer(section)]


def _edit(place: re.Match[str], section: str) -> Edit:
    block = _BLOCK.match(section, place.end())
    if block is None:
        raise ValueError(f"{place[0]!r} has no block below it")
    return Edit(place["path"], place["anchor"], block["text"])


def carry_out(edit: Edit, root: Path) -> None:
    path = root / edit.path
    lines = path.read_text().splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if edit.anchor in line]
    if len(places) != 1:
        raise ValueError(f"{edit.path}: {len(places)} lines contain {edit.anchor!r}, expected 1")
    lines.insert(places[0] + 1, edit.text)
    path.write_text("".join(lines))
