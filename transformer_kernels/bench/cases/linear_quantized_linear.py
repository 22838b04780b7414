# SPDX-License-Identifier: MIT
"""quantized_linear in 4 bits, and ``int8_linear``: M rows, K terms, N columns, groups of 128.

``torch`` multiplies with the same weight, dequantised beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.bench.cases._linear import flops_of_product
from transformer_kernels.measure.case import Arguments, Case, differentiate
from transformer_kernels.measure.sweeps import Grid, Shape

_GROUP = 128
_PRODUCTS = {"forward": 1, "backward": 1, "both": 2}
_ROWS: list[Shape] = [(1, 4096, 4096), (4, 4096, 4096), (16, 4096, 4096)]
_GRID = Grid(
    forms="1x4096x4096 (rows, terms, columns)",
    fold=lambda sizes: sizes if len(sizes) == 3 and sizes[1] % _GROUP == 0 else None,
    sweeps={
        "quick": lambda *_: _ROWS[:1],
        "headline": lambda *_: [*_ROWS, (1, 4096, 14336), (1, 768, 3072)],
        "small": lambda *_: [(1, 768, 768), (1, 768, 3072), (4, 768, 3072)],
        "full": lambda *_: [*_ROWS, (64, 4096, 4096), (512, 4096, 4096)],
    },
)


def _sizes(name: str, shape: Shape) -> Shape:
    rows, terms, columns = shape
    return (rows, terms if name == "x" else columns)


def _moved(pass_: str, arguments: Arguments) -> int:
    of_a_pass = sum(arguments[name].nbytes for name in ("packed", "scales", "x", "dy"))
    return of_a_pass * _PRODUCTS[pass_]


def _packed(bits: int, shape: Shape) -> Tensor:
    _, terms, columns = shape
    if bits == 8:
        return torch.randint(-127, 128, (columns, terms), dtype=torch.int8)
    return torch.randint(0, 256, (columns, terms // 2), dtype=torch.uint8)


def _scales(bits: int, shape: Shape) -> Tensor:
    """That keep the size of the input."""
    _, terms, columns = shape
    return (torch.rand(columns, terms // _GROUP) + 0.5) * terms**-0.5 / 2 ** (bits - 2)


def _plain(packed: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    return in_torch.linear(x, F.dequantize_weight(packed, scales, dtype=x.dtype))


def _dequantised_beforehand(arguments: Arguments) -> Callable[[], Any]:
    x = arguments["x"]
    packed, scales = arguments["packed"], arguments["scales"]
    return partial(in_torch.linear, x, F.dequantize_weight(packed, scales, dtype=x.dtype))


def _backward(function: Callable[..., Tensor]) -> Callable[[Arguments], Callable[[], Any]]:
    def build(arguments: Arguments) -> Callable[[], Any]:
        of_x = partial(function, arguments["packed"], arguments["scales"])
        return differentiate(of_x, ("x",), ("dy",))(arguments)

    return build


def _ours(packed: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    return F.quantized_linear(x, packed, scales)


def _op(name: str, bits: int) -> Case:
    return Case(
        name=name,
        key="linear/quantized_linear",
        inputs=("x",),
        parameters=(),
        outputs=("y",),
        backward_reads=("dy", "packed", "scales"),
        reference=_plain,
        save=lambda _: {},
        functions={"torch": _plain, "ours": _ours},
        forward={"torch": _dequantised_beforehand},
        backward={"torch": _backward(_plain), "ours": _backward(_ours)},
        compiled_backward=lambda compiled: _backward(compiled(_plain)),
        grid=_GRID,
        sizes=_sizes,
        flops=lambda pass_, shape: flops_of_product(_PRODUCTS[pass_], pass_, shape),
        verified=lambda _: lambda _, tensor: tensor,
        indices={"packed": partial(_packed, bits), "scales": partial(_scales, bits)},
        feature=bits == 8,
        moved=_moved,
    )


OPS = (_op("quantized_linear", 4), _op("int8_linear", 8))
