# SPDX-License-Identifier: MIT
"""The styles of :func:`torch.distributed.tensor.parallel.parallelize_module` that a plan is carried
out by. Between modules tensors are plain ones, whole on every rank; parameters are DTensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.utils import parametrize

from .._errors import ArgumentValueError
from ..fuse.patterns._late import ASKED, Late
from .randomness import Fork

Memo = dict[nn.Parameter, nn.Parameter]  # split parameters by the whole ones, which others may tie


class Packed(nn.Module):
    """Makes a parameter of its parts, each of which is split, so that a rank has its share of every
    one: of queries, keys and values. The parts are what checkpoints and optimizers see."""

    def __init__(self, mesh: DeviceMesh, dim: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self._mesh, self.dim, self._sizes = mesh, dim, sizes

    def forward(self, *parts: Any) -> Tensor:
        own = torch.cat([part.to_local() for part in parts], self.dim)
        return DTensor.from_local(own, self._mesh, [Shard(self.dim)], run_check=False)

    def right_inverse(self, whole: Tensor) -> tuple[Tensor, ...]:
        parts = (x.contiguous() for x in whole.detach().split(self._sizes, self.dim))
        return tuple(distribute_tensor(x, self._mesh, [Shard(self.dim)]) for x in parts)


class Entry:
    """Where a tensor enters the layers of a group: all of them read it through one DTensor, whose
    gradients are summed before they are reduced, once."""

    def __init__(self) -> None:
        self._of: Any = None
        self._made: Any = None

    def read(self, x: Tensor, mesh: DeviceMesh) -> Any:
        if self._made is None or self._of() is not x:
            self._of = weakref.ref(x)
            self._made = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        return self._made

    def gather(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """All tokens, of which each rank has some. The layers read the DTensor behind the result,
        whose gradients are scattered while they are summed."""
        made = _of_tokens(x, mesh).redistribute(placements=[Replicate()])
        whole: Tensor = made.to_local()
        self._of, self._made = weakref.ref(whole), made
        return whole

    def leave(self) -> None:
        self._of = self._made = None


def tokens_of(x: Any, mesh: DeviceMesh) -> Shard:
    """The placement of a tensor (..., T, C) of which each rank has the same number of tokens."""
    if x.shape[-2] % mesh.size():
        raise ArgumentValueError(
            f"parallelize: a call has {x.shape[-2]} tokens, expected a multiple of {mesh.size()}"
            " (the ranks between which sequence_parallel splits them)"
        )
    return Shard(x.dim() - 2)


def _of_tokens(x: Tensor, mesh: DeviceMesh) -> Any:
    return DTensor.from_local(x, mesh, [Shard(x.dim() - 2)], run_check=False)


def gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """All tokens, of which each rank has some."""
    whole: Tensor = _of_tokens(x, mesh).redistribute(placements=[Replicate()]).to_local()
    return whole


def taken(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The rank's own of the tokens that all have."""
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    own: Tensor = whole.redistribute(placements=[tokens_of(x, mesh)]).to_local()
    return own


def _outputs(module: nn.Module) -> int:
    """The dimension of a linear layer's weight that its results have."""
    return 0 if isinstance(module, nn.Linear) else 1  # Hugging Face's Conv1D


class _Split(ParallelStyle):
    """The base of the ways to split a module with a weight. Subclasses say where its parameters are
    split, and what happens to tensors before and behind it."""

    def __init__(self, memo: Memo) -> None:
        super().__init__()
        self._memo = memo

    def placements(self, module: nn.Module) -> dict[str, Any]:
        """The placement of each parameter; others are whole on every rank."""
        raise NotImplementedError

    def read(self, _module: nn.Module, args: Any, mesh: DeviceMesh) -> Any:
        return DTensor.from_local(args[0], mesh, [Replicate()], run_check=False)

    def written(self, _module: nn.Module, result: Any, _mesh: DeviceMesh) -> Any:
        return result.redistribute(placements=[Replicate()]).to_local()

    def partition(self, _name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, placement in self.placements(module).items():
            whole = module._parameters.get(name)
            if whole is None or isinstance(whole, DTensor):
                continue
            if whole not in self._memo:
                own = distribute_tensor(whole.detach(), mesh, [placement])
                self._memo[whole] = nn.Parameter(own, whole.requires_grad)
            module.register_parameter(name, self._memo[whole])

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self.partition, self.read, self.written)


