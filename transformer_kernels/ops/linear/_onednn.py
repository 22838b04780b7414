# SPDX-License-Identifier: MIT
"""PyTorch's product without gradients, through the oneDNN operator that its compiler calls.

For 16-bit numbers and a bias, ``F.linear`` copies the bias into every row of the result before it
multiplies; oneDNN's operator for a linear layer adds it to the sums. C++ says of which products the
operator is faster (``csrc/linear/rules.h``). Activations stay our kernels: oneDNN's were measured
to be slower after the sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._library import log_dispatch, logs_dispatch
from ..._torch import has_dispatch_mode, is_eager
from .._kinds import PLAIN_CLASSES
from . import _choice


def refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """The reason why F.linear runs; None where oneDNN's operator does."""
    if not is_eager() or has_dispatch_mode():
        return "something follows the call"
    operands = [t for t in (x, weight, bias) if t is not None]
    if any(type(t) not in PLAIN_CLASSES or not t.is_cpu for t in operands):
        return "an operand is more than memory of the CPU"
    slower = _choice.reason_by_sizes(_choice.Question.ONEDNN, x, weight)
    if slower is not None:
        return slower
    if bias is None:
        return "PyTorch's is as fast without a bias"
    if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
        return "it has no gradient"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    fits = (
        x.dim() > 0 and weight.dim() == 2 and x.shape[-1] == weight.shape[1]
        and bias.shape == weight.shape[:1] and x.dtype == weight.dtype == bias.dtype
        and all(t.is_contiguous() for t in operands)
    )  # fmt: skip
    return None if fits else "an operand is not as it takes them"


def product(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Computes ``x @ weight.T + bias``; returns None where F.linear is to run."""
    reason = refusal(x, weight, bias) if _choice.BLAS[-1] else "the processor has no AMX"
    if reason is not None:
        if logs_dispatch():
            log_dispatch(f"{op}: mkldnn::_linear_pointwise refused: {reason}")
        return None
    log_dispatch(f"{op}: mkldnn::_linear_pointwise runs")
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
