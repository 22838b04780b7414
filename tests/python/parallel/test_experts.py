# SPDX-License-Identifier: MIT
"""Experts that ranks share: together they compute what one process computes."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as Replicated

from transformer_kernels import fuse, nn
from transformer_kernels.functional import moe_dispatch
from transformer_kernels.parallel import expert_parallel
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.processes import device
from transformer_kernels.testing.tolerance import assert_close_to_reference

WORLD, EXPERTS, CHOSEN, HIDDEN = 4, 8, 2, 24
TOKENS = (9, 0, 14, 5)  # of each rank


def _mine(x: Tensor) -> Tensor:
    return x.split(TOKENS)[dist.get_rank()]


def _together(x: Tensor) -> Tensor:
    """The rows of all ranks."""
    parts = [x.new_empty(count, *x.shape[1:]) for count in TOKENS]
    for rank, part in enumerate(parts):
        part.copy_(x) if rank == dist.get_rank() else None
        dist.broadcast(part, rank)
    return torch.cat(parts)


def _passes(experts: Any, x: Tensor, indices: Tensor, weights: Tensor, dy: Tensor) -> Any:
    """The result, and the gradients of x, weights and parameters."""
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    y = experts(x, moe_dispatch(indices, EXPERTS), weights)
    parameters = dict(experts.named_parameters())
    found = torch.autograd.grad(y, [x, weights, *parameters.values()], dy)
    return [y.detach(), *found]


def _check(dtype: torch.dtype, indices: Tensor, **options: Any) -> None:
    """Holds the results and gradients of all ranks to the rule, PyTorch's place taken by the
    experts of one process."""
    total = sum(TOKENS)
    whole = nn.Experts(HIDDEN, 16, EXPERTS, dtype=dtype, **options)
    x, dy = randn((total, HIDDEN), dtype), randn((total, HIDDEN), dtype)
    weights = torch.rand(total, CHOSEN)
    expected = _passes(
        copy.deepcopy(whole).double(), x.double(), indices, weights.double(), dy.double()
    )
    alone = _passes(whole, x, indices, weights, dy)
    split = expert_parallel(copy.deepcopy(whole))
    y, dx, dweights, *gradients = _passes(split, *map(_mine, (x, indices, weights, dy)))
    ours = [*map(_together, (y, dx, dweights)), *(g.full_tensor() for g in gradients)]
    names = ["y", "dx", "dweights", *dict(whole.named_parameters())]
    assert names[3:] == list(dict(split.named_parameters()))
    for name, a, b, c in zip(names, ours, alone, expected, strict=True):
        # A number is the sum of many others, which cancel.
        assert_close_to_reference(a, b, c, name, magnitude=4 * c.abs().max().item())


def _chosen(experts: int = EXPERTS) -> Tensor:
    return torch.rand(sum(TOKENS), experts).topk(CHOSEN).indices


def _path(name: str) -> str:
    """A path that all ranks agree on."""
    found = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(found)
    return f"{found[0]}/{name}"


# ---- cases --------------------------------------------------------------------------------------


def every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        _check(dtype, _chosen())


def every_kind_of_parameters() -> None:
    for packed, bias in itertools.product((True, False), (True, False)):
        _check(torch.float32, _chosen(), packed=packed, bias=bias)
    _check(torch.float32, _chosen(), activation="gelu", bias=True)


def ranks_without_rows() -> None:
    _check(torch.float32, _chosen(3))  # experts of the first two ranks alone


def assignments_to_no_expert() -> None:
    indices = _chosen()
    indices[::3, 0] = -1
    _check(torch.float32, indices)


def no_rank_has_tokens() -> None:
    split: Any = expert_parallel(nn.Experts(HIDDEN, 16, EXPERTS))
    x, weights = torch.randn(0, HIDDEN).requires_grad_(), torch.rand(0, CHOSEN)
    indices = torch.zeros(0, CHOSEN, dtype=torch.int64)
    y = split(x, moe_dispatch(indices, EXPERTS), weights)
    y.sum().backward()
    assert y.shape == (0, HIDDEN)
    assert not split.down_proj.grad.full_tensor().any()


def the_whole_layer() -> None:
    """A mixture with its router, in a model, on tokens of two dimensions."""
    whole = torch.nn.Sequential(
        nn.MoE(HIDDEN, 16, EXPERTS, CHOSEN, shared_size=8, dtype=torch.float64)
    )
    x = randn((WORLD, 3, HIDDEN), torch.float64)
    expected = whole(x)
    expected.square().sum().backward()
    split: Any = expert_parallel(copy.deepcopy(whole))
    split.zero_grad()
    y = split(x[dist.get_rank()].unsqueeze(0))
    torch.testing.assert_close(y[0], expected[dist.get_rank()])
    y.square().sum().backward()
    for (name, p), q in zip(split.named_parameters(), whole.parameters(), strict=True):
        if ".experts." in name:
            gradient = p.grad.full_tensor()
        else:
            gradient = p.grad.clone()
            dist.all_reduce(gradient)
        torch.testing.assert_close(gradient, q.grad, msg=name)


class _TheirExperts(torch.nn.Module):
    """Experts as Transformers writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(randn((EXPERTS, 32, HIDDEN), torch.float64) / 5)
        self.down_proj = torch.nn.Parameter(randn((EXPERTS, HIDDEN, 16), torch.float64) / 4)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for expert in range(EXPERTS):
            token, place = torch.where(chosen == expert)
            gate, up = (x[token] @ self.gate_up_proj[expert].T).chunk(2, -1)
            rows = (self.act_fn(gate) * up) @ self.down_proj[expert].T
            y = y.index_add(0, token, rows * weights[token, place, None])
        return y


