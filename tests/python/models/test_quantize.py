# SPDX-License-Identifier: MIT
"""Layers of fewer bits: all that fit, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.nn import QuantizedLinear


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.full((4, 64), torch.nan), r"quantize: weight has a group .* \(layer 2\)"),
        (torch.zeros(4, 64, dtype=torch.complex64), r"weight is complex64, .* \(layer 2\)"),
    ],
    ids=("nan", "complex"),
)
def test_a_failure_changes_no_layer(weight: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(64, 4))
    layers = list(model)
    model[2].weight = nn.Parameter(weight)
    with pytest.raises((ValueError, TypeError), match=message):
        tfk.quantize(model)
    assert all(now is before for now, before in zip(model, layers, strict=True))
    with torch.no_grad():
        model[2].weight = nn.Parameter(torch.ones(4, 64))
    assert [type(layer) for layer in tfk.quantize(model)][::2] == [QuantizedLinear] * 2
