# SPDX-License-Identifier: MIT
"""cross_entropy in Triton, with the signatures of the raw ops.

Forward, a program owns one row and reads it once, chunk by chunk; it rescales its sum of powers at
each new maximum. PyTorch adds the rows up. Backward, a program owns one chunk.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._dtype import accumulate_dtype
from .._triton_rows import accumulate_type, as_rows, shape_of, vector
from ._formula import MEAN, NONE

_WIDEST_CHUNK = 4096


@triton.jit
def _number(VALUE: tl.constexpr, ACC: tl.constexpr):
    """A number in the arithmetic's type: kernel arguments are float32."""
    return tl.sum(tl.full((1,), VALUE, ACC), 0)


@triton.jit
def _logit(x, CAP: tl.constexpr, ACC: tl.constexpr):
    if CAP > 0:
        cap = _number(CAP, ACC)
        return cap * (2 * tl.sigmoid(2 * (x / cap)) - 1)
    return x


@triton.jit
def _label(target, weight, row, cols, ignore_index, LABELS: tl.constexpr, WEIGHT: tl.constexpr,
           ACC: tl.constexpr):  # fmt: skip
    """The row's label (-1 if it is no class), whether it is ignored, and the row's weight."""
    counted = _number(1.0, ACC)
    if LABELS:
        label = tl.load(target + row).to(tl.int64)
        ignored = label == ignore_index
        known = (label >= 0) & (label < cols)
        label = tl.where(known, label, -1)
        if WEIGHT:
            counted = tl.load(weight + label, mask=known, other=0.0).to(ACC)
        counted = tl.where(ignored, 0.0, tl.where(known, counted, float("nan")))
        return label, ignored, counted
    return row * 0 - 1, row < 0, counted


