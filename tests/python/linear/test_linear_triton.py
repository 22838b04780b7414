# SPDX-License-Identifier: MIT
"""The Triton twins of linear layers: compiled on a GPU, in Triton's interpreter elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

pytest.importorskip("triton", reason="Triton is not installed")

import transformer_kernels as tfk
from transformer_kernels.ops.linear import linear_act_triton
from transformer_kernels.ops.pointwise.table import ACTIVATIONS
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.passes import both_passes, check_layer
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

COMPILED = torch.cuda.is_available()
DEVICE = "cuda" if COMPILED else "cpu"
# Rows, terms and columns: of one tile, of tiles that are not whole, of more than a group of tiles,
# of none.
SHAPES = [
    (1, 1, 1), (5, 7, 3), (16, 16, 32), (33, 75, 51), (150, 20, 40), (3, 130, 67), (0, 5, 6),
    (4, 0, 6), (4, 6, 0),
]  # fmt: skip
# Shapes that use each tile of the tables.
LARGE = [
    (4096, 768, 3072), (2048, 584, 1160), (300, 128, 776), (5000, 264, 200), (17, 4104, 264),
    (520, 96, 1003), (2049, 771, 3075),
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses small tiles, so that there are several: the interpreter is no slower on large ones."""
    if not COMPILED:
        small = (linear_act_triton.Tile(16, 32, 16, 4, 1),)
        monkeypatch.setattr(linear_act_triton, "TILES", dict.fromkeys((2, 4, 8), small))


def _operands(rows: int, terms: int, cols: int, dtype: torch.dtype) -> list[Tensor]:
    weight = randn((cols, terms), torch.float64, DEVICE) * max(terms, 1) ** -0.5
    return [randn((rows, terms), dtype, DEVICE), weight.to(dtype), randn((cols,), dtype, DEVICE)]


_check = partial(check_layer, units=16 if COMPILED else 4)


def _linear(*operands: Tensor) -> Tensor:
    return F.linear(*operands, backend="triton")


def _act(*operands: Tensor, name: str = "gelu_tanh") -> Tensor:
    return F.linear_act(*operands, activation=name, backend="triton")


def _formula(*operands: Tensor, name: str = "gelu_tanh") -> Tensor:
    activate = next(row.formula for row in ACTIVATIONS if row.name == name)
    return activate(in_torch.linear(*operands))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    leaves, dy = _operands(*shape, dtype), randn((shape[0], shape[2]), dtype, DEVICE)
    for count in (2, 3):  # without a bias and with one
        _check(_linear, in_torch.linear, leaves[:count], dy)


@pytest.mark.parametrize("name", [row.name for row in ACTIVATIONS])
def test_linear_act(name: str, dtype: torch.dtype) -> None:
    # The sizes make two of the interpreter's tiles each way, the second of which is not whole.
    leaves, dy = _operands(17, 20, 35, dtype), randn((17, 35), dtype, DEVICE)
    for count in (2, 3):
        _check(partial(_act, name=name), partial(_formula, name=name), leaves[:count], dy)


@pytest.mark.parametrize("shape", SHAPES[-3:], ids=str)
def test_an_activation_of_nothing(shape: tuple[int, int, int]) -> None:
    leaves = _operands(*shape, torch.float32)
    _check(_act, _formula, leaves, randn((shape[0], shape[2]), torch.float32, DEVICE))


@pytest.mark.cuda
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large(shape: tuple[int, int, int], by_columns: bool, dtype: torch.dtype) -> None:
    x, weight, bias = _operands(*shape, dtype)
    if by_columns:
        weight = weight.t().contiguous().t()
    dy = randn((shape[0], shape[2]), dtype, DEVICE)
    _check(_linear, in_torch.linear, [x, weight], dy)
    _check(_act, _formula, [x, weight, bias], dy)


@pytest.mark.cuda
def test_float32_has_all_of_its_bits() -> None:
    leaves = _operands(256, 2048, 256, torch.float32)
    exact = in_torch.linear(*(leaf.double() for leaf in leaves))
    assert (_linear(*leaves).double() - exact).abs().max() < 2e-5  # of TF32 it would be 1e-3


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("of_weight", list(LAYOUTS))
def test_layouts(layout: str, of_weight: str) -> None:
    """x, weight and dy are read in any layout without a copy."""
    x, weight, bias = _operands(40, 50, 60, torch.float32)
    dy = LAYOUTS[layout](randn((40, 60), torch.float32, DEVICE))
    _check(_act, _formula, [LAYOUTS[layout](x), LAYOUTS[of_weight](weight), bias], dy)


