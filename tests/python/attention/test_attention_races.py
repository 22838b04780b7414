# SPDX-License-Identifier: MIT
"""A thousand runs of one call give the same numbers, whichever thread comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn

pytestmark = pytest.mark.usefixtures("default_device")

RUNS = 1000
LOW = [torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("low", LOW, ids=str)
each_order = pytest.mark.parametrize("deterministic", [True, False], ids=["ordered", ""])
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "dropout": {"causal": True, "dropout": 0.1, "seed": torch.tensor([1, 2], device="cpu")},
    "features": {
        "causal": True, "softcap": 9.0, "dropout": 0.1, "seed": torch.tensor([1, 2], device="cpu"),
    },
}  # fmt: skip
# A CPU has one form for all head dims; on CUDA there are others above 64 and above 128.
DIMS = [32, pytest.param(64, marks=pytest.mark.cuda), pytest.param(128, marks=pytest.mark.cuda),
        pytest.param(256, marks=pytest.mark.cuda)]  # fmt: skip


def _check(run: Callable[[], tuple[Tensor, ...]], deterministic: bool) -> None:
    """Compares out, lse, dq, dk and dv bit by bit, but dq closely where its order may vary."""
    first = run()
    anywhere = first[0].is_cpu or deterministic
    different = torch.zeros((), dtype=torch.int64)
    farthest = torch.zeros(())
    for _ in range(RUNS):
        for index, (a, b) in enumerate(zip(run(), first, strict=True)):
            if index == 2 and not anywhere:
                farthest = torch.maximum(farthest, (a - b).abs().max().float())
            else:
                different += (a != b).count_nonzero()
    assert not different.item()
    assert farthest.item() <= 4 * torch.finfo(first[2].dtype).eps * first[2].abs().max().item()


def _step(out_and_lse: Any, leaves: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    out, lse = out_and_lse
    return (out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, gradient))


@each_dtype
@each_order
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_thousand_runs_agree(name: str, dim: int, deterministic: bool, low: torch.dtype) -> None:
    on_cpu = torch.get_default_device().type == "cpu"
    if on_cpu and (dim != 32 or not deterministic or name != "features"):
        pytest.skip("for plans of CUDA")
    # More tiles than a GPU has room for, or than a CPU has threads.
    sizes = (40, 130, 4, 2) if on_cpu else (150, 400, 80, 40)
    leaves = [x.requires_grad_() for x in tensors(*sizes, dim=dim, batch=1, dtype=low)]
    gradient = randn(leaves[0].shape, low)
    options = {**OPTIONS[name], "deterministic": deterministic, "return_lse": True}
    _check(lambda: _step(attention(*leaves, **options), leaves, gradient), deterministic)


@pytest.mark.cuda
@each_dtype
@each_order
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_thousand_runs_of_sequences_agree(
    dim: int, deterministic: bool, low: torch.dtype
) -> None:
    device = "cuda"
    leaves = [randn((900, 16, dim), low, device).requires_grad_() for _ in range(3)]
    offsets = torch.tensor([0, 300, 301, 620, 880], dtype=torch.int32, device=device)
    gradient = randn(leaves[0].shape, low, device)
    with torch.device(device):
        _check(
            lambda: _step(
                attention_varlen(
                    *leaves, offsets, causal=True, return_lse=True, deterministic=deterministic
                ),
                leaves,
                gradient,
            ),
            deterministic,
        )
