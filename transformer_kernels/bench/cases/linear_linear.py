# SPDX-License-Identifier: MIT
"""linear, and linear_act with GPT-2's activation: M rows, K terms, N columns; an MLP of both: M
rows, K features, N hidden ones.

``packed_linear`` and ``packed_linear_act`` run our product whatever the choice is, on every device.
``onednn`` is the operator of PyTorch's wheel that its compiler calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.bench.cases import _quack
from transformer_kernels.bench.cases._linear import (
    DEMO,
    FC1,
    MLP_GRID,
    MODELS,
    PRODUCTS,
    SQUARE,
    flops_of_product,
    layer,
    packed,
)
from transformer_kernels.measure.case import Arguments, Case, Function
from transformer_kernels.measure.sweeps import Grid, Shape

_FC2, _WIDE = (1024, 3072, 768), (4096, 1024, 4096)
# The MLPs of models have a product up and one down.
_PRODUCTS_OF_MODELS: list[Shape] = [shape for m, k, n in MODELS for shape in ((m, k, n), (m, n, k))]


def _headline(device: torch.device, _: torch.dtype) -> list[Shape]:
    on_cuda = device.type == "cuda"
    return _PRODUCTS_OF_MODELS if on_cuda else [SQUARE, DEMO, FC1, _FC2, _WIDE]


_GRID = Grid(
    forms="1024x768x3072 (rows, terms, columns)",
    fold=lambda sizes: sizes if len(sizes) == 3 else None,
    sweeps={
        "quick": lambda *_: [SQUARE, FC1],
        "headline": _headline,
        "small": lambda *_: [
            (1, 4096, 4096),
            (4, 4096, 4096),
            (16, 4096, 4096),
            (1, 768, 3072),
            (128, 768, 768),
        ],
        "full": lambda *_: [SQUARE, DEMO, FC1, _FC2, _WIDE, (2048, 256, 1024), (511, 736, 1504)],
    },
)
_OPERANDS = ("x", "weight", "bias")
_MLP_OPERANDS = ("x", "weight", "bias", "down_weight", "down_bias")


def _sizes(name: str, shape: Shape) -> Shape:
    rows, terms, columns = shape
    return {"x": (rows, terms), "weight": (columns, terms), "bias": (columns,)}.get(
        name, (rows, columns)
    )


def _mlp_sizes(name: str, shape: Shape) -> Shape:
    rows, features, hidden = shape
    return {
        "weight": (hidden, features), "bias": (hidden,), "down_weight": (features, hidden),
        "down_bias": (features,),
    }.get(name, (rows, features))  # fmt: skip


def _flops(pass_: str, shape: Shape) -> float:
    return flops_of_product(PRODUCTS[pass_], pass_, shape)


def _onednn(activation: tuple[Any, ...]) -> Function:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, *activation)
        return y

    return run


def _forward_alone(function: Function) -> Callable[[Arguments], Callable[[], Any]]:
    return lambda arguments: partial(function, *(arguments[name] for name in _OPERANDS))


def _op(
    name: str,
    torchs: Function,
    ours: Function,
    activation: tuple[Any, ...],
    quack: Function,
    **others: Function,
) -> Case:
    return Case(
        name=name,
        key="linear/linear",
        **layer(_OPERANDS, torchs, ours, **others),
        backward_reads=("dy", "x", "weight"),
        forward={
            provider: _forward_alone(function)
            for provider, function in {
                "onednn": _onednn(activation),
                **_quack.providers(quack),
            }.items()
        },
        grid=_GRID,
        sizes=_sizes,
        flops=_flops,
        feature=name.startswith("packed"),
    )


def _gelu_of_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return in_torch.gelu(in_torch.linear(x, weight, bias), approximate="tanh")


_NONE: tuple[Any, ...] = ("none", [], "")
_GELU: tuple[Any, ...] = ("gelu", [], "tanh")
_act = partial(F.linear_act, activation="gelu_tanh")


def _torch_mlp(
    x: Tensor, weight: Tensor, bias: Tensor, down_weight: Tensor, down_bias: Tensor
) -> Tensor:
    return in_torch.linear(_gelu_of_linear(x, weight, bias), down_weight, down_bias)


_MLP = Case(
    name="mlp",
    key="linear/linear",
    **layer(_MLP_OPERANDS, _torch_mlp, partial(F.mlp, activation="gelu_tanh")),
    backward_reads=("dy", "x", "weight"),
    grid=MLP_GRID,
    sizes=_mlp_sizes,
    flops=lambda pass_, shape: 2 * _flops(pass_, shape),
    feature=True,
)

OPS = (
    _MLP,
    _op(
        "linear", in_torch.linear, F.linear, _NONE, _quack.linear,
        triton=partial(F.linear, backend="triton"),
    ),
    _op(
        "linear_act", _gelu_of_linear, _act, _GELU, _quack.linear_gelu,
        triton=partial(_act, backend="triton"),
    ),
    _op("packed_linear", in_torch.linear, packed(F.linear), _NONE, _quack.linear),
    _op("packed_linear_act", _gelu_of_linear, packed(_act), _GELU, _quack.linear_gelu),
)  # fmt: skip
