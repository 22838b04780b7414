# SPDX-License-Identifier: MIT
"""Experts that are split between ranks: each token's rows travel to the ranks of its experts, and
the results travel back.

    rows by expert        all-to-all        rows by rank, then expert       experts, then back
    0 0 1 2 3 3 3   ->   0 0 1 | 2 3 3 3   ->   from rank 0, from rank 1 ...   ->   0 0 1 2 3 3 3

The rows of a rank's experts lie next to each other once tokens are sorted by expert, so what is
sent is cut from one tensor, and the weighted sum of a token is made where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from .._errors import ArgumentTypeError, ArgumentValueError
from .._library import log_dispatch
from ..fuse.patterns import experts as fused
from ..nn.experts import Experts
from ..ops._dtype import accumulate_dtype
from ..ops.moe.dispatch import Dispatch, moe_dispatch, moe_permute, moe_unpermute
from ..ops.moe.experts import moe_experts
from ._exchange import exchanged
from ._ranks import Group, Ranks, ranks_of

_OP = "expert_parallel"

# The experts of this rank: of rows (R, C), each with the number of its expert (R, 1) and 1 as the
# weight (R, 1).
Own = Callable[[Tensor, Tensor, Tensor], Tensor]


def _through(
    own: Own, ranks: Ranks, x: Tensor, dispatch: Dispatch, weights: Tensor, backend: str = "auto"
) -> Tensor:
    """Sends the rows of tokens to the ranks of their experts, and sums what comes back."""
    rows = moe_permute(x, dispatch, backend=backend)
    counts = dispatch.counts().view(ranks.size, -1)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts.contiguous(), group=ranks.group)
    sent, received = torch.stack([counts.sum(1), arriving.sum(1)]).tolist()
    log_dispatch(
        f"{_OP}: {ranks.size} ranks, {ranks.backend}, all-to-all of {sum(sent)} rows,"
        f" {sum(received)} arrive"
    )
    kept = rows[: sum(sent)]  # dropped assignments lie behind
    arrived = exchanged(kept, ranks, sent, received)
    experts = torch.arange(counts.shape[1], device=x.device).repeat(ranks.size)
    numbers = experts.repeat_interleave(arriving.flatten(), output_size=len(arrived))
    ones = x.new_ones(len(arrived), 1, dtype=accumulate_dtype(x))
    y = exchanged(own(arrived, numbers.unsqueeze(1), ones), ranks, received, sent)
    y = F.pad(y, (0, 0, 0, len(rows) - len(kept)))
    y = moe_unpermute(y, dispatch, weights.to(accumulate_dtype(y)), backend=backend)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _split(module: nn.Module, ranks: Ranks) -> Iterator[tuple[str, nn.Parameter | None]]:
    """The parameters of experts as DTensors, which have the first rank's numbers."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = DeviceMesh.from_group(ranks.group, next(module.parameters()).device.type)
    for name, parameter in module._parameters.items():
        split = None
        if parameter is not None:
            whole = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            split = nn.Parameter(whole, parameter.requires_grad)
        yield name, split


def _local(x: Any) -> Any:
    return None if x is None else x.to_local()


class ExpertParallel(Experts):
    """The experts of this rank, in the place of all of them; :func:`expert_parallel` makes it.

    Parameters keep their names, and are DTensors of the whole shape, split by experts.

    Args:
        experts: all of them; each rank passes such a module, and that of the first rank counts.
        ranks: the processes that share them.

    >>> experts = tfk.nn.Experts(32, 48, 8)
    >>> isinstance(tfk.parallel.expert_parallel(experts), tfk.nn.Experts)
    True
    """

    def __init__(self, experts: Experts, ranks: Ranks) -> None:
        nn.Module.__init__(self)
        self.ranks, self.activation, self.backend = ranks, experts.activation, experts.backend
        for name, parameter in _split(experts, ranks):
            self.register_parameter(name, parameter)
        self.train(experts.training)

    def forward(self, x: Tensor, dispatch: Dispatch, weights: Tensor) -> Tensor:
        return _through(self._own, self.ranks, x, dispatch, weights, self.backend)

    def _own(self, rows: Tensor, numbers: Tensor, ones: Tensor) -> Tensor:
        first = {name: _local(x) for name, x in self._first().items()}
        weight, down = first.pop("weight"), _local(self.down_proj)
        return moe_experts(
            rows, moe_dispatch(numbers, len(down)), ones, weight, down, self.activation,
            down_bias=_local(self.down_proj_bias), backend=self.backend, **first,
        )  # fmt: skip


