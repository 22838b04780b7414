# SPDX-License-Identifier: MIT
"""Every op and option against float64: sizes at the edges, layouts, special values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_kernels.testing import pointwise
from transformer_kernels.testing.case import Case, as_tuple
from transformer_kernels.testing.cases import CASES, MAIN_CASES, run
from transformer_kernels.testing.check import (
    check_problem,
    check_same_but_rounded,
    random_gradients,
)
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn

COLS = 1000  # test_many_rows has 33
MORE_COLS = [31, 32, 127, 4097]
WIDE_COLS = [70000, 131072, 262144, 300001]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_main_case = pytest.mark.parametrize("case", MAIN_CASES, ids=str)


@pytest.mark.parametrize("warn_only", [False, True])
def test_poisoned_memory_leaves_the_settings_as_they_were(warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with poisoned():
            assert torch.empty(4).isnan().all()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)


@each_case
def test_three_dimensions(case: Case, dtype: torch.dtype, device: str) -> None:
    check_problem(case.build(randn((2, 5, COLS), dtype, device)))


@each_main_case
@pytest.mark.parametrize("cols", MORE_COLS)
def test_more_widths(case: Case, cols: int, dtype: torch.dtype, device: str) -> None:
    check_problem(case.build(randn((3, cols), dtype, device)))


@each_case
def test_width_of_one(case: Case, dtype: torch.dtype, device: str) -> None:
    """Gradients of order one cancel almost wholly; x and its sum with a residual are not near 0."""
    x = randn((2, 5, 1), dtype, device)
    check_problem(case.build(x + 8 * x.sign()), magnitude=4.0)


@each_case
def test_many_rows(case: Case, dtype: torch.dtype, device: str) -> None:
    check_problem(case.build(randn((199, 33), dtype, device)))


@each_main_case
@pytest.mark.parametrize("shape", [(0, 32), (3, 0, 32), (5, 0)], ids=str)
def test_empty(case: Case, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    problem = case.build(torch.empty(shape, dtype=dtype, device=device))
    results, gradients = run(problem.ours, problem.tensors, random_gradients(problem))
    assert all(result.shape == shape for result in results)
    for gradient, tensor in zip(gradients, problem.tensors, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


@each_main_case
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(case: Case, layout: str, dtype: torch.dtype, device: str) -> None:
    """x and the incoming gradients have every layout."""
    arrange = LAYOUTS[layout]
    x = arrange(randn((2, 6, 127), dtype, device))
    problem = case.build(x)
    gradients = tuple(arrange(g.to(device)) for g in random_gradients(problem))
    before = [tensor.clone() for tensor in problem.tensors]
    check_problem(problem, gradients)
    for tensor, copy in zip(problem.tensors, before, strict=True):
        assert torch.equal(tensor, copy)
    with torch.no_grad():
        for result in as_tuple(problem.ours(*problem.tensors)):
            assert result.is_contiguous()


@each_main_case
def test_one_dimension_and_many(case: Case, device: str) -> None:
    for shape in [(40,), (1, 1, 1, 40), (2, 1, 2, 1, 3, 1, 2, 1, 40)]:
        check_problem(case.build(randn(shape, torch.float32, device)))


@each_case
def test_large_mean(case: Case, dtype: torch.dtype, device: str) -> None:
    """The mean is 1e4 and the variance 1: sums of squares without a shift lose every digit."""
    if dtype is torch.float16 and "softmax" not in case.name:
        pytest.skip("the spacing of float16 at 1e4 is 8, and it ends at 65504")
    # Where x resolves less than a unit at 1e4, its own rounding is most of the variance.
    magnitude = 1e4 if dtype in (torch.float64, torch.float32) and "norm" in case.name else 0.0
    check_problem(case.build(randn((7, 1000), dtype, device, mean=1e4)), magnitude=magnitude)


@each_main_case
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan], ids=str)
def test_special_values(case: Case, value: float, dtype: torch.dtype, device: str) -> None:
    """Rows with a special value have PyTorch's result; other rows are unaffected. PyTorch's own
    rms_norm differs between devices (NaN in the whole row, or in the infinite element alone), so
    the CPU's decides, which follows the formula. Its gelu of infinity is NaN in float32 alone, so
    float64 decides about activations."""
    x = randn((5, 65), dtype, device)
    x[1, 7] = value
    x[3] = value
    problem = case.build(x)
    with torch.no_grad(), poisoned():
        ours = as_tuple(problem.ours(*problem.tensors))
        tensors = problem.tensors
        if "rms_norm" in case.name:
            tensors = tuple(t.cpu() for t in tensors)
        theirs = as_tuple(problem.torch(*tensors))
        if case in pointwise.MAIN:
            exact = problem.reference(*(t.double() for t in tensors))
            theirs = tuple(r.to(dtype) for r in as_tuple(exact))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.to(device), rtol=2e-2, atol=2e-2, equal_nan=True)
        assert torch.isfinite(a[::2]).all()


@each_main_case
def test_bitwise_repeatable(case: Case, dtype: torch.dtype, device: str) -> None:
    problem = case.build(randn((67, 515), dtype, device))
    gradients = random_gradients(problem)
    first = run(problem.ours, problem.tensors, gradients)
    for _ in range(3 if device == "cuda" else 1):
        again = run(problem.ours, problem.tensors, gradients)
        for group, repeat in zip(first, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(group, repeat, strict=True))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    for case in MAIN_CASES:
        problem = case.build(randn((301, 700), torch.float32))
        gradients = random_gradients(problem)
        outcomes = []
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results, grads = run(problem.ours, problem.tensors, gradients)
                outcomes.append((*results, *grads))
        finally:
            torch.set_num_threads(threads)
        for outcome in outcomes[1:]:
            pairs = zip(outcomes[0], outcome, strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), case


@each_case
def test_gradcheck(case: Case, device: str) -> None:
    """First and second derivatives in float64."""
    problem = case.build(randn((3, 5), torch.float64, device))
    if case in pointwise.MAIN:
        problem = pointwise.away_from_corners(problem)
    leaves = [tensor.clone().requires_grad_() for tensor in problem.tensors]

    # log_softmax gives -inf where masked, which finite differences cannot take.
    def finite(*tensors: Tensor) -> tuple[Tensor, ...]:
        results = as_tuple(problem.ours(*tensors))
        return tuple(r.masked_fill(r.detach() == -torch.inf, 0.0) for r in results)

    assert torch.autograd.gradcheck(finite, leaves)
    assert torch.autograd.gradgradcheck(finite, leaves)


@pytest.mark.cuda
@pytest.mark.parametrize("cols", WIDE_COLS)
@each_main_case
def test_wide_rows(case: Case, cols: int, dtype: torch.dtype) -> None:
    check_problem(case.build(randn((9, cols), dtype, "cuda")))


@each_main_case
def test_wide_rows_on_the_cpu(case: Case) -> None:
    check_problem(case.build(randn((1, 70001), torch.float32)))


@pytest.mark.cuda
@pytest.mark.large_memory
@pytest.mark.parametrize("shape", [(2**22 + 3, 513), (3, 2**30 - 1)], ids=str)
@each_main_case
def test_more_than_2_31_elements(case: Case, shape: tuple[int, int]) -> None:
    """The first and the last rows are checked, where a 32-bit offset would have wrapped."""
    free, _ = torch.cuda.mem_get_info()
    needed = 8 * 2 * shape[0] * shape[1]
    if free < needed:
        pytest.skip(f"needs {needed >> 30} GiB of device memory, {free >> 30} GiB are free")
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    problem = case.build(x)
    full = tuple(t.detach() for t in problem.tensors)
    with torch.no_grad():
        results = as_tuple(problem.ours(*full))
        for rows in (slice(0, 2), slice(shape[0] - 2, shape[0])):
            part = tuple(t[rows] if t.ndim == 2 else t for t in full)  # not the weights
            expected = as_tuple(problem.ours(*part))
            for a, b in zip(results, expected, strict=True):
                # Odd rows alone lie at other addresses, where a kernel may add in another order.
                check_same_but_rounded(a[rows], b)
