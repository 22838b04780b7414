# SPDX-License-Identifier: MIT
"""The pointwise ops, from their table; tests that all ops share are in declared/."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.nn.activation import MODULES
from transformer_kernels.ops.pointwise._ops import GATED, PLAIN
from transformer_kernels.ops.pointwise.pointwise import FUNCTIONS
from transformer_kernels.ops.pointwise.table import ACTIVATIONS, Activation
from transformer_kernels.testing.case import Case, as_tuple
from transformer_kernels.testing.check import check_problem
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.pointwise import MAIN, VARIANTS, away_from_corners, exact
from transformer_kernels.testing.tolerance import assert_close_to_reference

ROWS = list(ACTIVATIONS)
REPLACING = [row for row in ROWS if row.replaces]
FUNCTION_OF = {
    module: name.removesuffix("_tanh")
    for row in ROWS
    for module, name in ((row.module, row.name), (row.gated_module, row.gated))
    if name
}
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
each_replacing = pytest.mark.parametrize("row", REPLACING, ids=lambda row: row.name)
each_variant = pytest.mark.parametrize("case", VARIANTS, ids=str)
each_main = pytest.mark.parametrize("case", MAIN, ids=str)
each_module = pytest.mark.parametrize("name", MODULES)


def _arguments_of(row: Activation) -> dict[str, Any]:
    """The arguments that choose the row, where one function serves two rows."""
    return {"approximate": "tanh"} if row.name == "gelu_tanh" else {}


def _function(row: Activation) -> Any:
    return getattr(tfk.functional, row.name.removesuffix("_tanh"))


# ---- numbers ------------------------------------------------------------------------------------


@each_variant
def test_variants(case: Case, dtype: torch.dtype, device: str) -> None:
    for shape in ((7, 40), (2, 3, 66)):
        check_problem(case.build(randn(shape, dtype, device)))


@each_variant
@pytest.mark.parametrize("layout", ["strided", "transposed", "expanded"])
def test_layouts(case: Case, layout: str, device: str) -> None:
    check_problem(case.build(LAYOUTS[layout](randn((4, 3, 24), torch.float32, device))))


@each_variant
def test_triton(case: Case, device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    for dtype in (torch.float64, torch.bfloat16):
        problem = case.build(randn((5, 34), dtype, device))
        check_problem(problem, backend="triton", magnitude=1.0)


@each_variant
def test_derivatives(case: Case, device: str) -> None:
    """First and second derivatives, away from the corner of relu."""
    problem = away_from_corners(case.build(randn((3, 4), torch.float64, device)))
    leaves = [tensor.clone().requires_grad_() for tensor in problem.tensors]
    assert torch.autograd.gradcheck(problem.ours, leaves)
    assert torch.autograd.gradgradcheck(problem.ours, leaves)


@each_row
def test_hard_points(row: Activation, dtype: torch.dtype, device: str) -> None:
    """Saturated, tiny, denormal and zero inputs: values and slopes meet the rule. Denormals may
    become 0, as in processors' own conversions to bfloat16."""
    info = torch.finfo(dtype)
    least = 4 * info.smallest_normal / info.eps
    sizes = [0.0, info.smallest_normal / 4, info.smallest_normal, info.eps, 1e-3, 0.5, 3.0, 5.5]
    sizes += [8.0, 13.0, 17.0, 30.0, 60.0, 88.0, 100.0]
    for size in sizes:
        x = torch.tensor([size, -size], dtype=torch.float64).to(dtype).to(device)

        def both(function: Any, x: Tensor = x) -> tuple[Tensor, Tensor]:
            leaf = x.detach().requires_grad_()
            y = function(leaf)
            return y.detach(), torch.autograd.grad(y.sum(), leaf)[0]

        ours = both(lambda x: _function(row)(x, **_arguments_of(row)))
        theirs = both(row.formula)
        expected = both(lambda x: exact(row)(x.double()))
        magnitude = max(min(size, 1.0), least)
        for what, *group in zip(("value", "slope"), ours, theirs, expected, strict=True):
            assert_close_to_reference(*group, f"{what} at {size}", magnitude=magnitude)


@each_row
def test_nan_and_infinities(row: Activation, dtype: torch.dtype, device: str) -> None:
    """Results are float64's, and neighbours are unaffected."""
    x = torch.tensor([torch.nan, 1.0, torch.inf, -1.0, -torch.inf, 0.5], dtype=dtype, device=device)
    y = _function(row)(x, **_arguments_of(row))
    expected = exact(row)(x.double()).to(dtype)
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert torch.isnan(y[0])
    assert torch.isfinite(y[1::2]).all()


