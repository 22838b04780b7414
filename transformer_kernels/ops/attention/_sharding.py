# SPDX-License-Identifier: MIT
"""DTensor: how attention is split over a mesh without a word between its devices.

By batch, by heads, or not at all. What is split otherwise, along time for one, PyTorch gathers
first. Imported with the first DTensor that arrives, as PyTorch's part takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from ._formula import Inputs, split
from ._ops import ATTENTION

_Placements = list[Any]  # none where the argument is no tensor
_Acceptable = list[tuple[_Placements, _Placements]]
_forward_op: Any
_backward_op: Any
_inference_op: Any
_forward_op, _backward_op, _inference_op = ATTENTION.raw

# The dimension that is split, counted from the last as 1. Who has none is the same everywhere.
_BATCH = {"q": 4, "k": 4, "v": 4, "bias": 4, "mask": 4, "alibi_slopes": 2, "lse": 3}
_HEADS = {"q": 2, "k": 2, "v": 2, "bias": 3, "mask": 3, "alibi_slopes": 1, "sinks": 1, "lse": 2}


def _ways(inputs: Inputs) -> list[dict[str, int]]:
    """Heads that share one of k and v stay together."""
    heads, kv_heads = inputs.q.shape[-2], inputs.k.shape[-2]
    packed = inputs.q.ndim == 3
    ways = [] if packed else [_BATCH]
    devices: int = inputs.q.mesh.size()  # type: ignore[attr-defined]
    return [*ways, _HEADS] if heads == kv_heads or kv_heads % devices == 0 else ways


def _place(way: dict[str, int], name: str, x: Any) -> Any:
    """Of a tensor, which broadcasts over a dimension of size 1 or one that it lacks."""
    if x is None:
        return None
    dim = x.ndim - way.get(name, x.ndim + 1)
    return Shard(dim) if dim >= 0 and x.shape[dim] > 1 else Replicate()


def _places(way: dict[str, int], inputs: Inputs) -> _Placements:
    return [_place(way, name, x) for name, x in inputs._asdict().items()]


def _everywhere(tensors: tuple[Any, ...]) -> _Placements:
    return [None if x is None else Replicate() for x in tensors]


def _results(statistics: int, arguments: tuple[Any, ...]) -> _Acceptable:
    """Of the output and so many numbers a row."""
    inputs, _, _ = split(arguments)
    numbers = [None] * (len(arguments) - len(inputs))
    acceptable = [([Replicate()] * (1 + statistics), [*_everywhere(inputs), *numbers])]
    rank = inputs.q.ndim - 1  # of the log-sum-exp
    for way in _ways(inputs):
        places = _places(way, inputs)
        results = [places[0], *[Shard(rank - way["lse"])] * statistics]
        acceptable.append((results, [*places, *numbers]))
    return acceptable


@register_sharding(_forward_op)  # type: ignore[untyped-decorator]
def _forward(*arguments: Any) -> _Acceptable:
    return _results(2, arguments)


@register_sharding(_inference_op)  # type: ignore[untyped-decorator]
def _inference(*arguments: Any) -> _Acceptable:
    return _results(1, arguments)


def _summed(way: dict[str, int], name: str, x: Any, asked: bool, rank: int) -> Any:
    """Of the gradient of bias or sinks: devices that share one have a part of its sum each."""
    if not asked:
        return Replicate()
    place = _place(way, name, x)
    return Shard(place.dim + rank - x.ndim) if isinstance(place, Shard) else Partial()


@register_sharding(_backward_op)  # type: ignore[untyped-decorator]
def _backward(
    dout: Any, dlse: Any, out: Any, lse: Any, lse_rest: Any, *arguments: Any
) -> _Acceptable:
    inputs, _, (_, need_dbias, need_dsinks) = split(arguments)
    results = (dout, dlse, out, lse, lse_rest)
    numbers = [None] * (len(arguments) - len(inputs))
    acceptable = [([Replicate()] * 5, [*_everywhere((*results, *inputs)), *numbers])]
    for way in _ways(inputs):
        places = _places(way, inputs)
        rows, of_lse = places[0], _place(way, "lse", lse)
        sums = [
            _summed(way, "bias", inputs.bias, need_dbias, rank=4),
            _summed(way, "sinks", inputs.sinks, need_dsinks, rank=1),
        ]
        own = [rows, None if dlse is None else of_lse, rows, of_lse, of_lse]
        acceptable.append(([*places[:3], *sums], [*own, *places, *numbers]))
    return acceptable
