# SPDX-License-Identifier: MIT
"""Declares softmax and log_softmax over the last dimension, as one op with a flag.

    z = x * scale + mask        (-inf where a boolean or the causal mask is false)
    softmax = exp(z - max(z)) / sum(exp(z - max(z)))        log_softmax = log(softmax)

A row in which every element is masked gives 0 (softmax) or -inf (log_softmax), and a gradient of 0.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .._declare import Formula, Kernels
from .._declare_arguments import Flag, Given, Mask, Number, Result, Rows
from .._parallel import rows
from .._register import declare
from . import _formula, _stock


def _name(given: Given) -> str:
    return "log_softmax" if given["log"] else "softmax"


def _last_dims(given: Given) -> int:
    return 2 if given["causal"] else 1


def _gradients(backward: Formula, values: Given, needed: Given) -> dict[str, Tensor]:
    """The gradients of x and of an additive mask."""
    dy, y, scale, masked, log = (values[n] for n in ("dy", "y", "scale", "masked", "log"))
    if not needed["mask"]:
        return {"x": backward(dy, y, scale, masked, log)}
    mask = values["mask"]
    dz = backward(dy, y, 1.0, masked, log)
    return {"x": dz * scale, "mask": dz.to(mask.dtype).sum_to_size(mask.shape)}


def _triton() -> Kernels:
    from .softmax_triton import softmax_backward, softmax_forward

    return Kernels(softmax_forward, softmax_backward, softmax_forward)


SOFTMAX = declare(
    "softmax",
    function="functional.softmax",
    stock=_stock.softmax,
    parallel=rows,
    shown=_name,
    arguments=(
        Rows("x"), Mask("mask"), Number("scale", finite=True), Flag("causal"), Flag("log"),
    ),
    results=(Result("y"),),
    backward="(dy, y, scale, bool masked, log) -> dx",
    expressions={"masked": "causal or mask is not None"},
    more=("mask",),
    gradients=_gradients,
    formula=_formula.forward,
    gradient=_formula.backward,
    last_dims=_last_dims,
    triton=_triton,
    fpga=True,
    replaces=(F.softmax, F.log_softmax, nn.Softmax, nn.LogSoftmax),
    text="exp(z - max(z)) / sum(exp(z - max(z))), z = x * scale + mask",
)  # fmt: skip
