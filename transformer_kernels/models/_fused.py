# SPDX-License-Identifier: MIT
"""The passes on this project's kernels.

A pass reads the parameters of its modules and does not call them. Each call of a pass checks that
they are bare (:func:`transformer_kernels._torch.is_bare`) and have options that the kernel knows;
if one does not, because of an adapter, a hook or a quantised weight, the whole pass runs in stock
PyTorch.

Fusing saves passes over memory: a bias is added where the next pass reads the projection, and its
gradient is summed where that pass writes its own; residual, dropout and the next norm are one pass;
attention reads heads from the projection's result, and a cache, without a copy; positions are added
while tokens are looked up; messages of a graph are summed while they are read; the loss writes its
gradient over the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import _torch
from .._torch import forwards_of, is_bare, is_table
from ..ops.attention.attention import attention
from ..ops.embedding.embedding import embedding, embedding_add
from ..ops.graph.gather_reduce import gather_reduce, graph_attention, segment_reduce
from ..ops.graph.graph import Graph
from ..ops.loss.cross_entropy import cross_entropy
from ..ops.norm.dropout_norm import bias_dropout_add_layer_norm, bias_dropout_add_rms_norm
from ..ops.norm.layer_norm import layer_norm
from ..ops.norm.rms_norm import rms_norm
from ..ops.pointwise._ops import GATED, PLAIN
from ..ops.pointwise.dropout import dropout
from ..ops.rope.rope import rope
from ._passes import Passes, Tables
from ._stock import Stock

_STOCK = Stock()
_LINEAR = forwards_of(nn.Linear)
_LAYER_NORM, _RMS_NORM = forwards_of(nn.LayerNorm), forwards_of(nn.RMSNorm)
_CONVOLUTION = forwards_of(nn.Conv2d)


def _is_of_patches(projection: nn.Conv2d) -> bool:
    """Whether the convolution reads each pixel once, so that it is a product of patches."""
    return (
        is_bare(projection, _CONVOLUTION)
        and projection.stride == projection.kernel_size
        and projection.padding == (0, 0)
        and projection.dilation == (1, 1)
        and projection.groups == 1
    )


class Fused(Passes):
    def embed(
        self, tokens: Tensor, table: nn.Embedding, positions: nn.Embedding | None, first: int
    ) -> Tensor:
        if not is_table(table):
            return _STOCK.embed(tokens, table, positions, first)
        if positions is None:
            return embedding(tokens, table.weight, table.padding_idx)
        if not is_table(positions) or positions.padding_idx is not None:
            return _STOCK.embed(tokens, table, positions, first)
        return embedding_add(tokens, table.weight, first, positions.weight, table.padding_idx)

    def patches(self, images: Tensor, projection: nn.Conv2d) -> Tensor:
        """Projects patches, which do not overlap and so are the rows of one matrix product."""
        if not _is_of_patches(projection):
            return _STOCK.patches(images, projection)
        weight = projection.weight
        height, width = weight.shape[2:]
        grid = images.unflatten(3, (-1, width)).unflatten(2, (-1, height))
        rows = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return _torch.linear(rows, weight.flatten(1), projection.bias)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return dropout(x, p) if p else x

    def norm(self, x: Tensor, norm: Any) -> Tensor:
        if is_bare(norm, _RMS_NORM):
            return rms_norm(x, norm.normalized_shape, norm.weight, norm.eps)
        if is_bare(norm, _LAYER_NORM):
            return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return _STOCK.norm(x, norm)

    def project_add_norm(
        self, x: Tensor, projection: nn.Linear, residual: Tensor, norm: Any, p: float
    ) -> tuple[Tensor, Tensor]:
        is_rms = is_bare(norm, _RMS_NORM)
        if not (is_bare(projection, _LINEAR) and (is_rms or is_bare(norm, _LAYER_NORM))):
            return _STOCK.project_add_norm(x, projection, residual, norm, p)
        # Under autocast, projections are narrower than the residual.
        out = _torch.linear(x, projection.weight).to(residual.dtype)
        if is_rms:
            return bias_dropout_add_rms_norm(
                out, projection.bias, residual, norm.weight, p, eps=norm.eps
            )
        return bias_dropout_add_layer_norm(
            out, projection.bias, residual, norm.weight, norm.bias, p, eps=norm.eps
        )

    def project_activate(self, x: Tensor, projection: nn.Linear, activation: str) -> Tensor:
        if not is_bare(projection, _LINEAR):
            return _STOCK.project_activate(x, projection, activation)
        y, bias = _torch.linear(x, projection.weight), projection.bias
        if activation in PLAIN:
            return PLAIN[activation].call(y, bias, "auto")
        return GATED[activation].call(y, None, bias, None, "auto")

    def rotate(self, q: Tensor, k: Tensor, tables: Tables, first: int) -> tuple[Tensor, Tensor]:
        q_rotated, k_rotated = rope(q, k, *tables, offsets=first)
        return q_rotated, k_rotated

    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, p: float) -> Tensor:
        out: Tensor = attention(q, k, v, causal=causal, dropout=p)
        return out

    def gather(self, x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
        return gather_reduce(x, graph, weight, reduce)

    def attend_along(self, q: Tensor, k: Tensor, v: Tensor, graph: Graph) -> Tensor:
        return graph_attention(q, k, v, graph)

    def pool(self, x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
        return segment_reduce(x, offsets, reduce)

    def loss(self, logits: Tensor, targets: Tensor, is_last_use: bool) -> Tensor:
        gradient = "in_place" if is_last_use else "backward"
        return cross_entropy(logits.flatten(0, -2), targets.flatten(), gradient=gradient)