@each_row
def test_graphs_of_any_size(row: Activation, dtype: torch.dtype, device: str) -> None:
    """opcheck's graphs of symbolic sizes, of one and two dimensions. opcheck takes two NaN for
    different numbers, so this test compares them itself."""
    op = PLAIN[row.name].raw
    for shape in ((6,), (3, 8), (1,), (8, 1)):
        x = randn(shape, dtype, device)
        torch.library.opcheck(op.forward, (x, None))
        torch.library.opcheck(op.backward, (torch.ones_like(x), x, None, False, True))
    x = torch.tensor([torch.nan, 1.0, torch.inf, -torch.inf], dtype=dtype, device=device)
    for call, arguments in (
        (op.forward, (x, None)), (op.backward, (torch.ones_like(x), x, None, False, True))
    ):  # fmt: skip
        graph = make_fx(lambda *t, call=call: call(*t), tracing_mode="symbolic")(*arguments)
        torch.testing.assert_close(graph(*arguments), call(*arguments), equal_nan=True)


@pytest.mark.parametrize("name", GATED)
def test_a_packed_pair_is_two_tensors(name: str, dtype: torch.dtype, device: str) -> None:
    call = GATED[name].call
    packed = randn((5, 48), dtype, device).requires_grad_()
    bias = randn((48,), torch.float32, device).to(dtype).requires_grad_()
    gradient = randn((5, 24), dtype, device)
    once = call(packed, None, bias, None)
    twice = call(*packed.chunk(2, -1), *bias.chunk(2))
    torch.testing.assert_close(once, twice)
    dpacked, dbias = torch.autograd.grad(once, (packed, bias), gradient)
    dhalves, dbiases = torch.autograd.grad(twice, (packed, bias), gradient)
    torch.testing.assert_close(dpacked, dhalves)
    torch.testing.assert_close(dbias, dbiases)


@each_main
def test_recomputed_result(case: Case, dtype: torch.dtype, device: str) -> None:
    """The backward pass can recompute the result, bit by bit."""
    problem = case.build(randn((6, 40), dtype, device))
    op = (PLAIN | GATED)[case.name]
    with torch.no_grad():
        (y,) = as_tuple(problem.ours(*problem.tensors))
        *_, again = op.raw.backward(torch.ones_like(y), *problem.tensors, True, True)
        *_, nothing = op.raw.backward(torch.ones_like(y), *problem.tensors, False, False)
    assert torch.equal(again, y)
    assert nothing.numel() == 0


# ---- in PyTorch's place -------------------------------------------------------------------------


@each_replacing
def test_drop_in(row: Activation, device: str) -> None:
    theirs = row.replaces[0]
    for x in (
        torch.tensor(0.3, device=device),
        randn((5,), torch.float32, device),
        randn((2, 0, 3), torch.float32, device),
        randn((1, 2) * 5, torch.float64, device),
        randn((4, 6), torch.float16, device).t(),
    ):
        result, expected = _function(row)(x, **_arguments_of(row)), theirs(x)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(result, expected)


@each_replacing
def test_signature_starts_with_torchs(row: Activation) -> None:
    if row.has_in_place:
        theirs = list(inspect.signature(row.replaces[0]).parameters)
        assert list(inspect.signature(_function(row)).parameters)[: len(theirs)] == theirs


IN_PLACE = [row for row in ROWS if row.has_in_place]


@pytest.mark.parametrize("row", IN_PLACE, ids=lambda row: row.name)
def test_in_place(row: Activation, device: str) -> None:
    """The tensor is overwritten and returned, and its gradient is PyTorch's."""
    ours, theirs = _function(row), row.replaces[0]
    start = randn((4, 6), torch.float64, device).requires_grad_()
    outcomes = []
    for function in (ours, theirs):
        x = start * 2
        y = function(x, inplace=True)
        assert y is x
        outcomes.append((y.detach(), torch.autograd.grad((y * y).sum(), start)[0]))
    torch.testing.assert_close(outcomes[0], outcomes[1])
    with torch.no_grad():
        x = start.clone()
        assert ours(x, True) is x
        torch.testing.assert_close(x, theirs(start))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        ours(start, inplace=True)


def test_approximations() -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(tfk.functional.gelu(x), F.gelu(x))
    torch.testing.assert_close(tfk.functional.gelu(x, "tanh"), F.gelu(x, approximate="tanh"))
    for function in (tfk.functional.gelu, tfk.functional.geglu):
        name = function.__name__
        with pytest.raises(ValueError, match=f"^{name}: approximate is 'x', expected 'none' or"):
            function(x, approximate="x")
        with pytest.raises(TypeError, match=f"^{name}: approximate is None, expected 'none' or"):
            function(x, approximate=None)


