# SPDX-License-Identifier: MIT
"""Dtypes under autocast, of every function, on the CPU and on CUDA.

The rule is PyTorch's, with its answer for the same call beside ours, but for what stands in OURS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as T

from transformer_kernels import functional as F
from transformer_kernels.ops._declare_arguments import as_tuple

C = 8
Call = Callable[..., Any]


def _labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) % C


def _pick(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1).gather(-1, _labels(x)[:, None]).squeeze(-1)


def _heads(x: Tensor) -> Tensor:
    return x.view(1, x.shape[0], 1, C).transpose(1, 2)


def _gated(x: Tensor, w: Tensor) -> Tensor:
    return T.silu(T.linear(x, w)) * T.linear(x, w)


def _sdpa(function: Call, mask: bool) -> Call:
    def call(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[0], x.shape[0], device=x.device) if mask else None
        q = _heads(x)
        out: Tensor = function(q, q, q, attn_mask=hidden)
        return out

    return call


# Ours and PyTorch's, of x (4, C), a matrix w (C, C) and a vector v (C).
TORCHS: dict[str, tuple[Call, Call]] = {
    "linear": (lambda x, w, v: F.linear(x, w, v), lambda x, w, v: T.linear(x, w, v)),
    "linear_act": (
        lambda x, w, v: F.linear_act(x, w, v, "relu"), lambda x, w, v: T.relu(T.linear(x, w, v))
    ),
    "gated_linear": (
        lambda x, w, _: F.gated_linear(x, w, w), lambda x, w, _: _gated(x, w)
    ),
    "linear_list": (
        lambda x, w, v: F.linear_list(x, [w, w], [v, None]),
        lambda x, w, v: (T.linear(x, w, v), T.linear(x, w)),
    ),
    "mlp": (
        lambda x, w, v: F.mlp(x, w, v, w, v, "relu"),
        lambda x, w, v: T.linear(T.relu(T.linear(x, w, v)), w, v),
    ),
    "mlp, residual": (
        lambda x, w, v: F.mlp(x, w, v, w, v, "relu", residual=x),
        lambda x, w, v: x + T.linear(T.relu(T.linear(x, w, v)), w, v),
    ),
    "gated_mlp": (
        lambda x, w, _: F.gated_mlp(x, w, w, w),
        lambda x, w, _: T.linear(_gated(x, w), w),
    ),
    "quantized_linear": (
        lambda x, w, v: F.quantized_linear(x, *F.quantize_weight(w, 8, 4), v),
        lambda x, w, v: T.linear(x, w, v),
    ),
    "gelu": (lambda x, *_: F.gelu(x), lambda x, *_: T.gelu(x)),
    "silu": (lambda x, *_: F.silu(x), lambda x, *_: T.silu(x)),
    "swiglu": (lambda x, *_: F.swiglu(x, x), lambda x, *_: T.silu(x) * x),
    "softmax": (lambda x, *_: F.softmax(x, -1), lambda x, *_: torch.softmax(x, -1)),
    "log_softmax": (lambda x, *_: F.log_softmax(x, -1), lambda x, *_: torch.log_softmax(x, -1)),
    "cross_entropy": (
        lambda x, *_: F.cross_entropy(x, _labels(x)), lambda x, *_: T.cross_entropy(x, _labels(x))
    ),
    "cross_entropy of rows": (
        lambda x, *_: F.cross_entropy(x, _labels(x), reduction="none"),
        lambda x, *_: T.cross_entropy(x, _labels(x), reduction="none"),
    ),
    "cross_entropy of probabilities": (
        lambda x, *_: F.cross_entropy(x, x.softmax(-1).to(x.dtype)),
        lambda x, *_: T.cross_entropy(x, x.softmax(-1).to(x.dtype)),
    ),
    "cross_entropy, weight": (
        lambda x, _, v: F.cross_entropy(x, _labels(x), v.detach().abs()),
        lambda x, _, v: T.cross_entropy(x, _labels(x), v.abs()),
    ),
    "cross_entropy, gradient": (
        lambda x, *_: F.cross_entropy(x, _labels(x), gradient="forward"),
        lambda x, *_: T.cross_entropy(x, _labels(x)),
    ),
    "linear_cross_entropy": (
        lambda x, w, v: F.linear_cross_entropy(x, w, _labels(x), linear_bias=v),
        lambda x, w, v: T.cross_entropy(T.linear(x, w, v), _labels(x)),
    ),
    "scaled_dot_product_attention": (
        _sdpa(F.scaled_dot_product_attention, False), _sdpa(T.scaled_dot_product_attention, False)
    ),
    "scaled_dot_product_attention, mask": (
        _sdpa(F.scaled_dot_product_attention, True), _sdpa(T.scaled_dot_product_attention, True)
    ),
    "dropout": (lambda x, *_: F.dropout(x, 0.5), lambda x, *_: T.dropout(x, 0.5)),
    "bias_dropout_add": (
        lambda x, _, v: F.bias_dropout_add(x, v, x, 0.5),
        lambda x, _, v: x + T.dropout(x + v.to(x.dtype), 0.5),
    ),
    "bias_dropout_add, float32": (
        lambda x, *_: F.bias_dropout_add(x, None, x.float(), 0.5),
        lambda x, *_: x.float() + T.dropout(x, 0.5),
    ),
    "embedding": (
        lambda x, w, _: F.embedding(_labels(x), w), lambda x, w, _: T.embedding(_labels(x), w)
    ),
}  # fmt: skip

# Results that have x's dtype or float32, as documented, whatever dtype PyTorch returns.
SAME, FLOAT32 = "that of x", "float32"
OURS: dict[str, tuple[Call, str]] = {
    "layer_norm": (lambda x, _, v: F.layer_norm(x, (C,), v, v), SAME),
    "layer_norm of two dimensions": (
        lambda x, w, _: F.layer_norm(x[None], (4, C), w[:4], w[:4]), SAME
    ),
    "rms_norm": (lambda x, _, v: F.rms_norm(x, (C,), v, 1e-6), SAME),
    "add_layer_norm": (lambda x, _, v: F.add_layer_norm(x, x, (C,), v, v), SAME),
    "bias_dropout_add_layer_norm": (
        lambda x, _, v: F.bias_dropout_add_layer_norm(x, v, x, v, v, 0.5), SAME
    ),
    "bias_dropout_add_rms_norm": (
        lambda x, _, v: F.bias_dropout_add_rms_norm(x, v, x, v, 0.5), SAME
    ),
    "gelu, bias": (lambda x, _, v: F.gelu(x, bias=v), SAME),
    "swiglu, biases": (lambda x, _, v: F.swiglu(x, x, bias=v, up_bias=v), SAME),
    "rope": (lambda x, w, _: F.rope(x[:, None], None, *w.detach().chunk(2, 1)), SAME),
    "qk_norm": (lambda x, _, v: F.qk_norm(x[:, None], None, v), SAME),
    "token_log_probs": (lambda x, *_: F.token_log_probs(x, _labels(x)), FLOAT32),
    "linear_token_log_probs": (
        lambda x, w, v: F.linear_token_log_probs(x, w, _labels(x), linear_bias=v), FLOAT32
    ),
}  # fmt: skip

LOW = [torch.bfloat16, torch.float16]
each_dtype = pytest.mark.parametrize("of_x", [torch.float32, *LOW], ids=str)
each_of_parameters = pytest.mark.parametrize("of_parameters", [torch.float32, *LOW], ids=str)
each_lower = pytest.mark.parametrize("lower", LOW, ids=str)


def _tensors(device: str, of_x: torch.dtype, of_parameters: torch.dtype) -> list[Tensor]:
    shapes = {(4, C): of_x, (C, C): of_parameters, (C,): of_parameters}
    return [
        torch.randn(shape, device=device).to(dtype).requires_grad_()
        for shape, dtype in shapes.items()
    ]


def _dtypes(call: Call, tensors: list[Tensor]) -> list[torch.dtype]:
    return [y.dtype for y in as_tuple(call(*tensors))]


def _check_gradients(call: Call, tensors: list[Tensor]) -> None:
    results = as_tuple(call(*tensors))
    gradients = torch.autograd.grad([y.sum() for y in results], tensors, allow_unused=True)
    for x, dx in zip(tensors, gradients, strict=True):
        assert dx is None or dx.dtype is x.dtype


@each_lower
@each_of_parameters
@each_dtype
@pytest.mark.parametrize("name", TORCHS)
def test_dtypes_are_pytorch_s(
    name: str, of_x: torch.dtype, of_parameters: torch.dtype, lower: torch.dtype, device: str
) -> None:
    ours, torchs = TORCHS[name]
    tensors = _tensors(device, of_x, of_parameters)
    with torch.autocast(device, lower):
        try:
            expected = _dtypes(torchs, [t.detach() for t in tensors])
        except RuntimeError:  # two dtypes that meet in an operation that does not promote
            return
        assert _dtypes(ours, [t.detach() for t in tensors]) == expected
        assert _dtypes(ours, tensors) == expected
        _check_gradients(ours, tensors)


@each_lower
@each_of_parameters
@each_dtype
@pytest.mark.parametrize("name", OURS)
def test_dtypes_that_are_ours(
    name: str, of_x: torch.dtype, of_parameters: torch.dtype, lower: torch.dtype, device: str
) -> None:
    call, kind = OURS[name]
    tensors = _tensors(device, of_x, of_parameters)
    with torch.autocast(device, lower):
        expected = torch.float32 if kind == FLOAT32 else of_x
        assert {*_dtypes(call, [t.detach() for t in tensors])} == {expected}
        assert {*_dtypes(call, tensors)} == {expected}
        _check_gradients(call, tensors)


@pytest.mark.parametrize("other", [torch.float32, *LOW], ids=str)
@each_dtype
def test_rows_of_two_dtypes(of_x: torch.dtype, other: torch.dtype, device: str) -> None:
    """A branch and a residual, or a gate and what it lets through, as their sum has them."""
    x, _, v = _tensors(device, of_x, torch.float32)
    y = torch.randn(4, C, device=device).to(other).requires_grad_()
    wide = torch.promote_types(of_x, other)
    with torch.autocast(device, torch.bfloat16):
        assert F.bias_dropout_add(x, v, y, 0.5).dtype is wide
        assert F.add_layer_norm(x, y, (C,), v, v)[1].dtype is wide
        assert F.add_rms_norm(x[None], y[None], (4, C), None)[1].dtype is wide
        assert F.swiglu(x, y).dtype is wide
        _, s = F.bias_dropout_add_layer_norm(x, v, y, v, v, 0.5)
        assert s.dtype is wide or of_x is other
    if of_x is not other:
        with pytest.raises(TypeError, match="residual is"):
            F.bias_dropout_add(x, None, y, 0.5)


def test_parameters_of_two_dtypes(device: str) -> None:
    x, v = torch.randn(4, C, device=device), torch.randn(C, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = F.layer_norm(x, (C,), v, v.bfloat16())
    torch.testing.assert_close(y, F.layer_norm(x, (C,), v, v.bfloat16().float()))
    with pytest.raises(TypeError, match="bias is bfloat16"):
        F.layer_norm(x, (C,), v, v.bfloat16())
