# SPDX-License-Identifier: MIT
"""layer_norm and add_layer_norm: drop-in behaviour, messages, the module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels._library import has_kernels
from transformer_kernels.functional import add_layer_norm, layer_norm
from transformer_kernels.testing.inputs import poisoned, randn

X = torch.randn(4, 8)
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "list": (X, [8]),
    "tuple": (X, (8,)),
    "size": (X, torch.Size([8])),
    "two dims": (X, [4, 8]),
    "weight": (X, [8], torch.randn(8)),
    "weight and bias": (X, [8], torch.randn(8), torch.randn(8)),
    "bias alone": (X, [8], None, torch.randn(8)),
    "eps": (X, [8], None, None, 1e-2),
    "integer eps": (X, [8], None, None, 1),
    "tensor eps": (X, [8], None, None, torch.tensor(0.5)),
    "weight of two dims": (X, [4, 8], torch.randn(4, 8), torch.randn(4, 8)),
    "half": (X.half(), [8], torch.ones(8).half()),
    "half, float32 weight": (X.half(), [8], torch.ones(8), torch.zeros(8)),
    "bfloat16, float32 weight": (X.bfloat16(), [8], torch.ones(8), torch.zeros(8)),
    "double": (X.double(), [8]),
    "no rows": (torch.randn(0, 8), [8]),
    "no columns": (torch.randn(4, 0), [0]),
    "transposed": (torch.randn(3, 8, 4).transpose(1, 2), [8]),
    "expanded": (torch.randn(1, 8).expand(4, 8), [8]),
    "gaps in weight": (X, [8], torch.randn(16)[::2], torch.randn(16)[::2]),
    "nine dims": (torch.randn(1, 2, 1, 2, 1, 2, 1, 2, 8), [8]),
}
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "integer shape": (
        (X, 8),
        "normalized_shape is 8, expected a sequence of ints (did you mean (8,)?)",
    ),
    "text shape": ((X, "8"), "normalized_shape is '8', expected a sequence of ints"),
    "empty shape": ((X, []), "normalized_shape is empty, expected at least 1 dimension"),
    "wrong shape": ((X, [7]), "x has shape (4, 8), expected (..., 7) (normalized_shape)"),
    "shape too long": (
        (X, [2, 4, 8]), "x has shape (4, 8), expected (..., 2, 4, 8) (normalized_shape)",
    ),
    "weight size": (
        (X, [8], torch.randn(7)), "weight has 7 elements, expected 8 (the last dimension of x)",
    ),
    "weight rank": (
        (X, [8], torch.randn(1, 8)), "weight has shape (1, 8), expected (8,) (normalized_shape)",
    ),
    "integers": ((torch.ones(4, 8, dtype=torch.int64), [8]),
                 "x is int64, expected a floating-point dtype"),
    "integer weight": (
        (X, [8], torch.ones(8, dtype=torch.int64)),
        "weight is int64, expected a floating-point dtype",
    ),
    "wide weight": (
        (X, [8], torch.ones(8).double()), "weight is float64, expected float32 (the dtype of x)",
    ),
    "two dtypes": (
        (X.half(), [8], torch.ones(8).half(), torch.ones(8)),
        "bias is float32, expected float16 (all parameters and their gradients share one dtype)",
    ),
    "no dims": ((torch.tensor(1.0), [1]), "x has shape (), expected (..., 1) (normalized_shape)"),
    "text": (("x", [8]), "x is str, expected a Tensor"),
}  # fmt: skip


def _exception(function: Any, *arguments: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*arguments)
    return caught.value


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("grad", [False, True])
def test_what_torch_accepts(name: str, grad: bool) -> None:
    arguments = [
        a.detach().clone().requires_grad_() if grad and isinstance(a, torch.Tensor) and a.dim()
        else a
        for a in ACCEPTED[name]
    ]  # fmt: skip
    ours, theirs = layer_norm(*arguments), F.layer_norm(*arguments)
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    assert ours.requires_grad == theirs.requires_grad
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    """The message names argument and reason; an except clause written for torch catches it."""
    arguments, message = REFUSED[name]
    ours = _exception(layer_norm, *arguments)
    assert isinstance(ours, (ValueError, TypeError))
    theirs = _exception(F.layer_norm, *arguments)
    assert isinstance(ours, type(theirs)) or type(theirs) is RuntimeError
    assert str(ours) == f"layer_norm: {message}"


def test_unknown_and_unfit_backends() -> None:
    with pytest.raises(ValueError, match="backend is 'tpu', expected one of 'auto', 'cuda'"):
        layer_norm(X, (8,), backend="tpu")
    if not has_kernels:
        pytest.skip("the library is not built")
    with pytest.raises(ValueError, match="backend is 'cuda', expected one that serves a tensor"):
        layer_norm(X, (8,), backend="cuda")
    torch.testing.assert_close(
        layer_norm(X, (8,), backend="cpu"), layer_norm(X, (8,), backend="reference")
    )


def test_nothing_runs_when_a_check_fails() -> None:
    """No memory is written when a check fails: inputs and graph stay as they were."""
    x = torch.randn(4, 8, requires_grad=True)
    before = x.detach().clone()
    with poisoned(), pytest.raises(ValueError, match="weight has 767 elements, expected 8"):
        layer_norm(x, (8,), torch.ones(767))
    assert torch.equal(x, before)
    assert x.grad is None


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1)])
def test_only_the_gradients_that_are_needed(needed: tuple[int, ...], device: str) -> None:
    tensors = [randn(s, torch.float64, device) for s in [(5, 16), (16,), (16,)]]
    leaves = [t.requires_grad_(bool(n)) for t, n in zip(tensors, needed, strict=True)]
    x, w, b = leaves
    layer_norm(x, (16,), w, b).square().sum().backward()
    ours = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    F.layer_norm(x, (16,), w, b).square().sum().backward()
    for grad, leaf in zip(ours, leaves, strict=True):
        assert (grad is None) == (leaf.grad is None)
        if grad is not None:
            torch.testing.assert_close(grad, leaf.grad)


def test_float32_bias_without_weight_gets_a_float32_gradient(device: str) -> None:
    """The gradient sums 4096 equal terms, which bfloat16 could not hold."""
    x = randn((4096, 8), torch.bfloat16, device).requires_grad_()
    bias = torch.zeros(8, device=device, requires_grad=True)
    y = layer_norm(x, (8,), None, bias)
    y.backward(torch.full_like(y, 1.0078125))
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 4096 * 1.0078125))


@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
def test_gradients_of_either_result(used: tuple[bool, bool], device: str) -> None:
    x, r, w = (randn(s, torch.float64, device).requires_grad_() for s in [(5, 16), (5, 16), (16,)])
    g = [randn((5, 16), torch.float64, device) for _ in range(2)]

    def loss(y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        terms = [(t * k).sum() for t, k, use in zip((y, s), g, used, strict=True) if use]
        return sum(terms)  # type: ignore[return-value]

    ours = torch.autograd.grad(loss(*add_layer_norm(x, r, (16,), w)), (x, r, w), allow_unused=True)
    s = x + r
    theirs = torch.autograd.grad(loss(F.layer_norm(s, (16,), w), s), (x, r, w), allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


# ---- the module ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1, "dtype": torch.float64}],
    ids=str,
)
def test_module_is_torchs(options: dict[str, Any]) -> None:
    ours, theirs = tfk.nn.LayerNorm((4, 8), **options), torch.nn.LayerNorm((4, 8), **options)
    assert isinstance(ours, torch.nn.LayerNorm)
    assert repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4, 8, dtype=options.get("dtype", torch.float32))
    torch.testing.assert_close(ours(x), theirs(x))
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(twin(x), ours(x))
    theirs.load_state_dict(ours.state_dict())


def test_zero_centered_module() -> None:
    module = tfk.nn.LayerNorm(8, zero_centered_weight=True, backend="reference")
    assert repr(module).endswith("bias=True, zero_centered_weight=True, backend='reference')")
    assert not module.weight.any()
    torch.testing.assert_close(module(X), F.layer_norm(X, (8,)))


def test_torchs_module_turned_into_ours() -> None:
    module = torch.nn.LayerNorm(8)
    module.__class__ = tfk.nn.LayerNorm
    torch.testing.assert_close(module(X), F.layer_norm(X, (8,)))
