# SPDX-License-Identifier: MIT
"""A user's kernel: what the base class adds to it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.measure.case import PASSES, Problem
from transformer_kernels.measure.table import render
from transformer_kernels.measure.verify import Reference, VerificationError
from transformer_kernels.workbench import Kernel
from transformer_kernels.workbench._kernel_bench import case_of
from transformer_kernels.workbench.arguments import Indices, Number, Operand, Param, Rows

SHAPE = (6, 16)


class SoftCap(Kernel):
    """A kernel that counts its launches."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def formula(self, x: Tensor, cap: float = 3.0) -> Tensor:
        return cap * torch.tanh(x / cap)

    def forward(self, x: Tensor, cap: float) -> Tensor:
        self.ran.append("forward")
        return (x.float() / cap).tanh_().mul_(cap).to(x.dtype) if _low(x) else self.formula(x, cap)

    def backward(self, dy: Tensor, y: Tensor, cap: float) -> Tensor:
        self.ran.append("backward")
        return (dy.double() * (1 - (y.double() / cap) ** 2)).to(dy.dtype)


def _low(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


class ScaleShift(Kernel):
    """A kernel with two results, an optional argument, and no backward pass."""

    results = ("y", "shifted")

    def formula(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        y = x * weight
        return y, y if bias is None else y + bias

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        y = torch.mul(x, weight)
        return y, y.clone() if bias is None else torch.add(y, bias)


soft_cap, scale_shift = SoftCap(), ScaleShift()


def _leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def test_both_passes_are_the_kernels() -> None:
    soft_cap.ran.clear()
    x = _leaf(*SHAPE)
    soft_cap(x, 2.0).sum().backward()
    assert soft_cap.ran == ["forward", "backward"]
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach() / 2) ** 2)
    soft_cap.ran.clear()
    assert torch.equal(soft_cap(x), soft_cap(x, cap=3.0))
    assert soft_cap.ran == ["forward"] * 2
    soft_cap(x, backend="reference").sum().backward()
    assert soft_cap.ran == ["forward"] * 2


def test_first_and_second_derivatives() -> None:
    x, w, b = _leaf(2, 3), _leaf(3), _leaf(3)
    assert torch.autograd.gradcheck(lambda x: soft_cap(x, 1.5), x)
    assert torch.autograd.gradgradcheck(lambda x: soft_cap(x, 1.5), x)
    for given in ((x, w, b), (x, w)):
        assert torch.autograd.gradcheck(scale_shift, given)
        assert torch.autograd.gradgradcheck(scale_shift, given)


def test_the_rule_of_correctness(dtype: torch.dtype) -> None:
    x = torch.randn(SHAPE).to(dtype)
    soft_cap.check(x, 2.0)
    scale_shift.check(x, torch.randn(16).to(dtype))


class _Wrong(SoftCap):
    def forward(self, x: Tensor, cap: float) -> Tensor:
        return x.clamp(-cap, cap)


class _WrongGradient(SoftCap):
    def backward(self, dy: Tensor, x: Tensor, cap: float) -> Tensor:
        return dy * (1 - (x / cap) ** 2)


