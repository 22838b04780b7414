# SPDX-License-Identifier: MIT
"""Attention that a function writes out, as Hugging Face's eager one does: scores, soft cap, mask,
softmax and dropout, each an operation that reads and writes all scores."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..._torch import any_autocast
from ...ops.attention._transformers import attend, why_not_ours
from ..cost import meta_bytes, recorded_bytes
from ..derive import original
from ..floors import usual
from ..mixin import leave
from ..prove import agree
from ..record import MOVES, Call, Trace, Value
from ..site import Calls, RefusedError, Site, Trial
from ._pattern import Pattern
from ._rebound import Rebound, features_of, names_of, replaces

_NAME = "eager_attention"
_KNOWN = ("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "softcap")
_GROUPS = 2  # query heads for each head of keys, where a function is tried
_CAP = 3.0

_has_global_hook = torch.nn.modules.module._has_any_global_hook


class Eager:
    """Stands in for a function ``(module, query, key, value, attention_mask, ...)`` of heads
    (B, H, T, D) that returns the result and the weights. Ours returns no weights."""

    def __init__(self, stock: Callable[..., Any], caps: bool) -> None:
        self.stock = stock
        self.caps = caps  # whether it knows of a soft cap

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        *, dropout: float = 0.0, scaling: float | None = None, softcap: float | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        reason = self._why_not(
            module, query, key, value, attention_mask, scaling, softcap, options
        )  # fmt: skip
        if reason is not None:
            leave(module, _NAME, reason)
            if softcap is not None:
                options["softcap"] = softcap
            return self.stock(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                **options,
            )  # fmt: skip
        return attend(
            module, query, key, value, attention_mask, dropout=dropout if module.training else 0.0,
            scaling=scaling, is_causal=False, softcap=softcap,
        )  # fmt: skip

    def _why_not(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        scaling: float | None, softcap: float | None, options: Mapping[str, Any],
    ) -> str | None:  # fmt: skip
        if options.get("output_attentions") or _is_watched(module):
            return "the attention weights may be asked for"
        if scaling is None:
            return "its function chooses the scale"
        if softcap is not None and not self.caps:
            return "its function knows no soft cap"
        if not query.dtype == key.dtype == value.dtype:
            return "queries, keys and values have several dtypes"
        if any_autocast() and query.dtype not in (torch.float16, torch.bfloat16):
            return "autocast chooses the dtype of the product"
        if mask is not None and not _is_added(mask, query, key):
            return "the mask is not added to the scores as it is"
        return why_not_ours(query, key, value)


def _is_watched(module: Any) -> bool:
    return bool(getattr(module, "_forward_hooks", None)) or _has_global_hook()


def _is_added(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    return (
        mask.dim() == 4
        and mask.shape[-2:] == (query.shape[-2], key.shape[-2])
        and mask.dtype in (query.dtype, torch.float32)
    )


# ---- what a function is, by what it does --------------------------------------------------------


def _reads_more(function: Callable[..., Any]) -> bool:
    """Whether the function may read arguments that it is not tried with."""
    parameters = inspect.signature(function).parameters.values()
    rest = {p.name for p in parameters if p.kind is p.VAR_KEYWORD}
    named = {p.name for p in parameters} - rest
    code = dis.get_instructions(function)
    return bool(named - {*_KNOWN}) or any(i.argval in rest for i in code if i.argval is not None)


def _module_of(groups: int, features: int) -> Any:
    """A module with the attributes that a function may ask for."""
    return SimpleNamespace(
        training=False,
        num_key_value_groups=groups,
        head_dim=features,
        _tfk_path="",
        _forward_hooks={},
    )


def _does(ours: Eager, softcap: float | None, groups: int = _GROUPS) -> bool:
    generator = torch.Generator("cpu").manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu")

    module = _module_of(groups, 8)
    tensors = drawn(2, 2 * groups, 5, 8), drawn(2, 2, 7, 8), drawn(2, 2, 7, 8)
    options = {} if softcap is None else {"softcap": softcap}
    try:
        with torch.no_grad():
            for mask in (None, drawn(2, 1, 5, 7)):
                given: Any = {"scaling": 0.3, "dropout": 0.0, **options}
                pair = (f(module, *tensors, mask, **given)[0] for f in (ours, ours.stock))
                if not agree(*pair):
                    return False
    except Exception:  # whatever a function of the model's raises
        return False
    return True


@cache
def _as_attention(function: Callable[..., Any]) -> Eager | None:
    if not hasattr(function, "__code__") or _reads_more(function):
        return None
    caps = Eager(function, caps=True)
    if _does(caps, _CAP) and _does(caps, None):
        return caps
    plain = Eager(function, caps=False)
    return plain if _does(plain, None) or _does(plain, None, groups=1) else None


def _replace(scope: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    functions = {name: scope[name] for name in used if name.startswith(_NAME) and name in scope}
    found = {name: _as_attention(function) for name, function in functions.items()}
    return {name: ours for name, ours in found.items() if ours is not None}


replaces(_NAME, _replace)


# ---- finding ------------------------------------------------------------------------------------


def _is_read(weights: int, call: Call, trace: Trace) -> bool:
    """Whether anything outside the call reads the weights or returns them."""
    return any(
        not call.first <= node.index < call.last for node in trace.users.get(weights, ())
    ) or any(weights in other.outs for other in trace.calls if other is not call)


class EagerAttentionPattern(Pattern):
    name = _NAME

    def match(self, call: Call, trace: Trace) -> Site | None:
        nodes = [n for n in trace.inside(call) if n.path == call.path]
        softmax = [n for n in nodes if n.name == "softmax"]
        products = [n for n in nodes if n.name == "matmul"]
        if len(softmax) != 1 or len(products) != 2 or len(call.outs) != 2:
            return None
        kind = original(type(call.module))
        names = names_of(kind, self.name)
        if not names:
            raise RefusedError("no function of its forward's writes this attention out")
        if _is_read(call.outs[1], call, trace):
            raise RefusedError("the attention weights are read")
        first, last = products
        q, k, v = (trace.values[value] for value in (*first.ins, last.ins[1]))  # k is transposed
        written = [n for n in nodes if first.index <= n.index <= last.index and n.name not in MOVES]
        capped = any(n.name == "tanh" for n in written)
        return Site(
            self.name, call.path, call.module, Rebound, {"_tfk_rebound": kind},
            function="functional.attention", shape=q.shape, rows=q.shape[0] * q.shape[-2],
            key=(q.shape[1:], k.shape[1:], capped, q.dtype), launches=(len(written), 1),
            gate=usual(self.name, q.device), features=features_of(call, trace),
            trial=_trial(next(iter(names.values())), q, v, capped),
            bytes=(recorded_bytes(trace, written), meta_bytes(q, k, v, trace.values[last.outs[0]])),
        )  # fmt: skip


def _trial(ours: Eager, q: Value, v: Value, capped: bool) -> Trial:
    """Times the attention alone, on causal heads of the recorded shapes, in as many batches as the
    rows need."""

    def trial(rows: int) -> Calls:
        batch, time = max(1, rows // q.shape[-2]), min(q.shape[-2], rows)
        shapes = [(batch, x.shape[1], time, x.shape[-1]) for x in (q, q, v)]
        options: Any = {"dtype": q.dtype, "device": q.device}
        mask = torch.full((1, 1, time, time), torch.finfo(q.dtype).min, **options).triu(1)
        module = _module_of(groups=1, features=q.shape[-1])
        given: Any = {"scaling": q.shape[-1] ** -0.5, **({"softcap": _CAP} if capped else {})}
        return Calls(
            lambda q, k, v: ours.stock(module, q, k, v, mask, **given)[0],
            lambda q, k, v: ours(module, q, k, v, mask, **given)[0],
            tuple(torch.randn(shape, **options) for shape in shapes),
        )  # fmt: skip

    return trial
