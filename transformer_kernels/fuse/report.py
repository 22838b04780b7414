# SPDX-License-Identifier: MIT
"""Draws a plan as a page: the forward pass before and after, each module as wide as the bytes that
it moves, with the launches and times of the sites, and the plan's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..measure.table import Table
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
    note: str = ""  # launches and time of the site there

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


class Marks(NamedTuple):
    """The words of a picture about the sites, by path."""

    patterns: Mapping[str, str] = {}
    notes: Mapping[str, str] = {}
    sums: str = ""  # of all sites, for the caption


NO_MARKS = Marks()


def marks(sites: Sequence[Site], side: int) -> Marks:
    """The marks of the picture before (``side`` 0) or after (1)."""
    patterns: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for site in sites:
        patterns.setdefault(site.path, []).append(site.pattern)
        notes.setdefault(site.path, []).append(_costs([site], side))
    joined = {path: "; ".join(filter(None, found)) for path, found in notes.items()}
    names = {path: " ".join(found) for path, found in patterns.items()}
    return Marks(names if side else {}, joined, _costs(sites, side))


def _costs(sites: Sequence[Site], side: int) -> str:
    """The sum of launches and of measured times, as far as they are known."""
    launches = [site.launches[side] for site in sites if site.launches is not None]
    times = [site.times[side] for site in sites if site.times is not None]
    words = [f"{sum(launches)} launches"] if launches else []
    words += [f"{sum(times):.0f} us"] if times else []
    return ", ".join(words)


def icicle(caption: str, own: Mapping[str, int], whole: int, told: Marks = NO_MARKS) -> Icicle:
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
        pattern, note = told.patterns.get(path, ""), told.notes.get(path, "")
        boxes.append(Box(path, x, depth * _HEIGHT, width, totals[path], pattern, note))
        for child in children.get(path, []):
            lay(child, x, depth + 1)
            x += _WIDTH * totals[child] / max(whole, 1)

    if totals:
        lay("", 0.0, 0)
    total = totals.get("", 0)
    sums = f"; the sites: {told.sums}" if told.sums else ""
    return Icicle(f"{caption}: {total / 1e6:.1f} MB{sums}", boxes)


def render(
    model: str, sites: Sequence[Site], moved: Mapping[str, int], table: Table, lines: Sequence[str]
) -> str:
    """The page as HTML, which needs no other file.

    Args:
        model: the class of the model.
        moved: the bytes that the own code of each module moves, by path.
        table: the plan's table.
        lines: what stands below it.

    Raises:
        ImportError: jinja2 is absent, which the extra ``bench`` brings.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([
            jinja2.PackageLoader("transformer_kernels.fuse"),
            jinja2.PackageLoader("transformer_kernels.bench"),  # of tables that are sorted
        ]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    whole = sum(moved.values())
    pictures = [
        icicle("before", moved, whole, marks(sites, 0)),
        icicle("after", after(sites, moved), whole, marks(sites, 1)),
    ]
    page: str = environment.get_template("plan.html.j2").render(
        model=model, pictures=pictures, table=table, lines=lines
    )
    return page
