# SPDX-License-Identifier: MIT
"""torch.compile, torch.export, torch.func, opcheck, autocast: the ops inside PyTorch's systems."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import transformer_kernels as tfk
from transformer_kernels.ops._declare import Op
from transformer_kernels.ops._declare_arguments import Argument, Indices
from transformer_kernels.ops._register import DECLARED
from transformer_kernels.testing.case import Case, as_tuple
from transformer_kernels.testing.cases import MAIN_CASES, run
from transformer_kernels.testing.check import random_gradients
from transformer_kernels.testing.declared import good
from transformer_kernels.testing.inputs import randn

each_main_case = pytest.mark.parametrize("case", MAIN_CASES, ids=str)
OPS = torch.ops.transformer_kernels


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def _is_index(argument: Argument) -> bool:
    return isinstance(argument, Indices)


def _assert_same(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    for group, other in zip(first, second, strict=True):
        for a, b in zip(group, other, strict=True):
            torch.testing.assert_close(a, b)


@each_main_case
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_fullgraph(case: Case, dynamic: bool, device: str) -> None:
    """Compiles to one graph, forward and backward, with the same numbers; a new size works too."""
    compiled = None
    for rows in (4, 9):
        problem = case.build(randn((rows, 24), torch.float32, device))
        gradients = random_gradients(problem)
        if compiled is None:
            compiled = torch.compile(
                problem.ours, fullgraph=True, dynamic=dynamic, backend="aot_eager"
            )
        eager = run(problem.ours, problem.tensors, gradients)
        _assert_same(run(compiled, problem.tensors, gradients), eager)


@pytest.mark.slow
def test_inductor(device: str) -> None:
    """Runs through the default compiler, beside pointwise work on both sides."""
    if device == "cpu" and " " in torch.__file__:
        pytest.skip("Inductor cannot link against a PyTorch whose path has a space")

    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y, s = tfk.functional.add_rms_norm(x.sin(), r, (w.shape[0],), w)
        y = tfk.functional.layer_norm(y.cos(), (w.shape[0],), w, b)
        return tfk.functional.softmax(y * 2, -1, causal=True) + s

    shapes = [(8, 16), (8, 16), (16,), (16,)]
    tensors = tuple(randn(shape, torch.float32, device) for shape in shapes)
    gradients = (randn((8, 16), torch.float32, device),)
    eager = run(block, tensors, gradients)
    compiled = run(torch.compile(block, fullgraph=True), tensors, gradients)
    _assert_same(compiled, eager)


def test_compile_with_one_tensor_twice(device: str) -> None:
    def twice(x: Tensor) -> Tensor:
        y, s = tfk.functional.add_layer_norm(x, x, (x.shape[-1],))
        return y * s

    x = randn((4, 16), torch.float64, device)
    gradients = (randn((4, 16), torch.float64, device),)
    eager = run(twice, (x,), gradients)
    compiled = run(torch.compile(twice, fullgraph=True, backend="aot_eager"), (x,), gradients)
    _assert_same(compiled, eager)
    assert torch.autograd.gradcheck(twice, x.clone().requires_grad_())


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = tfk.nn.LayerNorm(16)
        self.second = tfk.nn.RMSNorm(16)
        self.third = tfk.nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


def test_export() -> None:
    model, x = _Model(), torch.randn(4, 16)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    names = {str(node.target) for node in program.graph.nodes}
    wanted = {f"transformer_kernels.{op}.default" for op in ("layer_norm", "rms_norm", "softmax")}
    assert wanted <= names
    for rows in (4, 7):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(program.module()(x), model(x))


def test_fx_tracing_keeps_one_node_a_call() -> None:
    traced = torch.fx.symbolic_trace(lambda x: tfk.functional.layer_norm(x, (16,)))
    assert tfk.functional.layer_norm in {node.target for node in traced.graph.nodes}
    x = torch.randn(3, 16)
    torch.testing.assert_close(traced(x), tfk.functional.layer_norm(x, (16,)))


@pytest.mark.filterwarnings("ignore")  # that torch.jit.trace is deprecated
def test_a_trace_has_the_formulas() -> None:
    """A traced kernel would be a constant of the graph, and wrong for other numbers."""
    model = torch.nn.Sequential(
        tfk.nn.LayerNorm(16), tfk.nn.CausalSelfAttention(16, 2), tfk.nn.RMSNorm(16),
        tfk.nn.MLP(16, 32), tfk.nn.GELU(), tfk.nn.Linear(16, 16), tfk.nn.LogSoftmax(-1),
    )  # fmt: skip
    target = torch.randint(0, 16, (10,))

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return tfk.functional.cross_entropy(self.model(x).flatten(0, 1), target)

    loss, x = Loss(), torch.randn(2, 5, 16)
    traced = torch.jit.trace(loss, torch.randn(2, 5, 16), check_trace=False)
    assert not any("transformer_kernels" in n.kind() for n in traced.inlined_graph.nodes())
    found, expected = (torch.autograd.grad(f(x), list(model.parameters())) for f in (traced, loss))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(traced(x), loss(x))


@each_main_case
def test_torch_func(case: Case) -> None:
    """vmap, grad, jvp and forward-mode differentiation run the formula."""
    problem = case.build(torch.randn(5, 8, dtype=torch.float64))
    x, *rest = problem.tensors
    stacked = torch.stack([x, 2 * x])
    mapped = as_tuple(torch.func.vmap(lambda x: problem.ours(x, *rest))(stacked))
    for index in (0, 1):
        expected = as_tuple(problem.ours(stacked[index], *rest))
        for a, b in zip(mapped, expected, strict=True):
            torch.testing.assert_close(a[index], b)

    def loss(x: Tensor) -> Tensor:
        return sum((r * r).sum() for r in as_tuple(problem.ours(x, *rest)))

    leaf = x.clone().requires_grad_()
    (expected_gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected_gradient)
    _, tangent = torch.func.jvp(loss, (x,), (x,))
    torch.testing.assert_close(tangent, (expected_gradient * x).sum())
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, x))).tangent
    torch.testing.assert_close(tangent, (expected_gradient * x).sum())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "op",
    [op for op in DECLARED.values() if any(map(_is_index, op.arguments))],
    ids=lambda op: op.name,
)
def test_samples_with_other_indices(op: Op, device: str) -> None:
    """Indices that differ between the samples of vmap give the results of separate calls, or are
    refused by name: the host cannot read them."""
    for name in [argument.name for argument in op.arguments if _is_index(argument)]:
        given = good(op, name)

        def call(indices: Tensor, name: str = name, given: Any = given) -> Any:
            return op.call(*(given | {name: indices}).values())

        stacked = torch.stack([given[name]] * 2)
        try:
            found = as_tuple(torch.func.vmap(call)(stacked))
        except tfk.ArgumentValueError as error:
            assert f"{name} differs between the samples of" in str(error)  # noqa: PT017
            continue
        for y, expected in zip(found, as_tuple(call(given[name])), strict=True):
            torch.testing.assert_close(y, torch.stack([expected] * 2), equal_nan=True)


@each_main_case
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("low", [torch.float32, torch.float16, torch.bfloat16])
def test_derivatives_keep_the_dtype(case: Case, rank: int, low: torch.dtype) -> None:
    """Covers every order and mode, also for a single row, whose statistics have no dimension."""
    problem = case.build(torch.randn((3, 8)[2 - rank :], dtype=low))
    x, *rest = problem.tensors

    def first(x: Tensor) -> Tensor:
        return as_tuple(problem.ours(x, *rest))[0]

    def loss(x: Tensor) -> Tensor:
        return first(x).sin().sum()

    derivatives = [
        torch.func.jvp(first, (x,), (x,))[1],
        torch.func.vjp(first, x)[1](x)[0],
        torch.func.jacfwd(first)(x),
        torch.func.jacrev(first)(x),
        torch.func.hessian(loss)(x),
        torch.func.jacrev(torch.func.grad(loss))(x),
    ]
    with forward_ad.dual_level():
        derivatives.append(forward_ad.unpack_dual(first(forward_ad.make_dual(x, x))).tangent)
    assert [d.dtype for d in derivatives] == [low] * 7


def _public_calls(x: Tensor, w: Tensor) -> list[tuple[Any, tuple[Any, ...]]]:
    return [
        (OPS.softmax.default, (x, None, 0.5, False, False)),
        (OPS.softmax.default, (x, x.detach() > 0, 0.5, True, True)),
        (OPS.softmax.default, (x, w, 0.5, False, False)),
        (OPS.layer_norm.default, (x, w, w, 1e-5, False)),
        (OPS.layer_norm.default, (x, None, None, 1e-5, False)),
        (OPS.rms_norm.default, (x, w, None, 1e-5, True)),
        (OPS.rms_norm.default, (x, None, w, 1e-5, False)),
    ]


def _raw_calls(x: Tensor, w: Tensor) -> list[tuple[Any, tuple[Any, ...]]]:
    row = torch.ones(x.shape[:-1], dtype=torch.float32, device=x.device)
    rest = (w, w, 1e-5, False)
    return [
        (OPS.softmax_forward.default, (x, None, 0.5, False, False)),
        (OPS.softmax_forward.default, (x, x > 0, 1.0, True, True)),
        (OPS.softmax_backward.default, (x, x, 0.5, True, True)),
        (OPS.layer_norm_inference.default, (x, *rest)),
        (OPS.layer_norm_forward.default, (x, *rest)),
        (OPS.add_layer_norm_forward.default, (x, x.clone(), *rest)),
        (OPS.layer_norm_backward.default, (x, None, x, row, row, w, w, False, True, True)),
        (OPS.layer_norm_backward.default, (x, x, x, row, row, None, w, False, False, True)),
        (OPS.rms_norm_inference.default, (x, *rest)),
        (OPS.rms_norm_forward.default, (x, *rest)),
        (OPS.add_rms_norm_forward.default, (x, x.clone(), *rest)),
        (OPS.rms_norm_backward.default, (x, None, x, row, w, None, False, True, False)),
        (OPS.rms_norm_backward.default, (x, x, x, row, None, None, True, False, False)),
    ]


# test_declare.py checks every op with each choice of its optional arguments. Its masks are numbers,
# and its rows have no gaps.


def test_opcheck_of_a_boolean_mask(device: str) -> None:
    x = randn((4, 8), torch.float32, device).requires_grad_()
    torch.library.opcheck(*_public_calls(x, x.detach()[0])[1])


@pytest.mark.parametrize("index", range(13))
def test_opcheck_of_strided_rows(index: int, device: str) -> None:
    x = randn((2, 4, 16), torch.float32, device)[..., ::2]
    call = _raw_calls(x, randn((8,), torch.float32, device))[index]
    torch.library.opcheck(*call, test_utils=("test_schema", "test_faketensor"))


def test_public_ops_equal_the_functions(device: str) -> None:
    x = randn((4, 8), torch.float64, device).requires_grad_()
    w = randn((8,), torch.float64, device).requires_grad_()
    for op, arguments in _public_calls(x, w):
        if arguments[1] is not None and arguments[1].dtype is torch.bool:
            continue
        leaves = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
        assert torch.autograd.gradcheck(lambda *_, op=op, a=arguments: op(*a), leaves)
        assert torch.autograd.gradgradcheck(lambda *_, op=op, a=arguments: op(*a), leaves)


def test_a_meta_tensor_among_real_ones_is_refused() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        tfk.functional.layer_norm(torch.randn(2, 8), (8,), torch.ones(8, device="meta"))


def test_meta_tensors_have_shapes() -> None:
    x = torch.empty(3, 8, device="meta")
    assert tfk.functional.softmax(x, -1).shape == (3, 8)
    y, s = tfk.functional.add_rms_norm(x, x, (8,))
    assert y.device == s.device == x.device


def test_autocast(device: str) -> None:
    """Norms keep x's dtype beside float32 weights; softmax returns the dtype that PyTorch's
    does."""
    x, w = randn((4, 8), torch.bfloat16, device), torch.ones(8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert tfk.functional.layer_norm(x, (8,), w, w).dtype is torch.bfloat16
        assert tfk.functional.rms_norm(x, (8,), w).dtype is torch.bfloat16
        assert tfk.functional.layer_norm(x.float(), (8,), w, w).dtype is torch.float32
        for ours, theirs in (
            (tfk.functional.softmax, torch.softmax),
            (tfk.functional.log_softmax, torch.log_softmax),
        ):
            assert ours(x, -1).dtype is theirs(x, -1).dtype
            assert ours(x.float(), 0).dtype is theirs(x.float(), 0).dtype
            wanted = theirs(x, -1, dtype=torch.float64).dtype
            assert ours(x, -1, dtype=torch.float64).dtype is wanted