class _FusedExpertParallel(nn.Module):
    """Likewise for the experts of another library's model that :func:`transformer_kernels.fuse`
    has fused: they are called with tokens, the experts that a router chose, and their weights."""

    def __init__(self, experts: Any, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.layout = ranks, experts._tfk_layout
        for name, parameter in _split(experts, ranks):
            self.register_parameter(name, parameter)
        self.train(experts.training)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x, chosen, weights = (*args, *kwargs.values())
        dispatch = moe_dispatch(chosen, _count(self))
        return _through(self._own, self.ranks, x, dispatch, weights)

    def _own(self, rows: Tensor, numbers: Tensor, ones: Tensor) -> Tensor:
        parameters = {name: _local(x) for name, x in self._parameters.items()}
        return fused.run(parameters, self.layout, rows, numbers, ones)


def _count(module: nn.Module) -> int:
    return len(next(module.parameters()))


def _is_split(module: nn.Module) -> bool:
    return isinstance(module, (ExpertParallel, _FusedExpertParallel))


def expert_parallel(module: nn.Module, group: Group = None) -> nn.Module:
    """Splits the experts of a model between the ranks of a group, in place, so that each has E / N
    of them (GShard, Lepikhin et al. 2020, arXiv:2006.16668): every
    :class:`transformer_kernels.nn.Experts` in ``module``, which :class:`transformer_kernels.nn.MoE`
    has one of, becomes an :class:`ExpertParallel`. So do the experts of Hugging Face's mixtures,
    once :func:`transformer_kernels.fuse` has fused them.

    Each rank then calls the model with its own tokens, of any number, also none; results are those
    of all experts in one process. Counts, and with them the sizes of messages, are read on the host
    once a call. A ``capacity_factor`` counts a rank's own tokens.

    The gradients of experts are sums over the tokens of all ranks. The router and other parameters
    stay whole on each rank, and have the gradients of its own tokens: those are to be summed over
    the ranks, for instance by DDP, with the experts' parameters ignored. ``state_dict`` has the
    same names, and DTensors that :mod:`torch.distributed.checkpoint` saves, and loads into any
    number of ranks. Weights are sent from the first rank of the group.

    Args:
        module: a model on its device, the same on every rank.
        group: a process group or a mesh of one dimension; by default all processes. Without
            :mod:`torch.distributed` there is one rank, and nothing changes.

    Returns:
        The module, or its replacement where ``module`` is the experts.

    Raises:
        ArgumentValueError: a number of experts does not divide among the ranks, or there are no
            experts.
        ArgumentTypeError: ``module`` or ``group`` is of another type.

    >>> moe = tfk.nn.MoE(32, 48, num_experts=8, top_k=2)
    >>> moe = tfk.parallel.expert_parallel(moe)  # without a process group there is one rank
    >>> moe(torch.randn(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """
    ranks = ranks_of(_OP, group)
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"{_OP}: module is {type(module).__name__}, expected a Module")
    kinds = (Experts, fused.Experts, _FusedExpertParallel)
    found = {name: m for name, m in module.named_modules() if isinstance(m, kinds)}
    if not found:
        raise ArgumentValueError(
            f"{_OP}: module has no experts, expected tfk.nn.Experts or fused ones"
        )
    for name, experts in found.items():
        count = _count(experts)
        if _is_split(experts):
            raise ArgumentValueError(f"{_OP}: {name or 'module'} is split, expected a whole one")
        if count % ranks.size:
            raise ArgumentValueError(
                f"{_OP}: {name or 'module'} has {count} experts, expected a multiple of"
                f" {ranks.size} (the ranks)"
            )
    if ranks.size == 1:
        return module
    for name, experts in found.items():
        split: nn.Module = (
            ExpertParallel(experts, ranks)
            if isinstance(experts, Experts)
            else _FusedExpertParallel(experts, ranks)
        )
        if not name:
            return split
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, split)
    return module