class _TheirMixture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, EXPERTS, bias=False, dtype=torch.float64)
        self.experts = _TheirExperts()

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(CHOSEN)
        return self.experts(x, chosen, weights)


def the_experts_of_a_fused_model() -> None:
    whole: Any = _TheirMixture()
    x = randn((sum(TOKENS), HIDDEN), torch.float64)
    expected = whole(x)
    expected.square().sum().backward()
    split: Any = copy.deepcopy(whole)
    assert fuse(split, x, measure=False).counts()["experts"] == 1
    split.zero_grad()
    expert_parallel(split)
    y = split(_mine(x))
    y.square().sum().backward()
    torch.testing.assert_close(y, _mine(expected))
    for name, p in split.experts.named_parameters():
        gradient = whole.experts.get_parameter(name).grad
        torch.testing.assert_close(p.grad.full_tensor(), gradient, msg=name)
    with pytest.raises(ValueError, match="expert_parallel: experts is split"):
        expert_parallel(split)


def a_checkpoint_for_other_ranks() -> None:
    whole = nn.Experts(HIDDEN, 16, EXPERTS, bias=True)
    state, path = {"experts": expert_parallel(whole).state_dict()}, _path("checkpoint")
    checkpoint.save(state, checkpoint_id=path)
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("data", "experts"))
    fresh = nn.Experts(HIDDEN, 16, EXPERTS, bias=True)
    for other in (expert_parallel(fresh, mesh["experts"]), fresh):  # two ranks, and one
        loaded = {"experts": other.state_dict()}
        checkpoint.load(loaded, checkpoint_id=path)
        for name, x in loaded["experts"].items():
            found = x.full_tensor() if hasattr(x, "full_tensor") else x
            assert torch.equal(found, state["experts"][name].full_tensor()), name
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(Path(path).parent)


def beside_data_parallel() -> None:
    """DDP averages the router's gradients and leaves the experts alone, whose gradients are sums
    over all ranks already."""
    whole = nn.MoE(HIDDEN, 16, EXPERTS, CHOSEN, dtype=torch.float64)
    x = randn((WORLD, 3, HIDDEN), torch.float64)
    whole(x).square().sum().backward()
    split = expert_parallel(copy.deepcopy(whole))
    split.zero_grad()
    theirs = [name for name, p in split.named_parameters() if isinstance(p, DTensor)]
    Replicated._set_params_and_buffers_to_ignore_for_model(split, theirs)
    replicated = Replicated(split)
    replicated(x[dist.get_rank()]).square().sum().backward()
    for (name, p), q in zip(split.named_parameters(), whole.parameters(), strict=True):
        found = p.grad.full_tensor() if isinstance(p, DTensor) else p.grad * WORLD
        torch.testing.assert_close(found, q.grad, msg=name)


def the_same_bits() -> None:
    split = expert_parallel(nn.Experts(HIDDEN, 16, EXPERTS, dtype=torch.bfloat16))
    x, dy = (randn((11, HIDDEN), torch.bfloat16) for _ in range(2))
    indices = torch.rand(11, EXPERTS).topk(CHOSEN).indices
    runs = [_passes(split, x, indices, torch.rand(11, CHOSEN).fill_(0.5), dy) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(*(x.to_local() if hasattr(x, "to_local") else x for x in (a, b)))


def refusals() -> None:
    with pytest.raises(ValueError, match=r"expert_parallel: moe\.experts has 6 experts, expected"):
        expert_parallel(torch.nn.ModuleDict({"moe": nn.MoE(HIDDEN, 16, 6, 2)}))
    with pytest.raises(ValueError, match="expert_parallel: module has no experts"):
        expert_parallel(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="expert_parallel: experts is split, expected a whole one"):
        expert_parallel(expert_parallel(nn.MoE(HIDDEN, 16, EXPERTS, 2)))
    with pytest.raises(TypeError, match="expert_parallel: module is int, expected a Module"):
        expert_parallel(3)  # type: ignore[arg-type]


CASES = [
    every_dtype, every_kind_of_parameters, ranks_without_rows, assignments_to_no_expert,
    no_rank_has_tokens, the_whole_layer, the_experts_of_a_fused_model,
    a_checkpoint_for_other_ranks, beside_data_parallel, the_same_bits, refusals,
]  # fmt: skip


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES)
