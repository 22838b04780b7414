# SPDX-License-Identifier: MIT
"""DTensor: rows are computed where they lie, on the shards of each process.

A dimension that an op runs over is gathered first, and so is what waits to be summed. Parameters
are replicated; where rows are sharded, their gradients wait to be summed over the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError
from ._kinds import is_distributed


def is_sharded(*tensors: Any) -> bool:
    return any(map(is_distributed, tensors))


class Shards:
    """The local rows of ``x``, and what belongs to them.

    ``may_shard`` says of a dimension of ``x`` whether its elements need not know each other.
    """

    def __init__(self, op: str, x: Any, may_shard: Callable[[int], bool], name: str = "x") -> None:
        if not is_sharded(x):
            raise ArgumentTypeError(
                f"{op}: {name} is a Tensor, expected a DTensor as other arguments are"
                " (distribute_tensor() gives it)"
            )
        from torch.distributed.tensor import Partial, Replicate, Shard

        self._op, self._x, self._name = op, x, name
        self._shard, self._replicate, self._partial = Shard, Replicate(), Partial()
        self.placements: list[Any] = [
            p if type(p) is Shard and may_shard(p.dim % x.dim()) else self._replicate
            for p in x.placements
        ]

    def rows(self, name: str, value: Any) -> Tensor:
        """The local part of a tensor of ``x``'s shape."""
        return self._local(name, value, self.placements, self.placements)

    def beside(self, name: str, value: Any) -> Tensor | None:
        """The local part of a tensor that broadcasts to ``x``."""
        if value is None:
            return None
        shift = self._x.dim() - value.dim()
        placements, of_gradient = [], []
        for p in self.placements:
            dim = p.dim % self._x.dim() - shift if p.is_shard() else -1
            own = dim >= 0 and value.shape[dim] > 1
            placements.append(self._shard(dim) if own else self._replicate)
            of_gradient.append(self._partial if p.is_shard() and not own else placements[-1])
        return self._local(name, value, placements, of_gradient)

    def like_x(self, local: Tensor, shape: Sequence[int] | None = None) -> Any:
        """A result as a DTensor that lies as ``x`` does; by default of its shape."""
        whole = torch.empty(self._x.shape if shape is None else shape, device="meta")
        return type(self._x).from_local(
            local, self._x.device_mesh, self.placements, run_check=False,
            shape=whole.shape, stride=whole.stride(),
        )  # fmt: skip

    def _local(
        self, name: str, value: Any, placements: list[Any], of_gradient: list[Any]
    ) -> Tensor:
        if not is_sharded(value):
            raise ArgumentTypeError(
                f"{self._op}: {name} is a {type(value).__name__}, expected a DTensor as"
                f" {self._name} is (distribute_tensor() gives it)"
            )
        if value.device_mesh != self._x.device_mesh:
            raise ArgumentValueError(
                f"{self._op}: {name} is on {value.device_mesh}, expected {self._x.device_mesh}"
            )
        there = value.redistribute(placements=placements)
        local: Tensor = there.to_local(grad_placements=of_gradient)
        return local
