# SPDX-License-Identifier: MIT
"""With a changed ``out_proj`` MultiheadAttention is PyTorch's module, which reads its weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.testing.modules import CHANGES, results

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_last_projection(change, monkeypatch):
    def attention(*_inputs, **_options):
        pytest.fail("the kernel is called")

    monkeypatch.setattr("transformer_kernels.nn.attention.attention", attention)
    found = []
    for kind in (nn.MultiheadAttention, tfk.nn.MultiheadAttention):
        torch.manual_seed(2)
        module = kind(16, 2, batch_first=True).double()
        log: list[str] = []
        CHANGES[change](module, "out_proj", log)
        x = X.clone().requires_grad_()
        loss = results(module, lambda m, x=x: m(x, x, x, need_weights=False)[0].square().sum())
        found.append((loss, log))
    assert found[1][1] == found[0][1]
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=1e-9)
