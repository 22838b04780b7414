# SPDX-License-Identifier: MIT
"""Draws a plan as a page: the forward pass before and after, each module as wide as the bytes that
it moves, and the plan's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .site import Site

_WIDTH, _HEIGHT = 1000.0, 22
_THINNEST = 1.0  # narrower boxes are left out


class Box(NamedTuple):
    """A module in the picture. ``x`` and ``width`` are of 1000, ``y`` is the depth in pixels."""

    path: str
    x: float
    y: int
    width: float
    bytes: int
    pattern: str  # of the site there; empty where there is none

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2] or "the model"


class Icicle(NamedTuple):
    caption: str
    boxes: list[Box]

    @property
    def height(self) -> int:
        return max((box.y for box in self.boxes), default=0) + _HEIGHT


def _ancestors(path: str) -> list[str]:
    """The path of the root, of each module on the way, and of the module itself."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _totals(own: Mapping[str, int]) -> dict[str, int]:
    """The bytes of each module with those in it."""
    totals: dict[str, int] = {}
    for path, count in own.items():
        for ancestor in _ancestors(path):
            totals[ancestor] = totals.get(ancestor, 0) + count
    return totals


def after(sites: Sequence[Site], moved: Mapping[str, int]) -> dict[str, int]:
    """The bytes that each module's own code moves when the plan is carried out.

    What a fused call leaves out moves none. A site's saving is taken from the module where the site
    is and, where that moves less by itself, from those in it.
    """
    own = dict(moved)
    for site in sites:
        if site.bytes is None:
            continue
        saved = site.bytes[0] - site.bytes[1]
        inside = [p for p in own if p == site.path or p.startswith(f"{site.path}.")]
        for path in [site.path, *sorted(inside, key=lambda p: -own[p])]:
            taken = min(saved, own.get(path, 0))
            own[path] = own.get(path, 0) - taken
            saved -= taken
    return own


def icicle(caption: str, own: Mapping[str, int], whole: int, patterns: Mapping[str, str]) -> Icicle:
    """Lays modules out from their parents down; ``whole`` bytes are as wide as the picture."""
    totals = _totals(own)
    children: dict[str, list[str]] = {}
    for path in totals:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    boxes: list[Box] = []

    def lay(path: str, x: float, depth: int) -> None:
        width = _WIDTH * totals[path] / max(whole, 1)
        if width < _THINNEST:
            return
        boxes.append(Box(path, x, depth * _HEIGHT, width, totals[path], patterns.get(path, "")))
        for child in children.get(path, []):
            lay(child, x, depth + 1)
            x += _WIDTH * totals[child] / max(whole, 1)

    if totals:
        lay("", 0.0, 0)
    total = totals.get("", 0)
    return Icicle(f"{caption}: {total / 1e6:.1f} MB", boxes)


def render(
    model: str, inputs: str, sites: Sequence[Site], moved: Mapping[str, int], table: str
) -> str:
    """The page as HTML, which needs no other file.

    Args:
        model: the class of the model.
        inputs: says which the recorded inputs are.
        moved: the bytes that the own code of each module moves, by path.
        table: the plan's table.

    Raises:
        ImportError: jinja2 is absent, which the extra ``bench`` brings.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transformer_kernels.fuse"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    whole, patterns = sum(moved.values()), {site.path: site.pattern for site in sites}
    pictures = [
        icicle("before", moved, whole, {}),
        icicle("after", after(sites, moved), whole, patterns),
    ]
    page: str = environment.get_template("plan.html.j2").render(
        model=model, inputs=inputs, pictures=pictures, table=table
    )
    return page
