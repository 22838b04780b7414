# SPDX-License-Identifier: MIT
"""Layers that stand for those of Transformers: they have no state, and read the module's."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

_functional: Any = sys.modules["transformer_kernels"].functional


class RMSNorm(nn.Module):
    can_torch_compile = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Any:
        weight = self.weight
        return _functional.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)


class SiLU(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        return _functional.silu(input)


class GeLU(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        return _functional.gelu(input)


class GeluTanh(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        return _functional.gelu(input, approximate="tanh")


class NewGELU(GeluTanh):
    pass


class FastGELU(GeluTanh):
    pass


__all__ = ["FastGELU", "GeLU", "GeluTanh", "NewGELU", "RMSNorm", "SiLU"]
