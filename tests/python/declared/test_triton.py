# SPDX-License-Identifier: MIT
"""The Triton twins: compiled on a GPU, in Triton's interpreter elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transformer_kernels.ops import _triton_rows
from transformer_kernels.ops.norm import norm_triton
from transformer_kernels.ops.softmax import softmax_triton
from transformer_kernels.testing.case import Case
from transformer_kernels.testing.cases import CASES, MAIN_CASES, run
from transformer_kernels.testing.check import check_problem, random_gradients
from transformer_kernels.testing.inputs import LAYOUTS, randn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_main_case = pytest.mark.parametrize("case", MAIN_CASES, ids=str)


@each_case
def test_options(case: Case) -> None:
    """In float32; the chunked kernels run them in float64."""
    problem = case.build(randn((5, 33), torch.float32, DEVICE))
    check_problem(problem, backend="triton", magnitude=1.0)


@each_main_case
@pytest.mark.parametrize(("cols", "dtype_"), [(1, torch.float16), (1000, torch.bfloat16)], ids=str)
def test_low_precision(case: Case, cols: int, dtype_: torch.dtype) -> None:
    x = randn((3, cols), dtype_, DEVICE)
    problem = case.build(x + x.sign())
    check_problem(problem, backend="triton", magnitude=1.0)


@each_main_case
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
def test_layouts(case: Case, layout: str) -> None:
    problem = case.build(LAYOUTS[layout](randn((2, 3, 40), torch.float32, DEVICE)))
    check_problem(problem, backend="triton", magnitude=1.0)


@each_case
def test_rows_wider_than_a_program(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunked kernels run, at a width that the interpreter can take."""

    def narrow(cols: int, limit: int = 0) -> tuple[int, bool, int]:
        return 32, False, 4

    monkeypatch.setattr(softmax_triton, "shape_of", narrow)
    monkeypatch.setattr(norm_triton, "shape_of", narrow)
    problem = case.build(randn((4, 75), torch.float64, DEVICE))
    check_problem(problem, backend="triton", magnitude=1.0)


@pytest.mark.cuda
@each_main_case
@pytest.mark.parametrize("cols", [4097, 20000, 70000, 300001])
def test_wide_rows(case: Case, cols: int, dtype: torch.dtype) -> None:
    check_problem(case.build(randn((9, cols), dtype, "cuda")), backend="triton")


@each_main_case
def test_empty(case: Case) -> None:
    for shape in [(0, 8), (2, 0, 8)]:
        problem = case.build(torch.empty(shape, device=DEVICE))
        gradients = random_gradients(problem)
        results, _ = run(problem.ours, problem.tensors, gradients, backend="triton")
        assert all(result.shape == shape for result in results)


@pytest.mark.cuda
@each_main_case
def test_bitwise_repeatable(case: Case) -> None:
    """Triton's interpreter runs programs one after the other, in one order."""
    problem = case.build(randn((9, 33), torch.float32, "cuda"))
    gradients = random_gradients(problem)
    outcomes: list[Any] = [
        run(problem.ours, problem.tensors, gradients, backend="triton") for _ in range(2)
    ]
    for first, second in zip(*outcomes, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_row_is_kept_whole_up_to_the_limit() -> None:
    block, whole, _ = _triton_rows.shape_of(_triton_rows.WHOLE_ROW)
    assert (block, whole) == (_triton_rows.WHOLE_ROW, True)
    block, whole, _ = _triton_rows.shape_of(_triton_rows.WHOLE_ROW + 1)
    assert (block, whole) == (_triton_rows.CHUNK, False)
