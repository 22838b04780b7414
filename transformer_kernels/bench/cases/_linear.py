# SPDX-License-Identifier: MIT
"""What the cases of linear layers share, alone, gated or in MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from transformer_kernels.measure.case import Arguments, Function, differentiate
from transformer_kernels.measure.sweeps import Grid, Shape

# Of each pass, for one of the forward pass.
PRODUCTS = {"forward": 1, "backward": 2, "both": 3}

_FEW_ROWS = 16

# Rows, features and hidden ones of MLPs, the last four of models.
SQUARE, DEMO, FC1 = (512, 512, 512), (1024, 192, 768), (1024, 768, 3072)
MODELS: tuple[Shape, ...] = (
    (4096, 768, 3072), (16384, 1024, 4096), (8192, 4096, 16384), (2048, 4096, 16384),
)  # fmt: skip
MLP_GRID = Grid(
    forms="1024x768x3072 (rows, features, hidden features)",
    fold=lambda sizes: sizes if len(sizes) == 3 else None,
    sweeps={
        "quick": lambda *_: [SQUARE],
        "headline": lambda device, _: list(MODELS) if device.type == "cuda" else [DEMO, FC1],
        "small": lambda *_: [(128, 768, 3072)],
        "full": lambda *_: [DEMO, FC1, (511, 736, 1504)],
    },
)


def flops_of_product(count: int, pass_: str, shape: Shape) -> float:
    """Of ``count`` products; 0 forward of few rows, of which the weight's bytes are the bound."""
    rows, terms, columns = shape
    if pass_ == "forward" and rows <= _FEW_ROWS:
        return 0
    return 2.0 * rows * terms * columns * count


def _scaled(names: tuple[str, ...], arguments: Arguments) -> Arguments:
    """Weights that keep the size of their input, as those of a model do."""
    return {name: arguments[name] * arguments[name].shape[-1] ** -0.5 for name in names}


def whole(_: Arguments) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor


def packed(function: Callable[..., Tensor]) -> Function:
    """Ours, whatever the choice is."""

    def run(x: Tensor, *operands: Tensor) -> Tensor:
        return function(x, *operands, backend=x.device.type)

    return run


def layer(
    operands: tuple[str, ...], torchs: Function, ours: Function, **others: Function
) -> dict[str, Any]:
    """Fields of a ``Case`` of these operands, all of which have a gradient."""
    functions = {"torch": torchs, "ours": ours, **others}
    return {
        "inputs": operands,
        "parameters": (),
        "outputs": ("y",),
        "reference": torchs,
        "save": partial(_scaled, tuple(name for name in operands if name.endswith("weight"))),
        "functions": functions,
        "backward": {
            provider: differentiate(function, operands, ("dy",))
            for provider, function in functions.items()
        },
        "compiled_backward": lambda compiled: differentiate(compiled(torchs), operands, ("dy",)),
        "gradients": len(operands),
        "verified": whole,
    }
