# SPDX-License-Identifier: MIT
"""Tensors that are more than strided memory: jagged, sparse, quantised, masked, and subclasses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nested import nested_tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode

from transformer_kernels.functional import (
    add_layer_norm,
    add_rms_norm,
    gelu,
    layer_norm,
    log_softmax,
    relu,
    rms_norm,
    silu,
    softmax,
    swiglu,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
X, W = torch.randn(4, 8, requires_grad=True), torch.randn(8)
# Each tensor argument of each function: the op's name, the argument's, a call with another value.
PLACES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "layer_norm x": ("layer_norm", "x", lambda t: layer_norm(t, (8,), W, W)),
    "layer_norm weight": ("layer_norm", "weight", lambda t: layer_norm(X, (8,), t, W)),
    "layer_norm bias": ("layer_norm", "bias", lambda t: layer_norm(X, (8,), W, t)),
    "rms_norm x": ("rms_norm", "x", lambda t: rms_norm(t, (8,), W, 1e-5)),
    "rms_norm x, no eps": ("rms_norm", "x", lambda t: rms_norm(t, (8,), W)),
    "rms_norm weight": ("rms_norm", "weight", lambda t: rms_norm(X, (8,), t, 1e-5)),
    "rms_norm bias": ("rms_norm", "bias", lambda t: rms_norm(X, (8,), W, 1e-5, bias=t)),
    "add_layer_norm x": ("layer_norm", "x", lambda t: add_layer_norm(t, X, (8,))),
    "add_layer_norm residual": ("layer_norm", "residual", lambda t: add_layer_norm(X, t, (8,))),
    "add_layer_norm weight": ("layer_norm", "weight", lambda t: add_layer_norm(X, X, (8,), t)),
    "add_rms_norm x": ("rms_norm", "x", lambda t: add_rms_norm(t, X, (8,))),
    "add_rms_norm residual": ("rms_norm", "residual", lambda t: add_rms_norm(X, t, (8,))),
    "add_rms_norm bias": ("rms_norm", "bias", lambda t: add_rms_norm(X, X, (8,), W, bias=t)),
    "softmax x": ("softmax", "x", lambda t: softmax(t, -1)),
    "softmax x, dim 0": ("softmax", "x", lambda t: softmax(t, 0)),
    "softmax mask": ("softmax", "mask", lambda t: softmax(X, -1, mask=t)),
    "log_softmax x": ("log_softmax", "x", lambda t: log_softmax(t, -1, scale=2.0)),
    "log_softmax mask": ("log_softmax", "mask", lambda t: log_softmax(X, 0, mask=t)),
    "gelu x": ("gelu", "x", gelu),
    "gelu bias": ("gelu", "bias", lambda t: gelu(X, bias=t)),
    "silu x": ("silu", "x", lambda t: silu(t, backend="reference")),
    "swiglu gate": ("swiglu", "gate", swiglu),
    "swiglu up": ("swiglu", "up", lambda t: swiglu(X, t)),
    "swiglu up_bias": ("swiglu", "up_bias", lambda t: swiglu(X, X, bias=W, up_bias=t)),
}
PARAMETERS = ("weight", "bias", "up_bias")
each_place = pytest.mark.parametrize("place", PLACES)


def _quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


# Kinds of tensors without strided memory, made from a dense one, and the words that refuse them.
KINDS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "coo": (Tensor.to_sparse, "of layout sparse_coo, expected strided"),
    "csr": (lambda _: torch.ones(4, 8).to_sparse_csr(), "of layout sparse_csr, expected strided"),
    "mkldnn": (lambda x: x.to_mkldnn(), "of layout mkldnn, expected strided"),
    "quantized": (_quantized, "quantized, expected a floating-point tensor"),
    "nested": (lambda x: nested_tensor([x, x]), "a nested tensor of strided layout, expected lay"),
    "masked": (lambda x: torch.masked.masked_tensor(x, x > 0), "a MaskedTensor, expected a plain"),
    "causal": (lambda _: causal_lower_right(4, 8), "a CausalBias, expected a plain tensor"),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@each_place
def test_refused_by_name(place: str, kind: str, grad: bool) -> None:
    op, name, call = PLACES[place]
    make, words = KINDS[kind]
    value = make(W if name in PARAMETERS else X.detach())
    with torch.set_grad_enabled(grad), pytest.raises(TypeError) as caught:
        call(value)
    assert str(caught.value).startswith(f"{op}: {name} is {words}")


class _Asked(Tensor):
    """A tensor that remembers which functions asked it."""

    asked: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


FUNCTIONS = {
    "layer_norm": layer_norm, "rms_norm": rms_norm, "add_layer_norm": add_layer_norm,
    "add_rms_norm": add_rms_norm, "softmax": softmax, "log_softmax": log_softmax,
    "gelu": gelu, "silu": silu, "swiglu": swiglu,
}  # fmt: skip


@each_place
def test_torch_function_of_every_argument(place: str) -> None:
    _, name, call = PLACES[place]
    value = W if name in PARAMETERS else X.detach()
    _Asked.asked = []
    result = call(value.as_subclass(_Asked))
    expected = call(value)
    assert _Asked.asked[0] is FUNCTIONS[place.split()[0]]
    for a, b in zip(_tensors(result), _tensors(expected), strict=True):
        assert type(a) is _Asked
        assert torch.equal(a.as_subclass(Tensor), b)


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class _Mode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def _jagged(dtype: torch.dtype = torch.float32, columns: tuple[int, ...] = (8,)) -> Tensor:
    sequences = [torch.randn(length, *columns, dtype=dtype) for length in (3, 1, 5)]
    return nested_tensor(sequences, layout=torch.jagged)


def test_modes_see_the_nested_call() -> None:
    for x in (X, _jagged()):
        with _Mode() as mode:
            layer_norm(x, (8,))
        assert mode.seen[0] is layer_norm


JAGGED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "layer_norm": (
        lambda x, w: layer_norm(x, (8,), w, w), lambda x, w: F.layer_norm(x, (8,), w, w),
    ),
    "rms_norm": (lambda x, w: rms_norm(x, (8,), w), lambda x, w: F.rms_norm(x, (8,), w)),
    "add_layer_norm": (
        lambda x, w: add_layer_norm(x, x, (8,), w, w),
        lambda x, w: (F.layer_norm(x + x, (8,), w, w), x + x),
    ),
    "add_rms_norm": (
        lambda x, w: add_rms_norm(x, x, (8,), w),
        lambda x, w: (F.rms_norm(x + x, (8,), w), x + x),
    ),
    "softmax": (lambda x, w: softmax(x * w, -1), lambda x, w: torch.softmax(x * w, -1)),
    "log_softmax": (
        lambda x, w: log_softmax(x * w, 2), lambda x, w: torch.log_softmax(x * w, -1),
    ),
    "softmax, mask": (
        lambda x, w: softmax(x, -1, mask=w, scale=0.5), lambda x, w: torch.softmax(x * 0.5 + w, -1),
    ),
    "gelu": (lambda x, w: gelu(x * w), lambda x, w: F.gelu(x * w)),
    "silu, bias": (lambda x, w: silu(x, bias=w), lambda x, w: F.silu(x + w)),
    "relu, in place": (
        lambda x, w: relu(x * w, inplace=True), lambda x, w: F.relu(x * w),
    ),
    "swiglu": (
        lambda x, w: swiglu(x, x * 2, bias=w, up_bias=w), lambda x, w: F.silu(x + w) * (x * 2 + w),
    ),
    "softmax, jagged mask": (
        lambda x, w: softmax(x, -1, mask=x * w), lambda x, w: torch.softmax(x + x * w, -1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str) -> None:
    """The result of each sequence is that of the sequence alone, and can be added to the input."""
    ours, theirs = JAGGED[name]
    x = _jagged(torch.float64).requires_grad_()
    w = torch.randn(8, dtype=torch.float64, requires_grad=True)
    results = _tensors(ours(x, w))
    # PyTorch's own of the sequences as they lie in memory, which a dense tensor holds too.
    expected = _tensors(theirs(x.values(), w))
    for a, b in zip(results, expected, strict=True):
        assert a.layout is torch.jagged
        assert a.shape == x.shape
        torch.testing.assert_close((a + x).values(), b + x.values())
    seeds = [torch.randn_like(b) for b in expected]
    a = sum((r.values() * s).sum() for r, s in zip(results, seeds, strict=True))
    b = sum((r * s).sum() for r, s in zip(expected, seeds, strict=True))
    of_x, of_w = torch.autograd.grad(a, (x, w))
    wanted_x, wanted_w = torch.autograd.grad(b, (x, w))
    torch.testing.assert_close(of_x.values(), wanted_x.values())
    torch.testing.assert_close(of_w, wanted_w)


def test_jagged_causal_and_two_dense_dims() -> None:
    x = _jagged(columns=(4, 4))
    y = softmax(x, -1, causal=True)
    torch.testing.assert_close(y.values(), softmax(x.values(), -1, causal=True))
    y = layer_norm(x, (4, 4))
    torch.testing.assert_close(y.values(), F.layer_norm(x.values(), (4, 4)))


def test_jagged_columns_of_a_declared_op() -> None:
    x, ragged = _jagged(), _jagged(columns=())
    for t in (x.transpose(1, 2), ragged):
        torch.testing.assert_close(silu(t).values(), F.silu(t.values()))
    packed = swiglu(x)
    gate, up = x.values().chunk(2, -1)
    assert packed.shape == (*x.shape[:-1], 4)
    torch.testing.assert_close(packed.values(), F.silu(gate) * up)


def test_jagged_faults_are_named() -> None:
    x, other = _jagged(), _jagged()
    turned = x.transpose(1, 2)
    gaps = torch.nested.narrow(
        torch.randn(2, 5, 8), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
    )
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: layer_norm(turned, (turned.shape[-1],)), "layer_norm: normalized_shape is"),
        (lambda: layer_norm(x, (7,)), r"layer_norm: x has shape \(3, j\d+, 8\), expected"),
        (lambda: layer_norm(x, (8,), x), "layer_norm: weight is a jagged nested tensor"),
        (lambda: layer_norm(gaps, (8,)), "layer_norm: x is jagged with gaps"),
        (lambda: add_rms_norm(x, other, (8,)), r"rms_norm: residual has shape \(3, j\d+, 8\)"),
        (lambda: add_rms_norm(X, x, (8,)), "rms_norm: residual is a jagged nested tensor, exp"),
        (lambda: add_rms_norm(x, X, (8,)), r"rms_norm: residual has shape \(4, 8\), expected"),
        (lambda: softmax(x, 1), r"softmax: dim is 1, expected .* \(torch.softmax serves"),
        (lambda: log_softmax(x, 0), "log_softmax: dim is 0, expected a dimension after"),
        (lambda: softmax(turned, -1), "softmax: dim is -1, expected a dimension after"),
        (lambda: softmax(x, 3), r"softmax: dim is 3, expected one of \[-3, 2\]"),
        (lambda: softmax(gaps, -1), "softmax: x is jagged with gaps"),
        (lambda: softmax(x, -1, causal=True), "softmax: x has 1 dimensions after the ragged one"),
        (lambda: softmax(x, -1, mask=other), r"softmax: mask has shape \(3, j\d+, 8\), expected"),
        (lambda: softmax(x, -1, mask=X), r"softmax: mask has shape \(4, 8\), expected"),
        (lambda: swiglu(_jagged(columns=())), "swiglu: gate is ragged in its last dimension"),
        (lambda: gelu(turned, bias=W), "gelu: x is ragged in its last dimension, expected one"),
        (lambda: swiglu(x, other), r"swiglu: up has shape \(3, j\d+, 8\), expected \(3, j"),
        (lambda: swiglu(X, x), "swiglu: up is a jagged nested tensor, expected a dense one"),
        (lambda: silu(gaps), "silu: x is jagged with gaps"),
        (lambda: softmax(X, -1, mask=x), "softmax: mask is a jagged nested tensor, expected"),
    ]
    for call, words in refused:
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises((ValueError, TypeError), match=words):
                call()
