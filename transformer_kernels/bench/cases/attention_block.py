# SPDX-License-Identifier: MIT
"""attention_block: the causal attention layer of GPT-2 with the norm behind it, without dropout, of
B sequences of T tokens with C channels in heads of 64."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.bench.cases.linear import scaled
from transformer_kernels.bench.rivals import EPS
from transformer_kernels.measure.case import Arguments
from transformer_kernels.measure.derive import derive, grid, whole
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.ops.attention_block._ops import ATTENTION_BLOCK

_HEAD_DIM = 64
_OPERANDS = ("x", "residual", "qkv_weight", "qkv_bias", "out_weight", "out_bias", "norm_weight",
             "norm_bias")  # fmt: skip
_DEMO, _GPT2 = (8, 128, 192), (16, 1024, 768)
# The reference in float64 holds all scores, which bounds the length.
_GRID = grid(
    "16x1024x768 (batch, time, channels)", 3, fits=lambda sizes: sizes[2] % _HEAD_DIM == 0,
    of_model=lambda batch, length, width: (batch, length, width),
    quick={"cpu": [_DEMO], "cuda": [_GPT2]},
    headline={"cpu": [_DEMO, (2, 512, 768)], "cuda": [_GPT2, (16, 1024, 1024), (4, 2048, 2048)]},
    small=[(1, 128, 768), (8, 128, 768)],
    full=[_DEMO, (2, 512, 768), (4, 1024, 768), _GPT2],
)  # fmt: skip


def _sizes(name: str, shape: Shape) -> Shape:
    channels = shape[-1]
    of_tensors: dict[str, Shape] = {
        "qkv_weight": (3 * channels, channels),
        "qkv_bias": (3 * channels,),
        "out_weight": (channels, channels),
        **dict.fromkeys(("out_bias", "norm_weight", "norm_bias"), (channels,)),
    }
    return of_tensors.get(name, shape)


def _heads(arguments: Arguments) -> int:
    return arguments["x"].shape[-1] // _HEAD_DIM


# The arguments of the declared op that are no tensors.
_NUMBERS: dict[str, Any] = {
    "num_heads": _heads, "num_kv_heads": _heads, "causal": True, "scale": _HEAD_DIM**-0.5,
    "attention_p": 0.0, "p": 0.0, "eps": EPS, "norm": 0, "recompute": 0, "packed": False,
}  # fmt: skip


def _stock(*operands: Tensor) -> Any:
    given = dict(zip(_OPERANDS, operands, strict=True))
    heads = _heads(given)
    given |= _NUMBERS | {"num_heads": heads, "num_kv_heads": heads}
    return ATTENTION_BLOCK.stock(*(given.get(name) for name in ATTENTION_BLOCK.names))


def _ours(*operands: Tensor, **options: Any) -> Any:
    block: Any = F.attention_block  # takes the operands by place
    return block(*operands, operands[0].shape[-1] // _HEAD_DIM, causal=True, eps=EPS, **options)


OPS = (
    derive(
        ATTENTION_BLOCK, "attention_block/attention_block", _OPERANDS, ours=_ours, torchs=_stock,
        raw=False, grid=_GRID, sizes=_sizes, fixed=_NUMBERS, verified=whole,
        save=partial(scaled, ("qkv_weight", "out_weight")),
    ),
)  # fmt: skip
