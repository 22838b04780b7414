# SPDX-License-Identifier: MIT
"""Products on CUDA: Hopper's engine and the general one, which of them runs, and the MLP whose
activation is part of its products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _choice, _mlp
from transformer_kernels.ops.linear._ops import LINEAR_DACT, LINEAR_DWEIGHT
from transformer_kernels.ops.pointwise.table import ACTIVATIONS
from transformer_kernels.testing.graphs import check_replay
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.passes import both_passes, check_layer
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

pytestmark = pytest.mark.cuda

NARROW = (torch.float16, torch.bfloat16)
# Rows, terms and columns: of one tile, of tiles that are not whole, of the narrow and the tall
# tile, of many rounds, of few terms, of terms in parts, of odd columns; then what Hopper's engine
# does not take.
SHAPES = [
    (128, 64, 192), (999, 584, 1160), (136, 8, 8), (300, 128, 768), (2048, 768, 3072),
    (3072, 1024, 768),
    (17, 4104, 264), (5000, 264, 200), (520, 96, 1003),
]  # fmt: skip
UNEVEN = [(97, 300, 193), (130, 511, 1), (33, 736, 67), (5, 1, 64), (1, 1, 1)]
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda w: w,
    "columns": lambda w: w.t().contiguous().t(),
}

each_order = pytest.mark.parametrize("order", ORDERS)
each_narrow = pytest.mark.parametrize("narrow", NARROW, ids=str)


@pytest.fixture(autouse=True)
def on_cuda() -> Any:
    with torch.device("cuda"):
        yield


def _operands(rows: int, terms: int, cols: int, dtype: torch.dtype) -> list[Tensor]:
    weight = (randn((cols, terms), torch.float64) * max(terms, 1) ** -0.5).to(dtype)
    return [randn((rows, terms), dtype), weight, randn((cols,), dtype)]


_check = partial(check_layer, units=16)


@each_order
@pytest.mark.parametrize("shape", [*SHAPES, *UNEVEN], ids=str)
def test_linear(shape: tuple[int, int, int], order: str, dtype: torch.dtype) -> None:
    x, weight, bias = _operands(*shape, dtype)
    dy = randn((shape[0], shape[2]), dtype)
    for leaves in ([x, ORDERS[order](weight)], [x, ORDERS[order](weight), bias]):
        _check(lambda *a: F.linear(*a, backend="cuda"), in_torch.linear, leaves, dy)


@each_order
@each_narrow
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gradient_of_the_weight_is_written_where_it_is_wanted(
    accumulate: bool, narrow: torch.dtype, order: str
) -> None:
    """In the dtype of x and in float32; in parts of the terms and in one."""
    for rows, terms, cols in (*SHAPES, *UNEVEN):
        x, dy = randn((rows, terms), narrow), randn((rows, cols), narrow)
        for of in (narrow, torch.float32):
            dweight = ORDERS[order](randn((cols, terms), of))
            old = dweight.clone() if accumulate else torch.zeros_like(dweight)
            LINEAR_DWEIGHT(dweight, dy, x, accumulate)
            exact = (old.double() + dy.double().t() @ x.double()).cpu()
            if of is narrow:
                theirs = torch.addmm(old, dy.t(), x)
            else:
                theirs = old + torch.mm(dy.t(), x, out_dtype=of)
            assert_close_to_reference(dweight, theirs, exact, magnitude=rows**0.5)


@each_order
@each_narrow
@pytest.mark.parametrize("activation", [row.name for row in ACTIVATIONS])
def test_linear_act(activation: str, order: str, narrow: torch.dtype) -> None:
    act = next(row.formula for row in ACTIVATIONS if row.name == activation)
    for shape in ((300, 128, 776), (77, 200, 51)):
        x, weight, bias = _operands(*shape, narrow)
        _check(
            lambda *a: F.linear_act(*a, activation, backend="cuda"),
            lambda *a: act(in_torch.linear(*a)),
            [x, ORDERS[order](weight), bias],
            randn((shape[0], shape[2]), narrow),
        )


@each_narrow
def test_wide_bias(narrow: torch.dtype) -> None:
    x, weight, _ = _operands(200, 64, 328, narrow)
    bias = randn((328,), torch.float32)
    y = F.linear(x, weight, bias, backend="cuda")
    exact = in_torch.linear(x.double(), weight.double(), bias.double())
    theirs = (in_torch.linear(x, weight).float() + bias).to(narrow)
    assert_close_to_reference(y, theirs, exact, "y")


def _through_formula(formula: Any, z: Tensor, dh: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.detach().requires_grad_()
    h = formula(leaf)
    (dz,) = torch.autograd.grad(h, leaf, dh)
    return dz, h.detach()


@each_order
@each_narrow
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)))
def test_gradient_at_an_activation(activation: int, order: str, narrow: torch.dtype) -> None:
    formula = ACTIVATIONS[activation].formula
    for rows, terms, cols in ((300, 128, 776), (999, 584, 1160), (40, 33, 57)):
        dy, weight, _ = _operands(rows, terms, cols, narrow)
        weight = ORDERS[order](weight.t().contiguous())
        z = randn((rows, cols), narrow)

        with poisoned():
            dz, no_dbias, h = LINEAR_DACT(dy, weight, None, z, activation, True, True)
            alone, _, no_h = LINEAR_DACT(dy, weight, None, z, activation, False, False)
        assert torch.equal(alone, dz)
        assert no_dbias.numel() == no_h.numel() == 0
        theirs = _through_formula(formula, z, dy @ weight)
        exact = _through_formula(formula, z.double(), dy.double() @ weight.double())
        assert_close_to_reference(dz, theirs[0], exact[0], "dz")
        assert_close_to_reference(h, theirs[1], exact[1], "h")


@each_order
@each_narrow
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)))
def test_gradient_of_the_bias_at_an_activation(
    activation: int, order: str, narrow: torch.dtype
) -> None:
    for rows, terms, cols in ((1000, 128, 776), (17, 2048, 8), (127, 64, 200), (4097, 264, 1504)):
        dy, weight, _ = _operands(rows, terms, cols, narrow)
        weight = ORDERS[order](weight.t().contiguous())
        z = randn((rows, 2 * cols), narrow)[:, :cols]
        alone, _, _ = LINEAR_DACT(dy, weight, None, z, activation, False, False)
        for of_bias in (narrow, torch.float32):
            bias = torch.zeros(cols, dtype=of_bias)
            with poisoned():
                found = LINEAR_DACT(dy, weight, bias, z, activation, True, True)
                again = LINEAR_DACT(dy, weight, bias, z, activation, True, True)
            assert all(map(torch.equal, found, again))
            assert torch.equal(found[0], alone)
            assert found[1].dtype is of_bias
            theirs = alone.sum(0, dtype=of_bias)
            assert_close_to_reference(found[1], theirs, alone.double().sum(0), "dbias")


@each_narrow
def test_rows_that_are_uneven_or_shared(narrow: torch.dtype) -> None:
    x, weight, bias = _operands(700, 65, 192, narrow)
    leaves = [x[:, 1:], weight[:, 1:].contiguous(), bias]
    _check(
        lambda *a: F.linear(*a, backend="cuda"), in_torch.linear, leaves, randn((700, 192), narrow)
    )
    _check(
        lambda *a: F.linear(*a, backend="cuda"), in_torch.linear, leaves,
        randn((1, 192), narrow).expand(700, 192),
    )  # fmt: skip


@each_narrow
def test_products_repeat_bit_for_bit(narrow: torch.dtype) -> None:
    leaves = _operands(2304, 1096, 776, narrow)
    dy = randn((2304, 776), narrow)
    call = lambda *a: F.linear_act(*a, backend="cuda")  # noqa: E731
    first = both_passes(call, leaves, dy)
    for _ in range(5):
        assert all(
            torch.equal(a, b) for a, b in zip(both_passes(call, leaves, dy), first, strict=True)
        )


def test_what_is_no_number_stays_in_its_row() -> None:
    x, weight, bias = _operands(256, 64, 192, torch.bfloat16)
    x[3, 5], x[130, 7] = float("nan"), float("inf")
    y = F.linear(x, weight, bias, backend="cuda")
    wrong = ~y.isfinite().all(-1)
    assert wrong.nonzero().flatten().tolist() == [3, 130]


def _is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


on_hopper = pytest.mark.skipif(not _is_hopper(), reason="the engine is Hopper's")

LARGE = (2048, 768, 3072)


@on_hopper
def test_which_product_runs() -> None:
    x, weight, _ = _operands(*LARGE, torch.bfloat16)
    refusal = _choice.refusal
    assert refusal("linear", x, weight) is None
    assert refusal("linear", x, ORDERS["columns"](weight)) is None
    assert "few rows" in str(refusal("linear", x[:100], weight))
    for dtype in (torch.float32, torch.complex64):
        assert "16-bit" in str(refusal("linear", x.to(dtype), weight.to(dtype)))
    assert "aligned" in str(refusal("linear", x[:, :767], weight[:, :767].contiguous()))
    assert "another dtype" in str(refusal("linear", x, weight.half()))
    assert "down_weight" in str(refusal("mlp", x, weight, weight[:, :767].contiguous()))
    with torch.autocast("cuda", torch.float16):
        assert refusal("linear", x.float(), weight.float()) is None


# ---- MLPs whose activation is part of their products --------------------------------------------


def _mlp_leaves(dtype: torch.dtype, hidden: int = 3072) -> list[Tensor]:
    up = _operands(2048, 768, hidden, dtype)
    return [*up, *_operands(1, hidden, 768, dtype)[1:]]


def _mlp_formula(x: Tensor, *weights: Tensor) -> Tensor:
    weight, bias, down_weight, down_bias = weights
    h = in_torch.gelu(in_torch.linear(x, weight, bias), approximate="tanh")
    return in_torch.linear(h, down_weight, down_bias)


def _check_mlp(leaves: list[Tensor], dy: Tensor, **options: Any) -> None:
    def ours(x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        return F.mlp(x, weight, bias, down, down_bias, "gelu_tanh", **options)

    with poisoned():
        found = both_passes(ours, leaves, dy)
    theirs = both_passes(_mlp_formula, leaves, dy)
    exact = both_passes(_mlp_formula, [leaf.double() for leaf in leaves], dy.double())
    names = ("y", "dx", "dweight", "dbias", "ddown_weight", "ddown_bias")
    for name, a, b, c in zip(names, found, theirs, exact, strict=True):
        assert_close_to_reference(a, b, c, name)


@on_hopper
@each_narrow
@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_mlp(
    recompute: int, parts: bool, narrow: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr(_mlp, "features_of_part", lambda _, __, hidden, ___: hidden // 2)
    dy = randn((2048, 768), narrow)
    _check_mlp(_mlp_leaves(narrow), dy, recompute=recompute)
    by_columns = [t.t().contiguous().t() if t.dim() == 2 and i else t
                  for i, t in enumerate(_mlp_leaves(narrow))]  # fmt: skip
    _check_mlp(by_columns, dy, recompute=recompute)


@on_hopper
@each_narrow
def test_mlp_of_wide_layers(narrow: torch.dtype) -> None:
    leaves = [*_operands(1000, 2048, 4096, narrow), *_operands(1, 4096, 2048, narrow)[1:]]
    _check_mlp(leaves, randn((1000, 2048), narrow), backend="cuda")


@on_hopper
def test_mlp_of_which_only_some_learns() -> None:
    leaves = _mlp_leaves(torch.bfloat16)
    dy = randn((2048, 768), torch.bfloat16)
    whole = both_passes(_mlp_formula, [leaf.double() for leaf in leaves], dy.double())[1:]
    for chosen in ((0,), (1,), (2,), (3,), (4,), (0, 3), (1, 4)):
        given = [t.detach().requires_grad_(i in chosen) for i, t in enumerate(leaves)]
        y = F.mlp(*given, activation="gelu_tanh")
        found = torch.autograd.grad(y, [given[i] for i in chosen], dy)
        for i, gradient in zip(chosen, found, strict=True):
            error = (gradient.double() - whole[i]).norm() / whole[i].norm()
            assert error < 2e-2, (chosen, i)


@on_hopper
def test_autocast() -> None:
    leaves = [t.requires_grad_() for t in _mlp_leaves(torch.float32)]
    dy = randn((2048, 768), torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        y, z = F.mlp(*leaves, activation="gelu_tanh"), F.linear(*leaves[:3])
        theirs = _mlp_formula(*leaves)
    assert y.dtype is z.dtype is theirs.dtype is torch.bfloat16
    found, expected = (torch.autograd.grad(t, leaves, dy) for t in (y, theirs))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is torch.float32
        assert (a - b).norm() < 2e-2 * b.norm()


@on_hopper
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_cuda_graph_and_no_synchronisation(recompute: int) -> None:
    leaves = [t.requires_grad_() for t in _mlp_leaves(torch.bfloat16)]
    dy = randn((2048, 768), torch.bfloat16)

    def step() -> tuple[Tensor, ...]:
        y = F.mlp(*leaves, activation="gelu_tanh", recompute=recompute)
        return torch.autograd.grad(y, leaves, dy)

    check_replay(step)
