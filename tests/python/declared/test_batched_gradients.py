# SPDX-License-Identifier: MIT
"""Backward passes of many gradients at once, as ``is_grads_batched``, ``jacobian(vectorize=True)``
and vmap over a vjp ask for them, against one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from transformer_kernels import functional as F
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import as_tuple
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.declared import combinations

WAYS = ["is_grads_batched", "vmap"]
COUNT = 3


def _gradients(
    results: Sequence[Tensor],
    leaves: Sequence[Tensor],
    dys: Any,
    create_graph: bool,
    **options: Any,
) -> Any:
    return torch.autograd.grad(
        results, leaves, dys, retain_graph=True, allow_unused=True, create_graph=create_graph,
        **options,
    )  # fmt: skip


def _batched(
    way: str, results: Sequence[Tensor], leaves: Sequence[Tensor], dys: Any, create_graph: bool
) -> Any:
    if way == "vmap":
        one = lambda *dy: _gradients(results, leaves, dy, create_graph)  # noqa: E731
        return torch.func.vmap(one)(*dys)
    return _gradients(results, leaves, dys, create_graph, is_grads_batched=True)


def _check(
    way: str, call: Callable[..., Any], leaves: Sequence[Tensor], create_graph: bool, once: bool
) -> None:
    """Compares batched gradients with one after the other. With ``once`` the op returns its
    gradient in one backward pass only, so each has a graph of its own."""

    def graph() -> list[Tensor]:
        return [y for y in as_tuple(call(*leaves)) if y.numel() and y.requires_grad]

    results = graph()
    dys = [torch.randn(COUNT, *y.shape, dtype=y.dtype, device=y.device) for y in results]
    found = _batched(way, results, leaves, dys, create_graph)
    for i in range(COUNT):
        results = graph() if once else results
        expected = _gradients(results, leaves, [dy[i] for dy in dys], create_graph)
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", DECLARED.values(), ids=lambda op: op.name)
def test_every_op(op: Op, way: str, device: str) -> None:
    for given in combinations(op, device):
        names = [name for name in op.differentiable if given[name] is not None]
        leaves = [given[name].clone().requires_grad_() for name in names]

        def call(*tensors: Tensor, given: Any = given, names: Any = names) -> Any:
            return op.call(*(given | dict(zip(names, tensors, strict=True))).values())

        for create_graph in (False, True):
            _check(way, call, leaves, create_graph, once=False)


# ---- functions that choose between ops ----------------------------------------------------------

X, W, D, V = (3, 4), (6, 4), (4, 6), (6,)
LABELS = torch.tensor([1, 0, 5])


def _labels(x: Tensor) -> Tensor:
    return LABELS.to(x.device)


def _quantized(x: Tensor, bias: Tensor) -> Tensor:
    packed, scales = F.quantize_weight(torch.linspace(-1, 1, 24, device=x.device).view(6, 4), 8, 2)
    return F.quantized_linear(x, packed, scales, bias)


CALLS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any]]] = {
    "linear": ((X, W, V), F.linear),
    "linear_act": ((X, W, V), F.linear_act),
    "linear_act, recompute 2": ((X, W, V), lambda *t: F.linear_act(*t, recompute=2)),
    "gated_linear": ((X, W, W), F.gated_linear),
    "gated_linear, recompute 2": ((X, W, W), lambda *t: F.gated_linear(*t, recompute=2)),
    **{
        f"mlp, recompute {n}": ((X, W, V, D, (4,)), lambda *t, n=n: F.mlp(*t, recompute=n))
        for n in (0, 1, 2)
    },
    "gated_mlp": ((X, W, W, D), F.gated_mlp),
    "gated_mlp, residual": ((X, W, W, D, X), lambda *t: F.gated_mlp(*t[:4], residual=t[4])),
    "linear_list": ((X, W, V, W), lambda x, w, b, v: F.linear_list(x, [w, v], [b, None])),
    "linear_list of more dimensions": (
        ((2, *X), W, V, W), lambda x, w, b, v: F.linear_list(x, [w, v], [b, None])
    ),
    "quantized_linear": ((X, V), _quantized),
    "linear_token_log_probs": (
        (X, W, V), lambda x, w, b: F.linear_token_log_probs(x, w, _labels(x), linear_bias=b)
    ),
    **{
        f"linear_cross_entropy, {way}": (
            (X, W, V),
            lambda x, w, b, way=way: F.linear_cross_entropy(
                x, w, _labels(x), linear_bias=b, gradient=way
            ),
        )
        for way in ("auto", "backward")
    },
    "linear_cross_entropy of rows": (
        (X, W), lambda x, w: F.linear_cross_entropy(x, w, _labels(x), reduction="none")
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("shapes", "call"), CALLS.values(), ids=CALLS)
def test_functions(shapes: Any, call: Callable[..., Any], way: str, device: str) -> None:
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    for create_graph in (False, True):
        _check(way, call, leaves, create_graph, once=False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gradient", ["forward", "in_place"])
def test_a_gradient_that_is_handed_out_once(gradient: str, way: str, device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x * 1, _labels(x), gradient=gradient)

    _check(way, loss, [torch.randn(3, 6, device=device, requires_grad=True)], False, once=True)


def test_jacobians(device: str) -> None:
    x, w, d = (torch.randn(s, dtype=torch.float64, device=device) for s in (X, W, D))

    def call(x: Tensor, w: Tensor) -> Tensor:
        return F.mlp(x, w, None, d)

    for options in ({}, {"create_graph": True}):
        tensors = tuple(t.clone().requires_grad_() for t in (x, w))
        found = jacobian(call, tensors, vectorize=True, **options)
        for a, b in zip(found, jacobian(call, tensors, **options), strict=True):
            torch.testing.assert_close(a, b)
