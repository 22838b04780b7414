# SPDX-License-Identifier: MIT
"""The numbers of linear layers; declared/test_declare.py tests the declarations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels import _times
from transformer_kernels.ops._dtype import accumulate_dtype
from transformer_kernels.ops.linear import _choice, _formula, _onednn
from transformer_kernels.ops.linear._ops import LINEAR, LINEAR_ACT, LINEAR_DACT, LINEAR_DWEIGHT
from transformer_kernels.ops.pointwise.table import ACTIVATIONS
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.passes import both_passes, check_layer
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

# Rows, terms and columns: of one tile, of several blocks and parts, of odd sizes, of none.
SHAPES = [
    (1, 1, 1), (5, 7, 3), (97, 300, 193), (130, 511, 1), (33, 736, 67), (3, 1504, 50), (64, 1, 64),
    (2, 70, 130), (8, 65, 9), (9, 33, 70), (16, 129, 65), (17, 40, 9), (0, 5, 6), (4, 0, 6),
    (4, 6, 0),
]  # fmt: skip
BACKENDS = ("cpu", "reference")

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


def _operands(rows: int, terms: int, cols: int, dtype: torch.dtype) -> list[Tensor]:
    scale = max(terms, 1) ** -0.5
    return [
        randn((rows, terms), dtype),
        (randn((cols, terms), torch.float64) * scale).to(dtype),
        randn((cols,), dtype),
    ]


_check = partial(check_layer, units=4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(shape: tuple[int, int, int], backend: str, dtype: torch.dtype) -> None:
    leaves = _operands(*shape, dtype)
    dy = randn((shape[0], shape[2]), dtype)
    for count in (2, 3):  # without a bias and with one
        ours = lambda *a: F.linear(*a, backend=backend)  # noqa: E731
        _check(ours, in_torch.linear, leaves[:count], dy)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ACTIVATIONS, ids=lambda row: row.name)
def test_linear_act(row: Any, backend: str, dtype: torch.dtype) -> None:
    leaves = _operands(100, 65, 200, dtype)
    z = in_torch.linear(*(leaf.double() for leaf in leaves))
    # The slope of relu jumps: no gradient arrives where a sum may be rounded to either side of 0.
    dy = randn((100, 200), dtype).masked_fill(z.abs() < 1e-4, 0)
    _check(
        lambda *a: F.linear_act(*a, activation=row.name, backend=backend),
        lambda *a: row.formula(in_torch.linear(*a)),
        leaves,
        dy,
    )


def _kept_by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {**LAYOUTS, "by columns": _kept_by_columns}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    """Every layout of x, weight and dy gives the bits of contiguous tensors."""
    for of_weight in WEIGHTS.values():
        _check_layout(LAYOUTS[layout], of_weight, dtype)


@pytest.mark.parametrize("of_weight", WEIGHTS.values(), ids=list(WEIGHTS))
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
def test_few_rows_of_any_layout(of_weight: Callable[[Tensor], Tensor], of: torch.dtype) -> None:
    """A weight stored by columns is summed in another order. No row depends on the others."""
    x, weight, bias = _operands(16, 150, 200, of)
    weight = of_weight(weight)
    y = F.linear(x, weight, bias, backend="cpu")
    theirs, exact = (in_torch.linear(*a) for a in (
        (x, weight.contiguous(), bias), (x.double(), weight.double(), bias.double())
    ))  # fmt: skip
    assert_close_to_reference(y, theirs, exact, magnitude=4)
    for layout in LAYOUTS.values():
        for rows in (0, 1, 2, 3, 5, 8, 9, 16):
            some = layout(x[:1].expand(max(rows, 1), -1).contiguous())[:rows]
            found = F.linear(some, weight, bias, backend="cpu")
            assert torch.equal(found, y[:1].expand(rows, -1))


def _check_layout(
    layout: Callable[[Tensor], Tensor], of_weight: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x, weight, bias = _operands(40, 50, 60, dtype)
    x, weight, dy = layout(x), of_weight(weight), layout(randn((40, 60), dtype))
    ours = lambda *a: F.linear_act(*a, activation="silu", backend="cpu")  # noqa: E731
    found = both_passes(ours, [x, weight, bias], dy)
    plain = both_passes(ours, [t.contiguous() for t in (x, weight, bias)], dy.contiguous())
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", [LINEAR_DACT, _formula.linear_dact], ids=["op", "formula"])
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)))
def test_gradient_at_an_activation(activation: int, op: Any, dtype: torch.dtype) -> None:
    for rows, terms, cols in ((5, 7, 3), (97, 30, 193), (17, 64, 8)):
        dy, weight, _ = _operands(rows, terms, cols, dtype)
        weight = weight.t().contiguous()
        z = randn((rows, cols), dtype)
        alone, _, no_h = op(dy, weight, None, z, activation, True, False)
        assert no_h.numel() == 0
        exact = _formula.linear_dact(
            dy.double(), weight.double(), torch.zeros(cols).double(), z.double(), activation,
            True, False,
        )[1]  # fmt: skip
        for of_bias in (dtype, accumulate_dtype(z)):
            bias = torch.zeros(cols, dtype=of_bias)
            dz, dbias, h = op(dy, weight, bias, z, activation, True, True)
            assert torch.equal(dz, alone)
            assert dbias.dtype is of_bias
            # Every term was rounded to dtype, before the slope or behind it.
            rounding = torch.finfo(dtype).eps / torch.finfo(of_bias).eps
            size = alone.abs().sum(0).max().item() * max(1, rounding / 2)
            theirs = alone.sum(0, dtype=of_bias)
            assert_close_to_reference(dbias, theirs, exact, "dbias", magnitude=size)
            fake = LINEAR_DACT(
                *(t.to("meta") for t in (dy, weight, bias, z)), activation, True, True
            )
            for found, like in zip((dz, dbias, h), fake, strict=True):
                assert (found.shape, found.dtype) == (like.shape, like.dtype)
            _, none, _ = op(dy, weight, bias, z, activation, False, True)
            assert none.numel() == 0


def test_no_rows_have_a_gradient_of_the_bias() -> None:
    dy, weight, z = torch.ones(0, 5), torch.ones(5, 6), torch.ones(0, 6)
    _, dbias, _ = LINEAR_DACT(dy, weight, torch.ones(6), z, 0, True, False)
    assert torch.equal(dbias, torch.zeros(6))


def test_the_gradient_is_kept_as_the_weight_is() -> None:
    """A weight stored as (K, N) has a gradient stored as (K, N), which spares a copy."""
    x, dy = randn((40, 50), torch.float32), randn((40, 60), torch.float32)
    weight = randn((50, 60), torch.float32).t()
    _, dweight, _ = LINEAR.raw.backward(dy, x, weight, None, False, True, False)
    assert dweight.stride() == weight.stride()


@pytest.mark.parametrize("op", [LINEAR_DWEIGHT, _formula.write_dweight], ids=["op", "formula"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gradient_of_the_weight_is_written_where_it_is_wanted(
    accumulate: bool, op: Any, dtype: torch.dtype
) -> None:
    """In the dtype of x, which rounds once, or in float32; by rows, by columns, and in a part."""
    for rows, terms, cols in ((5, 7, 3), (97, 30, 193), (300, 64, 24), (0, 5, 6)):
        x, dy = randn((rows, terms), dtype), randn((rows, cols), dtype)
        wide = accumulate_dtype(x)
        for of in (dtype, wide):
            memory = randn((cols + 2, terms + 3), of)
            by_columns = randn((terms, cols), of).t()
            for dweight in (memory[1:-1, 2:-1], by_columns):
                old = dweight.clone() if accumulate else torch.zeros_like(dweight)
                op(dweight, dy, x, accumulate)
                exact = old.double() + dy.double().t() @ x.double()
                theirs = (old + (dy.to(wide).t() @ x.to(wide))).to(of)
                assert_close_to_reference(dweight, theirs, exact, magnitude=rows**0.5)


def test_a_gradient_of_the_weight_changes_nothing_else() -> None:
    x, dy = randn((40, 50), torch.float32), randn((40, 60), torch.float32)
    torch.library.opcheck(LINEAR_DWEIGHT, (torch.ones(60, 50), dy, x, True))
    memory = torch.ones(64, 70)
    LINEAR_DWEIGHT(memory[2:62, 10:60], dy, x, accumulate=True)
    memory[2:62, 10:60] = 1
    assert torch.equal(memory, torch.ones(64, 70))
    with pytest.raises(RuntimeError, match=r"linear: dweight is int64, expected float32"):
        LINEAR_DWEIGHT(torch.zeros(60, 50, dtype=torch.int64), dy, x, accumulate=True)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_of_gradients(activation: str | None) -> None:
    leaves = [leaf.requires_grad_() for leaf in _operands(5, 4, 3, torch.float64)]

    def call(*a: Tensor) -> Tensor:
        if activation is None:
            return F.linear(*a, backend="cpu")
        return F.linear_act(*a, activation=activation, backend="cpu")

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("wanted", range(3))
def test_frozen_operands(wanted: int) -> None:
    """An operand without a gradient costs no product, and changes no other gradient."""
    leaves = _operands(30, 20, 10, torch.float32)
    dy = randn((30, 10), torch.float32)
    every = both_passes(lambda *a: F.linear_act(*a, backend="cpu"), leaves, dy)
    some = [leaf.requires_grad_(i == wanted) for i, leaf in enumerate(leaves)]
    y = F.linear_act(*some, backend="cpu")
    (gradient,) = torch.autograd.grad(y, some[wanted], dy)
    assert torch.equal(gradient, every[1 + wanted])


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(97, 300, 193), (300, 1030, 400)], ids=str)
def test_the_same_bits_for_any_number_of_threads(
    shape: tuple[int, int, int], of: torch.dtype
) -> None:
    leaves = _operands(*shape, of)
    dy = randn((shape[0], shape[2]), of)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(both_passes(lambda *a: F.linear_act(*a, backend="cpu"), leaves, dy))
    torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_a_changed_weight_is_seen() -> None:
    """The weight changes in place, through .data, and by taking another's memory: no call is
    cached."""
    x, weight, _ = _operands(64, 64, 64, torch.float32)
    F.linear(x, weight, backend="cpu")
    weight.mul_(2)
    torch.testing.assert_close(F.linear(x, weight, backend="cpu"), x @ weight.t())
    parameter = torch.nn.Parameter(weight)
    F.linear(x, parameter, backend="cpu")
    parameter.data.fill_(1)
    torch.testing.assert_close(F.linear(x, parameter, backend="cpu"), x @ parameter.t())


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_stay_in_their_row(number: float) -> None:
    x, weight, bias = _operands(40, 30, 20, torch.float32)
    expected = F.linear_act(x, weight, bias, "relu", backend="cpu")
    x[7, 3] = number
    y = F.linear_act(x, weight, bias, "relu", backend="cpu")
    rows = torch.arange(40) != 7
    assert torch.equal(y[rows], expected[rows])
    torch.testing.assert_close(y[7], in_torch.linear(x[7], weight, bias).relu(), equal_nan=True)


def test_a_bias_of_float32(dtype: torch.dtype) -> None:
    if dtype.itemsize > 2:
        pytest.skip("of 16-bit numbers")
    x, weight, bias = _operands(40, 30, 20, dtype)
    bias = bias.float().requires_grad_()
    for backend in BACKENDS:
        y = F.linear(x, weight, bias, backend=backend)
        assert y.dtype == dtype
        exact = in_torch.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=2e-2)
        (gradient,) = torch.autograd.grad(y.sum(), bias)
        assert torch.equal(gradient, torch.full((20,), 40.0))


@pytest.mark.parametrize("shape", [(30,), (2, 3, 30), (2, 2, 2, 2, 2, 2, 2, 2, 30)])
def test_leading_dimensions(shape: tuple[int, ...]) -> None:
    _, weight, bias = _operands(1, 30, 20, torch.float32)
    x = randn(shape, torch.float32)
    y = F.linear(x, weight, bias, backend="cpu")
    torch.testing.assert_close(y, in_torch.linear(x, weight, bias))


# ---- what is refused ----------------------------------------------------------------------------


def test_bad_activations() -> None:
    x, weight = torch.ones(4, 8), torch.ones(3, 8)
    with pytest.raises(ValueError, match="linear_act: activation is 'tanh', expected one of gelu"):
        F.linear_act(x, weight, activation="tanh")
    with pytest.raises(TypeError, match="linear_act: activation is 3"):
        F.linear_act(x, weight, activation=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gated_linear: activation is 'gelu', expected one of geg"):
        F.gated_linear(x, weight, activation="gelu")


# ---- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "of", "reason"),
    [
        (512, torch.float32, None),
        (512, torch.bfloat16, "PyTorch's product of 16-bit numbers"),
        (16, torch.float32, "the weight is small"),
        (17, torch.float32, "not many rows"),
        (33, torch.float32, "small"),
    ],
)
def test_the_choice(
    rows: int, of: torch.dtype, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_choice, "BLAS", (0, 0, 0))
    x, weight, _ = _operands(rows, 128, 128, of)
    found = _choice.refusal("linear", x, weight)
    assert found == reason or (reason is not None and found is not None and reason in found)
    monkeypatch.setattr(_choice, "BLAS", (0, 1, 0))
    assert _choice.refusal("linear", x, weight) is not None


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 33, 200, 4000])
@pytest.mark.parametrize("columns", [1, 100, 1000, 1100])
def test_rules_leave_little_products_to_torch(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_choice, "BLAS", (0, 0, 0))
    x, weight = torch.empty(rows, 250), torch.empty(columns, 250)
    little = _choice.is_little("linear", x, weight)
    assert little == (columns < 1048 and rows * columns * 250 < 6 * 2**20)
    if little:
        assert _choice.refusal("linear", x, weight) is not None


def test_what_decides_before_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(1, 8), torch.randn(4, 8)
    assert _choice.is_little("linear", x, weight, weight)
    assert not _choice.is_little("linear", x, weight, None)  # type: ignore[arg-type]
    assert not torch.func.vmap(lambda x: x * _choice.is_little("linear", x, weight))(x).any()
    with tfk.tuning():
        assert not _choice.is_little("linear", x, weight)
    monkeypatch.setattr(_times.Kept, "any", True)
    assert not _choice.is_little("linear", x, weight)


@pytest.mark.parametrize("trains", [False, True])
def test_the_choice_of_48_rows_depends_on_gradients(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_choice, "BLAS", (0, 0, 0))
    x, weight, _ = _operands(48, 512, 512, torch.float32)
    found = _choice.refusal("linear", x, weight.requires_grad_(trains))
    assert (found is None) == (not trains)


@pytest.mark.parametrize(
    ("rows", "of", "by_columns", "fast", "ours"),
    [
        (1, torch.float32, False, True, False), (1, torch.float32, False, False, True),
        (2, torch.float32, False, True, True), (16, torch.float32, True, True, True),
        (4, torch.bfloat16, False, True, True), (5, torch.bfloat16, False, True, False),
        (8, torch.bfloat16, True, True, True), (9, torch.bfloat16, True, True, False),
    ],
)  # fmt: skip
def test_the_choice_of_few_rows(
    rows: int, of: torch.dtype, by_columns: bool, fast: bool, ours: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(_choice, "BLAS", (fast, 1, 0))
    x, weight, _ = _operands(rows, 512, 1024, of)
    weight = _kept_by_columns(weight) if by_columns else weight
    assert (_choice.refusal("linear", x, weight) is None) == ours
    assert _choice.refusal("linear", x.requires_grad_(), weight) is not None


@pytest.mark.parametrize("fast", [True, False])
def test_either_product_is_differentiable(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_choice, "BLAS", (0, fast, 0))
    leaves = _operands(512, 128, 128, torch.float32)
    dy = randn((512, 128), torch.float32)
    _check(F.linear_act, lambda *a: in_torch.gelu(in_torch.linear(*a)), leaves, dy)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's operator runs on any processor that has it, for operands of any size."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products of bfloat16 here")
    monkeypatch.setattr(_choice, "BLAS", (1, 1, 1))
    asked = _choice.reason_by_sizes

    def of_any_size(question: _choice.Question, *operands: torch.Tensor) -> str | None:
        reason = asked(question, *operands)
        is_small = "costs more" in str(reason) and operands[0].numel() > 0
        return None if is_small else reason

    monkeypatch.setattr(_choice, "reason_by_sizes", of_any_size)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("shape", [(97, 300, 193), (1, 1, 1), (3, 1504, 50)], ids=str)
def test_inference_by_onednn(shape: tuple[int, int, int]) -> None:
    x, weight, bias = _operands(*shape, torch.bfloat16)
    x[0, 0] = torch.nan
    assert _onednn.refusal(x, weight, bias) is None
    exact = in_torch.linear(x.double(), weight.double(), bias.double())
    theirs = in_torch.linear(x, weight, bias)
    assert_close_to_reference(F.linear(x, weight, bias), theirs, exact, "y")
    row = ACTIVATIONS[0]
    y = F.linear_act(x, weight, bias, row.name)
    assert_close_to_reference(y, row.formula(theirs), row.formula(exact), row.name)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, w, _: (x, w, None), "without a bias"),
        (lambda x, w, b: (x.float(), w.float(), b.float()), "this dtype"),
        (lambda x, w, b: (x, w.requires_grad_(), b), "no gradient"),
        (lambda x, w, b: (x.expand(2, 3, 40, 30), w, b), "as it takes them"),
        (lambda x, w, b: (x, w.t().contiguous().t(), b), "as it takes them"),
        (lambda x, w, b: (x, w, b.float()), "as it takes them"),
        (lambda x, w, b: (x[:0], w, b), "costs more"),
    ],
)
def test_what_onednn_leaves_to_linear(change: Any, reason: str) -> None:
    operands = change(*_operands(40, 30, 20, torch.bfloat16))
    refusal = _onednn.refusal(*operands)
    assert refusal is not None
    assert reason in refusal
    assert F.linear(*operands).shape == (*operands[0].shape[:-1], 20)


# ---- gated layers and MLPs ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "cpu"])
@pytest.mark.parametrize("packed", [True, False])
def test_gated_linear(packed: bool, backend: str, dtype: torch.dtype) -> None:
    x, weight, bias = _operands(33, 40, 64, dtype)
    dy = randn((33, 32), dtype)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if packed:
            return F.gated_linear(x, weight, bias=bias, backend=backend)
        (gate, up), (gate_bias, up_bias) = weight.chunk(2), bias.chunk(2)
        return F.gated_linear(x, gate, up, gate_bias, up_bias, backend=backend)

    def formula(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gate, up = in_torch.linear(x, weight, bias).chunk(2, -1)
        return in_torch.silu(gate) * up

    _check(ours, formula, [x, weight, bias], dy)


def test_modules_are_torch_s() -> None:
    x = randn((4, 40, 32), torch.float32)
    theirs = torch.nn.Linear(32, 48)
    for module, activate in (
        (tfk.nn.Linear(32, 48), lambda z: z),
        (tfk.nn.LinearAct(32, 48, activation="silu"), in_torch.silu),
        (tfk.nn.FusedLinearReLU(32, 48), torch.relu),
    ):
        module.load_state_dict(theirs.state_dict())
        assert isinstance(module, torch.nn.Linear)
        torch.testing.assert_close(module(x), activate(theirs(x)))


def test_mlps() -> None:
    x = randn((4, 40, 32), torch.float32)
    mlp, gated = tfk.nn.MLP(32, 80, 16, activation="relu"), tfk.nn.GatedMLP(32, 80)
    assert list(mlp.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert list(gated.state_dict()) == ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
    fc1, fc2 = mlp.fc1, mlp.fc2
    hidden = in_torch.linear(x, fc1.weight, fc1.bias).relu()
    expected = in_torch.linear(hidden, fc2.weight, fc2.bias)
    torch.testing.assert_close(mlp(x), expected)
    called = F.mlp(x, fc1.weight, fc1.bias, fc2.weight, fc2.bias, "relu")
    torch.testing.assert_close(called, expected)
    g, u, d = gated.gate_proj.weight, gated.up_proj.weight, gated.down_proj.weight
    torch.testing.assert_close(gated(x), (in_torch.silu(x @ g.t()) * (x @ u.t())) @ d.t())
    torch.testing.assert_close(F.gated_mlp(x, g, u, d), gated(x))


def test_what_is_kept_for_the_backward_pass() -> None:
    """linear_act saves x, the weight, the bias and z, but not y."""
    leaves = [leaf.requires_grad_() for leaf in _operands(64, 32, 48, torch.float32)]
    kept: list[int] = []
    pack = lambda t: kept.append(t.data_ptr()) or t  # type: ignore[func-returns-value] # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = LINEAR_ACT.call(*leaves, 0)
    assert len(kept) == 4
    assert {leaf.data_ptr() for leaf in leaves} < set(kept)
    assert y.data_ptr() not in kept


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_torch_compile(backend: str) -> None:
    leaves = _operands(64, 32, 48, torch.float32)
    call = torch.compile(
        lambda *a: F.linear_act(*a, backend=backend), backend="aot_eager", fullgraph=True
    )
    dy = randn((64, 48), torch.float32)
    for a, b in zip(
        both_passes(call, leaves, dy), both_passes(F.linear_act, leaves, dy), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_autocast_is_pytorch_s() -> None:
    x, weight, bias = _operands(256, 128, 128, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(x, weight, bias).dtype is torch.bfloat16
        assert F.linear_act(x, weight, bias).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64])
def test_other_numbers_are_pytorchs(kind):
    x, weight = (torch.ones(*shape, dtype=kind) for shape in ((2, 640), (640, 640)))
    assert torch.equal(F.linear(x, weight), in_torch.linear(x, weight))
