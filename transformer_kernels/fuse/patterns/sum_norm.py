# SPDX-License-Identifier: MIT
"""A residual sum with a norm behind it, wherever in the model the two stand.

The module that ends a branch returns its result as a tensor that knows the norm. Its sum with the
residual computes both in one pass, returns the sum and leaves the norm's result with the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._torch import is_eager
from ..cost import meta_bytes
from ..derive import Gate, Link, stands
from ..hand import give, misses
from ..mixin import Mixin
from ..prove import fused_twin, twin
from ..record import Call, Trace, Value
from ..site import Calls, Refusal, Site
from ._pattern import Pattern
from .norm import Norm

_SUMS = frozenset((Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add))
_WHOLE = (nn.Parameter, Tensor, type(None))  # a sharded parameter is gathered by its own block
_MOST_MISSES = 3  # sums whose norm nobody asked for; then the branch is plain again


class Branch(Tensor):
    """A branch's result, which has its true value and knows the norm behind the next sum."""

    _tfk_norm: Link

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _SUMS and len(args) == 2 and not kwargs:
                branch, residual = args if type(args[0]) is Branch else args[::-1]
                if _fits(branch, residual):
                    return _sum(branch, residual)
            return func(*args, **(kwargs or {}))


def _fits(branch: Tensor, residual: Any) -> bool:
    return (
        isinstance(residual, Tensor)
        and residual.shape == branch.shape
        and residual.dtype is branch.dtype
        and residual.device == branch.device
    )


def _sum(branch: Branch, residual: Tensor) -> Tensor:
    norm: Any = branch._tfk_norm.module
    plain = [x.as_subclass(Tensor) if type(x) is Branch else x for x in (branch, residual)]
    y, total = norm.of_sum(*plain)
    give(norm, total, y)
    return total


def _tagged(y: Tensor, behind: Link) -> Tensor:
    """The branch's result, as one that knows the norm where that may be computed ahead."""
    norm = behind.module
    serves = (
        isinstance(norm, Norm)
        and is_eager()
        and misses(norm) < _MOST_MISSES
        and stands(norm)
        and norm.takes(y)
        and all(type(p) in _WHOLE for p in norm._parameters.values())
    )
    if serves:
        y = y.as_subclass(Branch)
        y._tfk_norm = behind
    return y


class Tagged(Mixin):
    """The class of a module that ends a branch."""

    _tfk_keeps_signature = True
    _tfk_behind: Link  # the norm behind the sum

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = super().forward(*args, **kwargs)
        opens = type(y) is Tensor and self._tfk_gates["sum_norm"].opens(y)
        if not opens or getattr(self, "_is_replica", False):  # whose norm is on another device
            return y
        return _tagged(y, self._tfk_behind)


class SumNormPattern(Pattern):
    name = "sum_norm"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        norms = {site.path: site for site in sites if site.mixin is Norm}
        left_out = {path for site in sites for path in site.covers}
        ends: dict[int, Call] = {}  # by value: the innermost call that returned it
        for call in trace.calls:
            if len(call.outs) == 1 and call.path not in left_out:
                ends[call.outs[0]] = call
        done: set[str] = set()
        for call in trace.calls:
            node = trace.maker.get(call.ins[0]) if call.path in norms and call.ins else None
            if node is None or node.name != "add" or len(node.ins) != 2:
                continue
            terms = [trace.values[v] for v in node.ins]
            if terms[0] != terms[1]:
                continue
            made = [ends[v] for v in node.ins if v in ends]
            if not made:
                yield Refusal(call.path, self.name, "no module returns the branch that is summed")
                continue
            branch = max(made, key=lambda c: c.last)
            if branch.path not in done and branch.module is not call.module:
                done.add(branch.path)
                yield self._site(branch, norms[call.path], terms[0])

    def _site(self, branch: Call, norm: Site, x: Value) -> Site:
        count = meta_bytes(x)
        return Site(
            self.name, branch.path, branch.module, Tagged, {"_tfk_behind": Link(norm.module)},
            function=norm.function.replace(".", ".add_"), key=norm.key, shape=x.shape,
            launches=(2, 1), bytes=(5 * count, 4 * count), gate=Gate(rows=32),
            trial=_trial(norm, x),
        )  # fmt: skip


def _trial(norm: Site, x: Value) -> Callable[[int], Calls]:
    """Times the sum and the norm of what the norm's module is now, with the handing over."""

    def trial(rows: int) -> Calls:
        stock = twin(norm.module, Tensor.detach)
        ours = fused_twin(stock, Norm, norm.state)
        behind = Link(ours)
        made = [torch.randn(1, rows, x.shape[-1], dtype=x.dtype, device=x.device) for _ in range(2)]

        def by_two(branch: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            total = residual + branch
            return stock.forward(total), total

        def by_one(branch: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            total = residual + _tagged(branch, behind)
            return ours.forward(total), total

        return Calls(by_two, by_one, tuple(made), tuple(stock.parameters()))

    return trial
