# SPDX-License-Identifier: MIT
"""FSDP's fully_shard around modules and around the layers that they are made of, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import transformer_kernels as tfk

N = tfk.nn
X, LABELS = (3, 16), torch.tensor([1, 0, 5])

# A module, and what it is called with.
MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "MLP": (lambda: N.MLP(16, 32), lambda: (torch.randn(X),)),
    "MLP, residual": (lambda: N.MLP(16, 32), lambda: (torch.randn(X), torch.randn(X))),
    "GatedMLP": (lambda: N.GatedMLP(16, 32, bias=True), lambda: (torch.randn(X),)),
    "LayerNorm": (lambda: N.LayerNorm(16), lambda: (torch.randn(X),)),
    "RMSNorm": (lambda: N.RMSNorm(16), lambda: (torch.randn(X),)),
    "LinearAct": (lambda: N.LinearAct(16, 8), lambda: (torch.randn(X),)),
    "CausalSelfAttention": (
        lambda: N.CausalSelfAttention(16, 2), lambda: (torch.randn(2, 3, 16),)
    ),
    "QuantizedLinear": (
        lambda: N.QuantizedLinear.from_linear(nn.Linear(16, 8), group_size=8),
        lambda: (torch.randn(X),),
    ),
    "LinearCrossEntropyLoss": (
        lambda: N.LinearCrossEntropyLoss(16, 8, bias=True), lambda: (torch.randn(X), LABELS)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize(("make", "inputs"), MODULES.values(), ids=MODULES)
def test_modules(
    make: Callable[[], Any], inputs: Callable[[], Any], parts: bool, mesh: Any
) -> None:
    from torch.distributed.fsdp import fully_shard

    plain, sharded = make(), make()
    sharded.load_state_dict(plain.state_dict())
    for child in list(sharded.children()) if parts else []:
        fully_shard(child, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    given = inputs()
    y, expected = sharded(*given), plain(*given)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    for p, q in zip(sharded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad)
