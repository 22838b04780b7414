# SPDX-License-Identifier: MIT
"""An attention layer with its projections, dropout, residual and norm as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentValueError
from .._torch import are_bare, forwards_of
from ..ops.attention.attention import attention
from ..ops.attention_block._passes import NORMS as _NORMS
from ..ops.attention_block.attention_block import attention_block
from ..ops.pointwise.dropout import bias_dropout_add
from .linear import Linear
from .norm import LayerNorm, RMSNorm

_LINEAR = forwards_of(Linear, nn.Linear)
_PARTS = {"qkv": _LINEAR, "out": _LINEAR, "norm": forwards_of(LayerNorm, RMSNorm)}


def attend(
    qkv: Tensor, num_heads: int, num_kv_heads: int, causal: bool, scale: float | None, p: float,
    backend: str,
) -> Tensor:  # fmt: skip
    """Attention of packed q, k and v (B, T, (H + 2 Hk) D); (B, T, H D)."""
    parts = (num_heads, num_kv_heads, num_kv_heads)
    q, k, v = qkv.unflatten(-1, (sum(parts), -1)).split(parts, -2)
    heads: Tensor = attention(q, k, v, causal=causal, scale=scale, dropout=p, backend=backend)
    return heads.flatten(-2)


class AttentionBlock(nn.Module):
    """Self-attention from its input to the norm behind it:
    :func:`transformer_kernels.functional.attention_block` as a module.

    Args:
        embed_dim: C, the channels of input and output.
        num_heads: H, the number of heads of q; divides C.
        num_kv_heads: Hk, the number of heads of k and v; divides H, and is H by default.
        causal: hide later tokens.
        norm: ``"layer_norm"`` or ``"rms_norm"``.
        eps: eps of the norm.
        bias: whether the projections and a layer norm have a bias.
        dropout: the probability that an element of the projection is dropped, in training.
        attention_dropout: the probability that a weight of attention is dropped, in training.
        recompute: 1 computes q, k and v again in the backward pass instead of saving them.
        device, dtype: device and dtype of the parameters.
        backend: as for the function.

    The keys are ``qkv.weight`` ((H + 2 * Hk) * C / H, C), ``out.weight`` (C, C), ``norm.weight``
    (C), and their biases.

    The call takes the input and the residual, both (B, T, C), and returns the normed sum and the
    sum. The layers are called as modules, without fusion, if another module stands in the place of
    one (an adapter), a hook is set on one or on all modules, a ``forward`` was replaced or a weight
    is quantised.

    >>> block = tfk.nn.AttentionBlock(64, 4, causal=True, dropout=0.1)
    >>> x = torch.randn(2, 5, 64)
    >>> y, residual = block(torch.nn.functional.layer_norm(x, (64,)), x)
    >>> y.shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        causal: bool = False,
        norm: str = "layer_norm",
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        recompute: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for name, value, of, divisor in (
            ("embed_dim", embed_dim, "num_heads", num_heads),
            ("num_heads", num_heads, "num_kv_heads", kv_heads),
        ):
            if divisor < 1 or value % divisor:
                raise ArgumentValueError(
                    f"AttentionBlock: {name} is {value}, expected a multiple of {of} ({divisor})"
                )
        if norm not in _NORMS:
            raise ArgumentValueError(
                f"AttentionBlock: norm is {norm!r}, expected one of {', '.join(_NORMS)}"
            )
        self.num_heads = num_heads
        self.num_kv_heads = kv_heads
        self.causal = causal
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.recompute = recompute
        self.backend = backend
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        packed = (num_heads + 2 * kv_heads) * (embed_dim // num_heads)
        self.qkv = Linear(embed_dim, packed, bias, backend=backend, **where)
        self.out = Linear(embed_dim, embed_dim, bias, backend=backend, **where)
        self.norm: Any = (
            LayerNorm(embed_dim, eps, bias=bias, **where)
            if norm == "layer_norm"
            else RMSNorm(embed_dim, eps, **where)
        )

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # noqa: A002
        if not (are_bare(self, _PARTS) and not self.norm.zero_centered_weight):
            return self._layer_by_layer(input, residual)
        qkv, out, norm = self.qkv, self.out, self.norm
        return attention_block(
            input, residual, qkv.weight, qkv.bias, out.weight, out.bias, norm.weight,
            getattr(norm, "bias", None), self.num_heads, num_kv_heads=self.num_kv_heads,
            causal=self.causal, norm="layer_norm" if isinstance(norm, LayerNorm) else "rms_norm",
            eps=norm.eps, attention_dropout_p=self.attention_dropout, dropout_p=self.dropout,
            training=self.training, recompute=self.recompute, backend=self.backend,
        )  # fmt: skip

    def _layer_by_layer(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        p = self.attention_dropout if self.training else 0.0
        heads = attend(
            self.qkv(x), self.num_heads, self.num_kv_heads, self.causal, None, p, self.backend
        )
        out = self.out(heads).to(residual.dtype)
        total = bias_dropout_add(out, None, residual, self.dropout, self.training)
        return self.norm(total).to(x.dtype), total

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, causal={self.causal},"
            f" dropout={self.dropout}, attention_dropout={self.attention_dropout},"
            f" recompute={self.recompute}"
        )
