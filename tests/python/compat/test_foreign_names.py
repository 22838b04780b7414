# SPDX-License-Identifier: MIT
"""Calls in the words of other libraries are refused with the words of this one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels import _names, functional, nn

CLASSES = ("Dispatch", "Graph", "SampledTokens")
FUNCTIONS = [getattr(functional, name) for name in functional.__all__ if name not in CLASSES]
MODULES = [getattr(nn, name) for name in nn.__all__]
CONFIGURED = [
    tfk.levels.Block, tfk.models.LanguageModelConfig, tfk.models.VisionTransformerConfig,
    tfk.models.GraphNetworkConfig, tfk.compat.FlashAttention, tfk.compat.CPUKernelBenchmark,
]  # fmt: skip

NAMES = [
    (functional.attention, "softmax_scale", "expected scale (did you mean scale=?)"),
    (functional.attention, "window_size", "expected window (did you mean window=?)"),
    (functional.attention, "dropout_p", "expected dropout (did you mean dropout=?)"),
    (functional.attention, "is_causal", "expected causal (did you mean causal=?)"),
    (functional.attention, "attn_bias", "expected bias (did you mean bias=?)"),
    (functional.attention, "p", "expected dropout (did you mean dropout=?)"),
    (functional.attention, "query", "expected q (did you mean q=?)"),
    (functional.attention, "enable_gqa", "expected none (heads are shared where k and v have"),
    (functional.attention, "cuasal", "expected causal (did you mean causal=?)"),
    (
        functional.attention, "attn_mask",
        "expected mask or bias (did you mean mask= of booleans or bias= of numbers?)",
    ),
    (functional.attention_varlen, "max_seqlen_q", "expected none (cu_seqlens_q tells it)"),
    (functional.rms_norm, "X", "expected input (did you mean input=?)"),
    (functional.rms_norm, "offset", "did you mean zero_centered_weight=True?)"),
    (functional.rope, "unsqueeze_dim", "expected heads_first (did you mean heads_first=?)"),
    (functional.softmax, "axis", "expected dim (did you mean dim=?)"),
    (functional.linear_cross_entropy, "lin_weight", "did you mean linear_weight=?)"),
    (functional.cross_entropy, "smoothing", "did you mean label_smoothing=?)"),
    (functional.scaled_dot_product_attention, "causal", "did you mean is_causal=?)"),
    (nn.LayerNorm, "hidden_size", "did you mean normalized_shape=?)"),
    (nn.RMSNorm, "params_dtype", "expected dtype (did you mean dtype=?)"),
    (nn.RMSNorm, "zero_centered_gamma", "did you mean zero_centered_weight=?)"),
    (nn.LayerNorm, "epsilon", "expected eps (did you mean eps=?)"),
    (nn.LayerNorm, "memory_efficient", "expected none (the backward pass reads x, mean and"),
    (nn.MLP, "ffn_hidden_size", "did you mean hidden_features=?)"),
    (nn.LinearCrossEntropyLoss, "lse_square_scale", "did you mean z_loss=?)"),
    (nn.FusedLinearReLU, "in_channels", "did you mean in_features=?)"),
    (tfk.models.LanguageModelConfig, "n_embd", "expected dim (did you mean dim=?)"),
    (tfk.levels.Block, "nhead", "expected num_heads (did you mean num_heads=?)"),
    (tfk.compat.optimized_cpu_attention, "is_causal", "expected causal (did you mean causal=?)"),
    (tfk.compat.FlashAttention, "softmax_scale", "expected scale (did you mean scale=?)"),
]  # fmt: skip


def _required(callee: Callable[..., Any]) -> list[None]:
    parameters = inspect.signature(callee).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [None for p in parameters if p.default is p.empty and p.kind in by_place]


def _refusal(callee: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        callee(*args, **kwargs)
    assert isinstance(caught.value, (tfk.ArgumentTypeError, tfk.ArgumentValueError))
    return str(caught.value)


@pytest.mark.parametrize(("callee", "name", "words"), NAMES)
def test_foreign_names(callee: Any, name: str, words: str) -> None:
    said = _refusal(callee, *_required(callee), **{name: 1})
    assert said.startswith(f"{callee.__name__}: {name} is not an argument, expected ")
    assert words in said


def test_all_are_told_at_once() -> None:
    q = torch.randn(1, 4, 2, 8)
    said = _refusal(functional.attention, q, q, q, softmax_scale=0.1, is_causal=True)
    assert said == (
        "attention: softmax_scale is not an argument, expected scale (did you mean scale=?);"
        " is_causal is not an argument, expected causal (did you mean causal=?)"
    )


def test_every_function_and_module_answers() -> None:
    for callee in (*FUNCTIONS, *MODULES, *CONFIGURED):
        said = _refusal(callee, *_required(callee), no_such=1)
        assert said.startswith(f"{callee.__name__}: no_such is not an argument, expected one of ")


def test_too_many_by_place() -> None:
    for function in FUNCTIONS:
        said = _refusal(function, *[None] * 30)
        assert said.startswith(f"{function.__name__}: 30 arguments are given by place, expected at")


def test_required_arguments_that_are_missing() -> None:
    """Every function names its op and the first of them."""
    for function in (*FUNCTIONS, tfk.compat.optimized_cpu_attention):
        op, _, words = _refusal(function).partition(": ")
        assert op in function.__name__, op
        assert words.endswith(" is missing, expected it"), words
    q = torch.randn(1, 4, 2, 8)
    assert _refusal(functional.attention, q, v=q) == "attention: k is missing, expected it"
    assert _refusal(functional.rms_norm, q) == "rms_norm: normalized_shape is missing, expected it"
    for arguments in ({"key": q, "value": q}, {"query": q, "value": q}, {"query": q, "key": q}):
        name = ({"query", "key", "value"} - {*arguments}).pop()
        said = _refusal(functional.scaled_dot_product_attention, **arguments)
        assert said == f"scaled_dot_product_attention: {name} is missing, expected it"
    assert _refusal(functional.rope_tables, 3) == "rope_tables: rotary_dim is missing, expected it"
    said = _refusal(functional.attention, query=q, key=q, value=q)
    assert said.startswith("attention: query is not an argument, expected q (did you mean q=?)")


def _names_of(callee: Any) -> set[str]:
    if isinstance(callee, type):
        return {*_names._parameters_of(callee, nn._PASSED_TO.get(callee.__name__))}
    return {*inspect.signature(callee).parameters}


def test_every_row_serves_a_function_or_module() -> None:
    """Each of its names is an argument of something that lacks the foreign name."""
    taken = [_names_of(callee) for callee in (*FUNCTIONS, *MODULES, *CONFIGURED)]
    for name, row in _names._OURS.items():
        for ours in row:
            written = ours.split("=")[0]
            assert any(written in names and name not in names for names in taken), (name, ours)


# ---- arguments in another order or shape --------------------------------------------------------


def test_the_order_of_norms_without_a_shape() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)
    for function, arguments in (
        (functional.rms_norm, (x, weight, 1e-6)),
        (functional.layer_norm, (x, weight, weight, 1e-6)),
        (functional.add_rms_norm, (x, x, weight, 1e-6)),
    ):
        assert "normalized_shape is Tensor, expected a sequence of ints (did you mean" in _refusal(
            function, *arguments
        )
    said = _refusal(functional.rms_norm, x, 8, weight)
    assert said.endswith("normalized_shape is 8, expected a sequence of ints (did you mean (8,)?)")


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_tables_of_hugging_face(backend: str) -> None:
    """The message's own advice gives what Hugging Face's models compute."""
    q, k = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)  # (batch, heads, time, dim)
    halves = torch.randn(6, 8)
    angles = torch.cat((halves, halves), -1).expand(2, 6, 16)
    cos, sin = angles.cos(), angles.sin()
    said = _refusal(functional.rope, q, k, cos, sin, backend=backend)
    assert "did you mean cos[0, :, :8] and sin[0, :, :8], with heads_first=True" in said
    said = _refusal(functional.rope, q, k, cos[0], sin[0], backend=backend)
    assert "did you mean cos[:, :8] and sin[:, :8], with heads_first=True" in said

    def rotated(x: torch.Tensor) -> torch.Tensor:
        x, c, s = x.double(), cos[:, None].double(), sin[:, None].double()
        first, second = x.chunk(2, -1)
        return (x * c + torch.cat((-second, first), -1) * s).float()

    found = functional.rope(q, k, cos[0, :, :8], sin[0, :, :8], heads_first=True, backend=backend)
    torch.testing.assert_close(found, (rotated(q), rotated(k)))


@pytest.mark.parametrize("needs_grad", [False, True])
def test_weights_in_another_order(needs_grad: bool) -> None:
    x = torch.randn(3, 8, requires_grad=needs_grad)
    gate, up, down = torch.randn(12, 8), torch.randn(12, 8), torch.randn(8, 12)
    said = _refusal(functional.gated_mlp, x, gate, down, up)
    assert said == (
        "gated_mlp: up_weight has 12 columns, expected 8 (the last dimension of x)"
        " (did you mean the weights in the order (12, 8), (12, 8), (8, 12)?)"
    )
    said = _refusal(functional.gated_mlp, x, gate, up, down.t())
    assert said == (
        "gated_mlp: down_weight has 8 columns, expected 12 (the hidden features)"
        " (did you mean down_weight.t()?)"
    )
    said = _refusal(functional.gated_mlp, x, gate.t(), up.t(), down.t())
    assert said.endswith("(did you mean weight.t() and up_weight.t() and down_weight.t()?)")
    packed = torch.cat((gate, up))
    assert "down_weight.t()?" in _refusal(functional.gated_mlp, x, packed, None, down.t())
    assert "down_weight.t()?" in _refusal(functional.mlp, x, gate, None, down.t())
    assert _refusal(functional.mlp, x, gate, torch.randn(8), down).startswith("mlp: bias has 8 ")
    assert _refusal(functional.gated_mlp, x, gate, up[:5], down).startswith("gated_mlp: up_weight")
    assert _refusal(functional.linear, x, gate.t()).endswith("(did you mean weight.t()?)")
    # Nothing fits: no advice.
    assert _refusal(functional.linear, x, torch.randn(5, 7)).endswith("(the last dimension of x)")


def test_indices_first() -> None:
    weight, tokens = torch.randn(5, 8), torch.tensor([1, 2])
    said = _refusal(functional.embedding, weight, tokens)
    assert said.endswith("(did you mean embedding(input, weight), the indices first?)")


def test_tensors_are_not_printed() -> None:
    x, gate, up, down = torch.randn(3, 8), *torch.randn(2, 12, 8), torch.randn(8, 12)
    said = _refusal(functional.gated_mlp, x, gate, up, down, torch.randn(12))
    assert said.startswith("gated_mlp: activation is Tensor, expected one of ")


# ---- calls that are right -----------------------------------------------------------------------


def test_signatures_stay() -> None:
    for function in FUNCTIONS:
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert [*inspect.signature(nn.LayerNorm).parameters][:2] == ["normalized_shape", "eps"]


def test_a_module_may_be_derived() -> None:
    class Mine(nn.LayerNorm):
        def __init__(self, width: int, hidden_size: int) -> None:
            super().__init__(width + hidden_size)

    assert Mine(3, hidden_size=4).normalized_shape == (7,)
