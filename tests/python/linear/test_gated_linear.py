# SPDX-License-Identifier: MIT
"""The raw op of a gated layer on the CPU; test_gated_linear_cuda.py tests CUDA."""

from __future__ import annotations

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear._ops import (
    GATED_FORMULAS,
    GATED_LINEAR,
    LINEAR_DGATED,
    linear_dgated,
)
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

X, W, UP = randn((6, 8), torch.float32), randn((4, 8), torch.float32), randn((4, 8), torch.float32)
B, UP_B = randn((4,), torch.float32), randn((4,), torch.float32)
BOTH = torch.cat([W, UP])


@pytest.mark.parametrize("activation", range(len(GATED_FORMULAS)))
@pytest.mark.parametrize("keep", [False, True])
def test_of_two_weights_and_of_one(keep: bool, activation: int, dtype: torch.dtype) -> None:
    x, w, up_w, b, up_b = (t.to(dtype) for t in (X, W, UP, B, UP_B))
    with poisoned():
        y, gate, up = GATED_LINEAR(x, w, up_w, b, up_b, activation, keep)
        both = torch.cat([w, up_w]), None, torch.cat([b, up_b]), None
        of_both, gates, none = GATED_LINEAR(x, *both, activation, keep)
    formula = GATED_FORMULAS[activation]
    theirs = formula(x @ w.t(), x @ up_w.t(), b, up_b)
    wide = [t.double() for t in (x, w, up_w, b, up_b)]
    exact = formula(wide[0] @ wide[1].t(), wide[0] @ wide[2].t(), *wide[3:])
    assert_close_to_reference(y, theirs, exact, "y", magnitude=8.0)
    assert torch.equal(of_both, y)
    assert none.numel() == 0
    if keep:
        assert torch.equal(gates, torch.cat([gate, up], -1))
    else:
        assert gate.numel() == up.numel() == gates.numel() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, BOTH, None, None, UP_B, 0, True), "up_bias is present, expected none"),
        ((X, BOTH, None, B, None, 0, True), r"bias has shape \(4,\), expected \(8,\)"),
        ((X, BOTH[:5], None, None, None, 0, False), "weight has 5 rows, expected an even number"),
        ((X, W, UP[:3], None, None, 0, False), r"up_weight has shape \(3, 8\)"),
        ((X, W, UP, None, None, 9, False), "activation is 9, expected the number of one"),
        ((X[:, :7], W, UP, None, None, 0, False), "weight has 8 columns, expected 7"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(Exception, match=f"gated_linear: {message}"):
        GATED_LINEAR(*arguments)


@pytest.mark.parametrize("activation", range(len(GATED_FORMULAS)))
@pytest.mark.parametrize("biases", ["none", "bias", "up_bias", "both"])
def test_gradient_at_a_gate(biases: str, activation: int, dtype: torch.dtype) -> None:
    """Gate and up are halves of one tensor, with h and without."""
    dy, weight = randn((6, 5), dtype), randn((5, 7), dtype)
    gate, up = randn((6, 14), dtype).chunk(2, -1)
    bias, up_bias = (
        randn((7,), dtype) if biases in (name, "both") else None for name in ("bias", "up_bias")
    )
    given = dy, weight, gate, up, bias, up_bias
    with poisoned():
        found = LINEAR_DGATED(*given, activation, True)
        *alone, none = LINEAR_DGATED(*given, activation, False)
    assert none.numel() == 0
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=False))
    theirs = linear_dgated(*given, activation, True)
    exact = linear_dgated(*(None if t is None else t.double() for t in given), activation, True)
    for name, a, b, c in zip(("dgate", "dup", "h"), found, theirs, exact, strict=True):
        assert_close_to_reference(a, b, c, name, magnitude=8.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, W, X, X, None, None, 0, True), r"dy has shape \(6, 8\)"),
        ((X[:, :4], W.t(), X, X, None, None, 0, True), "weight has 4 columns, expected 8"),
        ((X[:, :4], W, X, X, None, None, 9, True), "activation is 9, expected the number of one"),
        ((X[:, :4], W, X, X[:5], None, None, 0, True), r"up has shape \(5, 8\)"),
        ((X[:, :4], W, X, X, B, None, 0, True), "bias has 4 elements, expected 8"),
    ],
)
def test_bad_arguments_at_a_gate(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(Exception, match=f"linear_dgated: ({message})"):
        LINEAR_DGATED(*arguments)


def test_a_bias_of_up_alone_is_refused_without_its_weight() -> None:
    for level in (0, 1, 2):
        with pytest.raises(ValueError, match="up_bias is present, expected none"):
            F.gated_linear(X, BOTH, None, None, UP_B, recompute=level)
