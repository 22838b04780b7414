# SPDX-License-Identifier: MIT
"""Which patterns replace what Inductor makes by itself, on which devices, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Decision(NamedTuple):
    """Whether a pattern runs our code in graphs with gradients, and in those without."""

    training: bool
    inference: bool
    reason: str


YES, NO = True, False
_SAME = "Inductor's own code takes as long"

# Steps of small models on one core (2 layers, width 256, 8 x 128 tokens), this pattern alone
# against Inductor alone.
_CPU: Mapping[str, Decision] = {
    "attention": Decision(YES, YES, "a kernel for each block of scores, and masks looked through"),
    "gated_mlp": Decision(NO, NO, _SAME),
    "mlp": Decision(NO, NO, _SAME),
    "linear_act": Decision(NO, NO, _SAME),
    "dropout_norm": Decision(YES, NO, "Inductor draws random numbers one at a time"),
    "sum_norm": Decision(NO, NO, _SAME),
    "norm": Decision(NO, NO, _SAME),
    "dropout": Decision(YES, NO, "Inductor draws random numbers one at a time"),
    "loss": Decision(YES, YES, "the gradient is made in one pass over the logits"),
    "rope": Decision(NO, NO, _SAME),
}
# Not measured in whole models yet: what each op gains by itself beside Inductor's kernels.
_CUDA: Mapping[str, Decision] = {
    "attention": Decision(YES, YES, "kernels for Hopper, biases, caps and windows included"),
    "gated_mlp": Decision(YES, YES, "the gate is part of the product's kernel"),
    "mlp": Decision(YES, YES, "the activation is part of the product's kernel"),
    "linear_act": Decision(YES, YES, "the activation is part of the product's kernel"),
    "dropout_norm": Decision(YES, NO, "one pass each way, and no mask in memory"),
    "sum_norm": Decision(YES, NO, "Inductor's forward pass is one kernel as well"),
    "norm": Decision(YES, NO, "Inductor's forward pass is one kernel as well"),
    "dropout": Decision(NO, NO, "Inductor draws the numbers in the kernel beside it"),
    "loss": Decision(YES, YES, "one pass over the logits, without a copy in float32"),
    "rope": Decision(NO, NO, "Inductor rotates in the kernel beside it"),
}
DECISIONS: Mapping[str, Mapping[str, Decision]] = {"cpu": _CPU, "cuda": _CUDA}
_ELSEWHERE = Decision(NO, NO, "there are kernels for cpu and cuda")


def decision(device: str, pattern: str) -> Decision:
    """The decision for a pattern on a type of device."""
    return DECISIONS.get(device, {}).get(pattern, _ELSEWHERE)
