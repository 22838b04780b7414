# SPDX-License-Identifier: MIT
"""A layer norm and a transformer block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..functional import layer_norm
from ..levels import Block
from ..nn import LayerNorm
from ._triton import backend_for


class TritonLayerNorm(LayerNorm):
    """:class:`transformer_kernels.nn.LayerNorm` on Triton's kernels: on a GPU, and on a CPU with
    ``TRITON_INTERPRET=1``. Without it, a CPU runs its own kernels.

    The arguments are those of ``tfk.nn.LayerNorm``.

    >>> tfk.compat.TritonLayerNorm(512)(torch.randn(2, 512)).shape
    torch.Size([2, 512])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps,
            zero_centered_weight=self.zero_centered_weight,
            backend=backend_for("TritonLayerNorm", input),
        )  # fmt: skip


class OptimizedTransformerBlock(Block):
    """:class:`transformer_kernels.levels.Block` at its fastest level, ``"ours"``.

    Args:
        dim: C, the channels of input and output.
        num_heads: H; divides C.
        causal: whether a token sees only itself and earlier tokens.
        options: the other arguments of ``Block``.

    >>> block = tfk.compat.OptimizedTransformerBlock(64, 4)
    >>> block(torch.randn(1, 8, 64)).shape  # (batch, time, dim)
    torch.Size([1, 8, 64])
    """

    def __init__(self, dim: int, num_heads: int, *, causal: bool = True, **options: Any) -> None:
        super().__init__("ours", dim, num_heads, causal=causal, **options)
