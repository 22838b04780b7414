# SPDX-License-Identifier: MIT
"""Linear layers that share an input and have separate weights, such as queries, keys and values, or
a gate and the values that it scales."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ..._errors import FLOATING, ArgumentTypeError, ArgumentValueError
from ..._library import log_dispatch
from ..._torch import any_autocast, eager_apply, is_batched, is_eager, is_fake, refuses_cublas
from .._declare_checks import check_values, refuse_call
from .._dtype import under_autocast
from .._kinds import PLAIN_CLASSES, PLAIN_OR_NONE, is_plain
from .._public import overridable
from ._as_one import has_gradients
from ._choice import is_little, refusal
from ._formula import as_dtype, as_rows, bias_gradient
from ._formula import linear as product
from ._ops import LINEAR
from ._weights import gradient_of, is_master
from .linear import linear

_OP = "linear_list"


class _SideBySide(torch.autograd.Function):
    """Runs layers whose results are columns of one tensor. The input's gradient is a sum of
    products, each added in place. Weights may be masters beside a 16-bit input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Any) -> tuple[Tensor, ...]:
        weights, biases = parameters[:count], parameters[count:]
        dtype = x.dtype
        copies = [None if weight.dtype is dtype else weight.to(dtype) for weight in weights]
        widths = [weight.shape[0] for weight in weights]
        y = x.new_empty((*x.shape[:-1], sum(widths)))
        rows, parts = as_rows(x), as_rows(y).split_with_sizes(widths, 1)
        for part, weight, copy, bias in zip(parts, weights, copies, biases, strict=True):
            columns = (weight if copy is None else copy).t()
            if bias is None:
                torch.mm(rows, columns, out=part)
            else:
                torch.addmm(as_dtype(bias, dtype), rows, columns, out=part)
        ctx.save_for_backward(x, *weights, *copies)
        ctx.dtypes = [None if bias is None else bias.dtype for bias in biases]
        ctx.set_materialize_grads(False)
        # Each result may be changed in place, like the result of a separate layer.
        return tuple(torch.unsafe_split_with_sizes(y, widths, -1))

    @staticmethod
    def backward(ctx: Any, *dys: Tensor | None) -> Any:
        x, *saved = ctx.saved_tensors
        need_dx, _, *needed = ctx.needs_input_grad
        rows, count = as_rows(x), len(dys)
        weights, copies = saved[:count], saved[count:]
        lowered = [w if c is None else c for w, c in zip(weights, copies, strict=True)]
        arrived = [None if dy is None else as_rows(dy) for dy in dys]
        dx = _sum_of_products(rows, arrived, lowered).view(x.shape) if need_dx else None
        dweights = [
            _weight_gradient(dy, rows, weight) if need and dy is not None else None
            for dy, weight, need in zip(arrived, weights, needed[:count], strict=True)
        ]
        dbiases = [
            bias_gradient(dy, dtype) if need and dy is not None else None
            for dy, dtype, need in zip(arrived, ctx.dtypes, needed[count:], strict=True)
        ]
        return (dx, None, *dweights, *dbiases)


_side_by_side = eager_apply(_SideBySide)


def _weight_gradient(dy: Tensor, rows: Tensor, weight: Tensor) -> Tensor | None:
    if weight.dtype is rows.dtype or torch.is_grad_enabled() or is_batched(dy):
        return as_dtype(dy.t() @ rows, weight.dtype)
    gradient = gradient_of(weight, in_place=True)
    gradient.product(dy, rows)
    return gradient.result


def _sum_of_products(rows: Tensor, dys: Sequence[Tensor | None], weights: list[Tensor]) -> Tensor:
    pairs = [(dy, weight) for dy, weight in zip(dys, weights, strict=True) if dy is not None]
    dx = pairs[0][0] @ pairs[0][1] if pairs else torch.zeros_like(rows)
    # A sum that will be differentiated, or that is part of a batch, is not overwritten.
    new = torch.is_grad_enabled() or is_batched(*dys)
    for dy, weight in pairs[1:]:
        dx = torch.addmm(dx, dy, weight) if new else dx.addmm_(dy, weight)
    return dx


