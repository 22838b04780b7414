# SPDX-License-Identifier: MIT
"""qk_norm: numbers, gradients of the weights, with and without the rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import qk_norm, rms_norm, rope, rope_tables
from transformer_kernels.ops._declare_formula import formula_backward
from transformer_kernels.ops.rope._ops import QK_NORM
from transformer_kernels.testing import reference
from transformer_kernels.testing.case import Problem
from transformer_kernels.testing.check import check_problem
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.rope import KINDS, exact, norm_arguments

EPS = 1e-5
STYLES = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


def _problem(
    q: Tensor,
    k: Tensor,
    rotary: int,
    interleaved: bool = False,
    weight_dtype: torch.dtype | None = None,
    table_dtype: torch.dtype | None = None,
) -> Problem:
    """A problem of q and k (B, T, H, D); without rotation where ``rotary`` is 0."""
    dim, time, device = q.shape[-1], q.shape[1], q.device
    weights = [randn((dim,), weight_dtype or q.dtype, device) for _ in range(2)]
    options: dict[str, Any] = {}
    rows: tuple[Tensor, ...] = ()
    if rotary:
        made = rope_tables(time + 3, rotary, 100.0, dtype=table_dtype or q.dtype, device=device)
        options = {"cos": made[0], "sin": made[1], "offsets": 3, "interleaved": interleaved}
        rows = tuple(t[3:][None] for t in made)

    tables = (options["cos"], options["sin"]) if rotary else (None, None)

    def theirs(q: Tensor, k: Tensor, *weights: Tensor) -> Any:
        return QK_NORM.stock(q, k, *weights, *tables, None, None, None, 3, 0, 0, interleaved, EPS)

    def expected(q: Tensor, k: Tensor, *weights: Tensor) -> Any:
        normed = (reference.rms_norm(x, w, None, EPS) for x, w in zip((q, k), weights, strict=True))
        return tuple(exact(x, *rows, interleaved) if rows else x for x in normed)

    return Problem(
        (q, k, *weights),
        lambda q, k, *w, **kw: qk_norm(q, k, *w, EPS, **options, **kw),
        theirs,
        expected,
    )


def _heads(dtype: torch.dtype, device: str, dim: int, q_heads: int = 4, time: int = 7) -> Any:
    return (randn((2, time, heads, dim), dtype, device) for heads in (q_heads, 2))


@STYLES
@pytest.mark.parametrize(("dim", "rotary"), [(16, 16), (64, 64), (80, 32), (128, 128), (20, 6)])
def test_numbers(interleaved: bool, dim: int, rotary: int, dtype: torch.dtype, device: str) -> None:
    q, k = _heads(dtype, device, dim)
    for backend in ("auto", "reference"):
        check_problem(_problem(q, k, rotary, interleaved), backend=backend)


@pytest.mark.parametrize("dim", [5, 8, 33, 128, 256, 700])
def test_without_a_rotation(dim: int, dtype: torch.dtype, device: str) -> None:
    q, k = _heads(dtype, device, dim)
    check_problem(_problem(q, k, 0))


def test_parameters_in_float32(device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for dim in (64, 36):
            q, k = _heads(dtype, device, dim)
            check_problem(_problem(q, k, dim, False, torch.float32, torch.float32))


def test_many_tokens(device: str) -> None:
    """Sums run over more tokens than one chunk or one CTA has."""
    q, k = _heads(torch.float32, device, 16, time=1500)
    check_problem(_problem(q, k, 16))


def test_layouts(device: str) -> None:
    packed = randn((2, 7, 3, 4, 32), torch.float32, device)
    q, k, _ = packed.unbind(2)
    check_problem(_problem(q, k, 32))
    q = randn((2, 4, 7, 32), torch.float32, device).transpose(1, 2)
    check_problem(_problem(q, k, 32))
    offset = randn((2 * 7 * 4 * 32 + 1,), torch.float32, device)[1:].view(2, 7, 4, 32)
    check_problem(_problem(offset, k, 32))
    columns = randn((2, 7, 32, 4), torch.float32, device).transpose(2, 3)
    check_problem(_problem(columns, k, 32))


@STYLES
def test_triton(interleaved: bool, device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    for dtype in (torch.float64, torch.bfloat16):
        for rotary in (12, 0):
            q, k = _heads(dtype, device, 20, q_heads=17)
            problem = _problem(q, k, rotary, interleaved)
            check_problem(problem, backend="triton", magnitude=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(kind: str, device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    given = norm_arguments(kind, device)
    expected = QK_NORM.call(*given.values(), "reference")
    for backend in ("auto", "triton"):
        for y, e in zip(QK_NORM.call(*given.values(), backend), expected, strict=True):
            torch.testing.assert_close(y, e)
    needs = (given["q_weight"] is not None, given["k_weight"] is not None)
    inputs = (*(torch.randn_like(x) for x in expected), *given.values(), *needs)
    assert QK_NORM.triton is not None
    gradients = formula_backward(QK_NORM, *inputs)
    for backward in (QK_NORM.raw.backward, QK_NORM.triton().backward):
        for y, e in zip(backward(*inputs), gradients, strict=True):
            torch.testing.assert_close(y, e, rtol=1e-4, atol=1e-5)


@STYLES
def test_derivatives(interleaved: bool, device: str) -> None:
    q, k = (randn((1, 3, heads, 6), torch.float64, device) for heads in (2, 1))
    problem = _problem(q, k, 4, interleaved)
    leaves = [x.clone().requires_grad_() for x in problem.tensors]
    assert torch.autograd.gradcheck(problem.ours, leaves)
    assert torch.autograd.gradgradcheck(problem.ours, leaves)


def test_is_rms_norm_and_rope(device: str) -> None:
    q = randn((2, 7, 4, 16), torch.float32, device)
    weight = randn((16,), torch.float32, device)
    cos, sin = rope_tables(16, 16, device=device)
    starts = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    y = qk_norm(q, None, weight, eps=EPS, cos=cos, sin=sin, heads_first=True)
    normed = rms_norm(q, (16,), weight, EPS)
    torch.testing.assert_close(y, rope(normed, None, cos, sin, heads_first=True))
    flat = q.flatten(0, 1)
    y = qk_norm(flat, None, weight, eps=EPS, cos=cos, sin=sin, cu_seqlens=starts)
    torch.testing.assert_close(y, rope(normed.flatten(0, 1), None, cos, sin, cu_seqlens=starts))


def test_the_same_bits(dtype: torch.dtype, device: str) -> None:
    q, k = _heads(dtype, device, 64, time=300)
    problem = _problem(q, k, 64)
    leaves = [x.clone().requires_grad_() for x in problem.tensors]

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad([y.sum() for y in problem.ours(*leaves)], leaves)

    for a, b in zip(gradients(), gradients(), strict=True):
        assert torch.equal(a, b)


def test_nan_stays_in_its_row(device: str) -> None:
    q = randn((2, 7, 4, 16), torch.float32, device)
    q[1, 3, 2, 5] = torch.nan
    y = qk_norm(q)
    bad = torch.zeros_like(q, dtype=torch.bool)
    bad[1, 3, 2] = True
    assert torch.equal(torch.isnan(y), bad)


def test_empty(device: str) -> None:
    weight = torch.ones(16, device=device, requires_grad=True)
    for shape in ((0, 7, 4, 16), (2, 0, 4, 16), (2, 7, 0, 16)):
        x = torch.empty(shape, device=device, requires_grad=True)
        for backend in ("auto", "reference"):
            y = qk_norm(x, None, weight, backend=backend)
            dx, dweight = torch.autograd.grad(y.sum(), (x, weight))
            assert dx.shape == y.shape == shape
            assert not dweight.any()


def test_compiled(device: str) -> None:
    torch._dynamo.reset()
    q, k = _heads(torch.float32, device, 16)
    problem = _problem(q, k, 16)
    leaves = [x.clone().requires_grad_() for x in problem.tensors]
    expected = problem.ours(*leaves)
    compiled = torch.compile(problem.ours, fullgraph=True, backend="aot_eager")
    for y, e in zip(compiled(*leaves), expected, strict=True):
        torch.testing.assert_close(y, e)
    gradients = torch.autograd.grad([y.sum() for y in expected], leaves)
    found = torch.autograd.grad([y.sum() for y in compiled(*leaves)], leaves)
    for y, e in zip(found, gradients, strict=True):
        torch.testing.assert_close(y, e)


def test_bad_arguments() -> None:
    q, k = _heads(torch.float32, "cpu", 16)
    cos, sin = rope_tables(16, 16)
    weight = torch.ones(16)

    def expect(kind: type[Exception], words: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(kind, match=f"^qk_norm: {words}"):
            qk_norm(*arguments, **options)

    expect(ValueError, "k_weight is given, expected none without k", q, None, None, weight)
    expect(TypeError, "k_weight is bfloat16, expected float32 .all parameters", q.bfloat16(),
           k.bfloat16(), weight, weight.bfloat16())  # fmt: skip
    expect(ValueError, "sin is missing", q, k, cos=cos)
    expect(ValueError, "sin is given, expected none without cos", q, k, sin=sin)
    expect(ValueError, "offset is 2, expected 0 without cos", q, k, offsets=2)
    expect(ValueError, "q has position 16, expected 0 to 15", q, k, cos=cos, sin=sin, offsets=10)
    expect(ValueError, "eps is -1, expected a number of 0 or more", q, k, eps=-1.0)