def test_packed_pairs_are_checked() -> None:
    for backend in ("auto", "reference"):
        with pytest.raises(ValueError, match=r"^swiglu: gate has a last dimension of 5, "):
            tfk.functional.swiglu(torch.randn(3, 5), backend=backend)
        with pytest.raises(ValueError, match=r"^swiglu: up_bias is present, expected none"):
            tfk.functional.swiglu(torch.randn(3, 6), up_bias=torch.ones(3), backend=backend)


def test_biases_share_a_dtype() -> None:
    x, bias = torch.randn(3, 6).half(), torch.ones(6)
    with pytest.raises(TypeError, match=r"^swiglu: up_bias is float16, .* share"):
        tfk.functional.swiglu(x, x, bias=bias, up_bias=bias.half())


def test_autocast_keeps_the_dtype(device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = randn((4, 6), dtype, device)
        with torch.autocast(device, dtype=torch.bfloat16):
            for row in REPLACING:
                y = _function(row)(x, **_arguments_of(row))
                assert y.dtype is row.replaces[0](x).dtype is dtype
            assert tfk.functional.swiglu(x).dtype is dtype


def test_transforms() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    for row in ROWS:
        function = _function(row)
        mapped = torch.func.vmap(lambda x, f=function, r=row: f(x, **_arguments_of(r)))(x)
        torch.testing.assert_close(mapped, row.formula(x))
        hessian = torch.func.hessian(lambda x, f=function: f(x).sum())(x[0, 0])
        assert hessian.dtype is torch.float64


@each_row
def test_one_node_of_a_graph(row: Activation) -> None:
    function = _function(row)
    traced = torch.fx.symbolic_trace(lambda x: function(x))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [function]


# ---- modules ------------------------------------------------------------------------------------


@each_module
def test_modules(name: str) -> None:
    module = getattr(tfk.nn, name)()
    assert type(module).__name__ == name
    assert module.state_dict() == {}
    x = torch.randn(3, 6)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(x), module(x))
    assert repr(getattr(tfk.nn, name)(backend="reference")).endswith("backend='reference')")


@each_module
def test_modules_with_a_bias(name: str) -> None:
    module = getattr(tfk.nn, name)(features=6)
    assert list(module.state_dict()) == ["bias"]
    assert "features=6" in repr(module)
    x = torch.randn(3, 6, requires_grad=True)
    torch.testing.assert_close(module(x), getattr(tfk.nn, name)()(x))
    torch.nn.init.normal_(module.bias)
    function = getattr(tfk.functional, FUNCTION_OF[name])
    torch.testing.assert_close(module(x), function(x, bias=module.bias))
    module(x).sum().backward()
    assert module.bias.grad.shape == (6,)
    module.reset_parameters()
    assert not module.bias.any()


@each_replacing
def test_modules_are_torchs(row: Activation) -> None:
    base = row.replaces[1]
    ours = getattr(tfk.nn, row.module)
    assert issubclass(ours, base)
    arguments = _arguments_of(row)
    a, b, x = ours(**arguments), base(**arguments), torch.randn(3, 6)
    assert repr(a) == repr(b)
    torch.testing.assert_close(a(x), b(x))
    b.__class__ = ours  # as a module of PyTorch's becomes ours
    torch.testing.assert_close(b(x), a(x))
    if row.has_in_place:
        written = x.clone()
        assert ours(inplace=True)(written) is written


def test_gated_modules_take_two_tensors() -> None:
    gate, up = torch.randn(3, 6), torch.randn(3, 6)
    module = tfk.nn.SwiGLU(features=6, up_features=6)
    assert list(module.state_dict()) == ["bias", "up_bias"]
    torch.nn.init.normal_(module.up_bias)
    expected = tfk.functional.swiglu(gate, up, up_bias=module.up_bias)
    torch.testing.assert_close(module(gate, up), expected)
    tanh = tfk.nn.GEGLU("tanh")
    torch.testing.assert_close(tanh(gate, up), F.gelu(gate, approximate="tanh") * up)
    assert repr(tanh) == "GEGLU(approximate='tanh')"


def test_every_row_has_its_functions_and_modules() -> None:
    for row in ROWS:
        for name in filter(None, (row.name, row.gated)):
            assert name.removesuffix("_tanh") in FUNCTIONS
        assert row.module in tfk.nn.__all__
    assert set(FUNCTIONS) <= set(tfk.functional.__all__)
