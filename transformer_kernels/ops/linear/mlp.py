# SPDX-License-Identifier: MIT
"""MLPs: two linear layers with an activation, or a gate, between them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._torch import any_autocast
from .._declare_arguments import Like, Number
from .._public import overridable
from ..pointwise.dropout import BIAS_DROPOUT_ADD, DROPOUT, drawn
from ._as_one import as_level, call_as_one
from ._mlp_ops import GATED_MLP, MLP
from .linear import GATED_NUMBERS, NUMBERS, chosen, gated_linear, linear, linear_act

_P = Number("dropout_p", least=0.0, most=1.0)
_RESIDUAL = Like("residual", of="y")


def drop_and_add(
    op: str, y: Tensor, bias: Tensor | None, residual: Tensor | None, dropout_p: float,
    training: bool, seed: Tensor | None, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """``residual + dropout(y + bias)``; without a residual ``dropout(y)``, of a y with its bias."""
    backend = "auto" if backend == "fpga" else backend
    seed, p = drawn(op, y, dropout_p, training, seed, _P)
    if residual is None:
        return y if p == 0 else DROPOUT.call(y, seed, p, backend)
    residual = _RESIDUAL.as_declared(op, residual)
    if any_autocast() and y.dtype is not residual.dtype:  # as PyTorch's sum of them is
        wide = torch.promote_types(y.dtype, residual.dtype)
        y, residual = y.to(wide), residual.to(wide)
    _RESIDUAL.check(op, residual, {"y": y})
    z: Tensor = BIAS_DROPOUT_ADD.call(y, bias, residual, seed, p, backend)
    return z


@overridable
def mlp(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None = None,
    activation: str = "gelu",
    *,
    residual: Tensor | None = None,
    dropout_p: float = 0.0,
    training: bool = True,
    seed: Tensor | None = None,
    recompute: int = 1,
    backend: str = "auto",
) -> Tensor:
    """``residual + dropout(act(input @ weight.T + bias) @ down_weight.T + down_bias)``.

    Args:
        input: (..., K), floating-point.
        weight, bias: (F, K) and (F,), as :func:`linear` takes them.
        down_weight, down_bias: (N, F) and (N,).
        activation: as that of :func:`linear_act`.
        residual: (..., N), of the dtype of ``input``; under autocast of any.
        dropout_p: the probability of an element to be dropped, from 0 to 1.
        training: ``False`` drops nothing.
        seed: of dropout, as :func:`dropout` takes it.
        recompute: what is kept for the backward pass besides ``input`` and parameters: 0, the
            product with ``weight`` and the activation of it; 1, the product; 2, nothing.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"triton"`` or ``"reference"``, as that of
            :func:`linear`. With ``"triton"`` each layer keeps its own, as at level 0.

    Returns:
        (..., N), of the dtype of ``input``.

    Dropout and the residual are one pass behind the second product, which adds ``down_bias`` too;
    the backward pass of it draws again. What is frozen has no gradient computed, and below a frozen
    ``down_weight`` level 0 keeps what level 1 does.
    """
    number, level = chosen("mlp", activation, NUMBERS), as_level("mlp", recompute)
    last_bias = down_bias if residual is None else None
    tensors = (input, weight, bias, down_weight, last_bias)
    y = call_as_one(MLP, "mlp", tensors, number, level, backend)
    if y is None:
        hidden = linear_act(input, weight, bias, activation, backend=backend)
        y = linear(hidden, down_weight, last_bias, backend=backend)
    return drop_and_add("mlp", y, down_bias, residual, dropout_p, training, seed, backend)


@overridable
def gated_mlp(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    up_weight: Tensor | None,
    down_weight: Tensor,
    activation: str = "swiglu",
    *,
    bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout_p: float = 0.0,
    training: bool = True,
    seed: Tensor | None = None,
    recompute: int = 1,
    backend: str = "auto",
) -> Tensor:
    """``residual + dropout((act(gate) * up) @ down_weight.T + down_bias)``, where ``gate`` is
    ``input @ weight.T + bias`` and ``up`` is ``input @ up_weight.T + up_bias``.

    Args:
        weight, up_weight, bias, up_bias: as :func:`gated_linear` takes them: ``weight`` may be of
            gate and up, and ``bias`` with it.
        down_weight, down_bias: (N, F) and (N,).
        activation: as that of :func:`gated_linear`.
        recompute: what is kept for the backward pass besides ``input`` and parameters: 0, gate, up
            and ``act(gate) * up``; 1, gate and up; 2, nothing.

    The other arguments, and what is said of them, are those of :func:`mlp`.
    """
    number, level = chosen("gated_mlp", activation, GATED_NUMBERS), as_level("gated_mlp", recompute)
    last_bias = down_bias if residual is None else None
    tensors = (input, weight, up_weight, bias, up_bias, down_weight, last_bias)
    y = call_as_one(GATED_MLP, "gated_mlp", tensors, number, level, backend)
    if y is None:
        hidden = gated_linear(
            input, weight, up_weight, bias, up_bias, activation, backend=backend
        )  # fmt: skip
        y = linear(hidden, down_weight, last_bias, backend=backend)
    return drop_and_add("gated_mlp", y, down_bias, residual, dropout_p, training, seed, backend)
