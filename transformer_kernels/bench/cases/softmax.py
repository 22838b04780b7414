# SPDX-License-Identifier: MIT
"""softmax and log_softmax over the last dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals import liger, quack
from transformer_kernels.measure.case import Case, Function, bind
from transformer_kernels.measure.derive import derive
from transformer_kernels.ops.softmax._ops import SOFTMAX
from transformer_kernels.testing import reference

_aten = torch.ops.aten


def _case(log: bool, ours: Function, torchs_backward: Any, **rivals: Any) -> Case:
    """A case; PyTorch's backward pass is its raw op."""
    in_torch = bind(lambda dy, y: torchs_backward(dy, y, -1, y.dtype), "dy", "y")
    return derive(
        SOFTMAX,
        "softmax/softmax",
        ("x",),
        name="log_softmax" if log else "softmax",
        fixed={"scale": 1.0, "log": log},
        reference=partial(reference.softmax, log=log),
        ours=partial(ours, dim=-1),
        backwards={"torch": in_torch, **rivals.pop("backwards", {})},
        compiled="gradient",
        **rivals,
    )


OPS = (
    _case(
        False, F.softmax, _aten._softmax_backward_data,
        rivals={"liger": liger.softmax, "quack": quack.softmax},
        backwards={
            "liger": liger.softmax_backward, "quack": bind(quack.softmax_backward, "dy", "y"),
        },
    ),
    _case(True, F.log_softmax, _aten._log_softmax_backward_data),
)  # fmt: skip
