# SPDX-License-Identifier: MIT
"""One new token of each sequence against a full cache. A shape is BxTxHxHkxD: T tokens in the
cache, H heads of q that share Hk.

`torch` is scaled_dot_product_attention over the same cache with the kernel that it chooses,
`cudnn` and `flash` fix the kernel, `fa3` is FlashAttention's own. The bytes of a call are those of
the cache, so that its share of the ceiling is that of a copy. `pages`, `pages64` and `pages256`
have the cache in pages of 16, 64 and 256 tokens, in random order; `rows`, `rows8` and `rows16` have
4, 8 and 16 new tokens; `int8` has the same numbers in bytes, with a scale for each token and head.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals.attention import flash_attention_3_with_cache
from transformer_kernels.measure.case import Arguments, Build, Case, bind
from transformer_kernels.measure.derive import grid, no_compiled_backward, whole
from transformer_kernels.measure.sweeps import Shape

_STEP = 1 / 32  # of the numbers of an int8 cache
_KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
_INPUTS = ("q", "k_cache", "v_cache")
_HEADLINE = {
    "cuda": [
        (16, 8192, 32, 8, 128), (64, 2048, 32, 8, 128), (128, 512, 32, 8, 128),
        (1, 32768, 32, 8, 128), (1, 4096, 32, 8, 128), (8, 1024, 32, 8, 128),
        (1, 1024, 12, 12, 64), (32, 1024, 12, 12, 64),
    ],
    "cpu": [(1, 4096, 32, 8, 128), (1, 16384, 32, 8, 128), (8, 2048, 14, 2, 64)],
}  # fmt: skip
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


def _torch_by(kernel: SDPBackend, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    with sdpa_kernel(kernel):
        return _torchs(q, k_cache, v_cache)


def _ours(q: Tensor, k_cache: Tensor, v_cache: Tensor, **more: Any) -> Any:
    return F.attention_with_kv_cache(q, k_cache, v_cache, causal=True, **more)


@lru_cache(maxsize=2)
def _order(batch: int, columns: int, device: torch.device) -> Tensor:
    return torch.randperm(batch * columns, device=device).int().view(batch, columns)


def _of_pages(page: int, arguments: Arguments) -> Any:
    """Binds the caches in pages, which are made beforehand."""
    batch, time = arguments["k_cache"].shape[:2]
    order = _order(batch, time // page, arguments["q"].device)
    paged = []
    for name in ("k_cache", "v_cache"):
        pages = arguments[name].unflatten(1, (-1, page)).flatten(0, 1)
        paged.append(torch.empty_like(pages).index_copy_(0, order.flatten().long(), pages))
    return partial(_ours, arguments["q"], *paged, page_table=order)


def _in_steps(arguments: Arguments) -> Arguments:
    """Caches of numbers that int8 holds."""
    return {
        name: (arguments[name] / _STEP).round().clamp(-127, 127) * _STEP
        for name in ("k_cache", "v_cache")
    }


def _of_bytes(arguments: Arguments) -> Any:
    k_cache, v_cache = ((arguments[f"{x}_cache"] / _STEP).to(torch.int8) for x in "kv")
    scale = torch.full(k_cache.shape[:-1], _STEP, device=k_cache.device)
    return partial(_ours, arguments["q"], k_cache, v_cache, k_scale=scale, v_scale=scale)


def _bytes_in_steps(_pass: str, arguments: Arguments) -> int:
    caches = [arguments["k_cache"], arguments["v_cache"]]
    scales = sum(x.numel() // x.shape[-1] * 4 for x in caches)
    return 2 * arguments["q"].nbytes + sum(x.numel() for x in caches) + scales


def _case(name: str, queries: int, ours: Build, **more: Any) -> Case:
    functions: dict[str, Any] = {"torch": _torchs, "fa3": flash_attention_3_with_cache}
    if queries == 1:  # of several rows only the last sees all keys, which takes a mask
        functions |= {rival: partial(_torch_by, kernel) for rival, kernel in _KERNELS.items()}
    return Case(
        name=f"attention_with_kv_cache{name}", key="attention/decode", inputs=_INPUTS,
        parameters=(), outputs=("out",), reference=_torchs, functions=functions, backward={},
        compiled_backward=no_compiled_backward(name), forward={"ours": ours}, gradients=3,
        grid=_GRID, sizes=partial(_sizes, queries), verified=whole, feature=True, **more,
    )  # fmt: skip


OPS = (
    _case("", 1, bind(_ours, *_INPUTS)),
    *(
        _case(f"_pages{page if page > 16 else ''}", 1, partial(_of_pages, page))
        for page in (16, 64, 256)
    ),
    *(
        _case(f"_rows{rows if rows > 4 else ''}", rows, bind(_ours, *_INPUTS))
        for rows in (4, 8, 16)
    ),
    _case("_int8", 1, _of_bytes, save=_in_steps, moved=_bytes_in_steps),
)
