# SPDX-License-Identifier: MIT
"""Arguments of other Python types are refused by name, or taken where PyTorch takes them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.functional import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)

numpy = pytest.importorskip("numpy")
X, W = torch.randn(4, 8), torch.randn(8)
NORMS = {
    "layer_norm": layer_norm, "rms_norm": rms_norm, "add_layer_norm": add_layer_norm,
    "add_rms_norm": add_rms_norm,
}  # fmt: skip
SOFTMAXES = {"softmax": softmax, "log_softmax": log_softmax}
FUNCTIONS = {**NORMS, **SOFTMAXES}
GOOD: dict[str, Any] = {
    "input": X, "x": X, "residual": X, "normalized_shape": (8,), "weight": W, "bias": W,
    "eps": 1e-5, "dim": -1, "scale": 1.0, "mask": None,
}  # fmt: skip
ARRAY = numpy.ones((4, 8))
# Values that an argument cannot have, with what the message says of each.
TENSORS = [("x", "str"), ([1.0], "list"), (ARRAY, "ndarray"), (3, "int")]
NUMBERS = [("1", "'1'"), ([1.0], "[1.0]"), (ARRAY, "ndarray"), (X, "a tensor of 32 elements")]
FLAGS = [(None, "None"), ("yes", "'yes'"), ([], "[]"), (ARRAY, "ndarray"), (1, "1")]
SHAPES = [
    (None, "None"),
    ("8", "'8'"),
    (8.0, "8.0"),
    ([7.0], "[7.0]"),
    ([None], "[None]"),
    (numpy.array([7]), "ndarray"),
    ([True], "[True]"),
    ([torch.tensor(7.0)], "[tensor(7.)]"),
]
DIMS = [("x", "'x'"), (1.5, "1.5"), ([0], "[0]"), (True, "True")]
BACKENDS = [(None, "None"), (["auto"], "['auto']"), (3, "3")]
DTYPES = [("float32", "'float32'"), (3, "3"), ([], "[]")]
NONE = (None, "NoneType")
BAD: dict[str, tuple[list[tuple[Any, str]], str]] = {
    "input": ([NONE, *TENSORS], "a Tensor"),
    "x": ([NONE, *TENSORS], "a Tensor"),
    "residual": ([NONE, *TENSORS], "a Tensor"),
    "weight": (TENSORS, "a Tensor"),
    "bias": (TENSORS, "a Tensor"),
    "mask": (TENSORS, "a Tensor"),
    "normalized_shape": (SHAPES, "a sequence of ints"),
    "eps": (NUMBERS, "a number"),
    "scale": ([(None, "None"), *NUMBERS], "a number"),
    "zero_centered_weight": (FLAGS, "True or False"),
    "causal": (FLAGS, "True or False"),
    "backend": (BACKENDS, "a str"),
    "dim": (DIMS, "an int"),
    "dtype": (DTYPES, "a torch.dtype"),
}
# One function for each argument: what all of them do with it is written once.
TAKEN_BY = {
    argument: name
    for name, function in reversed(FUNCTIONS.items())
    for argument in inspect.signature(function).parameters
    if argument != "_stacklevel"
}
REFUSED = [
    pytest.param(name, argument, value, f"{words}, expected {wanted}", id=f"{name}-{argument}-{i}")
    for argument, name in TAKEN_BY.items()
    for values, wanted in [BAD[argument]]
    for i, (value, words) in enumerate(values)
]


@pytest.mark.parametrize(("name", "argument", "value", "words"), REFUSED)
def test_other_types_are_refused_by_name(name: str, argument: str, value: Any, words: str) -> None:
    function = FUNCTIONS[name]
    named = {n: GOOD[n] for n in inspect.signature(function).parameters if n in GOOD}
    named[argument] = value
    message = f"{name.removeprefix('add_')}: {'x' if argument == 'input' else argument} is {words}"
    for backend in ("auto", "reference"):
        for grad in (False, True):
            arguments = {"backend": backend, **named}
            if grad:
                arguments = {
                    n: t.clone().requires_grad_() if t is X or t is W else t
                    for n, t in arguments.items()
                }
                arguments[argument] = value
            with pytest.raises(tfk.ArgumentTypeError) as caught:
                function(**arguments)
            assert str(caught.value) == message


def test_softmax_without_a_dim_is_refused_by_name() -> None:
    for function in SOFTMAXES.values():
        for value in (None, "x", [1.0], ARRAY):
            with pytest.raises(tfk.ArgumentTypeError, match=r"x is .*, expected a Tensor"):
                function(value)


def test_modules_refuse_by_name() -> None:
    for module in (tfk.nn.LayerNorm(8), tfk.nn.RMSNorm(8), tfk.nn.Softmax(-1), tfk.nn.Softmax()):
        for value in (None, "x", ARRAY):
            with pytest.raises(tfk.ArgumentTypeError, match=r"x is .*, expected a Tensor"):
                module(value)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    "shape",
    [
        (numpy.int64(8),), [numpy.int32(8)], torch.Size([8]), (torch.tensor(8),),
        [numpy.array(8)], (numpy.int64(4), 8),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_of_any_integer_type(name: str, shape: Any) -> None:
    sums = name.startswith("add_")
    x = torch.randn(3, 4, 8)
    tensors = (x, x) if sums else (x,)
    theirs = getattr(F, name.removeprefix("add_"))(2 * x if sums else x, shape, None, None)
    for backend in ("auto", "reference"):
        ours = NORMS[name](*tensors, shape, eps=1e-5, backend=backend)
        torch.testing.assert_close(ours[0] if sums else ours, theirs, rtol=1e-4, atol=1e-4)


def test_modules_take_sizes_of_any_integer_type() -> None:
    for shape in (
        numpy.int64(8),
        [numpy.int64(8)],
        torch.Size([8]),
        (numpy.int64(4), numpy.int32(8)),
    ):
        for kind in ("LayerNorm", "RMSNorm"):
            ours, theirs = getattr(tfk.nn, kind)(shape), getattr(torch.nn, kind)(shape)
            x = torch.randn(3, 4, 8)
            torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("value", [numpy.float32(0.5), numpy.float64(0.5), 1, numpy.int64(1), True])
def test_numbers_of_any_type(value: Any) -> None:
    torch.testing.assert_close(layer_norm(X, (8,), eps=value), F.layer_norm(X, (8,), eps=value))
    torch.testing.assert_close(rms_norm(X, (8,), eps=value), F.rms_norm(X, (8,), eps=float(value)))
    torch.testing.assert_close(softmax(X, -1, scale=value), torch.softmax(X * float(value), -1))


def test_flags_of_numpy() -> None:
    yes = numpy.bool_(True)
    assert torch.equal(softmax(X, -1, causal=yes), softmax(X, -1, causal=True))
    ours = layer_norm(X, (8,), W, zero_centered_weight=yes)
    assert torch.equal(ours, layer_norm(X, (8,), W, zero_centered_weight=True))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("eps", [-0.25, -1e6, float("nan"), float("inf")])
def test_any_eps(eps: float, backend: str) -> None:
    """The result is NaN where variance plus eps is negative, as in PyTorch."""
    x = torch.randn(3, 64, dtype=torch.float64)
    x[1] *= 0.01
    with_grad = x.clone().requires_grad_()
    pairs = [
        (lambda t: layer_norm(t, (64,), eps=eps, backend=backend),
         lambda t: F.layer_norm(t, (64,), eps=eps)),
        (lambda t: rms_norm(t, (64,), eps=eps, backend=backend),
         lambda t: F.rms_norm(t, (64,), eps=eps)),
        (lambda t: add_layer_norm(t, t, (64,), eps=eps, backend=backend)[0],
         lambda t: F.layer_norm(2 * t, (64,), eps=eps)),
    ]  # fmt: skip
    for ours, theirs in pairs:
        torch.testing.assert_close(ours(x), theirs(x), equal_nan=True)
        (a,) = torch.autograd.grad(ours(with_grad)[[0, 2]].sum(), with_grad)
        (b,) = torch.autograd.grad(theirs(with_grad)[[0, 2]].sum(), with_grad)
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], equal_nan=True)
