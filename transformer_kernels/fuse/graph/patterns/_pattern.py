# SPDX-License-Identifier: MIT
"""The base of the patterns of graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch.fx import Node

from ..region import Candidate


class Place(NamedTuple):
    """Where a pattern looks: an operation, and its graph's order."""

    node: Node
    order: dict[Node, int]


class Pattern:
    """Finds places. ``candidates`` looks at one operation, by whose name ``anchors`` calls it, and
    gives what may replace it and what is around it, the best first. It raises
    :class:`~transformer_kernels.fuse.site.RefusedError` for what looks like the pattern and is not.
    """

    name: str
    anchors: frozenset[str]

    def candidates(self, place: Place) -> Iterator[Candidate]:
        raise NotImplementedError
