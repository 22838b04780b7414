# SPDX-License-Identifier: MIT
"""A residual sum with a norm behind it, wherever in the model the two stand.

The module that ends a branch returns its result as a tensor that knows the norm. Its sum with the
residual computes both in one pass, returns the sum and leaves the norm's result with the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import functional
from ..._torch import is_eager
from ..cast import is_lowered
from ..cost import meta_bytes
from ..derive import Link, stands
from ..floors import usual
from ..hand import give, misses
from ..mixin import Mixin
from ..prove import fused_twin, twin
from ..record import MOVES, Call, Node, Trace, Value
from ..site import Calls, Refusal, Site
from ._late import Late
from ._pattern import Pattern
from ._products import PRODUCTS, is_linear
from ._rebound import features_of
from .norm import NARROW, Norm

_DROPOUTS = frozenset((F.dropout, functional.dropout))
SUMS = frozenset((Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add))
_WHOLE = (nn.Parameter, Tensor, type(None))  # a sharded parameter is gathered by its own block
_MOST_MISSES = 3  # sums whose norm nobody asked for; then the branch is plain again


class Branch(Tensor):
    """A branch's result, which has its true value and knows the norm behind the next sum."""

    _tfk_norm: Link
    _tfk_readers: tuple[Link, ...]  # the linear layers that alone read the norm; or none

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, Late) for kind in types):  # which is computed first
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            if func in SUMS and len(args) == 2 and not kwargs:
                branch, residual = args if type(args[0]) is Branch else args[::-1]
                if fits(branch, residual):
                    return sum_of(branch, branch.as_subclass(Tensor), residual)
            y = func(*args, **(kwargs or {}))
            return _named_as(args[0], y) if func in _DROPOUTS else y


def _named_as(branch: Any, y: Any) -> Any:
    """Returns what a dropout made of a branch as that branch."""
    if type(y) is Tensor and type(branch) is Branch:
        y = y.as_subclass(Branch)
        vars(y).update(vars(branch))
    return y


def fits(branch: Any, residual: Any) -> bool:
    """Whether the sum of a branch that knows a norm computes that, too."""
    norm: Any = branch._tfk_norm.module
    return (
        isinstance(residual, Tensor)
        and _are_terms(branch, residual)
        and residual.device == branch.device
        and norm.takes(residual)
        and not norm.lifts(residual)
    )


def _are_terms(branch: Tensor | Value, residual: Tensor | Value) -> bool:
    """Whether their sum has the shape and dtype of the residual: under autocast a 16-bit branch is
    added to a float32 residual."""
    return branch.shape == residual.shape and (
        branch.dtype is residual.dtype
        or (branch.dtype in NARROW and residual.dtype is torch.float32)
    )


def sum_of(branch: Any, x: Tensor, residual: Tensor, **dropout: Any) -> Tensor:
    """The sum of ``x``, the branch without its class, and the residual; gives the norm its
    result."""
    norm: Any = branch._tfk_norm.module
    if type(residual) is Branch:
        residual = residual.as_subclass(Tensor)
    if x.dtype is not residual.dtype and not (
        norm._tfk_lowers or _may_be_narrow(branch._tfk_readers, x)
    ):
        x = x.to(residual.dtype)
    y, total = norm.of_sum(x, residual, **dropout)
    give(norm, total, y)
    return total


def _may_be_narrow(readers: tuple[Link, ...], x: Tensor) -> bool:
    """Whether a norm of the dtype of ``x`` serves as well as a float32 one: all that reads it are
    products, whose operands autocast casts to that dtype."""
    return bool(readers) and is_lowered(x) and all(stands(link.module) for link in readers)


def tagged(y: Any, behind: Link, readers: tuple[Link, ...]) -> Tensor:
    """The branch's result, as one that knows the norm where that may be computed ahead."""
    norm: Any = behind.module
    serves = (
        isinstance(norm, Norm)
        and is_eager()
        and misses(norm) < _MOST_MISSES
        and stands(norm)
        and all(type(p) in _WHOLE for p in norm._parameters.values())
    )
    if serves:
        y = y if isinstance(y, Late) else y.as_subclass(Branch)
        y._tfk_norm, y._tfk_readers = behind, readers
    return y


class Tagged(Mixin):
    """The class of a module that ends a branch."""

    _tfk_keeps_signature = True
    _tfk_behind: Link  # the norm behind the sum
    _tfk_readers: tuple[Link, ...]  # of the norm

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = super().forward(*args, **kwargs)
        opens = type(y) is Tensor and self._tfk_gates["sum_norm"].opens(y)
        if not opens or "_is_replica" in self.__dict__:  # whose norm is on another device
            return y
        return tagged(y, self._tfk_behind, self._tfk_readers)


