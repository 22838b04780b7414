# SPDX-License-Identifier: MIT
"""Norms of the heads of queries and keys with a rotation behind them, inside one forward.

While that forward runs, each norm returns a tensor that is not computed yet. The rotation computes
all of it in one pass; anything else that computes with it gets the true values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._torch import any_autocast, is_eager
from ..cost import meta_bytes
from ..derive import Link, original, stands
from ..floors import usual
from ..mixin import Mixin, only
from ..prove import fused_twin, twin
from ..record import Call, Trace, Value
from ..site import Calls, Refusal, Site
from ._late import ASKED, while_asked
from ._normed import Normed
from ._pattern import Pattern
from ._rebound import names_of
from .norm import NARROW, Norm
from .rope import Rope


class QKNorm(Mixin):
    """The class of a module that norms the heads of queries and keys and rotates them, and of the
    two norms."""

    _tfk_keeps_signature = True
    _tfk_norms: tuple[Link, ...] = ()  # of the module that rotates
    _tfk_norm: Any
    _tfk_lifted: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        norms: list[Any] = [link.module for link in self._tfk_norms]
        if not norms and ASKED in self.__dict__:
            x = only(args, kwargs)
            if x is not None and self._waits(x):
                return Normed.of(x, self, self._tfk_lifted if self.lifts(x) else x.dtype)
        if not norms or not self._serves(norms, args, kwargs):
            return super().forward(*args, **kwargs)
        return while_asked(norms, super().forward, args, kwargs)

    def _waits(self, x: Tensor) -> bool:
        """Whether the norm of these heads may wait for the rotation."""
        if type(x) is not Tensor or x.dim() != 4 or not self.takes(x):
            return False
        return x.dtype in NARROW or not any_autocast()

    def _serves(self, norms: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        x = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        return (
            x is not None
            and self._tfk_gates["qk_norm"].opens(x)
            and is_eager()
            and "_is_replica" not in self.__dict__
            and all(isinstance(norm, QKNorm) and stands(norm) for norm in norms)
            and norms[0].epsilon() == norms[1].epsilon()
        )

    def alone(self, x: Tensor) -> Any:
        return super().forward(x)

    def epsilon(self) -> float:
        (_, _, eps), _ = self._tfk_norm.arguments(self)
        return float(eps)

    def weight_of_heads(self) -> Tensor | None:
        (weight, _, _), _ = self._tfk_norm.arguments(self)
        plain = weight is None or not self._tfk_norm.zero_centered
        found: Tensor | None = weight if plain else 1 + weight
        return found


class QKNormPattern(Pattern):
    name = "qk_norm"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        norms = {site.path: site for site in sites if site.mixin is Norm}
        rotates = {site.path: site for site in sites if site.pattern == "rope"}
        for call in trace.calls:
            heads = [c for c in trace.calls_in(call) if c.path in norms and _is_of_heads(c, trace)]
            if call.path not in rotates or len(heads) != 2 or heads[0].module is heads[1].module:
                continue
            del rotates[call.path]
            ropes = names_of(original(type(call.module)), "rope").values()
            yield self._site(call, heads, [norms[c.path] for c in heads], trace, *ropes)

    def _site(
        self, call: Call, heads: list[Call], norms: list[Site], trace: Trace, rope: Rope,
        *_others: Rope,
    ) -> Site | Refusal:  # fmt: skip
        forms = [site.state["_tfk_norm"] for site in norms]
        q, k = (trace.values[c.ins[0]] for c in heads)
        if any(form.kind != "rms" or form.bias is not None for form in forms) or q.dtype != k.dtype:
            return Refusal(call.path, self.name, "its norms are no RMSNorms of one dtype")
        modules = tuple(c.module for c in heads)
        moved = 2 * meta_bytes(q, k)
        return Site(
            self.name, call.path, call.module, QKNorm, {"_tfk_norms": tuple(map(Link, modules))},
            partners=modules, function="functional.qk_norm", shape=q.shape, launches=(3, 1),
            key=(q.shape[1:], k.shape[1:], q.dtype), rows=q.shape[0] * q.shape[1],
            bytes=(2 * moved, moved), gate=usual(self.name, q.device),
            trial=_trial(modules, norms, rope, (q, k), trace.values[heads[0].outs[0]].dtype),
            needs=(("rope", call.path), *((site.pattern, site.path) for site in norms)),
        )  # fmt: skip


def _is_of_heads(call: Call, trace: Trace) -> bool:
    return len(call.ins) == 1 and len(trace.values[call.ins[0]].shape) == 4


def _trial(
    modules: Sequence[nn.Module], norms: Sequence[Site], rope: Rope, values: tuple[Value, Value],
    normed: torch.dtype,
) -> Callable[[int], Calls]:  # fmt: skip
    """Times the norms and the rotation as one, against the three that are sites without it. Tables
    have the dtype ``normed`` of the norms' results, which under autocast is wider than theirs."""

    def trial(rows: int) -> Calls:
        stock = [twin(module, Tensor.detach) for module in modules]
        alone = [fused_twin(s, Norm, n.state) for s, n in zip(stock, norms, strict=True)]
        ours = [fused_twin(norm, QKNorm, {ASKED: True}) for norm in alone]
        time = min(values[0].shape[1], rows)
        made = [
            torch.randn(max(1, rows // time), time, *x.shape[2:], dtype=x.dtype, device=x.device)
            for x in values
        ]
        angles = torch.randn(1, time, values[0].shape[-1], dtype=normed, device=made[0].device)
        cos, sin = angles.cos(), angles.sin()

        def run(modules: list[Any], q: Tensor, k: Tensor) -> Any:
            heads = [m.forward(x).transpose(1, 2) for m, x in zip(modules, (q, k), strict=True)]
            return rope(*heads, cos, sin)

        parameters = tuple(p for module in stock for p in module.parameters())
        return Calls(
            lambda q, k: run(alone, q, k), lambda q, k: run(ours, q, k), tuple(made), parameters
        )

    return trial