@pytest.mark.parametrize(("kind", "what"), [(_Wrong, "result 0"), (_WrongGradient, "gradient 0")])
def test_a_wrong_kernel_is_found(kind: Any, what: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{what}: error .* > 2 x torch's"):
        kind().check(torch.randn(SHAPE), 2.0)


def test_without_a_device_that_it_runs_on_the_formula_does() -> None:
    class Elsewhere(SoftCap):
        def why_absent(self, device: torch.device) -> str | None:
            return f"runs on a toaster, not on {device}"

    kernel, x = Elsewhere(), _leaf(*SHAPE)
    y = kernel(x, 2.0)
    y.sum().backward()
    assert kernel.ran == []
    assert torch.equal(y, kernel.formula(x, 2.0))


class Gather(Kernel):
    """A kernel that declares its arguments."""

    arguments = (Rows("x"), Indices("index"), Param("weight"), Number("scale", least=0.0))

    def formula(self, x: Tensor, index: Tensor, weight: Tensor, scale: float = 1.0) -> Tensor:
        return x[index] * weight * scale

    def forward(self, x: Tensor, index: Tensor, weight: Tensor, scale: float) -> Tensor:
        return x.index_select(0, index) * weight * scale

    def backward(
        self, dy: Tensor, x: Tensor, index: Tensor, weight: Tensor, scale: float, need_dweight: bool
    ) -> Any:
        dx = torch.zeros_like(x).index_add_(0, index, dy * weight * scale)
        return dx, (dy * x[index] * scale).sum(0) if need_dweight else None


def test_kinds_of_arguments() -> None:
    gather, index = Gather(), torch.tensor([2, 0, 2])
    x, w = _leaf(3, 4), _leaf(4)
    assert torch.autograd.gradcheck(lambda x, w: gather(x, index, w), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: gather(x, index, w), (x, w))
    gather(x, index, w.detach()).sum().backward()
    assert w.grad is None
    gather.check(x.detach(), index, w.detach())
    for given, words in (
        ((x, index.float(), w), "index is float32, expected int32 or int64"),
        ((x, index, w[1:]), "weight has 3 elements, expected 4 (the last dimension of x)"),
        ((x, index, w, -1.0), "scale is -1, expected a number of 0 or more"),
        ((x.int(), index, w), "x is int32, expected a floating-point dtype"),
        ((x, index.to("meta"), w), "index is on meta, expected cpu"),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            gather(*given)
        assert str(caught.value) == f"gather: {words}"


def _kernel(results: Any = None, gradients: Any = None) -> Kernel:
    class Broken(SoftCap):
        name = "broken"

        def forward(self, x: Tensor, cap: float) -> Any:
            return self.formula(x, cap) if results is None else results(x)

        def backward(self, dy: Tensor, x: Tensor) -> Any:
            return gradients(dy)

    return Broken()


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (lambda x: x, "y is memory of an argument, expected memory of its own"),
        (lambda x: x[1:] + 0, "y has shape (5, 16), expected (6, 16)"),
        (lambda x: x.half(), "y is float16, expected float64"),
        (lambda x: x.to("meta"), "y is on meta, expected cpu"),
        (lambda x: (x + 0, x + 0), "forward gives 2 results, expected 1 (y)"),
        (lambda _: 3, "y is int, expected a Tensor"),
    ],
)
def test_results_are_checked(results: Any, words: str) -> None:
    kernel = _kernel(results)
    for _ in range(2):  # a problem that failed is not taken for one that is known
        with pytest.raises((ValueError, TypeError)) as caught:
            kernel(_leaf(*SHAPE), 2.0)
        assert str(caught.value) == f"{kernel.op.name}: {words}"


@pytest.mark.parametrize(
    ("gradients", "words"),
    [
        (lambda dy: (dy, dy), "backward gives 2 gradients, expected 1"),
        (lambda dy: dy[1:], "dx has shape (5, 16), expected (6, 16)"),
        (lambda _: None, "dx is NoneType, expected a Tensor"),
    ],
)
def test_gradients_are_checked(gradients: Any, words: str) -> None:
    y = _kernel(None, gradients)(_leaf(*SHAPE), 2.0)
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        y.sum().backward()
    assert words in str(caught.value)


def test_a_gradient_that_is_passed_on_is_copied() -> None:
    dy = torch.randn(SHAPE)
    dx = _kernel(None, lambda dy: dy).op.raw.backward(dy, torch.randn(SHAPE), 2.0)
    assert torch.equal(dx, dy)
    assert dx.data_ptr() != dy.data_ptr()


