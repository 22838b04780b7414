# SPDX-License-Identifier: MIT
"""Our functions in the place of PyTorch's: what they leave to PyTorch is PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk

X = torch.randn(4, 8, dtype=torch.float64)
ARGUMENTS = {
    "softmax": (-1,), "log_softmax": (-1,), "layer_norm": ((8,),), "rms_norm": ((8,),),
    "cross_entropy": (torch.tensor([1, 7, 0, 1]),),
}  # fmt: skip
REPLACED = [
    name
    for name in tfk.functional.__all__
    if hasattr(F, name) and name != "scaled_dot_product_attention"  # which has tests of its own
]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", REPLACED)
def test_in_the_place_of_torchs(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, arguments = getattr(tfk.functional, name), ARGUMENTS.get(name, ())
    expected = getattr(F, name)(X, *arguments)
    for other in REPLACED:
        for owner in (F, torch):
            if hasattr(owner, other):
                monkeypatch.setattr(owner, other, getattr(tfk.functional, other))
    x = X.clone().requires_grad_()
    y = ours(x, *arguments, backend=backend)
    torch.testing.assert_close(y, expected)
    assert torch.autograd.gradgradcheck(lambda x: ours(x, *arguments, backend=backend), (x,))
