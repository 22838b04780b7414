# SPDX-License-Identifier: MIT
"""Linear layers whose weight is stored in 8 or 4 bits per number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_integer,
    check_floating,
    dtype_name,
)
from ..._library import have_kernels_for, log_dispatch
from ..._torch import has_numbers, is_eager
from .._constants import refuse_gradient
from .._declare_checks import as_declared, check_values
from .._public import explained, overridable
from ._arguments import SCALES
from ._choice import why_not_few_rows
from ._quantized import QUANTIZED_LINEAR, DequantizedLinear, dequantized
from ._quantized import quantized_linear as formula

_call = QUANTIZED_LINEAR.call

_BITS = {2: torch.int16, 4: torch.int32}  # integers with as many bytes as a scale
_MOST_TOO_LARGE = 1.25  # factor: a larger scale would lose a third of a bit of its numbers


def _group(op: str, group_size: Any, terms: int) -> int:
    if group_size is None:
        return max(terms, 1)
    group = int(as_integer(op, "group_size", group_size))
    if group < 1 or terms % group:
        raise ArgumentValueError(
            f"{op}: group_size is {group}, expected a divisor of {terms} (the columns of weight),"
            " or None for a row"
        )
    return group


def _check_weight(op: str, weight: Any, bits: Any, scale_dtype: Any) -> None:
    if not isinstance(weight, Tensor):
        raise ArgumentTypeError(f"{op}: weight is {type(weight).__name__}, expected a Tensor")
    check_floating(op, "weight", weight)
    if weight.dim() != 2:
        raise ArgumentValueError(f"{op}: weight has {weight.dim()} dimensions, expected 2")
    if as_integer(op, "bits", bits) not in (4, 8):
        raise ArgumentValueError(f"{op}: bits is {bits}, expected 4 or 8")
    if bits == 4 and weight.shape[1] % 2:
        raise ArgumentValueError(
            f"{op}: weight has {weight.shape[1]} columns, expected an even number (4 bits a number)"
        )
    if scale_dtype not in SCALES:
        name = dtype_name(scale_dtype) if isinstance(scale_dtype, torch.dtype) else scale_dtype
        raise ArgumentTypeError(
            f"{op}: scale_dtype is {name}, expected float32, float16 or bfloat16"
        )


def _scales(op: str, exact: Tensor, most: int, dtype: torch.dtype) -> Tensor:
    """Casts exact scales to ``dtype``. A scale that was rounded down so far that its group's
    largest number would be clamped is replaced by the next larger one; one that is then much too
    large, as happens with subnormal numbers and smaller ones, is refused."""
    scales = exact.to(dtype)
    wide = scales.to(exact.dtype)
    clamps = (exact - wide) * 2 * most > wide
    bits = _BITS[scales.element_size()]
    scales = (scales.view(bits) + (clamps & wide.isfinite()).to(bits)).view(dtype)
    if not has_numbers(scales):
        return scales
    wide = scales.to(exact.dtype)
    for fails, what in (
        (~wide.isfinite(), "is not finite"), (wide > _MOST_TOO_LARGE * exact, "is too small")
    ):  # fmt: skip
        if bool(fails.any()):
            raise ArgumentValueError(
                f"{op}: weight has a group whose scale {what}, expected numbers whose scales"
                f" {dtype_name(dtype)} holds"
            )
    return scales


@explained
@torch.no_grad()
def quantize_weight(
    weight: Tensor,
    bits: int = 4,
    group_size: int | None = 128,
    *,
    scale_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Quantizes a weight for :func:`quantized_linear`, by rounding to nearest.

    A group is ``group_size`` neighbouring numbers of a row. Its scale maps the largest magnitude in
    it to 7, or to 127 with 8 bits, so each number is off by at most half of its group's scale.

    Args:
        weight: (N, K), floating-point and finite; K is even with 4 bits.
        bits: 4 or 8.
        group_size: a divisor of K, or None for one scale per row.
        scale_dtype: float32, float16 or bfloat16.

    Returns:
        ``packed``: int8 (N, K), or with 4 bits uint8 (N, K / 2) in two's complement, with the
        number of an even column in the low nibble of its byte; ``scales``: (N, K / group_size).

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit, and the message names it;
            or numbers are so large, or so small without being 0, that ``scale_dtype`` has no scale
            for them.

    >>> packed, scales = tfk.functional.quantize_weight(torch.randn(32, 256), bits=4)
    >>> packed.dtype, packed.shape, scales.shape
    (torch.uint8, torch.Size([32, 128]), torch.Size([32, 2]))
    """
    op = "quantize_weight"
    _check_weight(op, weight, bits, scale_dtype)
    rows, terms = weight.shape
    group = _group(op, group_size, terms)
    most = 2 ** (bits - 1) - 1
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    groups = wide.reshape(rows, terms // group, group)
    largest = groups.abs().amax(-1) if terms else groups.sum(-1)
    scales = _scales(op, largest.double() / most, most, scale_dtype)
    divisors = torch.where(scales == 0, 1, scales).to(wide.dtype).unsqueeze(-1)
    numbers = (groups / divisors).round_().clamp_(-most - 1, most).to(torch.int8).flatten(1)
    if bits == 8:
        return numbers, scales
    low, high = numbers[:, 0::2], numbers[:, 1::2]
    return ((low & 15) | (high << 4)).view(torch.uint8), scales


@explained
def dequantize_weight(
    packed: Tensor, scales: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns the weight (N, K) that ``packed`` and ``scales`` of :func:`quantize_weight`
    represent.

    Args:
        packed: int8 (N, K), or uint8 (N, K / 2) with two numbers per byte.
        scales: (N, G); each scale belongs to K / G numbers.
        dtype: dtype of the result.

    >>> weight = torch.randn(32, 256)
    >>> packed, scales = tfk.functional.quantize_weight(weight, bits=8)
    >>> error = (tfk.functional.dequantize_weight(packed, scales) - weight).abs().max()
    >>> bool(error <= scales.max() * 0.501)  # half of a step
    True
    """
    return dequantized(packed, scales, dtype)


def _why_formula(x: Tensor) -> str | None:
    """The reason to dequantise the weight and run PyTorch's product; None where our kernels run."""
    if not have_kernels_for(x):
        return "no kernel for this device"
    if torch.is_autocast_enabled(x.device.type):
        return "autocast is on"
    if x.is_cuda:
        return why_not_few_rows(x)
    return None


@overridable
def quantized_linear(
    input: Tensor,  # noqa: A002
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Computes :func:`linear` with a weight from :func:`quantize_weight`.

    With few rows, as in text generation, a linear layer takes as long as reading its weight from
    memory: with 4 bits that is an eighth of float32's time. The numbers become floats in registers.

    Args:
        input: (..., K), floating-point.
        packed: int8 (N, K), or uint8 (N, K / 2) with two numbers per byte.
        scales: (N, G), float32, float16 or bfloat16; each scale belongs to K / G numbers.
        bias: (N,), of ``input``'s dtype or float32.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"reference"``. ``"auto"`` runs kernels for
            up to 16 rows on CUDA, in float16 and bfloat16, and for any rows on the CPU. Otherwise
            the weight is dequantised for PyTorch's product. Either way more than 16 rows, and the
            gradient of ``input``, take the time of dequantising the weight besides that of a
            product: they are no faster than :func:`linear` with a weight of 16 bits.

    Returns:
        (..., N), in the dtype of ``input``. ``input`` and ``bias`` have gradients.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.

    >>> packed, scales = tfk.functional.quantize_weight(torch.randn(32, 256), bits=4)
    >>> tfk.functional.quantized_linear(torch.randn(1, 256), packed, scales).shape
    torch.Size([1, 32])
    """
    refuse_gradient("quantized_linear", scales=scales)
    if backend == "auto" and isinstance(input, Tensor):
        if not is_eager():
            if input.is_cuda:  # the choice depends on rows, which a graph may not know
                return formula(input, packed, scales, bias)
        elif (reason := _why_formula(input)) is not None:
            log_dispatch(f"quantized_linear: kernels refused: {reason}; PyTorch's product runs")
            return _dequantized_linear(input, packed, scales, bias)
    y: Tensor = _call(input, packed, scales, bias, backend)
    return y


def _dequantized_linear(*arguments: Any) -> Tensor:
    op = QUANTIZED_LINEAR
    declared = as_declared(op, arguments)
    check_values(op, op.given(declared))
    y: Tensor = DequantizedLinear.apply(*declared)
    return y
