# SPDX-License-Identifier: MIT
"""Rows of large and of small numbers, whose squares, sums, products and powers leave the format."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from transformer_kernels import _torch
from transformer_kernels import functional as tfk
from transformer_kernels.testing.case import Case, Problem, as_tuple
from transformer_kernels.testing.cases import MAIN_CASES, run
from transformer_kernels.testing.check import check_problem
from transformer_kernels.testing.tolerance import assert_close_to_reference

WIDTHS = {"cpu": [64, 5000], "cuda": [64, 768, 5000, 16384, 70000]}
# Powers scale the decimal exponent of the largest number: for float32 and bfloat16 they give 1e18,
# 1e30, 2e37, 1e-20, 1e-30 and 1e-40.
POWERS = [0.467, 0.778, 0.97, -0.52, -0.78, -1.04]
ROW_CASES = [case for case in MAIN_CASES if "softmax" in case.name or "norm" in case.name]

each_power = pytest.mark.parametrize("power", POWERS)


def _rows(rows: int, cols: int, power: float, dtype: torch.dtype, device: str) -> Tensor:
    most = torch.finfo(dtype).max
    size = 10.0 ** (power * math.log10(most))
    drawn = torch.randn(rows, cols, dtype=torch.float64, device="cpu") * size
    return drawn.clamp(-most, most).to(dtype).to(device)


def _problem(case: Case, x: Tensor) -> Problem:
    """With a residual of x's size; differences of logits stay within the dtype."""
    problem = case.build(x / 4 if case.name == "log_softmax" else x)
    if not case.name.endswith("-residual"):
        return problem
    first, _, *rest = problem.tensors
    return dataclasses.replace(problem, tensors=(first / 2, first.flip(-1) / 2, *rest))


@pytest.mark.parametrize("case", ROW_CASES, ids=str)
@each_power
def test_rows(case: Case, power: float, dtype: torch.dtype, device: str) -> None:
    if dtype is torch.float64 and power > 0.5:
        pytest.skip("squares would need more range than the reference has")
    for cols in WIDTHS[device]:
        check_problem(_problem(case, _rows(3, cols, power, dtype, device)))


@pytest.mark.cuda
@pytest.mark.parametrize("case", ROW_CASES, ids=str)
@each_power
def test_many_rows(case: Case, power: float, dtype: torch.dtype) -> None:
    """Enough rows for the persistent engines, at odd widths, and next to rows of order one."""
    if dtype is torch.float64 and power > 0.5:
        pytest.skip("squares would need more range than the reference has")
    for cols in (40, 129, 1000, 4096, 8200):
        x = _rows(700, cols, power, dtype, "cuda")
        x[::3] = torch.randn_like(x[::3])
        check_problem(_problem(case, x))


