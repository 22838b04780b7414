# SPDX-License-Identifier: MIT
"""Attention that a module gets from ``F.scaled_dot_product_attention``, also through Hugging Face's
table of attention functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ... import _torch
from ...functional import scaled_dot_product_attention
from ...nn import MultiheadAttention
from ..cost import meta_bytes, recorded_bytes
from ..derive import innermost, original, rebind, shadow
from ..floors import usual
from ..record import Call, Node, Trace
from ..site import Calls, RefusedError, Site, Trial
from ._pattern import Pattern
from ._rebound import Rebound, features_of, names_of, rebound, replaces

_SDPA = "scaled_dot_product_attention"
_TABLE = "ALL_ATTENTION_FUNCTIONS"
_LONGEST = {"cpu": 256, "cuda": 8192}  # tokens of a sequence that is timed

_F = shadow(F, **{_SDPA: scaled_dot_product_attention})
_NN = shadow(nn, functional=_F)
_TORCH = shadow(torch, nn=_NN)
_SHADOWS = ((F, _F), (nn, _NN), (torch, _TORCH))


def _grouped(*_: Any) -> bool:
    """Stands in for Hugging Face's question whether keys may have fewer heads than queries."""
    return True


_rebound: dict[Any, Any] = {}  # functions of the table, with our attention in them


class Interfaces:
    """Stands in for Hugging Face's table of attention functions. Its function for PyTorch's
    attention calls ours; the others are its own."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def _ours(self, name: Any, function: Any) -> Any:
        if name != "sdpa" or not hasattr(innermost(function), "__code__"):
            return function
        if function not in _rebound:
            _rebound[function] = rebind(function, {"torch": _TORCH, "use_gqa_in_sdpa": _grouped})
        return _rebound[function]

    def get_interface(self, name: Any, default: Any) -> Any:
        return self._ours(name, self._stock.get_interface(name, default))

    def __getitem__(self, name: Any) -> Any:
        return self._ours(name, self._stock[name])

    def __contains__(self, name: Any) -> bool:
        return name in self._stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stock"], name)


_tables: dict[int, Interfaces] = {}


def _replace(scope: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    table = scope.get(_TABLE)
    if _TABLE in used and table is not None:
        return {_TABLE: _tables.setdefault(id(table), Interfaces(table))}
    if _SDPA not in used:
        return {}
    if scope.get(_SDPA) is _torch.scaled_dot_product_attention:
        return {_SDPA: scaled_dot_product_attention}
    return {
        name: ours
        for module, ours in _SHADOWS
        for name in used
        if scope.get(name) is module
    }  # fmt: skip


replaces("attention", _replace)


class AttentionPattern(Pattern):
    name = "attention"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module, kind = call.module, original(type(call.module))
        if kind is nn.MultiheadAttention:
            return self._multihead(call, trace)
        nodes = [n for n in trace.inside(call) if n.path == call.path and n.name == _SDPA]
        if not nodes:
            return None
        if not names_of(kind, self.name):
            raise RefusedError("its attention is not called from its class's forward")
        rebound(kind, (self.name,))  # for graphs, also where no call has as many rows before
        tensors = [trace.values[v] for v in nodes[0].ins]
        out = trace.values[nodes[0].outs[0]]
        return Site(
            self.name, call.path, module, Rebound, {"_tfk_rebound": kind},
            function="functional.attention", key=_key(nodes[0], trace), shape=tensors[0].shape,
            rows=tensors[0].shape[0] * tensors[0].shape[-2], launches=(len(nodes), len(nodes)),
            gate=usual(self.name, out.device)._replace(compiled=True),
            features=features_of(call, trace),
            bytes=(recorded_bytes(trace, nodes), meta_bytes(*tensors, out)),
            trial=_trial(nodes[0], trace),
        )  # fmt: skip

    def _multihead(self, call: Call, trace: Trace) -> Site | None:
        x = trace.values[call.ins[0]]
        if call.kwargs.get("need_weights", True):
            raise RefusedError("the attention weights are asked for", "need_weights=False")
        return Site(
            self.name, call.path, call.module, MultiheadAttention,
            function="nn.MultiheadAttention", covers=(f"{call.path}.out_proj".lstrip("."),),
            key=(x.shape[-1], x.dtype), shape=x.shape,
        )  # fmt: skip


def _key(node: Node, trace: Trace) -> tuple[Any, ...]:
    shapes = tuple(trace.values[v].shape[-3:] for v in node.ins)
    return (*shapes, bool(node.kwargs.get("is_causal")), trace.values[node.ins[0]].dtype)


def _trial(node: Node, trace: Trace) -> Trial:
    """Times the attention alone, on heads of the recorded shapes and sequences of the length in
    use, in as many batches as the rows need; few rows are queries beside keys of that length."""
    values = [trace.values[v] for v in node.ins]
    options = {k: v for k, v in node.kwargs.items() if k in ("is_causal", "scale", "enable_gqa")}

    most = _LONGEST.get(values[0].device.type, 256)
    time, keys = (trace.length(values[i].shape[-2], most) for i in (0, 1))

    def trial(rows: int) -> Calls:
        batch = max(1, rows // time)
        made = []
        for value, length in zip(values[:3], (min(time, rows), keys, keys), strict=True):
            shape = (batch, *value.shape[1:-2], length, value.shape[-1])
            made.append(torch.randn(shape, dtype=value.dtype, device=value.device))
        causal = {**options, "is_causal": bool(options.get("is_causal"))}
        return Calls(
            lambda *x: _torch.scaled_dot_product_attention(*x, **causal),
            lambda *x: scaled_dot_product_attention(*x, **causal), tuple(made),
        )  # fmt: skip

    return trial
