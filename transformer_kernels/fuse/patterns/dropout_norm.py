# SPDX-License-Identifier: MIT
"""Dropout whose result is added to a residual before a norm, inside one forward.

While that forward runs, the dropout returns a tensor that is not computed yet. The sum drops, adds
and normalises in one pass; anything else that computes with it gets the true values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import functional
from ..._torch import is_eager
from ...ops._philox import fresh_seed
from ...ops.pointwise.dropout import drawn
from ..cost import meta_bytes
from ..derive import Link, original, stands
from ..floors import usual
from ..mixin import Mixin, only
from ..record import Call, Trace, Value
from ..site import Calls, Refusal, Site
from ._late import ASKED, Late, while_asked
from ._pattern import Pattern
from .dropout import Dropout
from .sum_norm import SUMS, Tagged, fits, sum_of, tagged


class Dropped(Late):
    """The result of a dropout that has not been computed; it may know the norm behind the next sum,
    as a branch does."""

    WHY = (
        "a dropout that the sum computes, expected a function of PyTorch (fuse without"
        " dropout_norm)"
    )
    _tfk_norm: Link | None = None
    _tfk_readers: tuple[Link, ...] = ()
    _tfk_x: Tensor
    _tfk_dropout: dict[str, Any]  # probability and seed

    @staticmethod
    def of(x: Tensor, p: float, seed: Tensor) -> Dropped:
        made: Dropped = Tensor._make_wrapper_subclass(
            Dropped, x.shape, dtype=x.dtype, device=x.device
        )
        made._tfk_x, made._tfk_dropout, made._tfk_computed = x, {"p": p, "seed": seed}, None
        return made

    def made(self) -> Tensor:
        return functional.dropout(self._tfk_x, **self._tfk_dropout)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in SUMS and len(args) == 2 and not kwargs:
            late, residual = args if type(args[0]) is Dropped else args[::-1]
            if late._tfk_norm is not None and late._tfk_computed is None:
                with torch._C.DisableTorchFunctionSubclass():
                    if not isinstance(residual, Late) and fits(late, residual):
                        return sum_of(late, late._tfk_x, residual, **late._tfk_dropout)
        return super().__torch_function__(func, types, args, kwargs)


class DropoutNorm(Mixin):
    """The class of a module that adds what dropouts give to a residual, and of the dropouts."""

    p: float
    _tfk_keeps_signature = True
    _tfk_dropouts: tuple[Link, ...] = ()  # of the module that adds
    _tfk_behind: Link
    _tfk_readers: tuple[Link, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._tfk_dropouts:
            late = self._late(only(args, kwargs)) if ASKED in self.__dict__ else None
            return super().forward(*args, **kwargs) if late is None else late
        dropouts: list[Any] = [link.module for link in self._tfk_dropouts]
        if not self._serves(dropouts):
            return super().forward(*args, **kwargs)
        return while_asked(dropouts, super().forward, args, kwargs)

    def _late(self, x: Tensor | None) -> Tensor | None:
        """The result for ``x`` that waits for its sum; None where it may not wait."""
        if type(x) is not Tensor or not self._tfk_gates["dropout_norm"].opens(x):
            return None
        seed, p = drawn("dropout", x, self.p, True, None)
        if seed is None:  # nothing is dropped, or everything
            return None
        return tagged(Dropped.of(x, p, seed), self._tfk_behind, self._tfk_readers)

    def _serves(self, dropouts: list[Any]) -> bool:
        return (
            self.training
            and is_eager()
            and "_is_replica" not in self.__dict__
            and all(_waits(dropout) for dropout in dropouts)
        )


def _waits(dropout: Any) -> bool:
    """Whether it is still the dropout that was fused, and drops."""
    is_ours = isinstance(dropout, DropoutNorm) and stands(dropout)
    return is_ours and dropout.training and _is_dropout(dropout)


class DropoutNormPattern(Pattern):
    name = "dropout_norm"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        calls: dict[str, list[Call]] = {}
        for call in trace.calls:
            calls.setdefault(call.path, []).append(call)
        groups: dict[str, list[Site]] = {}
        for site in sites:
            if site.mixin is Tagged and _is_dropout(site.module):
                call, *again = calls[site.path]
                if len(again) + 1 == len(calls[call.parent]) and _adds(call, trace):
                    groups.setdefault(call.parent, []).append(site)
        ours = {site.path for site in sites if site.mixin is Dropout}
        for path, ends in groups.items():
            x = trace.values[calls[ends[0].path][0].outs[0]]
            yield _site(path, model.get_submodule(path), ends, x, ends[0].path in ours)


def _is_dropout(module: Any) -> bool:
    return original(type(module)) is nn.Dropout and module.p > 0 and not module.inplace


def _adds(call: Call, trace: Trace) -> bool:
    """Whether the forward that calls the dropout itself adds the result to something."""
    readers = trace.users.get(call.outs[0], [])
    return any(node.name == "add" and node.path == call.parent for node in readers)


def _site(path: str, parent: nn.Module, ends: list[Site], x: Value, is_ours: bool) -> Site:
    """The site of sums with a norm; ``is_ours`` says whether the dropout is one without it."""
    end, many = ends[0], len(ends)
    modules = tuple(site.module for site in ends)
    moved = 0 if end.bytes is None else end.bytes[1]
    return Site(
        DropoutNormPattern.name, path, parent, DropoutNorm,
        {"_tfk_dropouts": tuple(map(Link, modules))}, partners=modules,
        function=end.function.replace("add_", "bias_dropout_add_"), shape=end.shape,
        key=(*end.key, end.module.p, is_ours, many), launches=(2 * many, many),
        bytes=(many * (moved + 2 * meta_bytes(x)), many * moved),
        gate=usual(DropoutNormPattern.name, x.device), trial=_trial(end, is_ours),
        needs=tuple((site.pattern, site.path) for site in ends),
    )  # fmt: skip


def _trial(end: Site, is_ours: bool) -> Callable[[int], Calls]:
    """Times dropout, sum and norm as one, against the two that are sites without it."""
    p: float = end.module.p  # type: ignore[assignment]
    dropout = functional.dropout if is_ours else F.dropout

    def late(x: Tensor) -> Tensor:
        return Dropped.of(x, p, fresh_seed(x.device))

    def trial(rows: int) -> Calls:
        assert end.trial is not None
        _, summed, tensors, parameters = end.trial(rows)
        return Calls(
            lambda x, residual: summed(dropout(x, p), residual),
            lambda x, residual: summed(late(x), residual), tensors, parameters,
        )  # fmt: skip

    return trial
