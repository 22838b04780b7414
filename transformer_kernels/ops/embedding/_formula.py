# SPDX-License-Identifier: MIT
"""The embeddings in PyTorch operations, differentiable any number of times.

C++ refuses an index out of range on the CPU. Elsewhere, as in the CUDA kernels, its row is NaN and
it adds nothing to gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._torch import embedding as torch_embedding
from .._dtype import accumulate_dtype


def _lookup(weight: Tensor, indices: Tensor, padding_idx: int, scale: bool = False) -> Tensor:
    """Looks rows up in the arithmetic's dtype, in which their gradients are then summed."""
    wide = weight.to(accumulate_dtype(weight))
    if indices.device.type == "cpu":
        return torch_embedding(wide, indices, padding_idx, scale)
    inside = (indices >= 0) & (indices < weight.shape[0])
    rows = torch_embedding(wide, torch.where(inside, indices, 0), padding_idx, scale)
    return torch.where(inside.unsqueeze(-1), rows, torch.nan)


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    return _lookup(weight, indices, padding_idx, scale_grad_by_freq).to(weight.dtype)


def table_gradient(
    dy: Tensor, indices: Tensor, rows: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Tensor:
    """Row ``r`` of the gradient is the sum of ``dy`` over places where ``indices`` are ``r``."""
    left_out = (indices < 0) | (indices >= rows) | (indices == padding_idx)
    if rows == 0 or dy.numel() == 0:
        return dy.new_zeros(rows, dy.shape[-1])
    summed = torch.ops.aten.embedding_dense_backward(
        dy.to(accumulate_dtype(dy)), torch.where(left_out, rows, indices), rows + 1, rows,
        scale_grad_by_freq,
    )  # fmt: skip
    return summed[:rows].to(dy.dtype)


def positions_of(tokens: Tensor, positions: Tensor | None, first_position: int) -> Tensor:
    if positions is not None:
        return positions
    count = tokens.shape[-1] if tokens.dim() else 1
    return torch.arange(first_position, first_position + count, device=tokens.device)


def embedding_add(
    weight: Tensor, tokens: Tensor, position_weight: Tensor, positions: Tensor | None,
    type_weight: Tensor | None, types: Tensor | None, first_position: int, padding_idx: int,
) -> Tensor:  # fmt: skip
    y = _lookup(weight, tokens, padding_idx)
    y = y + _lookup(position_weight, positions_of(tokens, positions, first_position), -1)
    if types is not None and type_weight is not None:
        y = y + _lookup(type_weight, types, -1)
    return y.view(*tokens.shape, weight.shape[1]).to(weight.dtype)


def embedding_add_gradient(
    dy: Tensor, tokens: Tensor, positions: Tensor | None, types: Tensor | None, rows: int,
    position_rows: int, type_rows: int, first_position: int, padding_idx: int, need_dweight: bool,
    need_dposition_weight: bool, need_dtype_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    def gradient(needed: bool, indices: Tensor | None, count: int, padding: int = -1) -> Tensor:
        if not needed or indices is None:
            return dy.new_empty(0)
        return table_gradient(dy, indices.expand(tokens.shape), count, padding)

    places = positions_of(tokens, positions, first_position)
    return (
        gradient(need_dweight, tokens, rows, padding_idx),
        gradient(need_dposition_weight, places, position_rows),
        gradient(need_dtype_weight, types, type_rows),
    )
