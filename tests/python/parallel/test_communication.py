# SPDX-License-Identifier: MIT
"""Sums over ranks with the residual and the norm: held to the rule, and bit for bit repeatable."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels.parallel import all_reduce_residual_norm, reduce_scatter_norm
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

SHAPE = (4, 8, 24)


def _reference(
    norm: str, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> list[Tensor]:
    """The norm, the total, and the gradients of everything; ``x`` holds the shares of all ranks."""
    leaves = [t.detach().requires_grad_() for t in (x, residual, weight, bias)]
    total = leaves[0].sum(0) + leaves[1]
    if norm == "rms_norm":
        y = F.rms_norm(total, SHAPE[-1:], leaves[2], 1e-5) + leaves[3]
    else:
        y = F.layer_norm(total, SHAPE[-1:], leaves[2], leaves[3], 1e-5)
    gradients = torch.autograd.grad(y.square().sum() + total.sin().sum(), leaves)
    return [y.detach(), total.detach(), *gradients]


def _passes(function: Callable[..., Any], norm: str, tensors: list[Tensor], **options: Any) -> Any:
    leaves = [t.detach().requires_grad_() for t in tensors]
    y, total = function(*leaves, eps=1e-5, norm=norm, **options)
    loss = y.square().sum() + total.sin().sum()
    return [y.detach(), total.detach(), *torch.autograd.grad(loss, leaves)]


def _check(norm: str, dtype: torch.dtype, dim: int | None) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randint(-16, 17, (ranks, *SHAPE)).to(dtype) / 8  # of which all sums are exact
    residual = randn(SHAPE, dtype)
    weight, bias = randn(SHAPE[-1:], dtype), randn(SHAPE[-1:], dtype)
    wanted = _reference(norm, *(t.double() for t in (x, residual, weight, bias)))
    stock = _reference(norm, x, residual, weight, bias)
    function, own, options = all_reduce_residual_norm, residual, {}
    if dim is not None:
        function, own, options = reduce_scatter_norm, residual.chunk(ranks, dim)[rank], {"dim": dim}
    found, again = (
        _passes(function, norm, [x[rank], own, weight, bias], **options) for _ in range(2)
    )
    names = ("y", "total", "dx", "dresidual", "dweight", "dbias")
    for i, name in enumerate(names):
        assert torch.equal(found[i], again[i]), name
        mine, reference, other, magnitude = found[i], wanted[i], stock[i], 0.0
        if i == 2:
            reference, other = reference[rank], other[rank]
        elif dim is not None and i < 4:
            reference, other = (t.chunk(ranks, dim)[rank] for t in (reference, other))
        elif dim is not None:
            mine, magnitude = _summed(mine)
        assert_close_to_reference(mine, other, reference, name, magnitude)


def _summed(x: Tensor) -> tuple[Tensor, float]:
    """The sum of the ranks' shares, and the size of its terms, each of which is rounded."""
    both = torch.stack((x, x.abs())).double()
    dist.all_reduce(both)
    return both[0].to(x.dtype), both[1].max().item()


# ---- cases --------------------------------------------------------------------------------------


def both_norms() -> None:
    for norm, dtype, dim in itertools.product(
        ("rms_norm", "layer_norm"), (torch.float32, torch.bfloat16), (None, 0, 1)
    ):
        _check(norm, dtype, dim)


def what_is_refused() -> None:
    x = torch.zeros(SHAPE)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: all_reduce_residual_norm(x, 1.0), "residual is float, expected a Tensor"),
        (lambda: all_reduce_residual_norm(x, x, norm="sum"), "norm is 'sum', expected 'rms_norm'"),
        (lambda: all_reduce_residual_norm(x[0, 0, 0], x), "x has no dimension"),
        (lambda: all_reduce_residual_norm(x, x, group="all"), "group is 'all', expected a Process"),
        (lambda: reduce_scatter_norm(x, x, dim=2), "dim is 2, expected a dimension of x before"),
        (lambda: reduce_scatter_norm(x[:, :5], x, dim=1), "x has 5 rows along dim, expected a mul"),
        (lambda: reduce_scatter_norm(x, x), "residual has shape"),
    ]
    for call, words in calls:
        with pytest.raises((TypeError, ValueError), match=words):
            call()


CASES = [both_norms, what_is_refused]


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES, pair=CASES)


def test_the_log_names_the_way(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("transformer_kernels._library._log_dispatch", True)
    all_reduce_residual_norm(torch.randn(2, 8), torch.randn(2, 8))
    assert "all_reduce_residual_norm: ranks 1: add_rms_norm" in capfd.readouterr().err