def test_a_call_is_refused_by_name() -> None:
    x = _leaf(*SHAPE)
    name = soft_cap.op.name
    for call, words in (
        (lambda: soft_cap(3), "x is int, expected a Tensor"),
        (lambda: soft_cap(x, "1"), "cap is '1', expected a number"),
        (lambda: soft_cap(x.int()), "x is int32, expected a floating-point dtype"),
        (lambda: soft_cap(), "missing a required argument: 'x', expected (x: "),
        (lambda: soft_cap(x, 1.0, 2.0), "too many positional arguments, expected (x: "),
        (lambda: soft_cap(x, backend="cuda"), "backend is 'cuda', expected 'auto' or 'reference'"),
        (lambda: scale_shift(x, x.to("meta")), "weight is on meta, expected cpu"),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        shown = str(caught.value)
        assert shown.partition(": ")[2].startswith(words)
        assert shown.startswith((f"{name}: ", f"{scale_shift.op.name}: "))


class _NoFormula(Kernel):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class _Unannotated(SoftCap):
    def formula(self, x: Tensor, cap=3.0) -> Tensor:  # type: ignore[no-untyped-def]
        return x * cap


class _NumberFirst(SoftCap):
    def formula(self, cap: float, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * cap


class _Strange(SoftCap):
    def backward(self, dy: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
        return dy * z


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (_NoFormula, "_NoFormula: formula is missing, expected a method"),
        (_Unannotated, "argument cap of formula is without annotation, expected Tensor, float"),
        (_NumberFirst, "argument cap of formula is a float, expected Tensor, given by place"),
        (_Strange, "backward takes z, expected some of cap, dy, need_dx, x, y"),
    ],
)
def test_a_class_is_refused_when_it_is_made(kind: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        kind()
    assert words in str(caught.value)


def test_in_graphs() -> None:
    x = _leaf(*SHAPE, dtype=torch.float32)
    torch.library.opcheck(soft_cap.op.public, (x, 2.0))
    torch.library.opcheck(soft_cap.op.raw.forward, (x.detach(), 2.0))
    compiled = torch.compile(lambda x: soft_cap(x, 2.0) * 2, backend="aot_eager", fullgraph=True)
    y, expected = compiled(x), soft_cap(x, 2.0) * 2
    torch.testing.assert_close(y, expected)
    gradients = [torch.autograd.grad(of.sum(), x)[0] for of in (y, expected)]
    torch.testing.assert_close(*gradients)
    rows = torch.func.vmap(lambda row: soft_cap(row, 2.0))(x)
    torch.testing.assert_close(rows, soft_cap(x, 2.0))


def test_instances_are_ops_of_their_own() -> None:
    first, second = SoftCap(), SoftCap()
    assert first.op.name != second.op.name
    assert first.op.name.startswith("soft_cap")
    second(torch.randn(SHAPE))
    assert (first.ran, second.ran) == ([], ["forward"])


def test_copies_are_ops_of_their_own() -> None:
    x = _leaf(*SHAPE)
    first = SoftCap()
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert torch.equal(copied(x, 2.0), first(x, 2.0))
        assert copied.op.name != first.op.name
        assert copied.ran == ["forward"]


def test_among_the_ops_of_the_memory_account() -> None:
    x = _leaf(*SHAPE)
    with tfk.workbench.account_memory() as account:
        soft_cap(x, 2.0).sum().backward()
    mine = account.ops[soft_cap.op.name]
    assert (mine.calls, mine.forward, mine.backward) == (1, x.nbytes, x.nbytes)


def test_in_the_benchmark() -> None:
    result = soft_cap.benchmark((32, 16), seconds=0.01, providers=("torch", "ours"))
    assert [(row.pass_, row.provider) for row in result.rows if row.provider != "copy"] == [
        (pass_, provider) for pass_ in ("forward", "backward") for provider in ("torch", "ours")
    ]
    assert all(row.error is not None for row in result.rows if row.provider == "ours")
    assert soft_cap.op.name in render(result)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("kernel", [soft_cap, scale_shift, _Wrong()], ids=lambda k: k.op.name)
def test_the_benchmark_verifies(kernel: Kernel, pass_: str) -> None:
    case = case_of(kernel)
    problem = Problem(case.name, pass_, torch.float32, torch.float32, (8, 4))
    given = case.make(problem, torch.device("cpu"))
    call = case.build("ours", pass_, compiled=lambda f: f)(given)
    reference = Reference(case, pass_, given)
    if isinstance(kernel, _Wrong):  # its backward pass takes its own result
        with pytest.raises(VerificationError, match="relative error"):
            reference.check(call)
    else:
        assert reference.check(call) < 1e-5
    compiled = case.build("compile", pass_, compiled=lambda f: f)(given)
    assert reference.check(compiled) < 1e-5


def test_what_cannot_be_drawn_is_asked_for() -> None:
    with pytest.raises(ValueError, match="index is missing, expected a method inputs"):
        Gather().benchmark((8, 4))


def test_operands_are_floating_point() -> None:
    assert Operand("x").schema == "Tensor x"


def test_its_profile() -> None:
    profile = pytest.importorskip("transformer_kernels.profile", reason="there is no profiler")
    report = soft_cap.profile(torch.randn(SHAPE), 2.0)
    assert isinstance(report, profile.KernelReport)
