# SPDX-License-Identifier: MIT
"""The activations as functions: one for each row of the table, and two that choose between rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, as_choice
from .._declare import Call
from .._public import overridable
from ._ops import GATED, PLAIN
from .table import ACTIVATIONS, Activation

Function = Callable[..., Tensor]

_DOC = """Computes ``{formula}``.

Args:
{arguments}
    backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

>>> tfk.functional.{name}({example}).shape
torch.Size([2, 64])
"""
_INPUT = "    input: a floating-point tensor, of any strides."
_IN_PLACE = """
    inplace: write the result to ``input`` and return that. To autograd it means what it means
        in PyTorch; it saves no memory, because the kernel's result is copied."""
_BIAS = "\n    bias: one value for each column, of ``input``'s dtype or float32; added first."
_GATED = """\
    gate: (..., I); without ``up`` the packed pair (..., 2I) = [gate | up].
    up: of the shape and dtype of ``gate``.
    bias: (I), or (2I) for the packed pair; of ``gate``'s dtype or float32; added first.
    up_bias: (I), the same for ``up``."""
_EXAMPLES = ("torch.randn(2, 64)", "torch.randn(2, 2 * 64)")  # of one tensor, of a packed pair

# ``approximate`` chooses one of these.
_GELU = {"none": PLAIN["gelu"].call, "tanh": PLAIN["gelu_tanh"].call}
_GEGLU = {"none": GATED["geglu"].call, "tanh": GATED["geglu_tanh"].call}


@overridable
def gelu(
    input: Tensor,  # noqa: A002
    approximate: str = "none",
    *,
    bias: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.gelu`, with a bias.

    ``x / 2 * (1 + erf(x / sqrt(2)))``, or with ``approximate="tanh"``
    ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``.

    Args:
        input: a floating-point tensor, of any strides.
        approximate: ``"none"`` or ``"tanh"``.
        bias: one value for each column, of ``input``'s dtype or float32; added first.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    >>> x = torch.randn(2, 5, 64)
    >>> y = tfk.functional.gelu(x, approximate="tanh", bias=torch.zeros(64))
    >>> torch.allclose(y, torch.nn.functional.gelu(x, approximate="tanh"), atol=1e-5)
    True
    """
    call = as_choice("gelu", "approximate", approximate, _GELU, ArgumentTypeError)
    return call(input, bias, backend)


@overridable
def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    approximate: str = "none",
    *,
    bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Computes ``gelu(gate) * up``, with the approximations of :func:`gelu`.

    Args:
        gate: (..., I); without ``up`` the packed pair (..., 2I) = [gate | up].
        up: has the shape and dtype of ``gate``.
        approximate: ``"none"`` or ``"tanh"``.
        bias: (I), or (2I) for the packed pair; of ``gate``'s dtype or float32; added first.
        up_bias: (I), likewise for ``up``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    >>> gate, up = torch.randn(2, 2, 5, 64)
    >>> y = tfk.functional.geglu(gate, up)
    >>> torch.equal(y, tfk.functional.geglu(torch.cat([gate, up], -1)))  # the packed pair
    True
    """
    call = as_choice("geglu", "approximate", approximate, _GEGLU, ArgumentTypeError)
    return call(gate, up, bias, up_bias, backend)


def _plain_function(call: Call) -> Function:
    def plain(
        input: Tensor,  # noqa: A002
        *,
        bias: Tensor | None = None,
        backend: str = "auto",
    ) -> Tensor:
        return call(input, bias, backend)

    return plain


def _in_place_function(call: Call) -> Function:
    def in_place(
        input: Tensor,  # noqa: A002
        inplace: bool = False,
        *,
        bias: Tensor | None = None,
        backend: str = "auto",
    ) -> Tensor:
        if not inplace:
            return call(input, bias, backend)
        # Autograd saves the input, so it must not be overwritten.
        keep = torch.is_grad_enabled() and input.requires_grad
        kept = input.clone() if keep else input
        return input.copy_(call(kept, bias, backend))

    return in_place


def _gated_function(call: Call) -> Function:
    def gated(
        gate: Tensor,
        up: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        backend: str = "auto",
    ) -> Tensor:
        return call(gate, up, bias, up_bias, backend)

    return gated


def _public(function: Function, name: str, formula: str, arguments: str) -> Function:
    function.__name__ = function.__qualname__ = name
    example = _EXAMPLES[arguments is _GATED]
    function.__doc__ = _DOC.format(name=name, formula=formula, arguments=arguments, example=example)
    return overridable(function)


def _functions_of(row: Activation) -> dict[str, Function]:
    plain = PLAIN[row.name].call
    functions = {
        row.name: _public(_in_place_function(plain), row.name, row.text, _INPUT + _IN_PLACE + _BIAS)
        if row.has_in_place
        else _public(_plain_function(plain), row.name, row.text, _INPUT + _BIAS)
    }
    if row.gated:
        gated, formula = GATED[row.gated].call, f"act(gate) * up`` with ``act(x) = {row.text}"
        functions[row.gated] = _public(_gated_function(gated), row.gated, formula, _GATED)
    return functions


_CHOSEN = ("gelu", "gelu_tanh")  # the rows of one function, above

FUNCTIONS: dict[str, Function] = {"gelu": gelu, "geglu": geglu}
for _row in ACTIVATIONS:
    if _row.name not in _CHOSEN:
        FUNCTIONS |= _functions_of(_row)
globals().update(FUNCTIONS)
