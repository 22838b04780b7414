# SPDX-License-Identifier: MIT
"""Arguments of MLPs are checked once for all calls that are alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.ops import _declare_checks
from transformer_kernels.ops.linear import _mlp, _mlp_ops
from transformer_kernels.testing.inputs import randn

F = tfk.functional


def _leaves(rows: tuple[int, ...]) -> list[Tensor]:
    """The input, and both layers."""
    sizes = ((*rows, 40), (144, 40), (144,), (24, 144), (24,))
    return [randn(size, torch.float32).requires_grad_() for size in sizes]


def test_a_call_like_an_accepted_one_is_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_values, checked = _declare_checks.check_values, []
    monkeypatch.setattr(
        _declare_checks, "check_values", lambda *a: checked.append(a) or check_values(*a)
    )
    for _ in range(3):  # tensors of one shape, and other memory
        F.mlp(*_leaves((7, 1, 3)))
    assert len(checked) == 1


@pytest.mark.parametrize("raw", [False, True], ids=["call", "raw"])
def test_a_call_unlike_an_accepted_one_is_checked(raw: bool) -> None:
    op = _mlp_ops.MLP
    run = torch.ops.transformer_kernels.mlp_forward if raw else op.call
    leaves = _leaves((33,))
    run(*leaves, 0, 1, False)
    wrong: list[tuple[int, Any, str]] = [
        (0, leaves[0][:, 1:], "weight has 40 columns, expected 39"),
        (1, leaves[1].double(), "weight is float64, expected float32"),
        (2, leaves[2][:1], "bias has 1 elements, expected 144"),
        (5, 99, "activation is 99, expected the number of one"),
        (6, 3, "recompute is 3, expected 0, 1 or 2"),
    ]
    for at, value, words in wrong:
        arguments = [*leaves, 0, 1, False]
        arguments[at] = value
        for _ in range(2):
            with pytest.raises((TypeError, ValueError), match=words):
                run(*arguments)
    run(*leaves, 0, 1, False)


def test_a_few_signatures_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_declare_checks, "_MOST_SIGNATURES", 2)
    run = _declare_checks.checked(_mlp_ops.MLP, _mlp.mlp_forward)
    for rows in (1, 2, 3, 1, 2, 3):
        run(*_leaves((rows,)), 0, 1, False)
    (accepted,) = (c.cell_contents for c in run.__closure__ if type(c.cell_contents) is set)
    assert 0 < len(accepted) <= 2
