# SPDX-License-Identifier: MIT
"""Gate and up in one kernel on Hopper, and the MLP that uses it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear._ops import GATED_LINEAR, LINEAR_DGATED, linear_dgated
from transformer_kernels.ops.pointwise._ops import GATED
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

pytestmark = pytest.mark.cuda

FORMULAS = {
    "geglu": in_torch.gelu,
    "geglu_tanh": partial(in_torch.gelu, approximate="tanh"),
    "swiglu": in_torch.silu,
    "reglu": in_torch.relu,
}
NUMBERS = {name: number for number, name in enumerate(GATED)}
# Rows, terms and columns: of one tile, of tiles that are not whole, of many rounds; then what falls
# to products of their own: few rows, odd columns, rows that are not aligned.
SHAPES = [(128, 64, 96), (999, 584, 1160), (2048, 768, 3072), (7, 128, 200), (130, 64, 77),
          (97, 301, 64)]  # fmt: skip
each_narrow = pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def on_cuda() -> Any:
    with torch.device("cuda"):
        yield


def _operands(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    rows, terms, cols = shape
    weights = [(randn((cols, terms), torch.float64) * terms**-0.5).to(dtype) for _ in range(2)]
    return [randn((rows, terms), dtype), *weights, randn((cols,), dtype), randn((cols,), dtype)]


def _formula(activation: str, x: Tensor, weight: Tensor, up_weight: Tensor, bias: Tensor,
             up_bias: Tensor) -> Tensor:  # fmt: skip
    gate = in_torch.linear(x, weight, bias)
    return FORMULAS[activation](gate) * in_torch.linear(x, up_weight, up_bias)


@each_narrow
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_passes(shape: tuple[int, int, int], activation: str, narrow: torch.dtype) -> None:
    leaves = _operands(shape, narrow)
    dy = randn((shape[0], shape[2]), narrow)

    def ours(x: Tensor, weight: Tensor, up: Tensor, bias: Tensor, up_bias: Tensor) -> Tensor:
        return F.gated_linear(x, weight, up, bias, up_bias, activation, backend="cuda")

    with poisoned():
        found = both_passes(ours, leaves, dy)
    theirs = both_passes(partial(_formula, activation), leaves, dy)
    exact = both_passes(partial(_formula, activation), [t.double() for t in leaves], dy.double())
    # The slope of relu jumps: where a sum near 0 is rounded otherwise its gradient is another.
    names = ("y",) if activation == "reglu" else ("y", "dx", "dw", "dup", "db", "dup_b")
    for name, a, b, c in zip(names, found, theirs, exact, strict=False):
        assert_close_to_reference(a, b, c, name, magnitude=4.0)


@each_narrow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_kept_and_a_weight_of_both(
    shape: tuple[int, int, int], narrow: torch.dtype
) -> None:
    x, weight, up_weight, bias, up_bias = _operands(shape, narrow)
    number = NUMBERS["swiglu"]
    with poisoned():
        y, gate, up = GATED_LINEAR(x, weight, up_weight, bias, up_bias, number, True)
        alone, none, neither = GATED_LINEAR(x, weight, up_weight, bias, up_bias, number, False)
        both = torch.cat([weight, up_weight]), None, torch.cat([bias, up_bias]), None
        of_both, gates, no_up = GATED_LINEAR(x, *both, number, True)
    assert none.numel() == neither.numel() == no_up.numel() == 0
    assert torch.equal(alone, y)
    # Other strides: where the products are cuBLASLt's, it may sum in another way.
    of_ours = shape[1] % 8 == 0 and shape[2] % 8 == 0
    most = 0.0 if of_ours else 2e-2
    torch.testing.assert_close(of_both, y, rtol=most, atol=most)
    torch.testing.assert_close(gates, torch.cat([gate, up], -1), rtol=most, atol=most)
    assert_close_to_reference(gate, x @ weight.t(), x.double() @ weight.double().t(), "gate")
    assert_close_to_reference(up, x @ up_weight.t(), x.double() @ up_weight.double().t(), "up")
    again = GATED["swiglu"].call(gate, up, bias, up_bias)
    assert torch.equal(y, again)


@each_narrow
def test_wide_biases_and_either_alone(narrow: torch.dtype) -> None:
    x, weight, up_weight, bias, up_bias = _operands((256, 128, 192), narrow)
    for pair in ((bias.float(), up_bias.float()), (bias, None), (None, up_bias)):
        y, gate, up = GATED_LINEAR(x, weight, up_weight, *pair, NUMBERS["geglu"], True)
        assert torch.equal(y, GATED["geglu"].call(gate, up, *pair))


@each_narrow
@pytest.mark.parametrize("kind", ["two", "pair"])
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_mlp(recompute: int, kind: str, narrow: torch.dtype) -> None:
    x, weight, up_weight, _, _ = _operands((2048, 768, 3072), narrow)
    down = (randn((768, 3072), torch.float64) * 3072**-0.5).to(narrow)
    leaves, dy = [x, weight, up_weight, down], randn((2048, 768), narrow)

    def ours(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        if kind == "two":
            return F.gated_mlp(x, weight, up, down, recompute=recompute)
        return F.gated_mlp(x, torch.cat([weight, up]), None, down, recompute=recompute)

    def formula(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        h = in_torch.silu(in_torch.linear(x, weight)) * in_torch.linear(x, up)
        return in_torch.linear(h, down)

    with poisoned():
        found = both_passes(ours, leaves, dy)
    theirs = both_passes(formula, leaves, dy)
    exact = both_passes(formula, [t.double() for t in leaves], dy.double())
    for name, a, b, c in zip(("y", "dx", "dw", "dup", "ddown"), found, theirs, exact, strict=True):
        assert_close_to_reference(a, b, c, name)
    with torch.no_grad():
        assert torch.equal(ours(*leaves), found[0])


# ---- the gradient at a gate, in the product behind it -------------------------------------------

# Rows, terms and columns: of one tile, with tails, of tiles for many rounds of every processor;
# then what falls to a product of its own.
GATE_SHAPES = [(128, 64, 192), (500, 736, 1504), (999, 584, 1160), (5000, 264, 4104),
               (7, 128, 200), (40, 33, 57)]  # fmt: skip
ORDERS = {"rows": lambda w: w, "columns": lambda w: w.t().contiguous().t()}


def _at_a_gate(shape: tuple[int, int, int], dtype: torch.dtype, biases: bool = True) -> list[Any]:
    """Gate and up are halves of one tensor, as products of one weight are."""
    rows, terms, cols = shape
    weight = (randn((terms, cols), torch.float64) * terms**-0.5).to(dtype)
    gate, up = randn((rows, 2 * cols), dtype).chunk(2, -1)
    of_both = [randn((cols,), dtype) if biases else None for _ in range(2)]
    return [randn((rows, terms), dtype), weight, gate, up, *of_both]


@each_narrow
@pytest.mark.parametrize("biases", [False, True], ids=["alone", "biases"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("shape", GATE_SHAPES, ids=str)
def test_gradient_at_a_gate(
    shape: tuple[int, int, int], activation: str, order: str, biases: bool, narrow: torch.dtype
) -> None:
    dy, weight, gate, up, *of_both = _at_a_gate(shape, narrow, biases)
    given, number = [dy, ORDERS[order](weight), gate, up, *of_both], NUMBERS[activation]
    with poisoned():
        found = LINEAR_DGATED(*given, number, True)
        *alone, none = LINEAR_DGATED(*given, number, False)
    assert none.numel() == 0
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=False))
    assert torch.equal(found[2], GATED[activation].call(gate, up, *of_both))
    theirs = linear_dgated(*given, number, True)
    wide = [None if t is None else t.double() for t in given]
    exact = linear_dgated(*wide, number, True)
    for name, a, b, c in zip(("dgate", "dup", "h"), found, theirs, exact, strict=True):
        assert_close_to_reference(a, b, c, name)


@each_narrow
def test_gradient_at_a_gate_repeats_bit_for_bit(narrow: torch.dtype) -> None:
    given = _at_a_gate((5000, 136, 4104), narrow)
    first = LINEAR_DGATED(*given, NUMBERS["swiglu"], True)
    for _ in range(20):
        again = LINEAR_DGATED(*given, NUMBERS["swiglu"], True)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_wide_biases_and_either_alone_at_a_gate() -> None:
    *given, bias, up_bias = _at_a_gate((256, 128, 192), torch.bfloat16)
    for pair in ((bias.float(), up_bias.float()), (bias, None), (None, up_bias)):
        found = LINEAR_DGATED(*given, *pair, NUMBERS["geglu"], True)
        theirs = linear_dgated(*given, *pair, NUMBERS["geglu"], True)
        wide = [None if t is None else t.double() for t in (*given, *pair)]
        exact = linear_dgated(*wide, NUMBERS["geglu"], True)
        for name, a, b, c in zip(("dgate", "dup", "h"), found, theirs, exact, strict=True):
            assert_close_to_reference(a, b, c, name)


@each_narrow
@pytest.mark.parametrize("biases", [False, True], ids=["alone", "biases"])
@pytest.mark.parametrize("kind", ["two", "pair"])
@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("activation", FORMULAS)
def test_gradients_of_mlps(
    activation: str, recompute: int, kind: str, biases: bool, narrow: torch.dtype
) -> None:
    x, weight, up_weight, bias, up_bias = _operands((517, 736, 1504), narrow)
    down = (randn((736, 1504), torch.float64) * 1504**-0.5).to(narrow)
    leaves, dy = [x, weight, up_weight, down], randn((517, 736), narrow)
    leaves += [bias, up_bias] if biases else []

    def ours(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, *of_both: Tensor) -> Tensor:
        options: dict[str, Any] = {"recompute": recompute, "backend": "cuda"}
        if kind == "two":
            options |= dict(zip(("bias", "up_bias"), of_both, strict=False))
            return F.gated_mlp(x, weight, up, down, activation, **options)
        options |= {"bias": torch.cat(of_both)} if of_both else {}
        return F.gated_mlp(x, torch.cat([weight, up]), None, down, activation, **options)

    def formula(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, *of_both: Tensor) -> Tensor:
        pair = of_both or (None, None)
        gate = FORMULAS[activation](in_torch.linear(x, weight, pair[0]))
        return in_torch.linear(gate * in_torch.linear(x, up, pair[1]), down)

    with poisoned():
        found = both_passes(ours, leaves, dy)
    theirs = both_passes(formula, leaves, dy)
    exact = both_passes(formula, [t.double() for t in leaves], dy.double())
    names = ("y", "dx", "dw", "dup", "ddown", "db", "dup_b")
    for name, a, b, c in zip(names, found, theirs, exact, strict=False):
        if activation == "reglu":  # its slope jumps where a sum near 0 is rounded otherwise
            assert (a.double() - c).norm() < 0.06 * c.norm(), name
        else:
            assert_close_to_reference(a, b, c, name, magnitude=4.0 if name == "y" else 0.0)


@pytest.mark.parametrize("chosen", [(0,), (1,), (3,), (4,), (0, 5)], ids=str)
def test_some_gradients_of_an_mlp(chosen: tuple[int, ...]) -> None:
    x, weight, up_weight, bias, up_bias = _operands((517, 736, 1504), torch.bfloat16)
    down = (randn((736, 1504), torch.float64) * 1504**-0.5).to(torch.bfloat16)
    leaves, dy = [x, weight, up_weight, down, bias, up_bias], randn((517, 736), torch.bfloat16)

    def ours(*leaves: Tensor) -> Tensor:
        *given, bias, up_bias = leaves
        return F.gated_mlp(*given, bias=bias, up_bias=up_bias, backend="cuda")

    whole = both_passes(ours, leaves, dy)[1:]
    given = [t.detach().requires_grad_(i in chosen) for i, t in enumerate(leaves)]
    found = torch.autograd.grad(ours(*given), [given[i] for i in chosen], dy)
    for i, gradient in zip(chosen, found, strict=True):
        assert torch.equal(gradient, whole[i]), i


def test_cuda_graph_and_the_same_bits() -> None:
    leaves = [t.requires_grad_() for t in _operands((2048, 768, 3072), torch.bfloat16)]
    dy = randn((2048, 3072), torch.bfloat16)

    def step() -> tuple[Tensor, ...]:
        y = F.gated_linear(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, dy)

    expected = step()
    graph, captured = capture(step)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def test_autocast() -> None:
    x, weight, up_weight, _, _ = _operands((2048, 768, 3072), torch.float32)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        y = F.gated_linear(x, weight, up_weight)
    narrow = [t.bfloat16() for t in (x, weight, up_weight)]
    with torch.no_grad():
        assert torch.equal(y, F.gated_linear(*narrow))
