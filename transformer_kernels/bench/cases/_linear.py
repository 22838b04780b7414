# SPDX-License-Identifier: MIT
"""What the cases of linear layers share, alone, gated or in MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from transformer_kernels.bench.case import Arguments, Function, differentiate

# Of each pass, for one of the forward pass.
PRODUCTS = {"forward": 1, "backward": 2, "both": 3}


def _scaled(names: tuple[str, ...], arguments: Arguments) -> Arguments:
    """Weights that keep the size of their input, as those of a model do."""
    return {name: arguments[name] * arguments[name].shape[-1] ** -0.5 for name in names}


def _whole(_: Arguments) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor


def layer(
    operands: tuple[str, ...], torchs: Function, ours: Function, **others: Function
) -> dict[str, Any]:
    """Fields of an ``Op`` of these operands, all of which have a gradient."""
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
        "verified": _whole,
    }
