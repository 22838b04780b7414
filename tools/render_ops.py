#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the documents' tables of declared ops, docs/_generated/ops_<page>.md for each page of
docs/ops, and of the public functions and modules."""

from __future__ import annotations

import inspect
from functools import reduce
from types import ModuleType
from typing import Any

import transformer_kernels
from render_results import GENERATED
from setup_env import ROOT
from transformer_kernels.nn.activation import MODULES
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_raw import RAW
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.ops.pointwise.pointwise import FUNCTIONS

PAGES = ROOT / "docs" / "ops"
_HEADINGS = ("op", "function", "formula", "in place of", "bound by", "may be split", "raw ops")


def _torch_name(thing: Any) -> str:
    function = getattr(thing, "func", thing)  # unwraps functools.partial
    place = "torch.nn" if isinstance(function, type) else "torch.nn.functional"
    return f"`{place}.{function.__name__}`"


def _splits(op: Op) -> str:
    """The first words of the docstring of the function that declares the ways."""
    function = getattr(op.parallel, "func", op.parallel)
    text = " ".join((inspect.getdoc(function) or "").split())
    first = text.partition(". ")[0].partition(": ")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def row(op: Op) -> str:
    raw = [name for name, raw in RAW.items() if raw.of is op and not raw.composed]
    cells = (
        f"`{op.name}`",
        f"`{op.function.rpartition('.')[2]}`",
        f"`{op.text}`".replace("|", "\\|"),
        ", ".join(map(_torch_name, op.replaces)) or "-",
        op.kind,
        _splits(op),
        ", ".join(f"`{name}`" for name in raw) or "-",
    )
    return f"| {' | '.join(cells)} |"


def page_of(op: Op) -> str:
    """The page of the op's module, if it has one, or else of its family."""
    function: Any = reduce(getattr, op.function.split("."), transformer_kernels)
    *_, family, module = function.__module__.split(".")
    return module if (PAGES / f"{module}.md").exists() else family


def table(ops: list[Op]) -> list[str]:
    lines = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    return [*lines, *map(row, ops)]


def _with_functions(rows: list[str]) -> list[str]:
    """The functions and modules of a page, including those from the table of activations."""
    listed = [f".. autofunction:: {name}" for name in FUNCTIONS]
    directives = [".. currentmodule:: transformer_kernels.functional", *listed]
    modules = [f".. autoclass:: transformer_kernels.nn.{name}" for name in MODULES]
    return [*_fenced(directives), "", *rows, "", *_fenced(modules)]


def _fenced(directives: list[str]) -> list[str]:
    return ["```{eval-rst}", *directives, "```"]


def summary(module: ModuleType) -> str:
    """A table of the module's public functions and classes, with links to their pages."""
    names = sorted((name for name in module.__all__ if name[0] != "_"), key=str.lower)
    listed = [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in names)]
    return "\n".join(_fenced([f".. currentmodule:: {module.__name__}", *listed])) + "\n"


def write_pages() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    pages: dict[str, list[Op]] = {}
    for op in DECLARED.values():
        pages.setdefault(page_of(op), []).append(op)
    for page, ops in pages.items():
        lines = table(ops)
        if page == "pointwise":
            lines = _with_functions(lines)
        (GENERATED / f"ops_{page}.md").write_text("\n".join([*lines, ""]))
    for module in (transformer_kernels.functional, transformer_kernels.nn):
        name = module.__name__.rpartition(".")[2]
        (GENERATED / f"summary_{name}.md").write_text(summary(module))


if __name__ == "__main__":
    write_pages()
