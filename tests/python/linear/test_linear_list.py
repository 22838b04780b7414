# SPDX-License-Identifier: MIT
"""linear_list: the numbers of its layers, autograd, messages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _choice, _weights, linear_list
from transformer_kernels.testing.inputs import LAYOUTS, randn

F = tfk.functional
WIDTHS = (24, 8, 9)  # as of grouped queries, keys and values
ROWS, TERMS = (2, 17), 31


@pytest.fixture
def torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_choice, "BLAS", (1, 1, 0))


def _operands(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, list[Tensor], list[Any]]:
    x = randn((*ROWS, TERMS), dtype, device).requires_grad_()
    weights = [(randn((n, TERMS), dtype, device) * TERMS**-0.5) for n in WIDTHS]
    biases = [randn((n,), dtype, device).requires_grad_() for n in WIDTHS[1:]]
    return x, [weight.requires_grad_() for weight in weights], [None, *biases]


def _apart(x: Tensor, weights: list[Tensor], biases: list[Any]) -> list[Tensor]:
    return [in_torch.linear(x, *pair) for pair in zip(weights, biases, strict=True)]


@pytest.mark.usefixtures("torchs_products")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers(layout: str, dtype: torch.dtype, device: str) -> None:
    if layout == "strided" and dtype.itemsize == 2 and device == "cpu":
        pytest.skip("oneDNN reads between such rows, which hold NaN here")
    x, weights, biases = _operands(dtype, device)
    x = LAYOUTS[layout](x.detach()).requires_grad_()
    leaves = [x, *weights, *biases[1:]]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found = F.linear_list(x, weights, biases)
    wide = _apart(exact[0], exact[1:4], [None, *exact[4:]])
    dys = [randn((*ROWS, n), dtype, device) for n in WIDTHS]
    gradients = torch.autograd.grad(found, leaves, dys)
    expected = torch.autograd.grad(wide, exact, [dy.double() for dy in dys])
    size = 8 * torch.finfo(dtype).eps
    for a, b in zip([*found, *gradients], [*wide, *expected], strict=True):
        assert a.dtype is dtype
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=size, atol=size * b.abs().max().item())


@pytest.mark.usefixtures("torchs_products")
def test_results_are_columns_of_one_tensor() -> None:
    x, weights, biases = _operands(torch.float32)
    q, k, v = F.linear_list(x, weights, biases)
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    assert k.stride() == (ROWS[1] * sum(WIDTHS), sum(WIDTHS), 1)
    expected = v.detach().clone()
    k.mul_(2)  # each is a tensor of its own to autograd
    assert torch.equal(v, expected)
    for a, b in zip((q, k, v), _apart(x, weights, biases), strict=True):
        torch.testing.assert_close(a, b * 2 if a is k else b)
    (q.sum() + k.sum()).backward()
    assert weights[2].grad is None
    torch.testing.assert_close(weights[1].grad[0], 2 * x.detach().sum((0, 1)))


@pytest.mark.usefixtures("torchs_products")
def test_some_gradients() -> None:
    x, weights, biases = _operands(torch.float32)
    weights[0].requires_grad_(False)
    biases[2].requires_grad_(False)
    q, k, _ = F.linear_list(x.detach(), weights, biases)
    assert q.requires_grad
    k.sum().backward()
    assert all(frozen.grad is None for frozen in (x, weights[0], biases[2]))
    assert all(leaf.grad is not None for leaf in (weights[1], biases[1]))
    with torch.no_grad():
        assert not any(y.requires_grad for y in F.linear_list(x, weights, biases))


@pytest.mark.usefixtures("torchs_products")
def test_second_derivatives() -> None:
    x, weights, biases = _operands(torch.float64)
    small = [leaf.detach()[:3].requires_grad_() for leaf in (x[0], *weights, *biases[1:])]

    def function(x: Tensor, *p: Tensor) -> tuple[Tensor, ...]:
        return tuple(y.tanh() for y in F.linear_list(x, p[:3], [None, *p[3:]]))

    assert torch.autograd.gradcheck(function, small, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, small, fast_mode=True)


@pytest.mark.parametrize("sizes", [(0, 4, (3, 2)), (4, 0, (3, 2)), (4, 3, (0, 2)), (1, 1, (1,))])
@pytest.mark.usefixtures("torchs_products")
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sizes(sizes: tuple[int, int, tuple[int, ...]]) -> None:
    rows, terms, widths = sizes
    x = torch.randn(rows, terms, requires_grad=True)
    weights = [torch.randn(n, terms, requires_grad=True) for n in widths]
    found = F.linear_list(x, weights)
    for a, b in zip(found, _apart(x, weights, [None] * len(widths)), strict=True):
        torch.testing.assert_close(a, b)
    gradients = torch.autograd.grad([y.sum() for y in found], [x, *weights])
    assert [g.shape for g in gradients] == [leaf.shape for leaf in (x, *weights)]


def test_layers_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers run one by one for our product, a named backend, autocast and a graph."""
    x, weights, biases = _operands(torch.float32)
    expected = _apart(x, weights, biases)
    monkeypatch.setattr(linear_list, "_SideBySide", None)
    for backend in ("cpu", "reference"):
        for a, b in zip(F.linear_list(x, weights, biases, backend=backend), expected, strict=True):
            torch.testing.assert_close(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert {y.dtype for y in F.linear_list(x, weights, biases)} == {torch.bfloat16}


@pytest.mark.parametrize("wide", [False, True])
def test_autocast_of_two_dtypes(wide: bool, device: str) -> None:
    """Autocast takes 16-bit activations beside float32 parameters, as each single layer does."""
    x = torch.randn(6, 8, device=device).to(torch.float32 if wide else torch.bfloat16)
    weights = [torch.randn(n, 8, device=device, requires_grad=True) for n in (5, 3)]
    biases = [torch.randn(5, device=device), None]
    with torch.autocast(device, torch.bfloat16):
        found = F.linear_list(x, weights, biases)
        expected = [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is torch.bfloat16
        torch.testing.assert_close(a, b)
    for dw in torch.autograd.grad(sum(y.sum() for y in found), weights):
        assert dw.dtype is torch.float32


@pytest.fixture
def masters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float32 weights of every device are masters under autocast, as a GPU's are."""
    monkeypatch.setattr(_weights, "_DEVICES", ("cpu", "cuda"))


@pytest.mark.usefixtures("torchs_products", "masters")
def test_masters_have_float32_gradients(device: str) -> None:
    """Each is no further from float64's than the one that PyTorch rounds to 16 bits."""
    x, weights, biases = _operands(torch.float32, device)
    leaves = [x, *weights, *biases[1:]]
    dys = [randn((*ROWS, n), torch.bfloat16, device) for n in WIDTHS]

    def gradients(layers: Any) -> list[Tensor]:
        for leaf in leaves:
            leaf.grad = None
        for _ in range(2):  # the second is added to the first
            with torch.autocast(device, torch.bfloat16):
                ys = layers(x, weights, biases)
            assert all(y.dtype is torch.bfloat16 for y in ys)
            torch.autograd.backward(ys, dys)
        assert all(leaf.grad.dtype is torch.float32 for leaf in leaves)
        return [leaf.grad.double() / 2 for leaf in leaves]

    found, beside = gradients(F.linear_list), gradients(_apart)
    rounded = [leaf.detach().bfloat16().double().requires_grad_() for leaf in leaves]
    exact = _apart(rounded[0], rounded[1:4], [None, *rounded[4:]])
    wanted = torch.autograd.grad(exact, rounded, [dy.double() for dy in dys])
    for mine, other, want in zip(found, beside, wanted, strict=True):
        assert (mine - want).norm() <= 2 * (other - want).norm() + 1e-6 * want.norm()


@pytest.mark.usefixtures("torchs_products", "masters")
def test_masters_run_together(device: str) -> None:
    x, weights, biases = _operands(torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        ys = F.linear_list(x, weights, biases)
    assert len({y.untyped_storage().data_ptr() for y in ys}) == 1
    loss = sum(y.float().square().sum() for y in ys)
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    dx.square().sum().backward()
    assert all(weight.grad.dtype is torch.float32 for weight in weights)


@pytest.mark.usefixtures("masters")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("rows", "terms"), [(2, 1024), (6, 8), (64, 1024)])
def test_strides_of_fake_tensors(
    dtype: torch.dtype, rows: int, terms: int, autocast: bool, device: str
) -> None:
    """Fake tensors have the strides of real ones, whoever multiplies."""
    shapes = ((rows, terms), (512, terms), (256, terms))
    found = []
    for mode in (FakeTensorMode(), contextlib.nullcontext()):
        with mode, torch.autocast(device, torch.bfloat16, enabled=autocast):
            x, *weights = (
                torch.empty(s, dtype=dtype, device=device, requires_grad=True) for s in shapes
            )
            found.append([(y.shape, y.stride()) for y in F.linear_list(x, weights)])
    assert found[0] == found[1]


def test_compile() -> None:
    torch._dynamo.reset()
    x, weights, biases = _operands(torch.float32)
    compiled = torch.compile(F.linear_list, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(x, weights, biases), _apart(x, weights, biases), strict=True):
        torch.testing.assert_close(a, b)


X, W = torch.randn(6, 8), [torch.randn(5, 8), torch.randn(3, 8)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((X, []), "weights has 0 elements, expected at least 1"),
        ((X, W[0]), "weights is Tensor, expected a list of Tensors"),
        ((X, W, [None]), "biases has 1 elements, expected 2"),
        ((X, W, 3), "biases is int, expected a list of Tensors"),
    ],
)
def test_messages(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^linear_list: {words}"):
        F.linear_list(*arguments)


def test_messages_of_a_layer() -> None:
    with pytest.raises(ValueError, match=r"weight has 7 columns, expected 8"):
        F.linear_list(X, [W[0], W[1][:, 1:]])
    with pytest.raises(TypeError, match=r"weight is NoneType, expected a Tensor"):
        F.linear_list(X, [W[0], None])
