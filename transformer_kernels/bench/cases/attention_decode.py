# SPDX-License-Identifier: MIT
"""One new token of each sequence against a full cache. A shape is BxTxHxHkxD: T tokens in the
cache, H heads of q that share Hk.

`torch` is scaled_dot_product_attention over the same cache. The bytes of a call are those of the
cache, so that its share of the ceiling is that of a copy. `pages` has the cache in pages of 16
tokens, in random order, and `rows` has 4 new tokens.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_kernels import functional as F
from transformer_kernels.measure.case import Build, Case, bind
from transformer_kernels.measure.derive import grid, no_compiled_backward, whole
from transformer_kernels.measure.sweeps import Shape

_PAGE = 16
_INPUTS = ("q", "k_cache", "v_cache")
_HEADLINE = {
    "cuda": [(16, 8192, 32, 8, 128), (64, 2048, 32, 8, 128), (1, 32768, 32, 8, 128)],
    "cpu": [(1, 4096, 32, 8, 128), (1, 16384, 32, 8, 128), (8, 2048, 14, 2, 64)],
}
_GRID = grid(
    "16x8192x32x8x128 (batch, tokens of the cache, heads, heads of the cache, dim)", 4, 5,
    quick={kind: shapes[:1] for kind, shapes in _HEADLINE.items()},
    headline=_HEADLINE,
    small=[(1, time, 32, 8, 128) for time in (256, 1024)],
    full={kind: [*shapes, (1, 4096, 12, 12, 64)] for kind, shapes in _HEADLINE.items()},
)  # fmt: skip


def _sizes(queries: int, name: str, shape: Shape) -> Shape:
    batch, time, *heads, dim = shape
    of_cache = name.endswith("cache")
    return batch, time if of_cache else queries, heads[-1 if of_cache else 0], dim


def _torchs(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """The causal mask of several rows is aligned with the end of the cache."""
    time, rows = k_cache.shape[1], q.shape[1]
    mask = torch.ones(rows, time, dtype=torch.bool, device=q.device).tril(time - rows)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k_cache.transpose(1, 2), v_cache.transpose(1, 2),
        attn_mask=None if rows == 1 else mask, enable_gqa=True,
    )  # fmt: skip
    return out.transpose(1, 2)


def _ours(q: Tensor, k_cache: Tensor, v_cache: Tensor, **paged: Any) -> Any:
    return F.attention_with_kv_cache(q, k_cache, v_cache, causal=True, **paged)


@lru_cache(maxsize=2)
def _order(batch: int, columns: int, device: torch.device) -> Tensor:
    return torch.randperm(batch * columns, device=device).int().view(batch, columns)


def _of_pages(arguments: dict[str, Tensor]) -> Any:
    """Binds the caches in pages, which are made beforehand."""
    batch, time = arguments["k_cache"].shape[:2]
    order = _order(batch, time // _PAGE, arguments["q"].device)
    paged = []
    for name in ("k_cache", "v_cache"):
        pages = arguments[name].unflatten(1, (-1, _PAGE)).flatten(0, 1)
        paged.append(torch.empty_like(pages).index_copy_(0, order.flatten().long(), pages))
    return partial(_ours, arguments["q"], *paged, page_table=order)


def _case(name: str, queries: int, ours: Build) -> Case:
    return Case(
        name=name, key="attention/decode", inputs=_INPUTS, parameters=(), outputs=("out",),
        reference=_torchs, functions={"torch": _torchs}, backward={},
        compiled_backward=no_compiled_backward(name), forward={"ours": ours}, gradients=3,
        grid=_GRID, sizes=partial(_sizes, queries), verified=whole, feature=True,
    )  # fmt: skip


OPS = (
    _case("attention_with_kv_cache", 1, bind(_ours, *_INPUTS)),
    _case("attention_with_kv_cache_pages", 1, _of_pages),
    _case("attention_with_kv_cache_rows", 4, bind(_ours, *_INPUTS)),
)
