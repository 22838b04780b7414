# SPDX-License-Identifier: MIT
"""Parameters of any strides, for every op that has some, with and without gradients: a bias may be
a column of a matrix, one expanded number, or begin anywhere in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import Argument, Indices, Seed, as_tuple
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": lambda t: torch.stack((t, t + t), -1)[..., 0],
    "expanded": lambda t: t[..., :1].expand(t.shape),
    "offset": lambda t: torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)

# Offsets of sequences have no gaps, as in every library that has them; a seed is two numbers.
_PACKED = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")


def _is_parameter(argument: Argument) -> bool:
    """Whether the argument is a parameter; row tensors have tests of their own."""
    return (
        argument.is_tensor
        and not argument.has_rows
        and not isinstance(argument, (Seed, Indices))
        and argument.name not in _PACKED
    )


def _run(op: Op, given: dict[str, Any], names: list[str], backend: str) -> Iterator[Tensor]:
    leaves = {name: given[name].detach().requires_grad_() for name in names}
    results = [y for y in as_tuple(op.call(*(given | leaves).values(), backend)) if y.numel()]
    yield from results
    if leaves:
        results = [y for y in results if y.requires_grad]  # an accuracy has no gradient
        dys = [torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape) for y in results]
        yield from torch.autograd.grad(results, list(leaves.values()), dys)


def _assert_close(a: Tensor, b: Tensor) -> None:
    """Results may differ by the order of their sums, so the absolute tolerance is that of numbers
    up to 1, or of the largest."""
    finite = b.detach().abs().nan_to_num(0, 0)
    largest = finite.max().clamp(min=1) if b.numel() else 1
    torch.testing.assert_close(a / largest, b / largest)


PARAMETERS = [
    pytest.param(op, argument.name, id=f"{op.name}-{argument.name}")
    for op in DECLARED.values()
    for argument in op.arguments[1:]
    if _is_parameter(argument)
]


@each_layout
@pytest.mark.parametrize(("op", "name"), PARAMETERS)
def test_every_parameter(
    op: Op, name: str, layout: Callable[[Tensor], Tensor], device: str
) -> None:
    """Eager calls with every choice of the other arguments; calls that name a backend with one."""
    backends = ["auto", "reference", device]
    for given in combinations(op, device):
        if given[name] is None:
            continue
        laid = layout(given[name])
        named = [n for n in op.differentiable if given[n] is not None]
        for backend in backends:
            for names in ([], named):
                other = {**given, name: laid.clone(memory_format=torch.contiguous_format)}
                found = _run(op, {**given, name: laid}, names, backend)
                expected = _run(op, other, names, backend)
                for a, b in zip(found, expected, strict=True):
                    assert a.shape == b.shape
                    _assert_close(a, b)
        backends = ["auto"]


IN_TRITON = [
    pytest.param(*p.values, id=p.id)
    for p in PARAMETERS
    if p.values[0].triton is not None and p.values[0].name != "attention"
]


@pytest.mark.parametrize(("op", "name"), IN_TRITON)
def test_every_parameter_in_triton(op: Op, name: str, device: str) -> None:
    """All ops but attention, whose Triton kernels have none of these arguments."""
    pytest.importorskip("triton")
    given = next(values for values in combinations(op, device) if values[name] is not None)
    laid = LAYOUTS["strided"](given[name])
    other = {**given, name: laid.clone(memory_format=torch.contiguous_format)}
    named = [n for n in op.differentiable if given[n] is not None]
    found, expected = (_run(op, g, named, "triton") for g in ({**given, name: laid}, other))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


# ---- functions that choose between ops ----------------------------------------------------------

X, UP, V = (3, 8), (16, 8), (16,)
CALLS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any]]] = {
    "linear": ((X, UP, V), F.linear),
    "linear_act": ((X, UP, V), F.linear_act),
    "linear_act, recompute 2": ((X, UP, V), lambda *t: F.linear_act(*t, recompute=2)),
    "gated_linear": ((X, UP, UP, V, V), F.gated_linear),
    "gated_linear, recompute 2": (
        (X, UP, UP, V, V), lambda *t: F.gated_linear(*t, recompute=2)
    ),
    "gated_linear, packed": ((X, UP, V), lambda x, w, b: F.gated_linear(x, w, None, b)),
    "mlp": ((X, UP, V, (8, 16), (8,)), F.mlp),
    "mlp, residual": (
        (X, UP, V, (8, 16), (8,), X), lambda *t: F.mlp(*t[:5], residual=t[5])
    ),
    "gated_mlp": (
        (X, UP, UP, (8, 16), V, V, (8,)),
        lambda x, w, u, d, b, ub, db: F.gated_mlp(x, w, u, d, bias=b, up_bias=ub, down_bias=db),
    ),
    "linear_list": (
        (X, UP, X, V, (3,)), lambda x, v, w, b, c: F.linear_list(x, [v, w], [b, c])
    ),
    "bias_dropout_add": ((X, (8,), X), lambda x, b, r: F.bias_dropout_add(x, b, r, 0.0)),
    "layer_norm": ((X, (8,), (8,)), lambda x, w, b: F.layer_norm(x, (8,), w, b)),
    "layer_norm of two dimensions": (
        ((2, *X), X, X), lambda x, w, b: F.layer_norm(x, X, w, b)
    ),
    "linear_cross_entropy": (
        (X, UP, V), lambda x, w, b: F.linear_cross_entropy(x, w, x[:, 0].long() % 8, linear_bias=b)
    ),
}  # fmt: skip


@each_layout
@pytest.mark.parametrize(("shapes", "call"), CALLS.values(), ids=CALLS)
def test_functions(
    shapes: Any, call: Callable[..., Any], layout: Callable[[Tensor], Tensor], device: str
) -> None:
    x, *parameters = (torch.randn(shape, device=device) for shape in shapes)
    laid = [layout(t) for t in parameters]
    packed = [t.clone(memory_format=torch.contiguous_format) for t in laid]
    for wanted in (False, True):
        found, expected = (
            _results(call, [x, *(t.detach().requires_grad_(wanted) for t in tensors)])
            for tensors in (laid, packed)
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def _results(call: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
    results = list(as_tuple(call(*tensors)))
    leaves = [t for t in tensors if t.requires_grad]
    if leaves:
        results += torch.autograd.grad([y.sum() for y in results], leaves)
    return results
