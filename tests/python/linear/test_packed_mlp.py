# SPDX-License-Identifier: MIT
"""The raw ops of MLPs by our products: against their formulas, and what they write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _packed_mlp
from transformer_kernels.ops.linear._weights import Gradient
from transformer_kernels.testing.inputs import randn

K, HIDDEN, N = 40, 144, 24
OPS = torch.ops.transformer_kernels
KINDS = ("plain", "two", "pair")  # an activation; gate and up of two weights, or of one


def _operands(kind: str, biased: bool, down: bool) -> list[Any]:
    """x, both weights, both biases, the second weight and its bias."""
    lines = 2 * HIDDEN if kind == "pair" else HIDDEN

    def weight(rows: int, columns: int) -> Tensor:
        return randn((rows, columns), torch.float64) / columns**0.5

    def bias(size: int) -> Tensor | None:
        return randn((size,), torch.float64) if biased else None

    return [
        randn((3, 11, K), torch.float64), weight(lines, K),
        weight(lines, K) if kind == "two" else None, bias(lines),
        bias(lines) if kind == "two" else None, weight(N, HIDDEN) if down else None,
        bias(N) if down else None,
    ]  # fmt: skip


def _memory(operands: list[Any]) -> list[Tensor | None]:
    return [None if w is None else torch.ones_like(w) for w in (*operands[1:3], operands[5])]


def _pairs(ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    return ((a, b) for a, b in zip(ours, theirs, strict=True) if a is not None or b is not None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("biased", [False, True], ids=["alone", "biases"])
@pytest.mark.parametrize("down", [False, True], ids=["one_layer", "two_layers"])
@pytest.mark.parametrize("accumulate", [False, True], ids=["written", "added"])
def test_ops_give_what_their_formulas_do(
    kind: str, level: int, biased: bool, down: bool, accumulate: bool, device: str
) -> None:
    with torch.device(device):
        operands = _operands(kind, biased, down)
    numbers = 0, kind != "plain"
    saved = OPS.packed_mlp_forward(*operands, *numbers, level)
    for a, b in _pairs(saved, _packed_mlp._forward_formula(*operands, *numbers, level)):
        torch.testing.assert_close(a, b)
    fake = _packed_mlp._fake_forward(*operands, *numbers, level)
    assert [t.shape for t in fake] == [t.shape for t in saved]
    dy = torch.randn_like(saved[0])
    kept = [t if t.numel() else None for t in saved[1:]]
    found = []
    for run in (OPS.packed_mlp_backward, _packed_mlp._backward_formula):
        memory = _memory(operands)
        gradients = run(
            dy, *operands, *kept, *memory, *numbers, False, accumulate, -1, True, biased, biased
        )
        found.append([*gradients, *memory])
    for a, b in _pairs(*found):
        torch.testing.assert_close(a, b)


def test_only_some_gradients_are_added() -> None:
    """The others are written whatever their memory holds."""
    operands = _operands("plain", biased=False, down=True)
    x, weight, _, _, _, down_weight, _ = operands
    dy = randn((3, 11, N), torch.float64)
    y, z, h, *copies = _packed_mlp.forward(0, x, (weight,), (None,), down_weight, None, 0)
    assert y is not None

    def gradients(first: Gradient) -> tuple[Tensor | None, ...]:
        second = Gradient(down_weight, torch.full_like(down_weight, torch.nan))
        return _packed_mlp.backward(
            0, dy, x, (weight,), (None,), down_weight, None, (z,), h, copies, 0, False,
            [first, second], False, False, False,
        )  # fmt: skip

    _, dweight, _, ddown_weight, _ = gradients(Gradient(weight))
    total = torch.ones_like(weight)
    version = total._version
    _, added, _, again, _ = gradients(Gradient(weight, total, adds=True))
    assert added is None
    assert total._version > version
    assert dweight is not None
    torch.testing.assert_close(total, dweight + 1)
    torch.testing.assert_close(again, ddown_weight)


def test_a_grad_without_lines_is_left_to_autograd() -> None:
    """Our products write rows or columns of numbers that are together."""
    operands = _operands("plain", biased=False, down=False)
    x, weight, *_ = operands
    dy = randn((3, 11, HIDDEN), torch.float64)
    _, z, h, *copies = _packed_mlp.forward(0, x, (weight,), (None,), None, None, 1)
    total = torch.ones(HIDDEN, K, 2, dtype=torch.float64)[..., 0]
    _, dweight, *_ = _packed_mlp.backward(
        0, dy, x, (weight,), (None,), None, None, (z,), h, copies, 1, False,
        [Gradient(weight, total, adds=True), None], False, False, False,
    )  # fmt: skip
    assert dweight is not None
    assert dweight.any()
    assert (total == 1).all()


@pytest.mark.parametrize("gated", [False, True])
def test_z_is_overwritten_where_the_graph_is_freed(gated: bool, device: str) -> None:
    sizes = [(33, K), *[(HIDDEN, K)] * (1 + gated), (N, HIDDEN)]
    leaves = [torch.randn(s, dtype=torch.float64, device=device).requires_grad_() for s in sizes]
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        if gated:
            y = tfk.functional.gated_mlp(*leaves, backend=device)
        else:
            x, weight, down_weight = leaves
            y = tfk.functional.mlp(x, weight, None, down_weight, backend=device)
    kept = [t for t in saved if t.shape == (33, HIDDEN)]
    assert len(kept) == 1 + gated
    before = [t.clone() for t in kept]
    first = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
    assert all(map(torch.equal, kept, before))
    second = torch.autograd.grad(y.sum(), leaves)
    assert not any(map(torch.equal, kept, before))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
