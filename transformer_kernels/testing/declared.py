# SPDX-License-Identifier: MIT
"""Values of declared arguments: good ones in every combination, and bad ones of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ..ops._declare import Op
from ..ops._declare_arguments import Argument, Flag, Like, Mask, Number, Param, Rows
from .inputs import randn

SHAPE = (3, 8)

Values = dict[str, Any]


def good(argument: Argument, device: str = "cpu") -> Any:
    """A value that suits those of the other arguments."""
    if isinstance(argument, (Rows, Like, Mask)):
        return randn(SHAPE, torch.float32, device)
    if isinstance(argument, Param):
        return randn(SHAPE[-1:], torch.float32, device)
    return False if isinstance(argument, Flag) else 0.5


def combinations(op: Op, device: str = "cpu") -> Iterator[Values]:
    """Every choice of optional arguments that the op takes."""
    optional = [argument for argument in op.arguments if argument.optional]
    for chosen in itertools.product((True, False), repeat=len(optional)):
        present = dict(zip((argument.name for argument in optional), chosen, strict=True))
        lonely = any(
            present.get(argument.name) and not present.get(getattr(argument, "beside", ""), True)
            for argument in optional
        )
        if not lonely:
            yield {
                argument.name: good(argument, device) if present.get(argument.name, True) else None
                for argument in op.arguments
            }


def bad(argument: Argument) -> dict[str, Any]:
    """What the op refuses beside good values of the other arguments, by what is wrong."""
    if not argument.is_tensor:
        return {"text": "1"} | _bad_number(argument)
    x = good(argument)
    values = {
        "text": "x",
        "number": 3,
        "integers": torch.ones(x.shape, dtype=torch.int64),
        "booleans": torch.ones(x.shape, dtype=torch.bool),
        "complex": x.to(torch.complex64),
    }
    if not argument.optional:
        values["None"] = None
    if isinstance(argument, Mask):
        del values["booleans"]
    if not isinstance(argument, Rows):
        values |= {
            "half": x.half(),
            "double": x.double(),
            "short": x[..., 1:],
            "more dimensions": x.expand(2, *x.shape),
            "elsewhere": x.to("meta"),
        }
    return values


def _bad_number(argument: Argument) -> dict[str, Any]:
    if not isinstance(argument, Number):
        return {"None": None, "number": 1, "list": []}
    below = {} if argument.least is None else {"below": argument.least - 1.0, "nan": float("nan")}
    beyond = {"infinite": float("inf"), "nan": float("nan")} if argument.finite else {}
    return {"None": None, **below, **beyond}
