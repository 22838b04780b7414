# SPDX-License-Identifier: MIT
"""The kernels of a norm: what a backend offers, and the raw ops with their fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, is_tensor

from ..._errors import check_same_device
from ..._library import direct, raw_op
from .._dtype import accumulate_dtype
from .._kinds import on_memory
from . import _formula
from ._formula import statistics


class Kernels(NamedTuple):
    """One backend of one op, with the signatures of the raw ops."""

    center: bool
    inference: Callable[..., Tensor]
    forward: Callable[..., tuple[Tensor, ...]]  # (y, *statistics)
    add_forward: Callable[..., tuple[Tensor, ...]]  # (y, sum, *statistics)
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


FORWARD_ARGUMENTS = "Tensor? weight, Tensor? bias, float eps, bool zero_centered_weight"
_BACKWARD_ARGUMENTS = (
    "Tensor? weight, bool zero_centered_weight, bool need_dweight, bool need_dbias"
)


def raw_kernels(name: str, center: bool) -> Kernels:
    names = ("mean", "rstd") if center else ("rstd",)
    stats_schema = ", ".join(f"Tensor {stat}" for stat in names)

    def inference(x: Tensor, weight: Any, bias: Any, eps: float, zero_centered: bool) -> Tensor:
        return _formula.affine(x, statistics(x, eps, center), weight, bias, zero_centered)

    def forward(x: Tensor, weight: Any, bias: Any, eps: float, zero_centered: bool) -> Any:
        stats = statistics(x, eps, center)
        return (_formula.affine(x, stats, weight, bias, zero_centered), *stats)

    def add_forward(
        x: Tensor, residual: Tensor, weight: Any, bias: Any, eps: float, zero_centered: bool
    ) -> Any:
        s = (x + residual).contiguous()
        y, *stats = forward(s, weight, bias, eps, zero_centered)
        return (y, s, *stats)

    def backward(dy: Tensor, dsum: Any, x: Tensor, *rest: Any) -> Any:
        stats, options = rest[: len(names)], rest[len(names) :]
        return _formula.backward(center, dy, dsum, x, stats, *options)

    def fake_inference(x: Tensor, *others: Any) -> Tensor:
        check_same_device(name, x, *filter(is_tensor, others))
        return x.new_empty(x.shape)

    def fake_forward(x: Tensor, *others: Any) -> Any:
        y = fake_inference(x, *others)
        stats = (x.new_empty(x.shape[:-1], dtype=accumulate_dtype(x)) for _ in names)
        return (y, *stats)

    def fake_add_forward(x: Tensor, residual: Tensor, *others: Any) -> Any:
        y, *stats = fake_forward(x, residual, *others)
        return (y, x.new_empty(x.shape), *stats)

    def fake_backward(dy: Tensor, dsum: Any, x: Tensor, *rest: Any) -> Any:
        dx = fake_inference(x, dy, dsum, *rest)
        weight, _, *needs = rest[len(names) :]
        dtype = x.dtype if weight is None else weight.dtype
        gradients = (
            x.new_empty(x.shape[-1:], dtype=dtype) if need else x.new_empty(0) for need in needs
        )
        return (dx, *gradients)

    return Kernels(
        center,
        raw_op(
            f"{name}_inference(Tensor x, {FORWARD_ARGUMENTS}) -> Tensor",
            reference=on_memory(name, inference),
            fake=fake_inference,
        ),
        raw_op(
            f"{name}_forward(Tensor x, {FORWARD_ARGUMENTS}) -> (Tensor y, {stats_schema})",
            reference=on_memory(name, forward),
            fake=fake_forward,
        ),
        raw_op(
            f"add_{name}_forward(Tensor x, Tensor residual, {FORWARD_ARGUMENTS})"
            f" -> (Tensor y, Tensor sum, {stats_schema})",
            reference=on_memory(name, add_forward),
            fake=fake_add_forward,
        ),
        raw_op(
            f"{name}_backward(Tensor dy, Tensor? dsum, Tensor x, {stats_schema},"
            f" {_BACKWARD_ARGUMENTS}) -> (Tensor dx, Tensor dweight, Tensor dbias)",
            reference=on_memory(name, backward),
            fake=fake_backward,
        ),
    )


def direct_kernels(raw: Kernels) -> Kernels:
    return Kernels(raw.center, *map(direct, raw[1:]))
