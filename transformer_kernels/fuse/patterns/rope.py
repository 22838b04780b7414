# SPDX-License-Identifier: MIT
"""Rotary position embedding, where a module's ``forward`` calls a function for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ... import functional
from ..cast import is_lowered
from ..derive import original
from ..floors import usual
from ..prove import agree
from ..record import Trace, Value
from ..site import Calls, Refusal, Site
from ._normed import Normed, normed_and_rotated
from ._pattern import Pattern
from ._rebound import Rebound, features_of, names_of, replaces

_PREFIX = "apply_rotary"
_HEADS, _KV_HEADS, _LENGTH, _DIM = 4, 2, 5, 8  # of the tensors that a function is tried on


class Rope:
    """Stands in for a function ``(q, k, cos, sin) -> q, k`` of heads (B, H, T, D) and tables
    (B, T, R), in which each frequency stands twice. With ``partial`` R may be less than D."""

    def __init__(self, stock: Callable[..., Any], interleaved: bool, partial: bool) -> None:
        self.stock = stock
        self.interleaved = interleaved
        self.partial = partial

    def _serves(self, q: Any, cos: Any) -> bool:
        if not (isinstance(cos, Tensor) and q.dim() == 4 and cos.dim() == 3):
            return False
        rest = q.shape[-1] - cos.shape[-1]
        return (rest == 0 or (rest > 0 and self.partial)) and cos.dtype in (q.dtype, torch.float32)

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *others: Any, **options: Any) -> Any:
        if others or options or not self._serves(q, cos):
            return self.stock(q, k, cos, sin, *others, **options)
        half = cos.shape[-1] // 2
        angles = slice(0, None, 2) if self.interleaved else slice(0, half)
        ids = None
        if cos.shape[0] == 1:
            tables = [x[0, :, angles] for x in (cos, sin)]
        else:  # each sequence has positions of its own
            batch, time = q.shape[0], q.shape[2]
            each = [x[..., angles].expand(batch, time, half) for x in (cos, sin)]
            tables = [x.reshape(-1, half) for x in each]
            ids = torch.arange(batch * time, device=q.device).view(batch, time)
        cos_sin: Any = {
            "cos": tables[0], "sin": tables[1], "position_ids": ids,
            "interleaved": self.interleaved, "heads_first": True,
        }  # fmt: skip
        if all(type(x) is Normed and _is_made_of_its_dtype(x) for x in (q, k)):
            rotated = normed_and_rotated(q, k, **cos_sin)
        else:
            rotated = functional.rope(q, k, **cos_sin)
        if cos.dtype is q.dtype or _is_lowered_anyway(q):
            return rotated
        wide = torch.promote_types(q.dtype, cos.dtype)  # as the product with the tables would be
        return tuple(x.to(wide) for x in rotated)


def _is_lowered_anyway(q: Tensor) -> bool:
    """Whether autocast would cast wider heads back for the attention; without gradients they may
    go to a cache, whose dtype stays."""
    return torch.is_grad_enabled() and is_lowered(q)


def _is_made_of_its_dtype(late: Normed) -> bool:
    x = late._tfk_x
    return late.dtype is x.dtype or _is_lowered_anyway(x)


def _does(function: Callable[..., Any], ours: Rope, rotated: int) -> bool:
    """Whether the function rotates so many numbers of each head as ours does."""
    generator = torch.Generator("cpu").manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu")

    q, k = drawn(2, _HEADS, _LENGTH, _DIM), drawn(2, _KV_HEADS, _LENGTH, _DIM)
    tables = [drawn(2, _LENGTH, rotated // 2) for _ in range(2)]
    if ours.interleaved:
        tables = [x.repeat_interleave(2, -1) for x in tables]
    else:
        tables = [torch.cat((x, x), -1) for x in tables]
    try:
        with torch.no_grad():
            return agree(tuple(ours(q, k, *tables)), tuple(function(q, k, *tables)))
    except Exception:  # whatever a function of the model's raises
        return False


@cache
def _as_rope(function: Callable[..., Any]) -> Rope | None:
    """The rope that does what the function does; None where there is none."""
    for interleaved in (False, True):
        partial = _does(function, Rope(function, interleaved, True), _DIM // 2)
        ours = Rope(function, interleaved, partial)
        if _does(function, ours, _DIM):
            return ours
    return None


def _replace(scope: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    functions = {name: scope[name] for name in used if name.startswith(_PREFIX) and name in scope}
    found = {name: _as_rope(function) for name, function in functions.items()}
    return {name: rope for name, rope in found.items() if rope is not None}


replaces("rope", _replace)


class RopePattern(Pattern):
    name = "rope"

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        for call in trace.calls:
            kind: Any = original(type(call.module))
            inner = [n for n in trace.inside(call) if n.path == call.path]
            if not any(node.name == "mul" for node in inner) or not call.outs:
                continue
            names = names_of(kind, self.name)
            if names and "forward" not in vars(call.module):
                rope = next(iter(names.values()))
                factors = [v for n in inner for v in n.ins if n.name == "mul"]
                heads = [v for v in factors if len(trace.values[v].shape) == 4]
                shape = trace.values[heads[0]].shape if heads else ()
                yield Site(
                    self.name, call.path, call.module, Rebound, {"_tfk_rebound": kind},
                    function="functional.rope", key=(shape[1:], rope.interleaved), shape=shape,
                    rows=shape[0] * shape[-2] if shape else 0,
                    launches=(sum(n.name in ("add", "mul", "neg", "cat") for n in inner), 1),
                    trial=_trial(rope, trace.values[heads[0]]) if shape else None,
                    gate=usual(self.name, trace.values[call.outs[0]].device),
                    features=features_of(call, trace),
                )  # fmt: skip


def _trial(rope: Rope, heads: Value) -> Callable[[int], Calls]:
    """Times the function on q and k of the recorded shape."""
    shape = heads.shape

    def trial(rows: int) -> Calls:
        time = min(shape[-2], rows)
        batch = max(1, rows // time)
        options: Any = {"dtype": heads.dtype, "device": heads.device}
        q, k = (torch.randn(batch, shape[1], time, shape[-1], **options) for _ in range(2))
        angles = torch.randn(1, time, shape[-1] // 2, **options).repeat(1, 1, 2)
        if rope.interleaved:
            angles = angles[..., : shape[-1] // 2].repeat_interleave(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return Calls(
            lambda q, k: rope.stock(q, k, cos, sin), lambda q, k: rope(q, k, cos, sin), (q, k)
        )

    return trial