class Head(_Split):
    """Each rank computes the logits of some tokens of the vocabulary; all get all of them, unless
    the head of a model that is fused without logits gives some that wait."""

    def placements(self, module: nn.Module) -> dict[str, Any]:
        return {"weight": Shard(_outputs(module)), "bias": Shard(0)}

    def read(self, module: nn.Module, args: Any, mesh: DeviceMesh) -> Any:
        return args if ASKED in module.__dict__ else super().read(module, args, mesh)

    def written(self, module: nn.Module, result: Any, mesh: DeviceMesh) -> Any:
        return result if isinstance(result, Late) else super().written(module, result, mesh)


class Vocabulary(_Split):
    """Each rank has the rows of some tokens of an embedding, and looks up those; the results of the
    ranks are summed."""

    def placements(self, _module: nn.Module) -> dict[str, Any]:
        return {"weight": Shard(0)}


class Table(_Split):
    """Each rank has the columns of an embedding that belong to its heads, and looks up those."""

    def placements(self, _module: nn.Module) -> dict[str, Any]:
        return {"weight": Shard(1)}

    def written(self, _module: nn.Module, result: Any, _mesh: DeviceMesh) -> Any:
        return result.to_local()


class Columns(Head):
    """Each rank has some columns of each part of a linear layer's result. ``fork`` is given to the
    first layer of a group."""

    def __init__(self, memo: Memo, sizes: tuple[int, ...], entry: Entry, fork: Fork | None) -> None:
        super().__init__(memo)
        self._sizes, self._entry, self._fork = sizes, entry, fork

    def read(self, module: nn.Module, args: Any, mesh: DeviceMesh) -> Any:
        if self._fork is not None:
            self._fork.begin(module.training)
        return self._entry.read(args[0], mesh)

    def written(self, _module: nn.Module, result: Any, _mesh: DeviceMesh) -> Any:
        return result.to_local()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if len(self._sizes) > 1:
            for name, placement in self.placements(module).items():
                whole = module._parameters.get(name)
                if whole is not None:
                    packed = Packed(device_mesh, placement.dim, self._sizes)
                    _parametrize(module, name, packed, whole.requires_grad)
        return super()._apply(module, device_mesh)


class Rows(_Split):
    """Each rank multiplies the columns that it has with its rows of the weight; the results of the
    ranks are summed. With ``scatters`` each rank gets the sums of some tokens."""

    def __init__(self, memo: Memo, entry: Entry, fork: Fork | None, scatters: bool) -> None:
        super().__init__(memo)
        self._entry, self._fork, self._scatters = entry, fork, scatters

    def placements(self, module: nn.Module) -> dict[str, Any]:
        return {"weight": Shard(1 - _outputs(module)), "bias": Replicate()}

    def read(self, _module: nn.Module, args: Any, mesh: DeviceMesh) -> Any:
        self._entry.leave()
        if self._fork is not None:
            self._fork.end()
        return DTensor.from_local(args[0], mesh, [Shard(args[0].dim() - 1)], run_check=False)

    def written(self, module: nn.Module, result: Any, mesh: DeviceMesh) -> Any:
        if not self._scatters:
            return super().written(module, result, mesh)
        return result.redistribute(placements=[tokens_of(result, mesh)]).to_local()


class Shared(ParallelStyle):
    """Each rank uses a module's parameters for its own heads or tokens; their gradients are
    summed. ``names`` are those of the parameters."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, whole in list(module._parameters.items()):
            if whole is not None and name in self._names:
                shared = distribute_tensor(whole.detach(), device_mesh, [Replicate()])
                module.register_parameter(name, nn.Parameter(shared))
                _parametrize(module, name, Summed(), whole.requires_grad)
        return module


class Summed(nn.Module):
    """Makes the plain tensor that a module reads of a parameter that every rank has whole."""

    def forward(self, x: Any) -> Tensor:
        replicated = x.redistribute(placements=[Replicate()])
        whole: Tensor = replicated.to_local(grad_placements=[Partial()])
        return whole


def _parametrize(module: nn.Module, name: str, by: nn.Module, trains: bool) -> None:
    parametrize.register_parametrization(module, name, by, unsafe=True)
    lists: Any = module.parametrizations
    for part in lists[name].parameters():
        part.requires_grad_(trains)
