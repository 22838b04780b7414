# SPDX-License-Identifier: MIT
"""The processes that share one call."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch import distributed as dist

from .._errors import ArgumentTypeError, ArgumentValueError, shown

Group = Any  # a ProcessGroup, a DeviceMesh of one dimension, or None for all processes


class Ranks(NamedTuple):
    """A process group, the place of this process in it, and the number of its processes. Without
    :mod:`torch.distributed` there is one process, and no group."""

    group: Any
    rank: int
    size: int

    @property
    def backend(self) -> str:
        return "none" if self.group is None else dist.get_backend(self.group)

    def sum(self, x: Tensor) -> Tensor:
        """Adds up, in place, what the processes have."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x


def ranks_of(op: str, group: Group) -> Ranks:
    """Looks up the processes that ``group`` stands for; refuses by name what is no such thing."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return Ranks(None, 0, 1)
    found = _process_group(op, group)
    rank = dist.get_rank(found)
    if rank < 0:
        raise ArgumentValueError(f"{op}: group is one without this process, expected one with it")
    return Ranks(found, rank, dist.get_world_size(found))


def _process_group(op: str, group: Group) -> Any:
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentValueError(f"{op}: group is one without this process, expected one with it")
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(group, DeviceMesh):
        raise ArgumentTypeError(
            f"{op}: group is {shown(group)}, expected a ProcessGroup, a DeviceMesh or None"
        )
    if group.ndim != 1:
        raise ArgumentValueError(
            f"{op}: group is a mesh of {group.ndim} dimensions, expected one (mesh['name'] gives"
            " it)"
        )
    return group.get_group()
