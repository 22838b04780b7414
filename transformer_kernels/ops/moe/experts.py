# SPDX-License-Identifier: MIT
"""The experts of a mixture: an MLP each, of the tokens that were sent to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    check_kind,
    check_tensors,
    shown,
)
from ..._torch import any_autocast
from .._dtype import accumulate_dtype
from .._public import overridable
from ..linear._weights import as_multiplied
from ..linear.grouped_linear import grouped_linear
from ..pointwise._ops import GATED, PLAIN
from ._experts_ops import MOE_EXPERTS
from .dispatch import DISPATCH, Dispatch, moe_permute, moe_unpermute

_OP = "moe_experts"
_NUMBERS = {name: (number, False) for number, name in enumerate(PLAIN)}
_NUMBERS |= {name: (number, True) for number, name in enumerate(GATED)}

Activate = Callable[..., Tensor]


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float = 7.0, alpha: float = 1.702) -> Tensor:
    """The gate of gpt-oss: ``g * sigmoid(alpha * g) * (u + 1)``, where ``g`` is ``gate``, at most
    ``limit``, and ``u`` is ``up`` from ``-limit`` to ``limit``."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


_COMPOSED: dict[str, Activate] = {"clamped_swiglu": clamped_swiglu}


def _check(x: Tensor, dispatch: Dispatch, activation: str | Activate) -> None:
    check_kind(_OP, "dispatch", dispatch, Dispatch, DISPATCH)
    if x.dim() < 2:
        raise ArgumentValueError(f"{_OP}: x has {x.dim()} dimensions, expected at least 2")
    is_known = isinstance(activation, str) and activation in {**_NUMBERS, **_COMPOSED}
    if not (callable(activation) or is_known):
        kind = ArgumentValueError if isinstance(activation, str) else ArgumentTypeError
        raise kind(
            f"{_OP}: activation is {shown(activation)}, expected a function or one of"
            f" {', '.join((*_NUMBERS, *_COMPOSED))}"
        )


def _halves(both: Tensor, dim: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Splits what packs gate and up."""
    if interleaved:
        both = both.unflatten(dim, (both.shape[dim] // 2, 2))
        return both.select(dim + (dim >= 0), 0), both.select(dim + (dim >= 0), 1)
    gate, up = both.chunk(2, dim)
    return gate, up


def _by_parts(
    x: Tensor, dispatch: Dispatch, weights: Tensor, weight: Tensor, up_weight: Tensor | None,
    bias: Tensor | None, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    activate: Activate, interleaved: bool, backend: str,
) -> Tensor:  # fmt: skip
    """Each step by itself, for an activation that the products do not know."""
    rows, offsets = moe_permute(x, dispatch, backend=backend), dispatch.offsets
    gate = grouped_linear(rows, weight, offsets, bias, backend=backend)
    if up_weight is None:
        gate, up = _halves(gate, -1, interleaved)
    else:
        up = grouped_linear(rows, up_weight, offsets, up_bias, backend=backend)
    h = activate(gate, up).to(x.dtype)
    y = grouped_linear(h, down_weight, offsets, down_bias, backend=backend)
    return moe_unpermute(y, dispatch, weights, backend=backend)


@overridable
def moe_experts(
    input: Tensor,  # noqa: A002
    dispatch: Dispatch,
    weights: Tensor,
    weight: Tensor,
    down_weight: Tensor,
    activation: str | Activate = "swiglu",
    *,
    up_weight: Tensor | None = None,
    bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    interleaved: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Runs each token through the MLPs of its experts, and sums what they return with the router's
    weights: one pass forward and one backward, which save ``input`` and the products of gate and
    up. No row is copied to its expert, and weights stay as they lie. Where the samples of
    ``torch.func.vmap`` choose experts each, every row is multiplied with every weight.

    Args:
        input: (..., D), T tokens, floating-point.
        dispatch: the places of the tokens with their experts, from :func:`moe_dispatch`.
        weights: (..., K), the router's.
        weight: (E, F, D) in the dtype of ``input``, of any strides; or (E, 2F, D), which packs gate
            and up, in this order.
        down_weight: (E, C, F).
        activation: one of :func:`gated_linear` or :func:`linear_act`; ``"clamped_swiglu"``, that of
            gpt-oss; or a function of gate and up, made of PyTorch's operations. The last two run
            step by step and save what autograd saves.
        up_weight: (E, F, D), of a gated activation whose ``weight`` is that of the gate alone.
        bias, up_bias: (E, F) each, or (E, 2F) for both.
        down_bias: (E, C).
        interleaved: whether rows of gate and of up take turns in a ``weight`` that packs them, and
            in its bias, as in gpt-oss.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"`` or ``"reference"``.

    Returns:
        (..., C), in the dtype of ``input``. A dropped assignment adds nothing.

    Raises:
        ValueError: a shape or the activation is none of these.
        TypeError: a dtype is none of these.

    >>> x, logits = torch.randn(3, 4), torch.randn(3, 8)
    >>> weights, indices = tfk.functional.moe_router(logits, 2)
    >>> d = tfk.functional.moe_dispatch(indices, 8)
    >>> gate_up, down = torch.randn(8, 2 * 6, 4), torch.randn(8, 4, 6)
    >>> tfk.functional.moe_experts(x, d, weights, gate_up, down).shape
    torch.Size([3, 4])
    """
    tensors = {
        "x": input, "weights": weights, "weight": weight, "down_weight": down_weight,
        "up_weight": up_weight, "bias": bias, "up_bias": up_bias, "down_bias": down_bias,
    }  # fmt: skip
    check_tensors(_OP, tensors, "up_weight", "bias", "up_bias", "down_bias")
    _check(input, dispatch, activation)
    interleaved = as_flag(_OP, "interleaved", interleaved)
    shape = input.shape
    rows = input if input.dim() == 2 else input.flatten(0, -2)
    weights = weights if weights.dim() <= 2 else weights.reshape(-1, weights.shape[-1])
    if any_autocast():
        rows, weight, up_weight, bias, up_bias, down_weight, down_bias = as_multiplied(
            rows, weight, up_weight, bias, up_bias, down_weight, down_bias, masters=False,
            wide_biases=False,
        )  # fmt: skip
    if not isinstance(activation, str) or activation in _COMPOSED:
        activate = _COMPOSED[activation] if isinstance(activation, str) else activation
        y = _by_parts(
            rows, dispatch, weights, weight, up_weight, bias, up_bias, down_weight, down_bias,
            activate, interleaved, backend,
        )  # fmt: skip
    else:
        number, gated = _NUMBERS[activation]
        if gated and up_weight is None:
            if bias is not None and up_bias is None:
                if bias.dim() != 2:
                    raise ArgumentValueError(
                        f"{_OP}: bias has {bias.dim()} dimensions, expected 2 (one row an expert)"
                    )
                bias, up_bias = _halves(bias, 1, interleaved)
            if interleaved:
                weight, up_weight = _halves(weight, 1, True)
        y = MOE_EXPERTS.call(
            rows, weights.to(accumulate_dtype(rows)), *dispatch, weight, up_weight, bias, up_bias,
            down_weight, down_bias, number, gated, backend,
        )  # fmt: skip
    return y.reshape(*shape[:-1], y.shape[-1])
