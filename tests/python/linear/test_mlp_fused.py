# SPDX-License-Identifier: MIT
"""The passes of MLPs whose products include the activation, as CUDA runs them, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.ops.linear import _mlp
from transformer_kernels.testing.inputs import randn

K, HIDDEN, N = 40, 144, 24
Both = tuple[Tensor | None, ...]

# Kernels by activation, and how many weights the first layer has: for the rows of hidden features.
_PLAIN = (_mlp._plain_kernels, 1, 1)
_TWO = (_mlp._gated_kernels, 2, 1)
_PAIR = (_mlp._gated_kernels, 1, 2)


def _layer(count: int, packed: int, biased: bool) -> tuple[list[Any], list[Any]]:
    weights: list[Any] = [randn((packed * HIDDEN, K), torch.float64) / K**0.5 for _ in range(count)]
    biases: list[Any] = [randn((packed * HIDDEN,), torch.float64) if biased else None] * count
    missing = [None] * (packed - 1)
    return weights + missing, biases + missing


def _passes(
    kernels: _mlp.Kernels, x: Tensor, dy: Tensor, weights: list[Any], biases: list[Any],
    down_weight: Tensor, level: int, need_dbias: bool,
) -> Both:  # fmt: skip
    """The result, and all gradients."""
    count = len(weights)
    y, *saved = _mlp._forward(kernels, x, weights, biases, down_weight, None, level)
    z, h, copies = saved[:count], saved[count], saved[count + 1 :]
    return y, *_mlp._gradients(
        kernels, dy, x, weights, biases, down_weight, None, z, h, copies, level, True,
        [True] * count, need_dbias, True, False, False,
    )  # fmt: skip


@pytest.mark.parametrize("form", [_PLAIN, _TWO, _PAIR], ids=["plain", "two", "pair"])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("biased", [False, True], ids=["alone", "biases"])
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "parts"])
def test_fused_passes_give_what_separate_ones_do(
    form: Any, level: int, biased: bool, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mlp, "_FEWEST_BYTES", {} if in_parts else {"cpu": 2**30})
    kernels_of, count, packed = form
    weights, biases = _layer(count, packed, biased)
    x, dy = randn((3, 11, K), torch.float64), randn((3, 11, N), torch.float64)
    operands = (x, dy, weights, biases, randn((N, HIDDEN), torch.float64), level, biased)
    fused = _passes(kernels_of(0, _mlp._ON_CUDA, True), *operands)
    apart = _passes(kernels_of(0, _mlp._TORCHS, False), *operands)
    for ours, theirs in zip(fused, apart, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
