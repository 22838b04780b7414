# SPDX-License-Identifier: MIT
"""A linear layer with int8 products on an FPGA array.

    y = sx * sw * (xq @ wq.T) + bias

``xq`` and ``wq`` are the rows of ``x`` and ``weight`` in int8; each row has a scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import check_tensors, translate
from ..._library import direct, require_backend
from .._array import refuse_derivatives, without_array
from .._declare_raw import declare_raw
from .._work import products_with
from ..linear._ops import LINEAR

_OP = "linear"


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ARG001
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_ARRAY = declare_raw(
    "linear_forward_fpga(Tensor x, Tensor weight, Tensor? bias) -> Tensor y",
    of=LINEAR,
    flops=products_with("weight"),
    reference=without_array(_OP),
    fake=_fake,
)


def on_array(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes ``x`` (..., K) times ``weight`` (N, K) transposed, plus ``bias`` (N,).

    Tensors are on the CPU, finite, of one floating-point dtype, and require no gradient.
    """
    given: dict[str, Any] = {"x": x, "weight": weight, "bias": bias}
    check_tensors(_OP, given, "bias")
    require_backend(_OP, "fpga", x)
    refuse_derivatives(_OP, given)
    if torch.compiler.is_compiling():
        return _ARRAY(x, weight, bias)
    try:
        return direct(_ARRAY)(x, weight, bias)
    except RuntimeError as error:
        raise translate(_OP, error) from None
