# SPDX-License-Identifier: MIT
"""Linear layers: y = act(x weight^T + bias)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError, shown
from ..._library import log_dispatch, logs_dispatch
from ..._torch import refuses_cublas
from .._declare import Op
from .._declare_checks import refuse_call
from .._public import overridable
from ..fpga.linear import on_array
from ..pointwise._ops import GATED, PLAIN
from ..pointwise.table import ACTIVATIONS
from . import _formula, _kept, _onednn
from ._as_one import as_level, call_as_one
from ._choice import choose, is_little, refusal
from ._mlp_ops import GATED_MLP, MLP
from ._ops import LINEAR, LINEAR_ACT
from ._routed import call as _routed_call
from ._tuned import OURS, TORCH, Routes
from ._weights import as_multiplied, is_master

NUMBERS = {row.name: number for number, row in enumerate(ACTIVATIONS)}
GATED_NUMBERS = {name: number for number, name in enumerate(GATED)}

_call = LINEAR.call
_act_call = LINEAR_ACT.call


def chosen(op: str, activation: Any, table: Mapping[str, Any]) -> Any:
    found = table.get(activation) if isinstance(activation, str) else None
    if found is not None:
        return found
    kind = ArgumentValueError if isinstance(activation, str) else ArgumentTypeError
    raise kind(f"{op}: activation is {shown(activation)}, expected one of {', '.join(table)}")


def _torch_product(
    op: Op, x: Tensor, weight: Tensor, bias: Tensor | None, *others: Any, little: bool = False
) -> Tensor:
    """Runs PyTorch's product; its errors are raised in our words. For a little one PyTorch has no
    second function."""
    try:
        y = None if little else _onednn.product(op.name, x, weight, bias)
        return _formula.linear(x, weight, bias) if y is None else y
    except (RuntimeError, TypeError, AttributeError):
        refuse_call(op, (x, weight, bias, *others))
        raise


def by_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, little: bool = False
) -> Tensor:  # fmt: skip
    """A layer by PyTorch's product, with a kernel for the activation, if there is one."""
    if activation is None:
        return _torch_product(LINEAR, x, weight, bias, little=little)
    z = _torch_product(LINEAR_ACT, x, weight, bias, NUMBERS[activation], little=little)
    return cast(Tensor, PLAIN[activation].call(z, None))


def _as_multiplied(
    x: Any, *parameters: Tensor | None, masters: bool = False, wide_biases: bool = True
) -> tuple[Any, ...]:
    """Casts tensors as autocast does on CUDA; on the CPU our product takes tensors as they are."""
    if not (isinstance(x, Tensor) and x.is_cuda and torch.is_autocast_enabled("cuda")):
        return x, *parameters
    return as_multiplied(x, *parameters, masters=masters, wide_biases=wide_biases)


