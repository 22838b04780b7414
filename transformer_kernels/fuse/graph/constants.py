# SPDX-License-Identifier: MIT
"""Values of a graph that no input decides: masks that models make from the numbers of their
tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from .nodes import example, is_mutating, is_tensor, name_of
from .region import run

_MOST_NODES = 256
_MOST_ELEMENTS = 1 << 26
_HIDDEN = -1e9  # scores from here down count as hidden
_RANDOM = frozenset(("bernoulli", "dropout", "empty", "empty_like", "multinomial", "new_empty",
                     "normal", "poisson", "rand", "rand_like", "randint", "randn",
                     "randn_like", "randperm"))  # fmt: skip


def value_of(node: Node, order: dict[Node, int]) -> Tensor | None:
    """The tensor that the node always has; None where an input or a random number decides."""
    if not is_tensor(node) or not all(isinstance(n, int) for n in example(node).shape):
        return None
    if example(node).numel() > _MOST_ELEMENTS:
        return None
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        plain = one.op in ("call_function", "call_method") and name_of(one) not in ("", *_RANDOM)
        if not plain or is_mutating(one) or any(map(is_mutating, one.users)):
            return None
        if len(found) > _MOST_NODES:
            return None
        waiting += one.all_input_nodes
    values: dict[Node, Any] = {}
    try:
        with _disable_current_modes(), torch.no_grad():
            run(sorted(found, key=order.__getitem__), values)
    except Exception:  # a size that only a call knows
        return None
    made = values[node]
    return made if isinstance(made, Tensor) else None


class Band(NamedTuple):
    """A mask that hides later keys, and those before a window."""

    left: int  # the number of keys before its own that a query sees; -1 for all
    is_all: bool  # whether the mask says no more than that: what is seen has a score of 0


def band_of(mask: Tensor) -> Band | None:
    """The band of keys that a mask or additive scores (..., Tq, Tk) let each query see, where
    queries and keys end together; None where it is no band, or no causal one."""
    if mask.dim() < 2:
        return None
    scores = mask.reshape(-1, *mask.shape[-2:])
    seen = scores if mask.dtype is torch.bool else scores > _HIDDEN
    if not torch.equal(seen, seen[:1].expand_as(seen)):
        return None
    queries, keys = seen.shape[-2:]
    shift = keys - queries
    last = int(seen[0, -1].sum()) if queries else 0
    left = last - 1 if last < keys else -1
    distance = torch.arange(keys, device=mask.device) - torch.arange(
        shift, keys, device=mask.device
    ).unsqueeze(-1)
    wanted = (distance <= 0) & (distance >= -left if left >= 0 else True)
    if shift < 0 or not torch.equal(seen[0], wanted):
        return None
    is_all = mask.dtype is torch.bool or not bool(scores[seen].any())
    return Band(left, is_all)
