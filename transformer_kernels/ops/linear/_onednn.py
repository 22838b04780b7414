# SPDX-License-Identifier: MIT
"""PyTorch's product without gradients, through the oneDNN operator that its compiler calls.

For 16-bit numbers and a bias, ``F.linear`` copies the bias into every row of the result before it
multiplies; oneDNN's operator for a linear layer adds it to the sums. The table lists the reasons
against the operator, measured as ``docs/decisions/0016-linear-on-the-cpu.md`` describes.
Activations stay our kernels: oneDNN's were measured to be slower after the sums.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..._library import log_dispatch
from ..._torch import has_dispatch_mode, is_eager
from .._kinds import PLAIN_CLASSES
from ._choice import Refusal, first_reason

_FEWEST_PRODUCTS = 2**28


@functools.cache
def has_tiles() -> bool:
    """Whether the processor has AMX, and PyTorch was built with oneDNN."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_amx_tile_supported()


def _differentiates(*operands: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


def _does_not_fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the operands do not fit together; PyTorch's product handles them, or raises."""
    return (
        bias is None
        or x.dim() == 0
        or weight.dim() != 2
        or x.shape[-1] != weight.shape[1]
        or bias.shape != weight.shape[:1]
        or not x.dtype == weight.dtype == bias.dtype
        or not (x.is_contiguous() and weight.is_contiguous() and bias.is_contiguous())
    )


def _is_small(x: Tensor, weight: Tensor, _: Tensor | None) -> bool:
    return weight.dim() == 0 or x.numel() * len(weight) < _FEWEST_PRODUCTS


REFUSALS = (
    Refusal(lambda *_: not is_eager() or has_dispatch_mode(), "something follows the call"),
    Refusal(lambda *_: not has_tiles(), "it was measured to be faster with AMX alone"),
    Refusal(
        lambda x, *_: x.dtype not in (torch.bfloat16, torch.float16),
        "PyTorch's is as fast for this dtype",
    ),
    Refusal(lambda _, __, bias: bias is None, "PyTorch's is as fast without a bias"),
    Refusal(_differentiates, "it has no gradient"),
    Refusal(
        lambda *operands: any(type(t) not in PLAIN_CLASSES or not t.is_cpu for t in operands),
        "an operand is more than memory of the CPU",
    ),
    Refusal(_is_small, "calling it costs more than it gains"),
    Refusal(lambda *_: torch.is_autocast_enabled("cpu"), "autocast is on"),
    Refusal(_does_not_fit, "an operand is not as it takes them"),
)


def refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """The reason why F.linear runs; None where oneDNN's operator does."""
    return first_reason(REFUSALS, x, weight, bias)


def product(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Computes ``x @ weight.T + bias``; returns None where F.linear is to run."""
    reason = refusal(x, weight, bias)
    if reason is not None:
        log_dispatch(f"{op}: mkldnn::_linear_pointwise refused: {reason}")
        return None
    log_dispatch(f"{op}: mkldnn::_linear_pointwise runs")
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