@overridable
def linear(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.linear`: ``input @ weight.T + bias``.

    Args:
        input: (..., K), floating-point.
        weight: (N, K), of ``input``'s dtype and any strides. One stored as (K, N), as in Hugging
            Face's ``Conv1D``, is passed as ``weight.t()`` and read without a copy.
        bias: (N,), of ``input``'s dtype or float32.
        backend: ``"auto"`` runs our product, PyTorch's, or on CUDA cuBLASLt's, whichever was
            measured to be faster; ``"cpu"`` and ``"cuda"`` run ours, ``"triton"`` ours in Triton,
            ``"reference"`` PyTorch's. ``"fpga"`` multiplies in int8 on the array that
            :mod:`transformer_kernels.fpga` describes, without gradients.

    Returns:
        (..., N), in the dtype of ``input``. Sums are in float32 (float64 for float64).

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.

    >>> x, weight, bias = torch.randn(4, 64), torch.randn(32, 64), torch.zeros(32)
    >>> y = tfk.functional.linear(x, weight, bias)  # (..., K) -> (..., N)
    >>> torch.allclose(y, torch.nn.functional.linear(x, weight, bias), atol=1e-4)
    True
    """
    if backend == "fpga":
        return on_array(input, weight, bias)
    if backend == "auto":
        if is_little("linear", input, weight):
            return _torch_product(LINEAR, input, weight, bias, little=True)
        if (y := _kept.product(input, weight, bias)) is not None:
            return y
        reason, routes = choose("linear", input, weight)
        if reason is not None:
            return _torch_product(LINEAR, input, weight, bias)
        # PyTorch's product computes the gradient of a master weight.
        master = is_master(input, weight) and not refuses_cublas()
        if routes is None and master:
            routes = Routes(dweight=TORCH)
        if routes is not None:
            if logs_dispatch():
                log_dispatch(f"linear: products run by routes: {routes} (numbers are cuBLASLt's)")
            wide = routes.y == OURS  # other routes would add a float32 bias in a pass of its own
            operands = _as_multiplied(input, weight, bias, masters=master, wide_biases=wide)
            return cast(Tensor, _routed_call(*operands, *routes))
    return _call(*_as_multiplied(input, weight, bias), backend)


@overridable
def linear_act(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "gelu",
    *,
    recompute: int = 1,
    backend: str = "auto",
) -> Tensor:
    """Computes ``act(input @ weight.T + bias)``.

    The sum is rounded to the dtype of ``input`` and saved for the backward pass, which computes the
    slope of the activation from it. After PyTorch's product the activation is a kernel of its own;
    otherwise it is applied to each block of the result while that is in the cache, or in registers.

    Args:
        activation: the activation of one tensor: ``"gelu"``, ``"gelu_tanh"``, ``"silu"``,
            ``"relu"``, ``"relu_squared"`` or ``"quick_gelu"``.
        recompute: 2 saves only ``input`` and computes the product again in the backward pass; 0 and
            1 save the product, and so does ``"triton"``.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"triton"`` or ``"reference"``.

    The other arguments and the result are those of :func:`linear`.

    >>> x, weight, bias = torch.randn(4, 64), torch.randn(32, 64), torch.zeros(32)
    >>> tfk.functional.linear_act(x, weight, bias, "gelu_tanh").shape
    torch.Size([4, 32])
    """
    number = chosen("linear_act", activation, NUMBERS)
    if as_level("linear_act", recompute) == 2:
        tensors = (input, weight, bias, None, None)
        y = call_as_one(MLP, "linear_act", tensors, number, 2, backend)
        if y is not None:
            return y
    if backend == "auto":
        little = is_little("linear_act", input, weight)
        if not little and (y := _kept.product(input, weight, bias, number)) is not None:
            return y
        if little or refusal("linear_act", input, weight, activated=True) is not None:
            return by_torch(input, weight, bias, activation, little=little)
    return cast(Tensor, _act_call(*_as_multiplied(input, weight, bias), number, backend))


def _is_one_on_cuda(x: Any, bias: Any, up_bias: Any) -> bool:
    """Whether gate and up may be one kernel, which needs biases of one dtype."""
    pair = [b.dtype for b in (bias, up_bias) if isinstance(b, Tensor)]
    return isinstance(x, Tensor) and x.is_cuda and len(set(pair)) < 2


@overridable
def gated_linear(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    up_weight: Tensor | None = None,
    bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    activation: str = "swiglu",
    *,
    recompute: int = 1,
    backend: str = "auto",
) -> Tensor:
    """Computes ``act(input @ weight.T + bias) * (input @ up_weight.T + up_bias)``.

    Args:
        weight: (N, K); or without ``up_weight`` (2N, K), the rows of the gate followed by those of
            up, which are read without a copy.
        bias: (N,), or (2N,) for both.
        activation: an activation with a gate: ``"geglu"``, ``"geglu_tanh"``, ``"swiglu"`` or
            ``"reglu"``.
        recompute: 2 saves only ``input`` and computes the products again in the backward pass; 0
            and 1 save the products, and so does ``"triton"``.
        backend: as for :func:`linear`.

    On Hopper, both products and the gate are one kernel. Elsewhere the product is :func:`linear`,
    and the rest is one kernel after it. The other arguments and the result are those of
    :func:`linear`.

    >>> x, gate_weight, up_weight = torch.randn(4, 64), torch.randn(32, 64), torch.randn(32, 64)
    >>> tfk.functional.gated_linear(x, gate_weight, up_weight).shape  # (..., K) -> (..., N)
    torch.Size([4, 32])
    """
    gated = chosen("gated_linear", activation, GATED)
    level = as_level("gated_linear", recompute)
    if up_weight is None and up_bias is not None:
        raise ArgumentValueError(
            "gated_linear: up_bias is present, expected none (bias is of gate and up)"
        )
    if level == 2 or _is_one_on_cuda(input, bias, up_bias):
        tensors = (input, weight, up_weight, bias, up_bias, None, None)
        number = GATED_NUMBERS[activation]
        y = call_as_one(GATED_MLP, "gated_linear", tensors, number, level, backend)
        if y is not None:
            return y
    if (
        backend == "auto"
        and up_weight is not None
        and is_little("gated_linear", input, weight, up_weight)
    ):
        gate = _torch_product(LINEAR, input, weight, bias, little=True)
        up: Tensor | None = _torch_product(LINEAR, input, up_weight, up_bias, little=True)
        return cast(Tensor, gated.call(gate, up, None, None))
    gate = linear(input, weight, bias, backend=backend)
    up = None if up_weight is None else linear(input, up_weight, up_bias, backend=backend)
    behind = backend if backend == "triton" else "auto"
    return cast(Tensor, gated.call(gate, up, None, None, behind))
