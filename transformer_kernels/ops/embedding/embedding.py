# SPDX-License-Identifier: MIT
"""embedding, and embedding_add, which looks up tokens, positions and types in one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import ArgumentValueError, as_integer
from ..._torch import jagged_like
from .._kinds import is_jagged, jagged_values
from .._public import overridable
from ._ops import EMBEDDING, EMBEDDING_ADD

_call, _add_call = EMBEDDING.call, EMBEDDING_ADD.call


def _row_of_padding(op: str, padding_idx: Any, weight: Tensor) -> int:
    """The row of padding; negative numbers count from the end, and -1 is returned for None."""
    if padding_idx is None:
        return -1
    index, rows = as_integer(op, "padding_idx", padding_idx), len(weight)
    if not -rows <= index < rows:
        raise ArgumentValueError(
            f"{op}: padding_idx is {index}, expected one of [{-rows}, {rows - 1}] (weight has"
            f" {rows} rows)"
        )
    return int(index % rows)


def refuse_options(max_norm: Any, sparse: Any) -> None:
    """Refuses PyTorch's options that change the weight, or give sparse gradients."""
    if max_norm is not None:
        raise ArgumentValueError(
            f"embedding: max_norm is {max_norm}, expected None (torch.embedding_renorm_() limits"
            " the norms of rows)"
        )
    if sparse:
        raise ArgumentValueError(
            "embedding: sparse is True, expected False (gradients here are dense)"
        )


@overridable
def embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.embedding`: ``weight[input]``.

    Args:
        input: indices, int32 or int64, of any shape; a jagged nested tensor gives a jagged result.
        weight: (rows, D), floating-point.
        padding_idx: a row that gets no gradient; negative numbers count from the end.
        max_norm: must be None; ``norm_type`` is then unused.
        scale_grad_by_freq: divide the gradient of each row by the number of its occurrences in
            ``input``.
        sparse: must be False.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Returns a tensor of ``input``'s shape followed by D, in ``weight``'s dtype. The gradient of
    ``weight`` is summed in float32 (float64 for float64) in the order of ``input``, so it is the
    same bits every time.

    An index out of range is an IndexError on the CPU. On CUDA, which is not waited for, its row of
    the result is NaN, and it adds nothing to the gradient.

    >>> tokens, table = torch.tensor([[3, 1, 4]]), torch.randn(10, 32)
    >>> torch.equal(tfk.functional.embedding(tokens, table), table[tokens])
    True
    """
    if max_norm is not None or sparse:
        refuse_options(max_norm, sparse)
    padding = -1 if padding_idx is None else _row_of_padding("embedding", padding_idx, weight)
    if is_jagged(input):
        values = jagged_values("embedding", "indices", input)
        return jagged_like(input, _call(weight, values, padding, scale_grad_by_freq, backend))
    return _call(weight, input, padding, scale_grad_by_freq, backend)


@overridable
def embedding_add(
    tokens: Tensor,
    weight: Tensor,
    positions: Tensor | int | None,
    position_weight: Tensor,
    padding_idx: int | None = None,
    *,
    types: Tensor | None = None,
    type_weight: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Computes ``weight[tokens] + position_weight[positions]``, plus ``type_weight[types]``, in one
    pass.

    The sum is rounded once. GPT-2 begins with this (Radford et al. 2019), and so does BERT, with
    token types (Devlin et al. 2019, arXiv:1810.04805).

    Args:
        tokens: indices of ``weight``, int32 or int64, (..., T).
        weight: (rows, D), floating-point; the other tables have its dtype and D.
        positions: indices of ``position_weight``, with the shape of ``tokens`` or of their last
            dimensions; None for 0 to T - 1; or an int that is added to these.
        padding_idx: a row of ``weight`` that gets no gradient; negative numbers count from the end.
        types: indices of ``type_weight``, shaped as positions are.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Gradients, and indices out of range, are as in :func:`embedding`.

    >>> tokens, wte, wpe = torch.tensor([[3, 1, 4]]), torch.randn(10, 32), torch.randn(8, 32)
    >>> x = tfk.functional.embedding_add(tokens, wte, None, wpe)
    >>> torch.equal(x, wte[tokens] + wpe[:3])
    True
    """
    padding = -1 if padding_idx is None else _row_of_padding("embedding_add", padding_idx, weight)
    first = 0
    if positions is not None and not isinstance(positions, Tensor):
        first, positions = as_integer("embedding_add", "positions", positions), None
    return _add_call(
        weight, tokens, position_weight, positions, type_weight, types, first, padding, backend
    )
