# SPDX-License-Identifier: MIT
"""Embeddings whose first table is split by rows between processes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import ArgumentIndexError
from .._declare import Op
from .._declare_arguments import Given
from .._parallel import Part, Run


def by_rows(op: Op, name: str, part: Part, call: Run, given: Given) -> tuple[Tensor]:
    """A process's summand of the result: its own rows for their tokens, and zeros for others."""
    table, tokens, padding = given["weight"], given[name], given["padding_idx"]
    count = len(table)
    own = tokens - part.start
    is_own = (own >= 0) & (own < count)
    rows = {
        **given,
        name: torch.where(is_own, own, 0),
        "padding_idx": padding - part.start if 0 <= padding - part.start < count else -1,
    }
    if count == 0:  # with a gradient all the same, for processes act together
        y = _of_other_tables(name, call, given) + table.sum()
    elif "position_weight" in given:
        others = _of_other_tables(name, call, given)
        y = torch.where(is_own.unsqueeze(-1), call(rows)[0], others)
    else:
        y = call(rows)[0].masked_fill(~is_own.unsqueeze(-1), 0)
    return (_without_rows(op, name, part, tokens, y),)


def _of_other_tables(name: str, call: Run, given: Given) -> Tensor:
    """The result for rows of zeros in the first table."""
    table, tokens = given["weight"], given[name]
    nothing = {"weight": table.new_zeros(1, table.shape[1]), name: torch.zeros_like(tokens)}
    y: Tensor = call({**given, **nothing, "padding_idx": -1})[0]
    return y


def _without_rows(op: Op, name: str, part: Part, tokens: Tensor, y: Tensor) -> Tensor:
    """Refuses tokens that are no rows of the whole table; elsewhere than on the CPU, which is not
    waited for, they are NaN."""
    outside = (tokens < 0) | (tokens >= part.size)
    if not tokens.is_cpu or torch.compiler.is_compiling():
        return y.masked_fill(outside.unsqueeze(-1), torch.nan)
    if bool(outside.any()):
        raise ArgumentIndexError(
            f"{op.title}: {name} holds {int(tokens[outside][0])}, expected a row of weight, which"
            f" has {part.size}"
        )
    return y
