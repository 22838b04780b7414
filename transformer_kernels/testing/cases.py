# SPDX-License-Identifier: MIT
"""Every op with every option as data, for the shared tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import functional as tfk
from ..ops._register import DECLARED
from ..ops.softmax._ops import SOFTMAX
from . import pointwise, reference
from .case import Case, Problem, Results, as_tuple
from .inputs import randn

EPS = 1e-5


# ---- softmax ------------------------------------------------------------------------------------


def _no_mask(_: Tensor) -> None:
    return None


def _bool_mask(x: Tensor) -> Tensor:
    """Hides about one element in four, and all elements of one row."""
    mask = torch.rand(x.shape, device="cpu") > 0.25
    if mask.numel():
        mask.view(-1, x.shape[-1])[0] = False
    return mask.to(x.device)


def _key_mask(x: Tensor) -> Tensor:
    """One mask for all rows, like padding."""
    return (torch.arange(x.shape[-1], device=x.device) % 5 != 2).expand(x.shape[-1])


def _additive_mask(x: Tensor) -> Tensor:
    mask = randn(x.shape, x.dtype, x.device)
    return mask.masked_fill(mask > 1.0, -torch.inf)


def _additive_float32_column(x: Tensor) -> Tensor:
    """One value per row, of the wider dtype."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    return randn((*x.shape[:-1], 1), dtype, x.device)


def _softmax_case(
    name: str,
    log: bool,
    make_mask: Callable[[Tensor], Tensor | None] = _no_mask,
    scale: float = 1.0,
    causal: bool = False,
) -> Case:
    function = tfk.log_softmax if log else tfk.softmax

    def build(x: Tensor) -> Problem:
        mask = make_mask(x)
        mask64 = mask if mask is None or mask.dtype is torch.bool else mask.double()
        return Problem(
            (x,),
            lambda x, **kw: function(x, -1, mask=mask, scale=scale, causal=causal, **kw),
            lambda x: SOFTMAX.stock(x, mask, scale, causal, log),
            lambda x: reference.softmax(x, mask64, scale, causal, log),
        )

    return Case(f"{'log_' if log else ''}softmax{name}", build, 2 if causal else 1)


def _softmax_cases(log: bool) -> list[Case]:
    return [
        _softmax_case("", log),
        _softmax_case("-scale", log, scale=0.125),
        _softmax_case("-causal", log, scale=0.5, causal=True),
        _softmax_case("-bool", log, _bool_mask, scale=-0.5),
        _softmax_case("-key_mask", log, _key_mask),
        _softmax_case("-additive", log, _additive_mask, scale=2.0),
        _softmax_case("-additive_column", log, _additive_float32_column, causal=True),
    ]


# ---- norms --------------------------------------------------------------------------------------


def _norm_case(
    center: bool,
    name: str,
    weight: bool = True,
    bias: bool = True,
    float32: bool = False,
    zero_centered: bool = False,
    add: bool = False,
) -> Case:
    op = "layer_norm" if center else "rms_norm"
    function: Callable[..., Any] = getattr(tfk, f"add_{op}" if add else op)
    declared = DECLARED[f"add_{op}" if add else op]
    formula = getattr(reference, op)

    def split(tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rest = iter(tensors)
        return (
            next(rest) if add else None,
            next(rest) if weight else None,
            next(rest) if bias else None,
        )

    def ours(x: Tensor, *tensors: Tensor, **options: Any) -> Any:
        residual, w, b = split(tensors)
        shape = (x.shape[-1],)
        first = (x,) if residual is None else (x, residual)
        return function(
            *first, shape, weight=w, bias=b, eps=EPS, zero_centered_weight=zero_centered, **options
        )

    def torch_way(x: Tensor, *tensors: Tensor) -> Any:
        residual, w, b = split(tensors)
        first = (x,) if residual is None else (x, residual)
        return declared.stock(*first, w, b, EPS, zero_centered)

    def build(x: Tensor) -> Problem:
        dtype = torch.float32 if float32 and x.dtype is not torch.float64 else x.dtype
        device, cols = x.device, x.shape[-1:]
        tensors = [x]
        if add:
            tensors.append(randn(x.shape, x.dtype, device))
        tensors += [randn(cols, dtype, device) for present in (weight, bias) if present]

        def exact(x64: Tensor, *rest: Tensor) -> Any:
            residual, w, b = split(rest)
            s = x64 if residual is None else reference.rounded_sum(x64, residual, x.dtype)
            y = formula(s, w, b, EPS, zero_centered)
            return y if residual is None else (y, s)

        return Problem(tuple(tensors), ours, torch_way, exact)

    return Case(f"{'add_' if add else ''}{op}{name}", build)


def _norm_cases(center: bool) -> list[Case]:
    return [
        _norm_case(center, ""),
        _norm_case(center, "-plain", weight=False, bias=False),
        _norm_case(center, "-weight", bias=False, zero_centered=True),
        _norm_case(center, "-bias", weight=False),
        _norm_case(center, "-float32", float32=True),
        _norm_case(center, "-residual", add=True),
        _norm_case(center, "-residual_float32", add=True, float32=True, zero_centered=True),
        _norm_case(center, "-residual_plain", add=True, weight=False, bias=False),
    ]


CASES = [
    *_softmax_cases(log=False),
    *_softmax_cases(log=True),
    *_norm_cases(center=True),
    *_norm_cases(center=False),
    *pointwise.MAIN,
    *(case for case in pointwise.VARIANTS if case.name.startswith(("gelu-", "swiglu-"))),
]
MAIN_CASES = [case for case in CASES if "-" not in case.name or case.name.endswith("-residual")]


# ---- running ------------------------------------------------------------------------------------


def run(
    function: Callable[..., Any], tensors: tuple[Tensor, ...], gradients: Results, **options: Any
) -> tuple[Results, Results]:
    """Results, and the gradients of every tensor. No tensor is cloned, so layouts are kept."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    results = as_tuple(function(*leaves, **options))
    seeds = tuple(g.to(r.dtype).to(r.device) for g, r in zip(gradients, results, strict=True))
    grads = torch.autograd.grad(results, leaves, seeds, allow_unused=True)
    zeros = (torch.zeros_like(leaf) for leaf in leaves)
    filled = tuple(z if g is None else g for g, z in zip(grads, zeros, strict=True))
    return tuple(r.detach() for r in results), filled