def test_the_gradient_is_kept_as_the_weight_is() -> None:
    """A weight stored as (K, N) has a gradient stored as (K, N), which spares a copy."""
    x, weight, _ = _operands(40, 50, 60, torch.float32)
    weight = weight.t().contiguous().t()
    dy = randn((40, 60), torch.float32, DEVICE)
    _, dweight, _ = linear_act_triton.LINEAR.backward(dy, x, weight, None, False, True, False)
    assert dweight.stride() == weight.stride()


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_a_bias_of_float32(low: torch.dtype) -> None:
    x, weight, bias = _operands(40, 30, 20, low)
    bias = randn((20,), torch.float32, DEVICE).requires_grad_()
    y = _linear(x, weight, bias)
    exact = in_torch.linear(x.double(), weight.double(), bias.double())
    theirs = (in_torch.linear(x, weight).float() + bias).to(low)
    assert_close_to_reference(y, theirs, exact, "y")
    (gradient,) = torch.autograd.grad(y.sum(), bias)
    assert torch.equal(gradient, torch.full_like(bias, 40.0))


@pytest.mark.parametrize("wanted", range(3))
def test_frozen_operands(wanted: int) -> None:
    """An operand without a gradient changes no other gradient."""
    leaves, dy = _operands(30, 20, 10, torch.float32), randn((30, 10), torch.float32, DEVICE)
    every = both_passes(_act, leaves, dy)
    some = [leaf.requires_grad_(i == wanted) for i, leaf in enumerate(leaves)]
    (gradient,) = torch.autograd.grad(_act(*some), some[wanted], dy)
    assert torch.equal(gradient, every[1 + wanted])


@pytest.mark.parametrize("shape", [(30,), (2, 3, 30), (2, 2, 2, 2, 2, 2, 2, 2, 30)])
def test_leading_dimensions(shape: tuple[int, ...]) -> None:
    _, weight, bias = _operands(1, 30, 20, torch.float64)
    x = randn(shape, torch.float64, DEVICE)
    torch.testing.assert_close(_linear(x, weight, bias), in_torch.linear(x, weight, bias))


def test_gradients_of_gradients() -> None:
    leaves = [leaf.requires_grad_() for leaf in _operands(3, 4, 2, torch.float64)]
    assert torch.autograd.gradcheck(_act, leaves)
    assert torch.autograd.gradgradcheck(_act, leaves)


def test_bitwise_repeatable(dtype: torch.dtype) -> None:
    shape = (2304, 1096, 776) if COMPILED else (70, 40, 50)
    leaves, dy = _operands(*shape, dtype), randn((shape[0], shape[2]), dtype, DEVICE)
    first, second = (both_passes(_act, leaves, dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_negative_view() -> None:
    x, weight, bias = _operands(5, 7, 3, torch.float32)
    negative = torch._neg_view(x)
    torch.testing.assert_close(
        _linear(negative, torch._neg_view(weight), bias), in_torch.linear(x, weight, bias)
    )


def test_no_other_backend_runs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_act_triton, "_multiply", pytest.fail)
    leaves = _operands(33, 20, 10, torch.float32)
    for backend in ("auto", "reference"):
        F.linear(*leaves, backend=backend)
        F.linear_act(*leaves, backend=backend)


# ---- layers of these ----------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_layers_behind_each_other(recompute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLPs and gates call each layer, at every level."""
    calls: list[Any] = []
    multiply = linear_act_triton._multiply
    monkeypatch.setattr(
        linear_act_triton, "_multiply", lambda *a: (calls.append(a), multiply(*a))[1]
    )
    x, weight, bias = _operands(9, 20, 14, torch.float32)
    _, up_weight, up_bias = _operands(9, 20, 14, torch.float32)
    down_weight = randn((20, 14), torch.float32, DEVICE)
    functions: list[tuple[Callable[..., Tensor], list[Tensor], int]] = [
        (F.linear_act, [x, weight, bias], 3),
        (F.mlp, [x, weight, bias, down_weight], 6),
        (F.gated_linear, [x, weight, up_weight, bias, up_bias], 6),
        (F.gated_mlp, [x, weight, up_weight, down_weight], 9),
    ]
    for function, leaves, products in functions:
        dy = randn((9, leaves[-1].shape[0]), torch.float32, DEVICE)
        calls.clear()
        ours = both_passes(partial(function, recompute=recompute, backend="triton"), leaves, dy)
        assert len(calls) == products
        expected = both_passes(partial(function, backend="reference"), leaves, dy)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_list_of_layers() -> None:
    x, weight, bias = _operands(9, 20, 14, torch.float32)
    found = F.linear_list(x, [weight, weight[:5]], [bias, None], backend="triton")
    torch.testing.assert_close(found, (_linear(x, weight, bias), _linear(x, weight[:5])))