@pytest.mark.parametrize("case", ROW_CASES, ids=str)
def test_largest(case: Case, dtype: torch.dtype, device: str) -> None:
    """The largest number itself: everywhere, of either sign, and beside others."""
    if dtype is torch.float64:
        pytest.skip("nothing has the range to check it")
    most = torch.finfo(dtype).max
    for cols in (1, 64, 4096):  # a power of two, so that float64 sums up without rounding
        rows = torch.full((6, cols), most, dtype=torch.float64)
        rows[1] = -most
        rows[2, ::2] = -most
        rows[3, cols // 2 :] = 0
        rows[4, 1:] = -most
        rows[5] = 0.25 * rows[5] * torch.rand(cols, dtype=torch.float64)
        problem = case.build(rows.to(dtype).to(device))
        tensors = problem.tensors
        if case.name.endswith("-residual"):
            tensors = (tensors[0], torch.zeros_like(tensors[1]), *tensors[2:])
        with torch.no_grad():
            ours = as_tuple(problem.ours(*tensors))
            exact = as_tuple(problem.reference(*(t.double() for t in tensors)))
        for a, b in zip(ours, exact, strict=True):
            # A difference from the largest number may be beyond it.
            b = b.masked_fill(b.to(dtype) == -torch.inf, -torch.inf)
            assert_close_to_reference(a, a, b, str(case))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_softmax_masked_by_the_lowest(
    log: bool, scale: float, dtype: torch.dtype, device: str
) -> None:
    """Masks as models write them: finfo.min, also over a whole row, which is then uniform."""
    function, stock = (
        (tfk.log_softmax, _torch.log_softmax) if log else (tfk.softmax, _torch.softmax)
    )
    x = torch.randn(4, 5, 640, dtype=torch.float64).to(dtype).to(device)
    mask = torch.zeros(4, 5, 640, dtype=dtype, device=device)
    mask[0] = torch.finfo(dtype).min
    mask[1, :, 100:] = torch.finfo(dtype).min
    mask[2, :, 100:] = -1e4
    z = x * scale + mask
    ours = function(x, -1, mask=mask, scale=scale)
    assert torch.isfinite(ours.exp() if log else ours).all()
    # The sum with the lowest number swallows x where the arithmetic's type is the mask's own.
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    exact = stock((x.to(wide) * scale + mask.to(wide)).double(), -1)
    exact = exact.masked_fill(exact.to(dtype) == -torch.inf, -torch.inf)
    assert_close_to_reference(ours, stock(z, -1), exact)


@each_power
def test_cross_entropy(power: float, dtype: torch.dtype, device: str) -> None:
    for cols in WIDTHS[device]:
        x = _rows(3, cols, power, dtype, device) / 4
        labels = torch.randint(cols, (3,), device=device)

        def stock(x: Tensor, labels: Tensor = labels) -> Tensor:
            return torch.nn.functional.cross_entropy(x, labels, reduction="none")

        def ours(x: Tensor, labels: Tensor = labels, **options: str) -> Tensor:
            return tfk.cross_entropy(x, labels, reduction="none", **options)

        check_problem(Problem((x,), ours, stock, stock))


@each_power
def test_qk_norm(power: float, dtype: torch.dtype, device: str) -> None:
    if dtype is torch.float64 and power > 0:
        pytest.skip("squares would need more range than the reference has")
    for dim in (8, 33, 128):
        x = _rows(3 * 5 * 2, dim, power, dtype, device).view(3, 5, 2, dim)
        weight = torch.rand(dim, dtype=torch.float64).to(dtype).to(device) + 0.5

        def stock(x: Tensor, weight: Tensor) -> Tensor:
            return _torch.rms_norm(x, weight.shape, weight, 1e-6)

        def ours(x: Tensor, weight: Tensor, **options: str) -> Tensor:
            return tfk.qk_norm(x, None, weight, **options)

        if power < 0.9:
            check_problem(Problem((x, weight), ours, stock, stock))
        else:  # PyTorch's gradient is NaN
            ones = (torch.ones_like(x),)
            results, gradients = run(ours, (x, weight), ones)
            assert all(torch.isfinite(t).all() for t in (*results, *gradients))


def test_subnormal_numbers_are_stored(dtype: torch.dtype, device: str) -> None:
    """Subnormal numbers that an op copies, adds or scales by a power of two are exact."""
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    multiples = torch.randint(-60, 61, (20, 90), dtype=torch.float64) * 2
    x = (multiples * least).to(dtype).to(device)
    zero = torch.zeros_like(x)
    tokens = torch.randperm(20, device=device)
    own = "cpu" if device == "cpu" else "auto"  # PyTorch's products may take such numbers for 0
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    ones, nothing = (torch.full((20, 45), a, dtype=wide, device=device) for a in (1.0, 0.0))
    results = {
        "relu": (tfk.relu(x), x.relu()),
        "add_rms_norm": (tfk.add_rms_norm(x, x, (90,))[1], 2 * x),
        "add_layer_norm": (tfk.add_layer_norm(x, x, (90,))[1], 2 * x),
        "bias_dropout_add": (tfk.bias_dropout_add(x, x[0], zero, 0.0), x + x[0]),
        "embedding": (tfk.embedding(tokens, x), x[tokens]),
        "embedding_add": (tfk.embedding_add(tokens, x, None, x), x[tokens] + x),
        "rope": (tfk.rope(x.view(1, 20, 1, 90), None, ones, nothing).view(20, 90), x),
        "few rows": (tfk.linear(x[:4], 0.5 * torch.eye(90).to(x), backend=own), x[:4] / 2),
        "segment_reduce": (tfk.segment_reduce(x, torch.arange(21, device=device)), x),
    }
    for name, (found, expected) in results.items():
        assert torch.equal(found, expected), name


def test_products_of_subnormal_numbers(device: str) -> None:
    """Products of many rows do what PyTorch's do: some processors take such factors for 0."""
    x = (torch.randn(64, 64) * 2e-39).bfloat16().to(device)
    found = tfk.linear(x, torch.eye(64).to(x))
    assert ((found == x) | (found == 0)).all()
