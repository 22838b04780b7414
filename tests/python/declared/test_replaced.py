# SPDX-License-Identifier: MIT
"""Our functions in the place of PyTorch's: calls that they leave to PyTorch run PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk

X = torch.randn(4, 8, dtype=torch.float64)
ARGUMENTS = {
    "softmax": (-1,), "log_softmax": (-1,), "layer_norm": ((8,),), "rms_norm": ((8,),),
    "cross_entropy": (torch.tensor([1, 7, 0, 1]),), "dropout": (0.0,),
    "linear": (torch.randn(3, 8, dtype=torch.float64),),
    "linear_cross_entropy": (
        torch.randn(9, 8, dtype=torch.float64), torch.tensor([1, 7, 0, 1]),
    ),
}  # fmt: skip
BEFORE = {"embedding": (torch.tensor([1, 3, 0, 3]),)}  # other arguments, in front of x
REPLACED = [
    name
    for name in tfk.functional.__all__
    if hasattr(F, name) and name != "scaled_dot_product_attention"  # which has tests of its own
]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", REPLACED)
def test_in_the_place_of_torchs(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, arguments = BEFORE.get(name, ()), ARGUMENTS.get(name, ())
    expected = getattr(F, name)(*before, X, *arguments)
    for other in REPLACED:
        for owner in (F, torch):
            if hasattr(owner, other):
                monkeypatch.setattr(owner, other, getattr(tfk.functional, other))

    def ours(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = getattr(tfk.functional, name)(*before, x, *arguments, backend=backend)
        return y

    x = X.clone().requires_grad_()
    torch.testing.assert_close(ours(x), expected)
    assert torch.autograd.gradgradcheck(ours, (x,))