@triton.jit
def _share(q_row, weight, col, inside, SMOOTHING: tl.constexpr, LABELS: tl.constexpr,
           WEIGHT: tl.constexpr, cols, ACC: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The coefficient of each logit in the loss, without the label's own share."""
    share = tl.full((BLOCK,), SMOOTHING, ACC) / cols
    if not LABELS:
        share += (1 - _number(SMOOTHING, ACC)) * tl.load(q_row + col, mask=inside, other=0.0).to(
            ACC
        )
    if WEIGHT:
        share *= tl.load(weight + col, mask=inside, other=0.0).to(ACC)
    return tl.where(inside, share, 0.0)


@triton.jit
def _forward(
    x, x_stride, target, q, q_stride, weight, losses, top, spread, share, counted_of, cols,
    ignore_index,
    SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, LABELS: tl.constexpr,
    WEIGHT: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * x_stride
    q_row = q + row * q_stride
    label, ignored, counted = _label(
        target, weight, row, cols, ignore_index, LABELS, WEIGHT, ACC
    )  # fmt: skip
    first = _logit(tl.load(x_row).to(ACC), CAP, ACC)
    origin = tl.where(tl.abs(first) < float("inf"), first, 0.0)
    maximum = _number(-float("inf"), ACC)
    total = _number(0.0, ACC)
    shares = _number(0.0, ACC)
    logits = _number(0.0, ACC)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        z = _logit(tl.load(x_row + col, mask=inside, other=0.0).to(ACC), CAP, ACC)
        reached = tl.maximum(maximum, tl.max(tl.where(inside, z, -float("inf")), 0))
        base = tl.where(reached == -float("inf"), 0.0, reached)
        total *= tl.where(maximum == -float("inf"), 0.0, tl.exp(maximum - base))
        total += tl.sum(tl.where(inside, tl.exp(z - base), 0.0), 0)
        maximum = reached
        if SMOOTHING > 0 or not LABELS:
            a = _share(q_row, weight, col, inside, SMOOTHING, LABELS, WEIGHT, cols, ACC, BLOCK)
            shares += tl.sum(a, 0)
            logits += tl.sum(tl.where(inside, a * (z - origin), 0.0), 0)
    rest = tl.log(total)
    loss = _number(0.0, ACC)
    if SMOOTHING > 0 or not LABELS:
        loss += shares * ((maximum - origin) + rest) - logits
    if LABELS:
        own = (1 - _number(SMOOTHING, ACC)) * counted
        of_label = _logit(tl.load(x_row + label, mask=label >= 0, other=0.0).to(ACC), CAP, ACC)
        loss += own * ((maximum - of_label) + rest)
        shares += own
    if Z_LOSS != 0:
        loss += _number(Z_LOSS, ACC) * counted * (maximum + rest) * (maximum + rest)
    tl.store(losses + row, tl.where(ignored, 0.0, loss))
    tl.store(top + row, tl.where(ignored, 0.0, maximum))
    tl.store(spread + row, tl.where(ignored, 0.0, rest))
    tl.store(share + row, tl.where(ignored, 0.0, shares))
    tl.store(counted_of + row, counted)


@triton.jit
def _backward(
    dloss, dloss_stride, total, x, x_stride, target, q, q_stride, weight, top, spread, share, dx,
    cols, ignore_index,
    SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, LABELS: tl.constexpr,
    WEIGHT: tl.constexpr, MEAN: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label, ignored, counted = _label(
        target, weight, row, cols, ignore_index, LABELS, WEIGHT, ACC
    )  # fmt: skip
    gain = tl.load(dloss + row * dloss_stride).to(ACC)
    if MEAN:
        gain /= tl.load(total)
    of_row = tl.load(share + row)
    maximum = tl.load(top + row)
    rest = tl.load(spread + row)
    if Z_LOSS != 0:
        of_row += 2 * _number(Z_LOSS, ACC) * counted * (maximum + rest)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    z = _logit(tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(ACC), CAP, ACC)
    dz = of_row * tl.exp(z - maximum - rest)
    if SMOOTHING > 0 or not LABELS:
        dz -= _share(
            q + row * q_stride, weight, col, inside, SMOOTHING, LABELS, WEIGHT, cols, ACC, BLOCK
        )  # fmt: skip
    if LABELS:
        dz -= tl.where(col == label, (1 - _number(SMOOTHING, ACC)) * counted, 0.0)
    if CAP > 0:
        ratio = z / _number(CAP, ACC)
        dz *= 1 - ratio * ratio
    dz = tl.where(ignored, 0.0, gain * dz)
    tl.store(dx + row * cols + col, dz, mask=inside)


def _operands(
    x: Tensor, target: Tensor | None, probabilities: Tensor | None, weight: Tensor | None
) -> tuple[Any, ...]:
    """Returns (x, its stride, labels, probabilities, their stride, weight); x stands for absent
    ones."""
    rows, stride = as_rows(x)
    labels = rows if target is None else target.contiguous()
    q, q_stride = (rows, 0) if probabilities is None else as_rows(probabilities)
    return rows, stride, labels, q, q_stride, vector(weight, rows)


def cross_entropy_forward(
    x: Tensor, target: Tensor | None, probabilities: Tensor | None, weight: Tensor | None,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int,
    wide: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    acc = accumulate_type(x)
    cols = x.shape[-1]
    losses, top, spread, share, counted = (
        x.new_empty(x.shape[:-1], dtype=accumulate_dtype(x)) for _ in range(5)
    )
    if x.numel():
        rows, stride, labels, q, q_stride, w = _operands(x, target, probabilities, weight)
        block, _, warps = shape_of(cols, _WIDEST_CHUNK)
        with torch.cuda.device_of(x):
            _forward[(rows.shape[0],)](
                rows, stride, labels, q, q_stride, w, losses, top, spread, share, counted, cols,
                ignore_index, SMOOTHING=label_smoothing, Z_LOSS=z_loss, CAP=softcap,
                LABELS=target is not None, WEIGHT=weight is not None, ACC=acc, BLOCK=block,
                num_warps=warps,
            )  # fmt: skip
    total = counted.sum() if reduction == MEAN else x.new_empty(0)
    loss = losses if reduction == NONE else losses.sum()
    loss = loss / total if reduction == MEAN else loss
    return (loss if wide else loss.to(x.dtype)), top, spread, share, total


def cross_entropy_inference(*arguments: Any) -> Tensor:
    return cross_entropy_forward(*arguments)[0]


def cross_entropy_backward(
    dloss: Tensor, x: Tensor, target: Tensor | None, probabilities: Tensor | None,
    weight: Tensor | None, top: Tensor, spread: Tensor, share: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int,
) -> Tensor:  # fmt: skip
    acc = accumulate_type(x)
    cols = x.shape[-1]
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return dx
    rows, stride, labels, q, q_stride, w = _operands(x, target, probabilities, weight)
    block, _, warps = shape_of(cols, _WIDEST_CHUNK)
    with torch.cuda.device_of(x):
        _backward[(rows.shape[0], triton.cdiv(cols, block))](
            dloss.contiguous(), 1 if reduction == NONE else 0, total, rows, stride, labels, q,
            q_stride, w, top, spread, share, dx, cols, ignore_index, SMOOTHING=label_smoothing,
            Z_LOSS=z_loss, CAP=softcap, LABELS=target is not None, WEIGHT=weight is not None,
            MEAN=reduction == MEAN, ACC=acc, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return dx
