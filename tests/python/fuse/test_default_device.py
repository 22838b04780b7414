# SPDX-License-Identifier: MIT
"""A default device that is not the model's: what fusing draws by itself is where it belongs."""

from __future__ import annotations

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.fuse.patterns import eager_attention, rope

from .zoo.families import BY_NAME


@pytest.fixture(autouse=True)
def _unknown_functions(monkeypatch):
    """Functions are proven again that another test has met."""
    for module, name in ((rope, "_as_rope"), (eager_attention, "_as_attention")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit"])
@pytest.mark.parametrize("options", [{}, {"skip_logits": True}])
def test_plans_are_the_same(name, options):
    model = BY_NAME[name].build(0.0)
    model.set_attn_implementation("eager")
    with torch.device("meta"):
        made_up = tfk.plan(model, measure=False, **options)
    wanted = tfk.plan(model, measure=False, **options)
    assert made_up.to_json() == wanted.to_json()
    assert {"norm", "eager_attention"} <= {*wanted.counts()}
