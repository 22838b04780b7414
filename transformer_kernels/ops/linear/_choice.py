# SPDX-License-Identifier: MIT
"""Which product a linear layer runs: ours, of operands in order ("packed"), or PyTorch's.

The choice is tables of what speaks against ours, in the order in which it is asked; measured, see
``docs/decisions/0016-linear-on-the-cpu.md``. ``backend="cpu"`` runs ours whatever the table says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..._library import have_kernels_for, log_dispatch
from ..._torch import is_eager
from .._kinds import PLAIN_CLASSES

_MOST_FEW_ROWS = 16  # that csrc/linear/few_rows_isa.h has an engine of
_FEWEST_ROWS = 32
_FEWEST_PRODUCTS = 2**21
_FEWEST_NUMBERS = 2**18  # of a weight
_MOST_16_BIT = (8, 4)  # rows with a weight kept by columns, and as PyTorch keeps it
_WIDE = (torch.float32, torch.float64)


class Refusal(NamedTuple):
    applies: Callable[..., bool]  # to the operands
    reason: str


def first_reason(refusals: tuple[Refusal, ...], *operands: Tensor | None) -> str | None:
    return next((row.reason for row in refusals if row.applies(*operands)), None)


@functools.cache
def blas_is_fast() -> bool:
    """Whether PyTorch's products of float32 are about as fast as the processor.

    They were measured not to be where its MKL meets a processor with AVX-512 that is not Intel's,
    and leaves AVX-512 unused.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if not (torch.backends.mkl.is_available() and cpuinfo.is_file()):
        return True
    text = cpuinfo.read_text(errors="replace")
    return "GenuineIntel" in text or torch.backends.cpu.get_cpu_capability() != "AVX512"


def _is_small(x: Tensor, weight: Tensor) -> bool:
    return x.numel() * len(weight) < _FEWEST_PRODUCTS if weight.dim() else True


def _rows(x: Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1) if x.dim() else 1


def has_few_rows(x: Tensor) -> bool:
    """Whether the weight is read once, where it lies, at the speed of memory."""
    return _rows(x) <= _MOST_FEW_ROWS


_ANY_ROWS = (
    Refusal(lambda *_: not is_eager(), "a graph or a transform follows the call"),
    Refusal(
        lambda x, weight: type(x) not in PLAIN_CLASSES or type(weight) not in PLAIN_CLASSES,
        "an operand is more than memory",
    ),
    Refusal(lambda x, _: not have_kernels_for(x) or not x.is_cpu, "no kernel for this device"),
    Refusal(lambda *_: torch.is_autocast_enabled("cpu"), "autocast is on"),
)
_FEW_ROWS = (
    Refusal(lambda _, weight: weight.numel() < _FEWEST_NUMBERS, "the weight is small"),
    Refusal(
        lambda x, weight: torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad),
        "of few rows only the forward pass was measured",
    ),
    Refusal(
        lambda x, _: x.dtype in _WIDE and _rows(x) == 1 and blas_is_fast(),
        "PyTorch's reads the weight as fast on this processor",
    ),
    Refusal(
        lambda x, weight: x.dtype not in _WIDE and _rows(x) > _MOST_16_BIT[weight.stride(-1) == 1],
        "PyTorch multiplies 16-bit numbers by the processor's own instructions",
    ),
)
_MORE_ROWS = (
    Refusal(lambda *_: blas_is_fast(), "PyTorch's is as fast on this processor"),
    Refusal(
        lambda x, _: x.dtype not in _WIDE,
        "PyTorch's product of 16-bit numbers was measured to be as fast",
    ),
    Refusal(
        lambda x, _: _rows(x) < _FEWEST_ROWS,
        "not many rows: bringing the weight in order would take longer",
    ),
    Refusal(_is_small, "the product is small"),
)


def refusal(op: str, x: Tensor, weight: Tensor) -> str | None:
    """Why PyTorch's product runs; None where ours does."""
    reason = first_reason(_ANY_ROWS, x, weight)
    if reason is None:
        reason = first_reason(_FEW_ROWS if has_few_rows(x) else _MORE_ROWS, x, weight)
    if reason is not None:
        log_dispatch(f"{op}: packed refused: {reason}; PyTorch's product runs")
    return reason