class SumNormPattern(Pattern):
    name = "sum_norm"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        norms = {site.path: site for site in sites if site.mixin is Norm}
        left_out = {path for site in sites for path in site.covers}
        normed = {v for call in trace.calls if call.path in norms for v in call.outs}
        ends = _ends(call for call in trace.calls if call.path not in left_out)
        sums = [(call, node) for call in trace.calls if (node := _sum_before(call, trace, norms))]
        behind: dict[str, set[str]] = {}  # the first norms behind a module's calls
        firsts: dict[int, str] = {}  # that of a sum
        for call, node in sums:
            first = firsts.setdefault(id(node), call.path)
            for end in (end for v in node.ins for end in ends.get(v, ())):
                behind.setdefault(end.path, set()).add(first)
        done: set[str] = set()
        for call, node in sums:
            # The innermost that knows which norm comes next: a dropout that ends several branches
            # does not.
            known = [[e for e in ends.get(v, ()) if len(behind[e.path]) == 1] for v in node.ins]
            made = [calls[-1] for calls in known if calls]
            if not made:
                yield Refusal(call.path, self.name, "no module returns the branch that is summed")
                continue
            branch = max(made, key=lambda c: c.last)
            x = trace.values[branch.outs[0]]
            other = next((v for v in node.ins if v != branch.outs[0]), node.ins[0])
            residual = trace.values[other]
            if other in normed and not trace.residual_in_fp32:
                residual = residual._replace(dtype=x.dtype)
            new = branch.path not in done and branch.module is not call.module
            if new and _are_terms(x, residual):
                done.add(branch.path)
                readers = tuple(map(Link, _readers(call, trace)))
                features = features_of(branch, trace)
                yield self._site(branch, norms[call.path], x, residual, readers, features)

    def _site(
        self, branch: Call, norm: Site, x: Value, residual: Value, readers: tuple[Link, ...],
        features: int,
    ) -> Site:  # fmt: skip
        one, wide = meta_bytes(x), meta_bytes(residual)
        return Site(
            self.name, branch.path, branch.module, Tagged,
            {"_tfk_behind": Link(norm.module), "_tfk_readers": readers},
            function=norm.function.replace(".", ".add_"),
            key=(*norm.key, x.dtype, len(readers) > 0), shape=x.shape, launches=(2, 1),
            bytes=(one + 4 * wide, one + 2 * wide + (one if readers else wide)),
            gate=usual(self.name, x.device, calls=(norm.launches or (1,))[0]),
            features=features, trial=_trial(norm, x, residual, readers),
            needs=((norm.pattern, norm.path),),
        )  # fmt: skip


def _ends(calls: Iterable[Call]) -> dict[int, list[Call]]:
    """The calls that returned a value, by the value, from the outermost to the innermost."""
    found: dict[int, list[Call]] = {}
    for call in calls:
        if len(call.outs) == 1:
            found.setdefault(call.outs[0], []).append(call)
    return found


def _sum_before(call: Call, trace: Trace, norms: Container[str]) -> Node | None:
    """The sum of two values that a norm's call normalises."""
    node = trace.maker.get(call.ins[0]) if call.path in norms and call.ins else None
    return node if node is not None and node.name == "add" and len(node.ins) == 2 else None


def _readers(call: Call, trace: Trace) -> list[nn.Module]:
    """The linear layers that read the result of a call, where nothing else does."""
    modules = {other.path: other.module for other in trace.calls}
    found, values = [], list(call.outs)
    while values:
        value = values.pop()
        if any(value in other.outs for other in trace.calls if other is not call):
            return []
        for node in trace.users.get(value, []):
            if node.name in MOVES:
                values.extend(node.outs)
            elif node.name in PRODUCTS and is_linear(modules[node.path]):
                found.append(modules[node.path])
            else:
                return []
    return found


def _trial(
    norm: Site, x: Value, residual: Value, readers: tuple[Link, ...]
) -> Callable[[int], Calls]:
    """Times the sum and the norm of what the norm's module is now, with the handing over."""

    def trial(rows: int) -> Calls:
        stock = twin(norm.module, Tensor.detach)
        ours = fused_twin(stock, Norm, norm.state)
        behind = Link(ours)
        made = [
            torch.randn(1, rows, x.shape[-1], dtype=term.dtype, device=x.device)
            for term in (x, residual)
        ]

        def by_two(branch: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            total = residual + branch
            return stock.forward(total), total

        def by_one(branch: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            total = residual + tagged(branch, behind, readers)
            return ours.forward(total), total

        return Calls(by_two, by_one, tuple(made), tuple(stock.parameters()))

    return trial
