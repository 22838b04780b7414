# SPDX-License-Identifier: MIT
"""Counts the bytes that a rank sends."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ..fuse.record import tensors_in

# How often each rank sends the share of every other one in a ring, by the beginning of a name.
_ROUNDS = {"all_gather": 1, "allgather": 1, "reduce_scatter": 1, "all_reduce": 2, "allreduce": 2,
           "all_to_all": 1, "alltoall": 1}  # fmt: skip
_SPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Traffic(TorchDispatchMode):
    """Counts the bytes that this rank's collectives send over links, as algorithms in a ring do:
    ``(n - 1) / n`` of a tensor that n ranks gather, scatter or exchange, and twice that where they
    sum it.

    >>> with tfk.parallel.Traffic() as traffic:
    ...     y = torch.nn.Linear(8, 8)(torch.randn(2, 8))
    >>> traffic.bytes, dict(traffic.calls)
    (0, {})

    Attributes:
        bytes: the bytes sent.
        calls: how often each collective ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its collectives come as calls of their own
        result = func(*args, **(kwargs or {}))
        name = func.__name__.lstrip("_")
        rounds = next((n for start, n in _ROUNDS.items() if name.startswith(start)), 0)
        if func.namespace in _SPACES and rounds:
            whole = max(
                x.numel() * x.element_size() for x in (*tensors_in(args), *tensors_in(result))
            )
            ranks = _ranks(args)
            self.bytes += rounds * whole * (ranks - 1) // ranks
            self.calls[name.split(".")[0].strip("_")] += 1
        return result


def _ranks(args: tuple[Any, ...]) -> int:
    """The size of the group that a collective is called with, by name or as an object."""
    from torch._C import _distributed_c10d

    resolve: Any = _distributed_c10d._resolve_process_group
    names = [value for value in args if isinstance(value, str)]
    if names:  # the group's is the last one, behind that of a reduction
        return int(resolve(names[-1]).size())
    for value in args:
        if type(value).__name__ == "ScriptObject":
            return int(dist.ProcessGroup.unbox(value).size())
    return dist.get_world_size()
