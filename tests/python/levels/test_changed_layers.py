# SPDX-License-Identifier: MIT
"""A block whose layers were replaced, hooked into or pruned runs them at every level."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.testing.modules import CHANGES, results

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)).double()
PLACES = ("norm_1", "qkv", "out", "norm_2", "up", "down")


def layers(b, x):
    q, k, v = b.qkv(b.norm_1(x)).unflatten(-1, (3, b.num_heads, -1)).transpose(1, 3).unbind(2)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=b.causal)
    h = x + b.out(seen.transpose(1, 2).flatten(2))
    return h + b.down(F.gelu(b.up(b.norm_2(h))))


def compare(level, causal, change):
    found = []
    for run in (layers, lambda block, x: block(x)):
        torch.manual_seed(2)
        block = tfk.levels.Block(level, 16, 2, causal=causal).double()
        log = change(block)
        x = X.clone().requires_grad_()
        found.append((results(block, lambda b, run=run, x=x: run(b, x).square().sum()), log))
    assert found[1][1] == found[0][1]
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", ["torch", "ours"])
def test_a_changed_layer_is_called(level, change):
    for place in PLACES:

        def apply(block, place=place):
            log: list[str] = []
            CHANGES[change](block, place, log)
            return log

        compare(level, place != "qkv", apply)
