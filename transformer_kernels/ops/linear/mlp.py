# SPDX-License-Identifier: MIT
"""MLPs: two linear layers with an activation, or a gate, between them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._torch import any_autocast
from .._declare_arguments import Like, Number
from .._declare_checks import refuse_call
from .._public import overridable
from ..pointwise._ops import GATED, PLAIN
from ..pointwise.dropout import BIAS_DROPOUT_ADD, DROPOUT, drawn
from . import _formula
from ._as_one import as_level, call_as_one
from ._choice import is_little
from ._mlp_ops import GATED_MLP, MLP
from .linear import GATED_NUMBERS, NUMBERS, chosen, gated_linear, linear, linear_act

_P = Number("dropout_p", least=0.0, most=1.0)
_RESIDUAL = Like("residual", of="y")


def drop_and_add(
    op: str, y: Tensor, bias: Tensor | None, residual: Tensor | None, dropout_p: float,
    training: bool, seed: Tensor | None, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """Computes ``residual + dropout(y + bias)``; or without a residual ``dropout(y)``, where y
    includes its bias."""
    if residual is None and dropout_p == 0.0 and type(training) is bool:
        return y
    backend = "auto" if backend == "fpga" else backend
    seed, p = drawn(op, y, dropout_p, training, seed, _P)
    if residual is None:
        return y if p == 0 else DROPOUT.call(y, seed, p, backend)
    residual = _RESIDUAL.as_declared(op, residual)
    if any_autocast() and y.dtype is not residual.dtype:  # as in PyTorch's sum of the two
        wide = torch.promote_types(y.dtype, residual.dtype)
        y, residual = y.to(wide), residual.to(wide)
    _RESIDUAL.check(op, residual, {"y": y})
    z: Tensor = BIAS_DROPOUT_ADD.call(y, bias, residual, seed, p, backend)
    return z


def _layers(
    x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    activation: str, backend: str,
) -> Tensor:  # fmt: skip
    """Runs each layer of an MLP by itself."""
    if backend == "auto" and is_little("mlp", x, weight, down_weight):
        hidden = PLAIN[activation].call(_formula.linear(x, weight, bias), None)
        return _formula.linear(hidden, down_weight, down_bias)
    hidden = linear_act(x, weight, bias, activation, backend=backend)
    return linear(hidden, down_weight, down_bias, backend=backend)


def _gated_layers(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str,
    backend: str,
) -> Tensor:  # fmt: skip
    """Runs each layer of a gated MLP by itself."""
    if (
        backend == "auto"
        and up_weight is not None
        and is_little("gated_mlp", x, weight, up_weight, down_weight)
    ):
        gate, up = _formula.linear(x, weight, bias), _formula.linear(x, up_weight, up_bias)
        hidden = GATED[activation].call(gate, up, None, None)
        return _formula.linear(hidden, down_weight, down_bias)
    hidden = gated_linear(x, weight, up_weight, bias, up_bias, activation, backend=backend)
    return linear(hidden, down_weight, down_bias, backend=backend)


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
    """Computes ``residual + dropout(act(input @ weight.T + bias) @ down_weight.T + down_bias)``.

    Args:
        input: (..., K), floating-point.
        weight, bias: (F, K) and (F,), as in :func:`linear`.
        down_weight, down_bias: (N, F) and (N,).
        activation: an activation of :func:`linear_act`.
        residual: (..., N), of the dtype of ``input``; under autocast of any dtype.
        dropout_p: the probability that an element is dropped, from 0 to 1.
        training: ``False`` drops nothing.
        seed: seed of dropout, as in :func:`dropout`.
        recompute: which activations are saved for the backward pass, besides ``input`` and
            parameters: with 0 the product with ``weight`` and its activation; with 1 the product;
            with 2 none.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"triton"`` or ``"reference"``, as for
            :func:`linear`. With ``"triton"`` each layer saves its own tensors, as at level 0.

    Returns:
        (..., N), in the dtype of ``input``.

    Dropout and the residual are one pass after the second product, which adds ``down_bias`` too;
    its backward pass draws dropout's numbers again. No gradient is computed for frozen parameters,
    and with a frozen ``down_weight`` level 0 saves what level 1 does.

    >>> x, up, down = torch.randn(2, 5, 32), torch.randn(128, 32), torch.randn(32, 128)
    >>> y = tfk.functional.mlp(x, up, torch.zeros(128), down, torch.zeros(32), residual=x)
    >>> y.shape
    torch.Size([2, 5, 32])
    """
    number, level = chosen("mlp", activation, NUMBERS), as_level("mlp", recompute)
    last_bias = down_bias if residual is None else None
    tensors = (input, weight, bias, down_weight, last_bias)
    y = call_as_one(MLP, "mlp", tensors, number, level, backend)
    if y is None:
        try:
            y = _layers(*tensors, activation, backend)
        except (RuntimeError, TypeError):
            refuse_call(MLP, (*tensors, number, level, False))
            raise
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
    """Computes ``residual + dropout((act(gate) * up) @ down_weight.T + down_bias)``, where ``gate``
    is ``input @ weight.T + bias`` and ``up`` is ``input @ up_weight.T + up_bias``.

    Args:
        weight, up_weight, bias, up_bias: as in :func:`gated_linear`: ``weight`` may pack gate and
            up, and then so does ``bias``.
        down_weight, down_bias: (N, F) and (N,).
        activation: an activation of :func:`gated_linear`.
        recompute: which activations are saved for the backward pass, besides ``input`` and
            parameters: with 0 gate, up and ``act(gate) * up``; with 1 gate and up; with 2 none.

    The other arguments, the result and the remarks are those of :func:`mlp`.

    >>> x, (gate, up) = torch.randn(2, 5, 32), torch.randn(2, 128, 32)
    >>> tfk.functional.gated_mlp(x, gate, up, torch.randn(32, 128), residual=x).shape
    torch.Size([2, 5, 32])
    """
    number, level = chosen("gated_mlp", activation, GATED_NUMBERS), as_level("gated_mlp", recompute)
    last_bias = down_bias if residual is None else None
    tensors = (input, weight, up_weight, bias, up_bias, down_weight, last_bias)
    y = call_as_one(GATED_MLP, "gated_mlp", tensors, number, level, backend)
    if y is None:
        try:
            y = _gated_layers(*tensors, activation, backend)
        except (RuntimeError, TypeError):
            refuse_call(GATED_MLP, (*tensors, number, level, False))
            raise
    return drop_and_add("gated_mlp", y, down_bias, residual, dropout_p, training, seed, backend)
