# SPDX-License-Identifier: MIT
"""The pointwise ops: activations of one tensor and as the gate of another, from their table, and
dropout.

Each provider draws its own elements. Ours are given a seed, as a model's training loop or a graph
that is replayed gives it: the cost of drawing one is the host's (`bench host`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.measure.case import Arguments, Case, Draw, differentiate
from transformer_kernels.measure.derive import derive
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops.pointwise._ops import GATED, PLAIN
from transformer_kernels.ops.pointwise.dropout import BIAS_DROPOUT_ADD, DROPOUT
from transformer_kernels.ops.pointwise.table import ACTIVATIONS
from transformer_kernels.testing.pointwise import exact

P = 0.125  # a multiple of 2^-16: all providers have the same scale
SCALE = 1 / (1 - P)


def drawing() -> dict[str, object]:
    """The arguments of dropout."""
    return {"seed": torch.tensor([1, 2]), "p": P}


# ---- activations --------------------------------------------------------------------------------


def _activation(op: Op, inputs: tuple[str, ...], reference: Callable[..., Tensor]) -> Case:
    """Without biases, which none of the others has."""
    return derive(op, f"pointwise/{op.name}", inputs, reference=reference, compiled="vjp")


def _gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda gate, up: activation(gate) * up


# ---- dropout ------------------------------------------------------------------------------------


def dropped(x: Tensor, kept: Tensor) -> Tensor:
    """The exact values of ``x`` that are left."""
    return torch.where(kept, x * SCALE, 0.0)


def nearer_if_kept(result: Tensor, x: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    """Whether an element of the sum is nearer to what it is if kept than to the residual."""
    change = result.float() - residual
    return (change - (x.float() + bias.float()) * SCALE).abs() < change.abs()


def _is_there(_: str, __: Arguments, results: Sequence[Tensor]) -> Tensor:
    return results[0] != 0


def _is_added(pass_: str, arguments: Arguments, results: Sequence[Tensor]) -> Tensor:
    if pass_ != "forward":
        return results[0] != 0
    return nearer_if_kept(results[0], *(arguments[name] for name in ("x", "residual", "bias")))


def _biased(x: Tensor, bias: Tensor) -> Tensor:
    """Has the gradients of bias_dropout_add, but for the residual's, which is dy itself."""
    return F.dropout(x + bias, P)


OPS = (
    *(_activation(PLAIN[row.name], ("x",), exact(row)) for row in ACTIVATIONS),
    *(
        _activation(GATED[row.gated], ("gate", "up"), _gated(exact(row)))
        for row in ACTIVATIONS
        if row.gated
    ),
    derive(
        DROPOUT, "pointwise/dropout", ("x",), fixed=drawing(), reference=dropped,
        draw=Draw(P, _is_there),
    ),
    derive(
        BIAS_DROPOUT_ADD, "pointwise/bias_dropout_add", ("x", "residual"), ("bias",),
        fixed=drawing(),
        reference=lambda x, residual, bias, kept: dropped(x + bias, kept) + residual,
        draw=Draw(P, _is_added, in_sum=True),
        backwards={"torch": differentiate(_biased, ("x", "bias"), ("dy",))},
        compiled=lambda compiled: differentiate(compiled(_biased), ("x", "bias"), ("dy",)),
    ),
)  # fmt: skip
