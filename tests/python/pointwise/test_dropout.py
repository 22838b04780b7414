# SPDX-License-Identifier: MIT
"""Dropout alone, and between a bias and a residual; tests of the declarations are in declared/."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.ops import _philox
from transformer_kernels.ops.pointwise.dropout import BIAS_DROPOUT_ADD, DROPOUT
from transformer_kernels.testing.inputs import LAYOUTS, randn

dropout, bias_dropout_add = tfk.functional.dropout, tfk.functional.bias_dropout_add

SEED = (0x0123456789ABCDEF, 42)
P = 0.3
SCALE = 65536 / (65536 - round(P * 65536))
SHAPES = [(0, 8), (3, 0), (1,), (7, 40), (5, 33), (2, 3, 520)]


def _seed(device: str = "cpu") -> Tensor:
    return torch.tensor(SEED, device=device)


def _philox4x32(counter: int) -> list[int]:
    """The eight numbers of a counter from the definition, in Python's integers."""
    word = [counter & 0xFFFFFFFF, counter >> 32, SEED[1] & 0xFFFFFFFF, SEED[1] >> 32]
    key = [SEED[0] & 0xFFFFFFFF, SEED[0] >> 32]
    for _ in range(10):
        a, b = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [
            (b >> 32) ^ word[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ word[3] ^ key[1],
            a & 0xFFFFFFFF,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [half for w in word for half in (w & 0xFFFF, w >> 16)]


def _mask(shape: tuple[int, ...], device: str, p: float = P) -> Tensor:
    count = math.prod(shape)
    numbers = [n for counter in range(-(-count // 8)) for n in _philox4x32(counter)]
    return (torch.tensor(numbers[:count], device=device) >= round(p * 65536)).reshape(shape)


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drops_by_the_definition(
    shape: tuple[int, ...], backend: str, dtype: torch.dtype, device: str
) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    x = randn(shape, dtype, device).requires_grad_()
    bias = randn(shape[-1:], torch.float32, device).to(dtype).requires_grad_()
    residual = randn(shape, dtype, device).requires_grad_()
    stay = _mask(shape, device)
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    y = dropout(x, P, seed=_seed(), backend=backend)
    exact = torch.where(stay, x.to(wide) * SCALE, 0.0)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-5}
    torch.testing.assert_close(y, exact.to(dtype), **tolerance)
    assert torch.equal(y == 0, ~stay | (x == 0))

    z = bias_dropout_add(x, bias, residual, P, seed=_seed(), backend=backend)
    exact = torch.where(stay, (x.to(wide) + bias.to(wide)) * SCALE, 0.0) + residual.to(wide)
    torch.testing.assert_close(z, exact.to(dtype), **tolerance)

    dy = randn(shape, dtype, device)
    (dx,) = torch.autograd.grad(y, x, dy)
    exact = torch.where(stay, dy.to(wide) * SCALE, 0.0)
    torch.testing.assert_close(dx, exact.to(dtype), **tolerance)
    again, dbias, dresidual = torch.autograd.grad(z, (x, bias, residual), dy)
    assert torch.equal(again, dx)
    assert torch.equal(dresidual, dy)
    sums = exact.reshape(-1, shape[-1]).sum(0) if shape[-1] else bias.detach().to(wide)
    torch.testing.assert_close(dbias, sums.to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, device: str) -> None:
    """Elements are numbered by their place in the shape, not in memory."""
    x = LAYOUTS[layout](randn((4, 3, 24), torch.float32, device))
    y = dropout(x, P, seed=_seed())
    assert torch.equal(y, dropout(x.contiguous(), P, seed=_seed()))
    assert torch.equal(y != 0, _mask(tuple(x.shape), device))


@pytest.mark.parametrize("below", [4.5, 5.5, 32768.5])
def test_a_probability_between_two_thresholds(below: float, device: str) -> None:
    """The probability is rounded as on every backend, so the same elements are dropped."""
    x, p = torch.ones(64, 1024, device=device), below / 65536
    assert torch.equal(
        dropout(x, p, seed=_seed()), dropout(x, p, seed=_seed(), backend="reference")
    )


def test_a_strided_bias(device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    x, residual = (randn((3, 8), torch.float32, device) for _ in range(2))
    bias = randn((16,), torch.float32, device)[::2]
    for backend in ("reference", "triton"):
        y = bias_dropout_add(x, bias, residual, P, seed=_seed(), backend=backend)
        same = bias_dropout_add(x, bias.contiguous(), residual, P, seed=_seed(), backend=backend)
        torch.testing.assert_close(y, same)


def test_a_seed_beside_x(device: str) -> None:
    x = randn((9, 72), torch.float32, device)
    assert torch.equal(dropout(x, P, seed=_seed(device)), dropout(x, P, seed=_seed()))


def test_bias_of_float32(device: str) -> None:
    x, residual = (randn((6, 48), torch.bfloat16, device) for _ in range(2))
    bias = randn((48,), torch.float32, device).requires_grad_()
    y = bias_dropout_add(x, bias, residual, P, seed=_seed())
    (dbias,) = torch.autograd.grad(y.float().sum(), bias)
    torch.testing.assert_close(dbias, _mask((6, 48), device).sum(0) * SCALE)


def test_derivatives(device: str) -> None:
    x, residual = (randn((3, 5), torch.float64, device).requires_grad_() for _ in range(2))
    bias = randn((5,), torch.float64, device).requires_grad_()

    def both(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        y = bias_dropout_add(x, bias, residual, P, seed=_seed())
        return dropout(y, P, seed=_seed())

    assert torch.autograd.gradcheck(both, (x, bias, residual))
    assert torch.autograd.gradgradcheck(both, (x, bias, residual))


@pytest.mark.parametrize("p", [P, 1.0])
def test_what_is_dropped_is_not_looked_at(p: float, dtype: torch.dtype, device: str) -> None:
    x = torch.full((4, 40), torch.nan, dtype=dtype, device=device, requires_grad=True)
    y = dropout(x, p, seed=_seed())
    stay = _mask((4, 40), device, p)
    assert torch.equal(y.isnan(), stay)
    (dx,) = torch.autograd.grad(y, x, torch.full_like(y, torch.inf))
    assert torch.equal(dx == torch.inf, stay)
    assert (dx[~stay] == 0).all()


# ---- the random numbers -------------------------------------------------------------------------


def _numbers(count: int, offset: int) -> Tensor:
    return _philox._numbers(torch.arange(count // 8), torch.tensor([SEED[0], offset]))


def test_numbers_are_uniform() -> None:
    """Chi-square of the 65536 values is within 5 deviations of its mean."""
    count, values = 2**22, 65536
    found = torch.bincount(_numbers(count, SEED[1]), minlength=values).double()
    expected = count / values
    statistic = ((found - expected) ** 2 / expected).sum().item()
    freedom = values - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("shift", [0, 1, 7, 8])
@pytest.mark.parametrize("apart", [1, 2, 2**32])
def test_neighbouring_offsets_are_independent(shift: int, apart: int) -> None:
    count = 2**20
    first = _numbers(count, SEED[1]).double()
    second = _numbers(count, SEED[1] + apart).double()
    pair = torch.stack((first[shift:], second[: count - shift]))
    correlation = torch.corrcoef(pair)[0, 1].item()
    assert abs(correlation) < 5 / math.sqrt(count)


def test_mean_is_exact() -> None:
    """The mean is within 5 deviations over 1e8 elements; 16 random bits represent p well enough."""
    count, draws = 10**7, 10
    x = torch.ones(count)
    total = sum(
        dropout(x, P, seed=torch.tensor([SEED[0], offset])).double().sum().item()
        for offset in range(draws)
    )
    deviation = math.sqrt(SCALE - 1)
    assert abs(total / (count * draws) - 1) < 5 * deviation / math.sqrt(count * draws)


def test_fresh_seeds(device: str) -> None:
    x = torch.ones(64, 64, device=device)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x))
    assert not torch.equal(first, second)


@pytest.mark.cuda
def test_a_replayed_graph_draws_anew() -> None:
    x = torch.ones(64, 64, device="cuda")
    dropout(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dropout(x)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


# ---- in PyTorch's place -------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1e-6, True), (0.7, False)])
def test_nothing_to_drop(p: float, training: bool, device: str) -> None:
    """Returns its input, as PyTorch does."""
    x, residual = (randn((3, 8), torch.float32, device) for _ in range(2))
    assert dropout(x, p, training) is x
    torch.testing.assert_close(bias_dropout_add(x, None, residual, p, training), x + residual)


def test_everything_drops(device: str) -> None:
    x, residual = (randn((3, 8), torch.float32, device) for _ in range(2))
    assert (dropout(x, 1.0) == 0).all()
    assert torch.equal(bias_dropout_add(x, None, residual, 1.0), residual)


def test_in_place(device: str) -> None:
    x = randn((3, 40), torch.float32, device)
    expected = dropout(x, P, seed=_seed())
    assert dropout(x, P, True, True, seed=_seed()) is x
    assert torch.equal(x, expected)
    leaf = randn((3, 40), torch.float32, device).requires_grad_()
    y = leaf * 1
    (gradient,) = torch.autograd.grad(dropout(y, P, inplace=True, seed=_seed()).sum(), leaf)
    assert torch.equal(gradient != 0, _mask((3, 40), device))


def test_modules(device: str) -> None:
    x, residual = (randn((30, 40), torch.float32, device) for _ in range(2))
    for module in (tfk.nn.Dropout(P), tfk.nn.Dropout(P, inplace=True)):
        theirs = torch.nn.Dropout(P, module.inplace)
        assert repr(module) == repr(theirs)
        assert torch.equal(module.eval()(x), x)
        dropped = module.train()(x.clone()) == 0
        assert 0.2 < dropped.float().mean() < 0.4
    add = tfk.nn.DropoutAdd(P)
    torch.testing.assert_close(add.eval()(x, residual, x[0]), x + x[0] + residual)
    assert (add.train()(x, residual) != x + residual).any()
    assert repr(add) == f"DropoutAdd(p={P})"


@pytest.mark.parametrize("call", [dropout, lambda x: bias_dropout_add(x, x[0], x, P)])
def test_compiled(call: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.ones(8, 64, device=device, requires_grad=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    y.sum().backward()
    assert len(y.unique()) == 2
    assert not torch.equal(y, compiled(x))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
@pytest.mark.parametrize("training", [True, False])
def test_bad_probability(p: float, training: bool) -> None:
    x = torch.ones(3, 8)
    with pytest.raises(ValueError, match=r"^dropout: p is .*, expected a number from 0 to 1$"):
        dropout(x, p, training)
    with pytest.raises(ValueError, match=r"^bias_dropout_add: p is .*, expected a number"):
        bias_dropout_add(x, None, x, p, training)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_bad_seed(backend: str) -> None:
    x = torch.ones(3, 8)
    for seed in (torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(4).long()[::2]):
        with pytest.raises(ValueError, match=r"^dropout: seed is not a seed and an offset"):
            dropout(x, seed=seed, backend=backend)
    with pytest.raises(ValueError, match=r"^dropout: seed is missing, expected one for 0 < p < 1$"):
        DROPOUT.call(x, None, P, backend)
    with pytest.raises(ValueError, match=r"^bias_dropout_add: seed is missing"):
        BIAS_DROPOUT_ADD.call(x, None, x, None, P, backend)


def test_takes_the_place_of_pytorchs() -> None:
    assert DROPOUT.replaces == (F.dropout, torch.nn.Dropout)
