# SPDX-License-Identifier: MIT
"""The numbers of embedding and embedding_add; declared/test_declare.py tests the declarations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kernels import functional as tfk
from transformer_kernels import nn
from transformer_kernels.ops.embedding._ops import EMBEDDING_ADD
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

BACKENDS = ("auto", "triton", "reference")
INDICES = [(), (0,), (2, 3, 5), (700,)]
TABLES = [(1, 1), (7, 33), (13, 1029), (300, 64)]


def _indices(shape: tuple[int, ...], rows: int, device: str, dtype: Any = torch.int64) -> Tensor:
    """Random indices; few rows have most of them, as in text."""
    drawn = torch.rand(shape, dtype=torch.float64).pow(4) * rows
    return drawn.to(torch.int64).clamp(max=rows - 1).to(dtype).to(device)


def _skip_slow(backend: str, device: str, programs: int) -> None:
    if backend == "triton" and device == "cpu" and programs > 50:
        pytest.skip("Triton's interpreter takes a millisecond a program")


def _run(
    function: Any, weights: list[Tensor], dy: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [weight.detach().requires_grad_() for weight in weights]
    y = function(*leaves)
    dy = randn(y.shape, y.dtype, y.device) if dy is None else dy
    return y.detach(), torch.autograd.grad(y, leaves, dy.to(y.dtype))


def _check(ours: Any, theirs: Any, weights: list[Tensor]) -> None:
    """Holds both passes, from poisoned memory, to the tolerance rule."""
    dy = randn(ours(*weights).shape, weights[0].dtype, weights[0].device)
    with poisoned():
        y, gradients = _run(ours, weights, dy)
    torch_y, torch_gradients = _run(theirs, weights, dy)
    exact_y, exact = _run(theirs, [weight.double() for weight in weights], dy.double())
    assert y.dtype == weights[0].dtype
    assert y.is_contiguous()
    assert_close_to_reference(y, torch_y, exact_y, "y")
    for a, b, c in zip(gradients, torch_gradients, exact, strict=True):
        # A sum has so many terms at most. One that adds them in order, as Triton's does, walks away
        # from the exact sum, which walks itself.
        terms = dy.numel() / dy.shape[-1] if a.dtype.itemsize > 2 else 0
        assert_close_to_reference(a, b, c, "gradient", magnitude=max(4 * terms**0.5, terms))


# ---- embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", INDICES)
@pytest.mark.parametrize("table", TABLES)
def test_embedding(
    table: tuple[int, int], shape: tuple[int, ...], backend: str, device: str, dtype: torch.dtype
) -> None:
    _skip_slow(backend, device, table[0] + math.prod(shape))
    weight = randn(table, dtype, device)
    indices = _indices(shape, table[0], device, torch.int32 if len(shape) == 1 else torch.int64)
    for padding in (None, -1):
        _check(
            lambda w, p=padding: tfk.embedding(indices, w, p, backend=backend),
            lambda w, p=padding: F.embedding(indices, w, p),
            [weight],
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_result_is_the_row_bit_by_bit(backend: str, device: str, dtype: torch.dtype) -> None:
    weight = randn((9, 40), dtype, device)
    weight[3, 5], weight[3, 6], weight[4, 0] = torch.inf, -0.0, torch.nan
    indices = torch.arange(9, device=device).flip(0)
    y = tfk.embedding(indices, weight, backend=backend)
    torch.testing.assert_close(y, weight.flip(0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, backend: str, device: str, dtype: torch.dtype) -> None:
    weight = LAYOUTS[layout](randn((20, 24), dtype, device))
    indices = _indices((6, 15), 20, device).t()
    dy = LAYOUTS[layout](randn((90, 24), dtype, device)).view(15, 6, 24)
    y, (gradient,) = _run(lambda w: tfk.embedding(indices, w, backend=backend), [weight], dy)
    expected, (exact,) = _run(lambda w: F.embedding(indices, w), [weight.double()], dy.double())
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=0)
    assert_close_to_reference(gradient, gradient, exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [31, 257, 5000, 40000])
def test_one_row_has_all_indices(count: int, backend: str, device: str) -> None:
    """All indices are equal, as padding without padding_idx: only wide partial sums are exact."""
    _skip_slow(backend, device, count)
    indices = torch.full((count,), 2, device=device)
    indices[:: count // 3] = 1
    dy = torch.randint(-8, 9, (count, 24), device=device).to(torch.bfloat16)
    weight = randn((5, 24), torch.bfloat16, device)
    _, (gradient,) = _run(lambda w: tfk.embedding(indices, w, backend=backend), [weight], dy)
    exact = torch.zeros(5, 24, dtype=torch.float64, device=device)
    exact.index_add_(0, indices, dy.double())
    torch.testing.assert_close(gradient, exact.to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [40, 3000])
def test_scale_grad_by_freq(count: int, backend: str, device: str, dtype: torch.dtype) -> None:
    _skip_slow(backend, device, count)
    indices = _indices((count,), 30, device)
    _check(
        lambda w: tfk.embedding(indices, w, 3, scale_grad_by_freq=True, backend=backend),
        lambda w: F.embedding(indices, w, 3, scale_grad_by_freq=True),
        [randn((30, 16), dtype, device)],
    )


@pytest.mark.parametrize("bad", [-1, 7, 2**31, -(2**40)])
def test_index_out_of_range(bad: int, device: str) -> None:
    weight = randn((7, 16), torch.float32, device)
    indices = torch.tensor([3, bad, 0], device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match=f"^embedding: indices holds {bad}, expected a row of"):
            tfk.embedding(indices, weight)
        with pytest.raises(IndexError):
            tfk.embedding(indices, weight, backend="reference")
        return
    for backend in BACKENDS:
        y, (gradient,) = _run(lambda w, b=backend: tfk.embedding(indices, w, backend=b), [weight],
                              torch.ones(3, 16, device=device))  # fmt: skip
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], weight[[3, 0]])
        expected = torch.zeros_like(weight)
        expected[[3, 0]] = 1
        torch.testing.assert_close(gradient, expected)


def test_repeatable(device: str) -> None:
    weight, indices = randn((50, 96), torch.float32, device), _indices((9000,), 50, device)
    dy = randn((9000, 96), torch.float32, device)
    results = [_run(lambda w: tfk.embedding(indices, w), [weight], dy)[1][0] for _ in range(3)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_derivatives(device: str) -> None:
    """Numerical derivatives, which know neither padding nor frequencies."""
    weight = randn((5, 3), torch.float64, device).requires_grad_()
    indices = torch.tensor([[0, 4, 4], [2, 0, 0]], device=device)
    assert torch.autograd.gradcheck(lambda w: tfk.embedding(indices, w, 1), (weight,))
    assert torch.autograd.gradgradcheck(lambda w: tfk.embedding(indices, w, -2).square(), (weight,))


def test_refused() -> None:
    weight, indices = torch.randn(5, 3), torch.tensor([1, 2])
    for arguments, words in (
        ({"max_norm": 1.0}, r"^embedding: max_norm is 1.0, expected None "),
        ({"sparse": True}, r"^embedding: sparse is True, expected False "),
        ({"padding_idx": 5}, r"^embedding: padding_idx is 5, expected one of \[-5, 4\] "),
        ({"padding_idx": 1.5}, r"^embedding: padding_idx is 1.5, expected an int$"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            tfk.embedding(indices, weight, **arguments)


def test_jagged_indices(device: str) -> None:
    weight = randn((9, 4), torch.float32, device)
    sequences = [torch.tensor([1, 2, 8], device=device), torch.tensor([0], device=device)]
    jagged = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    y = tfk.embedding(jagged, weight)
    for part, sequence in zip(y.unbind(), sequences, strict=True):
        torch.testing.assert_close(part, weight[sequence])


def test_weight_may_change_before_the_backward_pass(device: str) -> None:
    weight = randn((9, 4), torch.float32, device).requires_grad_()
    y = tfk.embedding(torch.tensor([1, 1], device=device), weight)
    with torch.no_grad():
        weight.mul_(2)
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad[1].eq(2).all()


def test_module(device: str) -> None:
    theirs = torch.nn.Embedding(11, 6, padding_idx=-2, device=device)
    ours = nn.Embedding(11, 6, padding_idx=-2, device=device)
    ours.load_state_dict(theirs.state_dict())
    assert isinstance(ours, torch.nn.Embedding)
    assert ours.padding_idx == 9
    indices = torch.tensor([[1, 9], [10, 1]], device=device)
    for module in (ours, theirs):
        module(indices).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    frozen = nn.Embedding.from_pretrained(theirs.weight.detach(), padding_idx=1)
    assert not frozen.weight.requires_grad
    assert isinstance(frozen, nn.Embedding)
    assert "padding_idx=1" in repr(frozen)
    with pytest.raises(ValueError, match="max_norm"):
        nn.Embedding(3, 4, max_norm=1.0)


# ---- embedding_add ------------------------------------------------------------------------------


def _sum(
    tokens: Tensor, positions: Any, types: Tensor | None, padding: int | None = None
) -> tuple[Any, Any]:
    """The sum by our op on a backend, and by PyTorch."""

    def ours(backend: str, w: Tensor, p: Tensor, t: Tensor | None = None) -> Tensor:
        return tfk.embedding_add(tokens, w, positions, p, padding, types=types, type_weight=t,
                                 backend=backend)  # fmt: skip

    def theirs(w: Tensor, p: Tensor, t: Tensor | None = None) -> Tensor:
        ids, first = (positions, 0) if isinstance(positions, Tensor) else (None, positions or 0)
        index = -1 if padding is None else padding
        y: Tensor = EMBEDDING_ADD.stock(w, tokens, p, ids, t, types, first, index)
        return y

    return ours, theirs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(3, 17), (1, 1), (2, 3, 5), (4,), (0, 3), (40, 33)])
@pytest.mark.parametrize("kind", ["none", "offset", "ids", "row of ids", "types"])
def test_embedding_add(
    kind: str, shape: tuple[int, ...], backend: str, device: str, dtype: torch.dtype
) -> None:
    _skip_slow(backend, device, math.prod(shape))
    tokens = _indices(shape, 29, device)
    positions = {
        "offset": 5,
        "ids": _indices(shape, 40, device, torch.int32),
        "row of ids": _indices((1,) * (len(shape) - 1) + shape[-1:], 40, device),
    }.get(kind)
    types = _indices(shape, 2, device) if kind == "types" else None
    tables = [randn((rows, 24), dtype, device) for rows in (29, 40, 2)[: 2 + (types is not None)]]
    ours, theirs = _sum(tokens, positions, types, padding=0)
    _check(lambda *weights: ours(backend, *weights), theirs, tables)


def test_one_gradient_of_the_sum(device: str) -> None:
    tokens = _indices((3, 7), 5, device)
    weight, places = randn((5, 8), torch.float32, device), randn((7, 8), torch.float32, device)
    places.requires_grad_()
    y = tfk.embedding_add(tokens, weight, None, places)
    (gradient,) = torch.autograd.grad(y.sum(), places)
    torch.testing.assert_close(gradient, torch.full_like(places, 3))


@pytest.mark.parametrize("many", [1, 4000])
def test_positions_of_a_batch(many: int, device: str) -> None:
    """The gradient of positions sums over the batch, for any number of sequences."""
    tokens = _indices((many, 3), 9, device)
    _check(
        lambda *weights: _sum(tokens, 2, None)[0]("auto", *weights),
        _sum(tokens, 2, None)[1],
        [randn((9, 40), torch.float32, device), randn((6, 40), torch.float32, device)],
    )


def test_derivatives_of_the_sum(device: str) -> None:
    tokens = torch.tensor([[0, 3, 3], [2, 0, 0]], device=device)
    types = torch.tensor([[0, 1, 1], [0, 0, 0]], device=device)
    tables = [randn((rows, 3), torch.float64, device).requires_grad_() for rows in (4, 5, 2)]

    def function(w: Tensor, p: Tensor, t: Tensor) -> Tensor:
        return tfk.embedding_add(tokens, w, 1, p, 1, types=types, type_weight=t)

    assert torch.autograd.gradcheck(function, tables)
    assert torch.autograd.gradgradcheck(lambda *w: function(*w).square(), tables)


def test_sum_refuses() -> None:
    tokens, weight, places = torch.tensor([[0, 1]]), torch.randn(3, 4), torch.randn(5, 4)
    for arguments, words in (
        ((tokens, weight, 4, places), "position_weight has 5 rows, expected at least 6 "),
        ((tokens, weight, -1, places), "first_position is -1, expected 0 or more"),
        ((tokens, weight, tokens.t(), places), r"positions has shape \(2, 1\), expected \(1, 2\)"),
        ((tokens, weight, "x", places), "positions is 'x', expected an int"),
        ((tokens, weight, None, places[:, 1:]), "position_weight has 3 columns, expected 4 "),
    ):
        with pytest.raises((ValueError, TypeError), match=rf"^embedding_add: {words}"):
            tfk.embedding_add(*arguments)
    with pytest.raises(
        ValueError, match=r"^embedding_add: types is missing, expected it beside ty"
    ):
        tfk.embedding_add(tokens, weight, None, places, type_weight=weight)
    with pytest.raises(
        IndexError, match=r"^embedding_add: positions holds 5, expected a row of pos"
    ):
        tfk.embedding_add(tokens, weight, torch.tensor([0, 5]), places)


# ---- graphs -------------------------------------------------------------------------------------


def _step(tokens: Tensor, weight: Tensor, places: Tensor) -> Tensor:
    return tfk.embedding_add(tokens, weight, None, places, 1) * tfk.embedding(tokens, weight)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    tables = [randn((30, 16), torch.float32, device), randn((12, 16), torch.float32, device)]
    for shape in ((2, 12), (3, 7)):
        tokens = _indices(shape, 30, device)
        y, gradients = _run(
            lambda *w, t=tokens: _step(t, *w), tables, torch.ones(*shape, 16, device=device)
        )
        again, others = _run(lambda *w, t=tokens: compiled(t, *w), tables, torch.ones_like(y))
        torch.testing.assert_close(again, y)
        torch.testing.assert_close(others, gradients)


@pytest.mark.cuda
def test_cuda_graph() -> None:
    """Nothing waits for the device, so a graph can be replayed on other tokens."""
    tokens = _indices((4, 600), 300, "cuda")
    tables = [randn((rows, 64), torch.bfloat16, "cuda") for rows in (300, 600)]
    dy = randn((4, 600, 64), torch.bfloat16, "cuda")
    graph, (y, gradients) = capture(lambda: _run(lambda *w: _step(tokens, *w), tables, dy))
    for _ in range(2):
        tokens.copy_(_indices((4, 600), 300, "cuda"))
        graph.replay()
        expected, others = _run(lambda *w: _step(tokens, *w), tables, dy)
        assert torch.equal(y, expected)
        assert all(map(torch.equal, gradients, others))
