# SPDX-License-Identifier: MIT
"""Parameters of the tests of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transformer_kernels.optim.adamw import _TINY

SHAPES = ((40, 500), (33,), (0,), (), (5, 4, 3), (1, 1, 1, 1, 1, 1, 1, 1, 2))
EXTENSIONS: tuple[dict[str, Any], ...] = (
    {},
    {"master_weights": True},
    {"state_dtype": torch.bfloat16, "seed": 7},
    {"state_dtype": torch.uint8, "seed": 7},
    {"master_weights": True, "state_dtype": torch.uint8, "max_norm": 1.0},
    {"stochastic_weights": True, "skip_nonfinite": True},
)

Parameters = list[torch.nn.Parameter]


def parameters(dtype: torch.dtype, shapes: Any = SHAPES, device: str = "cpu") -> Parameters:
    return [torch.nn.Parameter(torch.randn(shape).to(device, dtype)) for shape in shapes]


def copies(params: Parameters, dtype: torch.dtype | None = None) -> Parameters:
    return [torch.nn.Parameter(p.detach().to(dtype or p.dtype, copy=True)) for p in params]


@pytest.fixture(autouse=True)
def small_lists_run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's step takes the lists of these tests on CUDA otherwise."""
    monkeypatch.setitem(_TINY, "cuda", 0)


def set_gradients(*lists: Parameters, size: float = 1.0) -> None:
    for same in zip(*lists, strict=True):
        grad = torch.randn_like(same[0]) * size
        for p in same:
            p.grad = grad.to(p.dtype, copy=True)
