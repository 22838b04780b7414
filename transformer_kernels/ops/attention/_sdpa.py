# SPDX-License-Identifier: MIT
"""PyTorch's scaled_dot_product_attention on our kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ... import _torch
from ..._errors import FLOATING, ArgumentValueError
from ..._library import log_dispatch
from ..._torch import is_eager
from .._dtype import LOWERED
from .._kinds import PLAIN_CLASSES, is_causal_bias, is_jagged
from .._public import explained
from ._arguments import MOST_DIM
from .attention import attention, is_served

_LARGEST = sys.float_info.max
_OP = "scaled_dot_product_attention"
_FEW_QUERIES = 4  # of a head of keys
_FEW_PRODUCTS = 2**18


def _stands_top_left(bias: Any, queries: int, keys: int) -> bool:
    """Whether a CausalBias is aligned to the top left corner. As PyTorch reads it, a lower right
    one counts only if its lengths differ as much as those of the tensors."""
    shift = bias.seq_len_kv - bias.seq_len_q
    if bias.variant.name == "UPPER_LEFT":
        return True
    if shift == keys - queries:
        return False
    raise ArgumentValueError(
        f"{_OP}: attn_mask is causal_lower_right"
        f"({bias.seq_len_q}, {bias.seq_len_kv}), expected ({queries}, {keys}) (queries, keys)"
    )


def _is_top_left(query: Any, key: Any, bias: Any, is_causal: Any) -> bool:
    """The corner of a CausalBias. PyTorch refuses tensors without queries and keys before this."""
    if is_causal:
        raise ArgumentValueError(
            f"{_OP}: is_causal is {is_causal!r}, expected False (attn_mask is a CausalBias)"
        )
    if not all(isinstance(x, Tensor) and x.dim() > 1 for x in (query, key)):
        return True
    return _stands_top_left(bias, query.shape[-2], key.shape[-2])


def _lower_right(query: Tensor, key: Tensor) -> Tensor:
    """Writes out the mask of PyTorch's ``causal_lower_right``."""
    queries, keys = query.shape[-2], key.shape[-2]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    return seen.tril(keys - queries)


def _is_sequences(x: Any) -> bool:
    """Whether it is (batch, heads, time, dim), jagged in time without gaps."""
    return is_jagged(x) and x.dim() == 4 and _torch.ragged_dim(x) == 2 and not _torch.has_gaps(x)


def _is_memory(x: Any) -> bool:
    if type(x) is not Tensor and not (
        isinstance(x, Tensor) and _torch.knows_ops_of_others(type(x))
    ):
        return False
    return x.layout is torch.strided and not x.is_nested


def _mask_fits(query: Tensor, key: Tensor, mask: Any, is_causal: bool) -> bool:
    if mask is None:
        return True
    if is_causal or query.is_nested or not _is_memory(mask) or mask.device != query.device:
        return False
    if mask.dtype not in (torch.bool, query.dtype) or not 2 <= mask.dim() <= query.dim():
        return False
    shape = (*query.shape[:-1], key.shape[-2])
    trailing = zip(reversed(mask.shape), reversed(shape), strict=False)
    return all(size in (1, wanted) for size, wanted in trailing)


def _are_lowered(x: Tensor, query: Tensor) -> bool:
    """Whether autocast gives both the same dtype."""
    return _torch.autocasts(query) and x.dtype in LOWERED and query.dtype in LOWERED


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
    """The reason to call PyTorch, which alone takes or refuses the call; None where our kernels
    run."""
    sequences = type(query) is not Tensor and all(map(_is_sequences, (query, key, value)))
    for x in (query, key, value):
        if not (sequences or _is_memory(x)):
            return "a tensor that is neither strided nor jagged"
        if x.device != query.device or (backend == "auto" and not is_served(x)):
            return "the device"
        if x.dtype is not query.dtype and not _are_lowered(x, query):
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


def _has_few_queries(query: Any, key: Any) -> bool:
    """Whether PyTorch's forward pass was measured to be faster on a CPU: of so few queries that
    blocks of ours stay empty, or of so few products that calling ours takes longer. Fake tensors go
    the way of real ones."""
    if torch.is_grad_enabled() or not is_eager():
        return False
    for x in (query, key):
        if not (type(x) in PLAIN_CLASSES or _torch.is_fake(x)) or not x.is_cpu or x.is_nested:
            return False
    q, k = query.shape, key.shape
    if query.dtype is not torch.float32 or len(q) != 4 or len(k) != 4 or not k[2]:
        return False
    return q[1] * q[2] <= _FEW_QUERIES * k[1] or query.numel() * k[2] <= _FEW_PRODUCTS


@explained
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

    Tensors are (N, H, L, E) or (N, L, E). ``is_causal`` aligns the first query with the first key.
    ``attn_mask`` may be ``causal_upper_left`` or ``causal_lower_right`` of
    :mod:`torch.nn.attention.bias`, which is not written to memory; a query that sees no key gives
    0. Nested tensors jagged in L run as sequences. Calls that our kernels do not take (devices
    other than CPU and CUDA, broadcast batches, head dims above 256, and whatever PyTorch refuses)
    go to PyTorch; ``TFK_LOG=dispatch`` says so. So do calls of a few float32 queries on a
    CPU without gradients, masks and dropout, for which PyTorch's kernel was measured to be faster.

    Args:
        backend: as for :func:`attention`; any but ``"auto"`` refuses calls that only PyTorch takes.

    >>> q, k, v = torch.randn(3, 2, 4, 16, 32)  # batch, heads, time, dim
    >>> y = tfk.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(y, theirs, atol=1e-5)
    True
    """
    given, top_left = (attn_mask, is_causal), True
    if attn_mask is not None and is_causal_bias(attn_mask):
        top_left = _is_top_left(query, key, attn_mask, is_causal)
        attn_mask, is_causal = None, True
    tensors = (query, key, value, attn_mask)
    # Jagged tensors are not asked: PyTorch serves them only by the overload of its own function.
    if has_torch_function_variadic(*tensors) and not any(map(is_jagged, tensors)):
        return handle_torch_function(
            scaled_dot_product_attention, tensors, query, key, value,
            attn_mask=given[0], dropout_p=dropout_p, is_causal=given[1], scale=scale,
            enable_gqa=enable_gqa, backend=backend,
        )  # fmt: skip
    plain = attn_mask is None and dropout_p == 0 and top_left and backend == "auto"
    if plain and _has_few_queries(query, key):
        log_dispatch(f"{_OP}: PyTorch's own runs, because it is faster for few queries")
        return _torch.scaled_dot_product_attention(
            query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    reason = _why_not(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend
    )
    if reason is not None:
        if backend != "auto":
            raise ArgumentValueError(
                f"{_OP}: backend is {backend!r}, expected 'auto' ({reason}: PyTorch's alone)"
            )
        log_dispatch(f"{_OP}: PyTorch's own runs, because of {reason}")
        if not top_left:
            attn_mask, is_causal = _lower_right(query, key), False
        return _torch.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(1)
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        out = _attend(query, key, value, mask, dropout_p, is_causal, top_left, scale, backend)
        return out.squeeze(1)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, top_left, scale, backend)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    top_left: bool,
    scale: float | None,
    backend: str,
) -> Tensor:
    boolean = attn_mask is not None and attn_mask.dtype is torch.bool
    result: Tensor = attention(
        query, key, value, causal=is_causal, top_left=top_left, scale=scale,
        bias=None if boolean else attn_mask, mask=attn_mask if boolean else None,
        dropout=dropout_p, heads_first=True, backend=backend,
    )  # fmt: skip
    return result
