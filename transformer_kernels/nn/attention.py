# SPDX-License-Identifier: MIT
"""MultiheadAttention, a subclass of PyTorch's, and GPT-2's CausalSelfAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .. import _torch
from .._errors import ArgumentValueError
from .._library import log_dispatch
from ..ops._kinds import is_causal_bias
from ..ops.attention._arguments import MOST_DIM
from ..ops.attention.attention import attention, is_served

_OUT_PROJ = _torch.forwards_of(NonDynamicallyQuantizableLinear)


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a mask of PyTorch's modules (true hides, or a number to add) to numbers to add."""
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _in_memory(mask: Any, device: torch.device) -> Any:
    """Writes out PyTorch's causal masks, which are two lengths, as masks of its modules: true
    hides."""
    return ~mask._materialize(device) if is_causal_bias(mask) else mask


def _is_mask(mask: Any, dtype: torch.dtype) -> bool:
    """Whether PyTorch accepts the mask beside a query of this dtype."""
    return isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.float32, dtype)


class MultiheadAttention(nn.MultiheadAttention):
    """:class:`torch.nn.MultiheadAttention`: its constructor, arguments, results and state_dict.

    The kernels run with ``need_weights=False``. PyTorch's own code runs for the weights themselves,
    for ``add_bias_kv`` and ``add_zero_attn``, and for what it refuses. ``TFK_LOG=dispatch`` says
    which ran.

    Args:
        embed_dim: E, the channels of the query and of the result.
        num_heads: H; divides E.
        dropout: the probability that an attention weight is dropped, in training.
        bias: whether the projections have a bias.
        add_bias_kv: as in PyTorch, whose code then runs.
        add_zero_attn: as in PyTorch, whose code then runs.
        kdim: channels of the key; by default E.
        vdim: channels of the value; by default E.
        batch_first: whether tensors are (N, L, E) instead of (L, N, E).
        device: device of the parameters.
        dtype: dtype of the parameters.
        backend: as for :func:`transformer_kernels.functional.attention`.

    >>> layer = tfk.nn.MultiheadAttention(64, 4, batch_first=True)
    >>> x = torch.randn(2, 16, 64)
    >>> y, _ = layer(x, x, x, need_weights=False)
    >>> y.shape
    torch.Size([2, 16, 64])
    """

    backend: str = "auto"  # for modules saved without it

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim,
            batch_first, device, dtype,
        )  # fmt: skip
        self.backend = backend

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        attn_mask = _in_memory(attn_mask, query.device)
        reason = self._why_not(query, key, value, key_padding_mask, attn_mask, is_causal)
        if need_weights or reason is not None:
            log_dispatch(
                f"MultiheadAttention: PyTorch's own runs, because of {reason or 'need_weights'}"
            )
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        # The caller's ``is_causal`` says that the mask is the causal one.
        causal = is_causal and key_padding_mask is None
        if causal:
            attn_mask = None
        if query.dim() == 2:
            padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
            tensors = tuple(x.unsqueeze(0) for x in (query, key, value))
            return self._attend(tensors, padding, attn_mask, causal).squeeze(0), None
        if self.batch_first:
            return self._attend((query, key, value), key_padding_mask, attn_mask, causal), None
        same = query is key and key is value
        query = query.transpose(0, 1)
        key, value = (query, query) if same else (key.transpose(0, 1), value.transpose(0, 1))
        projected = self._attend((query, key, value), key_padding_mask, attn_mask, causal)
        return projected.transpose(0, 1).contiguous(), None

    def _why_not(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any,
        attn_mask: Any,
        is_causal: Any,
    ) -> str | None:
        """The reason to run PyTorch's own code: it alone takes or refuses the call, or we have no
        kernels for it. None where our kernels run."""
        if not all(isinstance(x, Tensor) for x in (query, key, value)):
            return "an argument that is no tensor"
        if self.backend == "auto" and not is_served(query):
            return "the device"
        if self.bias_k is not None or self.add_zero_attn:
            return "add_bias_kv or add_zero_attn"
        if self.head_dim > MOST_DIM:
            return "the head dim"
        if not _torch.is_bare(self.out_proj, _OUT_PROJ):
            return "what was done to out_proj"
        if query.is_nested or key.is_nested or value.is_nested:
            return "a nested tensor"
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            return "the number of dimensions"
        if not isinstance(is_causal, bool):
            return "is_causal"
        if is_causal and attn_mask is None:
            return "is_causal without attn_mask"
        if self.training and not 0 <= self.dropout <= 1:
            return "dropout"
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            if mask is not None and not _is_mask(mask, query.dtype):
                return f"the dtype of {name}"
        batch_axis = 0 if self.batch_first else 1
        batch = query.shape[batch_axis] if query.dim() == 3 else 1
        queries, keys = (x.shape[-2 if self.batch_first else 0] for x in (query, key))
        wanted = (batch, keys) if query.dim() == 3 else (keys,)
        if key_padding_mask is not None and tuple(key_padding_mask.shape) != wanted:
            return "the shape of key_padding_mask"
        masks = ((queries, keys), (batch * self.num_heads, queries, keys))
        if attn_mask is not None and tuple(attn_mask.shape) not in masks:
            return "the shape of attn_mask"
        shared = None if self._qkv_same_embed_dim else -1
        if query.shape[-1] != self.embed_dim or key.shape[:shared] != value.shape[:shared]:
            return "the shapes"
        if query.dim() == 3 and key.shape[batch_axis] != batch:
            return "the shapes"
        return None

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias = self.in_proj_bias
        if self._qkv_same_embed_dim and query is key and key is value:
            return _torch.linear(query, self.in_proj_weight, bias).chunk(3, -1)
        weights = (
            self.in_proj_weight.chunk(3)
            if self._qkv_same_embed_dim
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = (None, None, None) if bias is None else bias.chunk(3)
        pairs = zip((query, key, value), weights, biases, strict=True)
        return tuple(_torch.linear(*pair) for pair in pairs)

    def _bias(
        self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        """Adds both masks up to one that broadcasts to (N, H, L, S)."""
        bias = None
        if attn_mask is not None:
            bias = _as_bias(attn_mask, dtype)
            if bias.dim() == 3:
                bias = bias.unflatten(0, (-1, self.num_heads))
        if key_padding_mask is not None:
            padding = _as_bias(key_padding_mask, dtype)[:, None, None, :]
            bias = padding if bias is None else bias + padding
        return bias

    def _attend(
        self,
        tensors: tuple[Tensor, ...],
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        causal: bool,
    ) -> Tensor:
        """The result (N, L, E), whichever dimension is first in memory."""
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in self._project(*tensors))
        out: Tensor = attention(
            q, k, v, causal=causal, top_left=True,
            bias=self._bias(key_padding_mask, attn_mask, q.dtype),
            dropout=self.dropout if self.training else 0.0, backend=self.backend,
        )  # fmt: skip
        return _torch.linear(out.flatten(-2), self.out_proj.weight, self.out_proj.bias)


class CausalSelfAttention(nn.Module):
    """Self-attention of GPT-2: one projection to q, k and v, causal attention, and one back.

    Args:
        embed_dim: C, the channels of input and output.
        num_heads: H; divides C.
        bias: whether the projections have a bias.
        dropout: dropout probability of the attention weights and of the result, in training.
        device: device of the parameters.
        dtype: dtype of the parameters.
        window: number of tokens before its own that a query sees; -1 for all.
        backend: as for :func:`transformer_kernels.functional.attention`.

    Parameters: ``c_attn.weight`` (3C, C), ``c_proj.weight`` (C, C), and their biases.

    >>> layer = tfk.nn.CausalSelfAttention(64, 4)
    >>> layer(torch.randn(2, 16, 64)).shape
    torch.Size([2, 16, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        window: int = -1,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentValueError(
                f"CausalSelfAttention: embed_dim is {embed_dim}, expected a multiple of num_heads"
                f" ({num_heads})"
            )
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.window = window
        self.backend = backend
        self.c_attn = nn.Linear(embed_dim, 3 * embed_dim, **options)
        self.c_proj = nn.Linear(embed_dim, embed_dim, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x (B, T, C), also a jagged nested tensor, to (B, T, C). q, k and v are not copied:
        attention reads them from the projection's result."""
        if x.dim() != 3:
            raise ArgumentValueError(
                f"CausalSelfAttention: x has {x.dim()} dimensions, expected 3 (batch, time,"
                " channels)"
            )
        q, k, v = (rows.unflatten(-1, (self.num_heads, -1)) for rows in self.c_attn(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        if is_served(x) or self.window >= 0 or self.backend != "auto":
            out = attention(
                q, k, v, causal=True, window=(self.window, 0), dropout=dropout,
                backend=self.backend,
            )  # fmt: skip
        else:  # PyTorch's kernels, on devices without ours
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            out = _torch.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
            out = out.transpose(1, 2)
        projected: Tensor = self.c_proj(out.flatten(-2))
        return _torch.dropout(projected, self.dropout, self.training)

    def extra_repr(self) -> str:
        text = f"{self.embed_dim}, {self.num_heads}"
        for name, default in (("dropout", 0.0), ("window", -1), ("backend", "auto")):
            value = getattr(self, name)
            if value != default:
                text += f", {name}={value!r}"
        return text
