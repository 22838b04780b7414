# SPDX-License-Identifier: MIT
"""The rows of one step, as a model takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._page_table import CachedSequence, PageTable


@dataclass(frozen=True)
class Batch:
    """One step's tokens of B sequences, packed into N rows; tensors on the cache's device.

    A model writes the keys and values of all rows to ``slots``, and lets each row see the tokens of
    its sequence up to itself. In a recorded step, ``rows`` and ``slots`` are empty: places follow
    from ``block_tables`` and ``lengths``, and sequences without a page write nowhere.
    """

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64, each token's in its sequence
    cu_seqlens: Tensor  # (B + 1,) int32, where each sequence's rows begin
    rows: Tensor  # (B,) int64, each sequence's row in the cache's tables
    block_tables: Tensor  # (B, pages of the longest) int32, the cache's at ``rows``
    lengths: Tensor  # (B,) int32, tokens in the cache before this step
    slots: Tensor  # (N,) int64, where each row's key and value go
    outputs: Tensor  # (M,) int64, the rows whose logits are wanted
    counts: list[int]  # the rows of each sequence; all 1 where every sequence decodes


Model = Callable[[Batch, Any], Tensor]  # with the engine's cache


class Turn(NamedTuple):
    """The next tokens of a sequence; ``draws`` where the logits of the last are wanted."""

    sequence: CachedSequence
    tokens: Sequence[int]
    draws: bool


def make_batch(cache: PageTable, turns: Sequence[Turn]) -> Batch:
    """Packs turns whose pages are reserved."""

    def on_device(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=cache.device)

    counts = [len(turn.tokens) for turn in turns]
    ends = list(accumulate(counts, initial=0))
    rows = on_device([turn.sequence.row for turn in turns])
    width = max(len(turn.sequence.pages) for turn in turns)
    return Batch(
        tokens=on_device([token for turn in turns for token in turn.tokens]),
        positions=on_device(
            [turn.sequence.length + i for turn in turns for i in range(len(turn.tokens))]
        ),
        cu_seqlens=on_device(ends, torch.int32),
        rows=rows,
        block_tables=cache.block_tables[rows, :width],
        lengths=cache.lengths[rows],
        slots=on_device(
            [s for turn in turns for s in cache.slot_list(turn.sequence, len(turn.tokens))]
        ),
        outputs=on_device([ends[i + 1] - 1 for i, turn in enumerate(turns) if turn.draws]),
        counts=counts,
    )
