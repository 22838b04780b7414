# SPDX-License-Identifier: MIT
"""PyTorch's scaled_dot_product_attention by our kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..._errors import FLOATING, ArgumentValueError
from ..._library import log_dispatch
from ._arguments import MOST_DIM
from .attention import attention, is_served

_LARGEST = sys.float_info.max
_OP = "scaled_dot_product_attention"


def _mask_fits(query: Tensor, key: Tensor, mask: Any, is_causal: bool) -> bool:
    if mask is None:
        return True
    if is_causal or not isinstance(mask, Tensor) or mask.device != query.device:
        return False
    if mask.dtype not in (torch.bool, query.dtype) or not 2 <= mask.dim() <= query.dim():
        return False
    shape = (*query.shape[:-1], key.shape[-2])
    trailing = zip(reversed(mask.shape), reversed(shape), strict=False)
    return all(size in (1, wanted) for size, wanted in trailing)


def _why_not(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    gqa: Any,
    backend: str,
) -> str | None:
    """What only PyTorch can take, or refuse; none where our kernels do."""
    for x in (query, key, value):
        if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
            return "an argument is no strided tensor"
        if x.device != query.device or (backend == "auto" and not is_served(x)):
            return "the device"
        if x.dtype is not query.dtype:
            return "the dtypes"
    rank, q, k, v = query.dim(), query.shape, key.shape, value.shape
    if query.dtype not in FLOATING:
        return "the dtypes"
    if rank not in (3, 4) or len(k) != rank or len(v) != rank:
        return "the number of dimensions"
    heads, kv_heads = q[-3], k[-3]
    shared = heads == kv_heads or (gqa and rank == 4 and kv_heads > 0 and heads % kv_heads == 0)
    if not (shared and q[:-3] == k[:-3] and k[:-1] == v[:-1] and q[-1] == k[-1]):
        return "the shapes"
    if not (1 <= q[-1] <= MOST_DIM and 1 <= v[-1] <= MOST_DIM):
        return "the head dim"
    if not isinstance(dropout_p, (int, float)) or not 0 <= dropout_p <= 1:
        return "dropout_p"
    if not (isinstance(is_causal, bool) and isinstance(gqa, bool)):
        return "a flag that is no bool"
    if not (scale is None or (isinstance(scale, (int, float)) and abs(scale) <= _LARGEST)):
        return "scale"
    return None if _mask_fits(query, key, mask, is_causal) else "attn_mask"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.scaled_dot_product_attention`, with its arguments.

    Tensors are (N, H, L, E) or (N, L, E); ``is_causal`` lines the first query up with the first
    key. What our kernels do not take (other devices than CPU and CUDA, broadcast batches, head dims
    above 256, and all that PyTorch refuses) is PyTorch's own call; ``TFK_LOG=dispatch`` says so.

    Args:
        backend: as for :func:`attention`; any but ``"auto"`` refuses what only PyTorch takes.
    """
    if has_torch_function_variadic(query, key, value, attn_mask):
        return handle_torch_function(
            scaled_dot_product_attention, (query, key, value, attn_mask), query, key, value,
            attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa, backend=backend,
        )  # fmt: skip
    reason = _why_not(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend
    )
    if reason is not None:
        if backend != "auto":
            raise ArgumentValueError(
                f"{_OP}: backend is {backend!r}, expected 'auto' ({reason}: PyTorch's alone)"
            )
        log_dispatch(f"{_OP}: PyTorch's own runs, because of {reason}")
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(1)
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        return _attend(query, key, value, mask, dropout_p, is_causal, scale, backend).squeeze(1)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, backend)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    backend: str,
) -> Tensor:
    boolean = attn_mask is not None and attn_mask.dtype is torch.bool
    result: Tensor = attention(
        query, key, value, causal=is_causal, top_left=True, scale=scale,
        bias=None if boolean else attn_mask, mask=attn_mask if boolean else None,
        dropout=dropout_p, heads_first=True, backend=backend,
    )  # fmt: skip
    return result
