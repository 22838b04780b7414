#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write what documents say of declared ops: docs/_generated/ops_<family>.md, from declarations."""

from __future__ import annotations

from typing import Any

from render_results import GENERATED
from transformer_kernels.nn.activation import MODULES
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops.pointwise._ops import GATED, PLAIN
from transformer_kernels.ops.pointwise.pointwise import FUNCTIONS


def _torch_name(thing: Any) -> str:
    function = getattr(thing, "func", thing)  # of a partial one
    place = "torch.nn" if isinstance(function, type) else "torch.nn.functional"
    return f"`{place}.{function.__name__}`"


def row(op: Op) -> str:
    replaced = ", ".join(map(_torch_name, op.replaces)) or "-"
    raw = ", ".join(f"`{schema.partition('(')[0]}`" for schema in op.schemas)
    return f"| `{op.name}` | `{op.text}` | {replaced} | {raw} |"


def page(functions: list[str], modules: list[str], ops: list[Op]) -> str:
    listed = [f".. autofunction:: {name}" for name in functions]
    directives = [".. currentmodule:: transformer_kernels.functional", *listed]
    table = ["| op | formula | in place of | raw ops |", "| --- | --- | --- | --- |"]
    of_nn = f"As modules of `transformer_kernels.nn`: {', '.join(f'`{name}`' for name in modules)}."
    fenced = ["```{eval-rst}", *directives, "```"]
    return "\n".join([*fenced, "", *table, *map(row, ops), "", of_nn, ""])


def write_pages() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    pointwise = page(list(FUNCTIONS), list(MODULES), [*PLAIN.values(), *GATED.values()])
    (GENERATED / "ops_pointwise.md").write_text(pointwise)


if __name__ == "__main__":
    write_pages()
