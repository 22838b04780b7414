# SPDX-License-Identifier: MIT
"""What attention makes of PyTorch's causal masks, and its words for what it refuses."""

from __future__ import annotations

from typing import Any

from ..._errors import ArgumentValueError
from .._kinds import refuse_in_words

refuse_in_words(
    "attention",
    causal=(
        "is a CausalBias, expected causal=True instead, with top_left=True for causal_upper_left"
    ),
    masked="is a MaskedTensor, which does not know this op, expected a plain tensor",
    jagged=(
        "is a jagged nested tensor, expected a strided one (attention() takes jagged ones as q, k"
        " and v, all three)"
    ),
    layout="has the layout {layout}, expected strided (to_dense() gives it)",
)


def is_top_left(bias: Any, queries: int, keys: int) -> bool:
    """Whether a CausalBias stands in the top left corner. PyTorch reads its lengths as we do: one
    of the lower right corner counts by their difference, any other not at all."""
    shift = bias.seq_len_kv - bias.seq_len_q
    if bias.variant.name == "UPPER_LEFT":
        return True
    if shift == keys - queries:
        return False
    raise ArgumentValueError(
        "scaled_dot_product_attention: attn_mask is causal_lower_right"
        f"({bias.seq_len_q}, {bias.seq_len_kv}), expected ({queries}, {keys}) (queries, keys)"
    )
