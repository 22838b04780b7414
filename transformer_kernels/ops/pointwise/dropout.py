# SPDX-License-Identifier: MIT
"""Dropout, alone and between a bias and a residual (Srivastava et al. 2014).

dropout             y = dropped ? 0 : x * scale
bias_dropout_add    y = (dropped ? 0 : (x + bias) * scale) + residual
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import _torch
from ..._errors import as_flag, as_number
from ..._library import log_dispatch
from .._declare import Kernels
from .._declare_arguments import Like, Number, Param, Result, Rows, Seed
from .._dtype import accumulate_dtype
from .._parallel import elements
from .._philox import VALUES, fresh_seed, kept, scale, threshold
from .._public import overridable
from .._register import declare
from .._sharding import agreed

P = Number("p", least=0.0, most=1.0)


def _drop(x: Tensor, seed: Tensor | None, p: float) -> Tensor:
    """Drops elements of a tensor in the arithmetic's dtype; dropped ones are 0, even if not
    finite."""
    stay = kept(x.shape, p, seed, x.device)
    return torch.where(stay, x * scale(p), 0.0)


def dropout_formula(x: Tensor, seed: Tensor | None, p: float) -> Tensor:
    """Computes the forward pass of x, and equally the backward pass of dy."""
    return _drop(x.to(accumulate_dtype(x)), seed, p).to(x.dtype).contiguous()


def bias_dropout_add_formula(
    x: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor | None, p: float
) -> Tensor:
    wide = x.to(accumulate_dtype(x))
    if bias is not None:
        wide = wide + bias.to(wide.dtype)
    return (_drop(wide, seed, p) + residual.to(wide.dtype)).to(residual.dtype).contiguous()


def bias_dropout_add_gradient(
    dy: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, need_dbias: bool
) -> tuple[Tensor, Tensor]:
    dx = _drop(dy.to(accumulate_dtype(dy)), seed, p)
    if bias is None or not need_dbias:
        dbias = dy.new_empty(0)
    else:
        dbias = dx.reshape(-1, dx.shape[-1]).sum(0).to(bias.dtype)
    return dx.to(dy.dtype).contiguous(), dbias


def _draws(p: float) -> bool:
    """Whether some elements may stay and others be dropped."""
    return 0 < threshold(p) < VALUES


def _dropout_triton() -> Kernels:
    from .dropout_triton import DROPOUT

    return DROPOUT


def _bias_dropout_add_triton() -> Kernels:
    from .dropout_triton import BIAS_DROPOUT_ADD

    return BIAS_DROPOUT_ADD


def _stock_dropout(x: Tensor, seed: Tensor | None, p: float) -> Tensor:  # noqa: ARG001
    return _torch.dropout(x, p)


def _stock_add(
    x: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor | None, p: float  # noqa: ARG001
) -> Tensor:  # fmt: skip
    branch = x if bias is None else x + bias
    return (residual + _torch.dropout(branch, p)).to(residual.dtype)


DROPOUT = declare(
    "dropout",
    function="functional.dropout",
    stock=_stock_dropout,
    parallel=elements,
    arguments=(Rows("x"), Seed("seed", of_elements=True), P),
    results=(Result("y"),),
    backward="(dy, seed, p) -> dx",
    formula=dropout_formula,
    gradient=dropout_formula,
    triton=_dropout_triton,
    replaces=(F.dropout, nn.Dropout),
    text="x * (random >= p) / (1 - p)",
)

BIAS_DROPOUT_ADD = declare(
    "bias_dropout_add",
    function="functional.bias_dropout_add",
    stock=_stock_add,
    parallel=elements,
    unread=("bias",),
    arguments=(
        Rows("x"),
        Param("bias"),
        Like("residual"),
        Seed("seed", of_elements=True),
        P,
    ),
    results=(Result("y"),),
    backward="(dy, bias, seed, p, need_dbias) -> dx, dbias",
    passed={"residual": "y"},
    formula=bias_dropout_add_formula,
    gradient=bias_dropout_add_gradient,
    triton=_bias_dropout_add_triton,
    text="residual + (x + bias) * (random >= p) / (1 - p)",
)


def drawn(
    op: str, x: Tensor, p: float, training: bool, seed: Tensor | None, given_as: Number = P
) -> tuple[Tensor | None, float]:
    """The seed, if one is needed, and the probability, which is 0 if nothing is dropped."""
    name = given_as.name
    number = as_number(op, name, p)
    given_as.check(op, number, {})
    if not as_flag(op, "training", training):
        return None, 0.0
    if number > 0 and threshold(number) == 0:
        log_dispatch(f"{op}: {name} is {number:g}, below 2^-17: nothing is dropped")
        number = 0.0
    if not _draws(number):
        return None, number
    if seed is None and isinstance(x, Tensor):
        seed = agreed(fresh_seed(x.device), x)
    return seed, number


@overridable
def dropout(
    input: Tensor,  # noqa: A002
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.dropout`, with a seed.

    Element ``e`` of the flattened tensor is dropped if its 16 random bits are below ``t = round(p *
    65536)``; the others are multiplied by ``65536 / (65536 - t)``, so that the mean is exact. A
    seed drops the same elements on every device and backend. A dropped element is 0, even if it was
    not finite. Below ``p = 2**-17`` nothing is dropped.

    Args:
        input: a floating-point tensor, of any strides.
        p: the probability that an element is dropped, from 0 to 1.
        training: ``False`` returns ``input``.
        inplace: write the result to ``input`` and return that.
        seed: int64 seed and offset, (2,), on the CPU or on the device of ``input``; by default
            drawn from the device's generator.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    >>> x, seed = torch.ones(4, 64), torch.tensor([42, 0])
    >>> y = tfk.functional.dropout(x, 0.1, seed=seed)
    >>> torch.equal(y, tfk.functional.dropout(x, 0.1, seed=seed))  # a seed repeats the mask
    True
    """
    seed, p = drawn("dropout", input, p, training, seed)
    if p == 0 and isinstance(input, Tensor):
        return input
    y: Tensor = DROPOUT.call(input, seed, p, backend)
    return input.copy_(y) if inplace else y


@overridable
def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    training: bool = True,
    *,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Computes ``residual + dropout(x + bias, p)``, which follows attention and MLPs.

    Drops elements as :func:`dropout` does. The backward pass reads only ``dy``: it draws the random
    numbers again.

    Args:
        x: a floating-point tensor (..., C), of any strides.
        bias: (C), of ``x``'s dtype or float32; or None.
        residual: has the shape and dtype of ``x``.
        p: the probability that an element is dropped, from 0 to 1.
        training: ``False`` drops nothing.
        seed: int64 seed and offset, (2,), on the CPU or on the device of ``x``; by default drawn
            from the device's generator.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    >>> x, residual = torch.randn(2, 2, 5, 64)
    >>> y = tfk.functional.bias_dropout_add(x, torch.zeros(64), residual, p=0.1)
    >>> y.shape
    torch.Size([2, 5, 64])
    """
    seed, p = drawn("bias_dropout_add", x, p, training, seed)
    y: Tensor = BIAS_DROPOUT_ADD.call(x, bias, residual, seed, p, backend)
    return y
