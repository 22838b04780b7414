# SPDX-License-Identifier: MIT
"""How many sets of tensors the timed calls rotate over, so that a GPU's cache is cold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from transformer_kernels.measure import machine
from transformer_kernels.measure.timing import Call

# A CUDA graph holds this many calls, on enough sets of tensors that the L2 cache does not help.
_GRAPH_CALLS = 20
_SAMPLE_FLOPS = 2e13  # some tens of milliseconds; if a sample would have more, it makes fewer calls
_L2_MULTIPLE = 3
MEMORY_SHARE = 0.4


def sets_of(moved: int, device: torch.device) -> int:
    """The number of sets of tensors for calls that move `moved` bytes; 1 on a CPU."""
    if device.type == "cpu":
        return 1
    wanted = math.ceil(_L2_MULTIPLE * machine.l2_bytes(device) / max(moved, 1))
    return min(wanted, _GRAPH_CALLS)


def is_cold(moved: int, sets: int, device: torch.device) -> bool:
    return device.type == "cuda" and moved * sets >= _L2_MULTIPLE * machine.l2_bytes(device)


def cycle(calls: Sequence[Call], moved: int, flops: float, device: torch.device) -> list[Call]:
    """The calls of one sample, which go over all sets in turn; their results must fit in memory."""
    if device.type == "cpu":
        return list(calls[:1])
    room = int(MEMORY_SHARE * machine.free_memory_bytes(device)) // max(moved, 1)
    work = math.ceil(_SAMPLE_FLOPS / flops) if flops else _GRAPH_CALLS
    count = max(len(calls), min(_GRAPH_CALLS, room, work))
    return [calls[i % len(calls)] for i in range(count)]
