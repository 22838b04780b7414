# SPDX-License-Identifier: MIT
"""The router of a mixture of experts, and the experts.

A shape of the router is TOKENSxEXPERTS. ``torch`` is softmax and topk, as models call them. The
weights are compared; the indices are made on the way.

A shape of the experts is TOKENSxHIDDENxFEATURESxEXPERTSxCHOSEN: SwiGLU, gate and up in one weight,
each token with experts drawn uniformly, sorted before. ``torch`` is a loop over the experts, and on
CUDA ``torch.nn.functional.grouped_mm``, with gathered rows and a sum by ``index_add``, as in
Hugging Face's models.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.measure.derive import derive, grid, whole
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.ops.moe import _stock
from transformer_kernels.ops.moe._experts_ops import MOE_EXPERTS
from transformer_kernels.ops.moe._ops import MOE_ROUTER

_TOP_K = 8
_FIXED: dict[str, Any] = {
    "top_k": _TOP_K, "groups": 1, "top_groups": 1, "sequences": 0, "score": 0, "renormalize": True,
    "scale": 1.0, "jitter": 0.0, "noise": 0.0,
}  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    tokens, experts = shape
    return (tokens, experts) if name in ("x", "dx") else (tokens, _TOP_K)


def _ours(x: Tensor, **on: Any) -> Any:
    return F.moe_router(x, _TOP_K, **on)[0]


def _torchs(x: Tensor) -> Any:
    fixed = [_FIXED[name] for name in MOE_ROUTER.names if name in _FIXED]
    return _stock.moe_router(x, None, None, *fixed)[0]


# ---- the experts --------------------------------------------------------------------------------

_DISPATCH = ("offsets", "tokens", "places")


@lru_cache(maxsize=2)
def _dispatch(tokens: int, experts: int, chosen: int) -> F.Dispatch:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return F.moe_dispatch(torch.rand(tokens, experts, device=device).topk(chosen).indices, experts)


def _draw(name: str, shape: Shape) -> Tensor:
    tokens, _, _, experts, chosen = shape
    found: Tensor = getattr(_dispatch(tokens, experts, chosen), name)
    return found


def _sizes_of_experts(name: str, shape: Shape) -> Shape:
    tokens, hidden, features, experts, chosen = shape
    made = {
        "weights": (tokens, chosen), "weight": (experts, 2 * features, hidden),
        "down_weight": (experts, hidden, features),
        "offsets": (experts + 1,), "tokens": (tokens * chosen,), "places": (tokens, chosen),
    }  # fmt: skip
    made |= {f"d{gradient}": of for gradient, of in made.items()}
    return made.get(name, (tokens, hidden))


def _experts(
    offsets: Tensor, tokens: Tensor, places: Tensor, x: Tensor, weights: Tensor, weight: Tensor,
    down_weight: Tensor, **on: Any,
) -> Tensor:  # fmt: skip
    return F.moe_experts(x, F.Dispatch(offsets, tokens, places), weights, weight, down_weight, **on)


def _products(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Each group's rows times its weight, by PyTorch, which groups no float64."""
    if rows.is_cuda and rows.dtype is not torch.float64:
        product: Any = torch.nn.functional.grouped_mm
        return product(rows, weight.transpose(1, 2), offs=offsets[1:])
    parts = [rows[a:b] @ weight[e].t() for e, (a, b) in enumerate(pairwise(offsets.tolist()))]
    return torch.cat(parts)


def _torchs_experts(
    offsets: Tensor, tokens: Tensor, places: Tensor, x: Tensor, weights: Tensor, weight: Tensor,
    down_weight: Tensor,
) -> Tensor:  # fmt: skip
    index, order = tokens.long(), torch.argsort(places.flatten())
    gate, up = _products(x[index], weight, offsets).chunk(2, -1)
    rows = _products(torch.nn.functional.silu(gate) * up, down_weight, offsets)
    scaled = rows * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, index, scaled.to(x.dtype))


OPS = (
    derive(
        MOE_EXPERTS, "moe/experts", ("x", "weights", "weight", "down_weight"), name="moe_experts",
        fixed={"activation": 2, "gated": True}, ours=_experts, torchs=_torchs_experts,
        reference=_torchs_experts, raw=False, sizes=_sizes_of_experts, verified=whole,
        indices={name: partial(_draw, name) for name in _DISPATCH},
        grid=grid(
            "32768x4096x1024x128x8 (tokens, hidden, features, experts, chosen)", 5,
            quick=[(256, 64, 32, 8, 2)],
            headline={
                "cuda": [(32768, 4096, 1024, 128, 8), (16384, 2048, 768, 128, 8)],
                "cpu": [(512, 512, 128, 64, 8), (2048, 512, 256, 32, 4)],
            },
            small=[(16, 256, 128, 16, 4)],
            full=[
                (32768, 4096, 256, 256, 16), (24576, 1536, 256, 128, 8), (8192, 4096, 14336, 8, 2),
            ],
        ),
    ),
    derive(
        MOE_ROUTER, "moe/router", ("x",), name="moe_router", fixed=_FIXED, ours=_ours,
        torchs=_torchs, reference=_torchs, raw=False, sizes=_sizes, verified=whole,
        outputs=("weights",),
        grid=grid(
            "32768x128 (tokens, experts)", 2,
            quick=[(4096, 64)],
            headline={"cuda": [(32768, 128), (32768, 256)], "cpu": [(4096, 128)]},
            small=[(64, 128)],
            full=[(32768, 64), (32768, 128), (32768, 256), (32768, 512)],
        ),
    ),
)  # fmt: skip