def _checked(weights: Any, biases: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    count = len(_listed("weights", weights))
    if biases is None:
        biases = (None,) * count
    if not count:
        raise ArgumentValueError(f"{_OP}: weights has 0 elements, expected at least 1")
    if len(_listed("biases", biases)) != count:
        raise ArgumentValueError(
            f"{_OP}: biases has {len(biases)} elements, expected {count} (as many as weights)"
        )
    return tuple(weights), tuple(biases)


def _listed(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(
            f"{_OP}: {name} is {type(value).__name__}, expected a list of Tensors"
        )
    return value


def _little_layers(
    x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    try:
        return tuple(map(product, repeat(x), weights, biases))
    except (RuntimeError, TypeError, AttributeError):
        for weight, bias in zip(weights, biases, strict=True):
            refuse_call(LINEAR, (x, weight, bias))
        raise


def _why_apart(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], known_to_fit: bool
) -> str | None:
    """The reason why each layer is a call of its own; None where they run together. Fake tensors go
    the way of the real ones that they stand for, because strides of results depend on the way.
    Operands that no layer takes are refused."""
    others = [t for t in (x, *weights) if type(t) not in PLAIN_CLASSES]
    if not PLAIN_OR_NONE.issuperset(map(type, biases)):
        others += [bias for bias in biases if bias is not None]
    if not all(isinstance(t, Tensor) for t in others):
        return "an operand is no tensor"
    if not is_eager():
        return "a graph or a transform follows the call"
    others = [t for t in (x, *weights) if type(t) not in PLAIN_CLASSES]
    if not (is_plain(x) or is_fake(x)) or not all(map(is_fake, others)):
        return "an operand is more than memory"
    fakes = len(others) > 0
    if not is_little(_OP, x, *weights) and any(
        refusal(_OP, x, weight, fakes=fakes) is None for weight in weights
    ):
        return "our product runs"
    if not (known_to_fit or _fit(x, weights, biases)):
        for weight, bias in zip(weights, biases, strict=True):
            check_values(LINEAR, {"x": x, "weight": weight, "bias": bias})
    return None


def _fit(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Whether they are layers that C++ would take. Most are, and this question takes less time."""
    dtype, device, columns = x.dtype, x.device, x.shape[-1:]
    if dtype not in FLOATING or not columns:
        return False
    for weight, bias in zip(weights, biases, strict=True):
        shape = weight.shape
        if shape[1:] != columns or weight.dtype is not dtype or weight.device != device:
            return False
        if bias is not None and (
            bias.shape != shape[:1] or bias.dtype is not dtype or bias.device != device
        ):
            return False
    return True


def _beside_masters(x: Any, weights: Sequence[Any], biases: Sequence[Any]) -> Tensor | None:
    """The input as autocast casts it, where all weights are masters of matching sizes; None
    otherwise."""
    if not isinstance(x, Tensor) or x.dim() == 0 or refuses_cublas():
        return None
    for weight, bias in zip(weights, biases, strict=True):
        is_one = is_master(x, weight, fakes=True)
        fits = is_one and weight.dim() == 2 and weight.shape[1] == x.shape[-1]
        if not fits or not (bias is None or bias.shape == weight.shape[:1]):
            return None
    lowered: Tensor = under_autocast(x.device.type, x)[0]
    return lowered


@overridable
def linear_list(
    input: Tensor,  # noqa: A002
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """Computes ``tuple(linear(input, w, b) for w, b in zip(weights, biases))``: layers that share
    an input and keep separate parameters.

    No weight is copied or joined to another. Where a gradient is asked for, the results are columns
    of one tensor, and the gradient of ``input`` is summed in place; under autocast a GPU writes the
    gradients of float32 weights in float32. Without one, where :func:`linear` runs our product,
    under autocast otherwise, and in graphs, each layer is a call of its own.

    Args:
        input: (..., K), floating-point.
        weights: one or more (N, K), of ``input``'s dtype.
        biases: as many, each (N,), of ``input``'s dtype or float32, or None.
        backend: as for :func:`linear`.

    Returns:
        One (..., N) for each weight. They may share memory, but no element.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.

    >>> x, weights = torch.randn(2, 5, 64), [torch.randn(n, 64) for n in (64, 16, 16)]
    >>> q, k, v = tfk.functional.linear_list(x, weights)
    >>> q.shape, k.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 5, 16]))
    """
    ws, bs = _checked(weights, biases)
    if backend == "auto" and not torch.is_grad_enabled() and is_little(_OP, input, *ws):
        return _little_layers(input, ws, bs)
    apart = f"backend is {backend!r}" if backend != "auto" else None
    if apart is None and not has_gradients(input, *ws, *bs):
        apart = "no gradient is asked for"
    lowered = None
    if apart is None and any_autocast():
        lowered = _beside_masters(input, ws, bs)
        apart = "autocast is on, and casts some of these" if lowered is None else None
    apart = apart or _why_apart(input, ws, bs, lowered is not None)
    if apart is None:
        x = input if lowered is None else lowered
        results: tuple[Tensor, ...] = _side_by_side(x, len(ws), *ws, *bs)
        return results
    log_dispatch(f"{_OP}: each layer by itself: {apart}")
    return tuple(linear(input, w, b, backend=backend) for w, b in zip(ws, bs, strict=True))
