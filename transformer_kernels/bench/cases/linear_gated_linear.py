# SPDX-License-Identifier: MIT
"""gated_linear with Llama's activation, and the MLP of it: M rows, K features, N hidden ones.

The weights of gate and up are two parameters, as in Hugging Face's models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.bench.cases import _quack
from transformer_kernels.bench.cases._linear import MODELS, PRODUCTS, layer
from transformer_kernels.measure.case import Arguments, Build, Case, Function
from transformer_kernels.measure.sweeps import Grid, Shape
from transformer_kernels.measure.timing import Call

# Tokens, features and hidden ones of models, the last two Llama's of 7 and 8 billion parameters.
_MODELS: list[Shape] = [
    *MODELS, (4096, 4096, 11008), (4096, 4096, 14336),
]  # fmt: skip
_SMALL: list[Shape] = [(512, 256, 704), (1024, 192, 768)]
_GRID = Grid(
    forms="1024x768x3072 (rows, features, hidden features)",
    fold=lambda sizes: sizes if len(sizes) == 3 else None,
    sweeps={
        "quick": lambda *_: _SMALL[:1],
        "headline": lambda device, _: _MODELS if device.type == "cuda" else _SMALL,
        "small": lambda *_: [(1, 4096, 14336), (16, 4096, 14336), (128, 768, 2048)],
        "full": lambda *_: [*_SMALL, (511, 736, 1504)],
    },
)
_OPERANDS = ("x", "weight", "up_weight")
_MLP_OPERANDS = (*_OPERANDS, "down_weight")


def _sizes(name: str, shape: Shape) -> Shape:
    rows, features, hidden = shape
    return {
        "x": (rows, features), "weight": (hidden, features), "up_weight": (hidden, features),
        "down_weight": (features, hidden),
    }.get(name, (rows, hidden))  # fmt: skip


def _mlp_sizes(name: str, shape: Shape) -> Shape:
    return _sizes("x" if name in ("y", "dy") else name, shape)


def _flops(products: int, pass_: str, shape: Shape) -> float:
    rows, features, hidden = shape
    return 2.0 * rows * features * hidden * products * PRODUCTS[pass_]


def _torch_gated(x: Tensor, weight: Tensor, up_weight: Tensor) -> Tensor:
    return in_torch.silu(in_torch.linear(x, weight)) * in_torch.linear(x, up_weight)


def _torch_mlp(x: Tensor, weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
    return in_torch.linear(_torch_gated(x, weight, up_weight), down_weight)


def _quack_gated(arguments: Arguments, *, tuned: bool) -> Call:
    both = _quack.in_turn(arguments["weight"], arguments["up_weight"], 0)
    return partial(_quack.linear_swiglu, arguments["x"], both, tuned=tuned)


def _op(
    name: str,
    operands: tuple[str, ...],
    torchs: Function,
    ours: Function,
    sizes: Callable[[str, Shape], Shape],
    products: int,
    forward: Mapping[str, Build] | None = None,
) -> Case:
    return Case(
        name=name,
        key="linear/gated_linear",
        **layer(operands, torchs, ours),
        backward_reads=("dy", *operands),
        forward=forward or {},
        grid=_GRID,
        sizes=sizes,
        flops=partial(_flops, products),
        feature=name == "gated_mlp",
    )


OPS = (
    _op(
        "gated_linear",
        _OPERANDS,
        _torch_gated,
        F.gated_linear,
        _sizes,
        2,
        _quack.providers(_quack_gated),
    ),
    _op("gated_mlp", _MLP_OPERANDS, _torch_mlp, F.gated_mlp, _mlp_sizes, 3),
)
