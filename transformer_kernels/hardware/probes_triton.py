# SPDX-License-Identifier: MIT
"""Small kernels in Triton that each keep one resource of a card busy, and nothing else.

Each processor gets as many blocks as it can hold. Numbers stay in registers, and each step needs
the one before, so that no compiler leaves a step out.
"""

# Triton's parameters say what they are by name; its language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK, _WARPS = 1024, 4  # numbers and warps of a block: eight independent numbers a thread
_BLOCKS = 16  # on each processor: 64 warps, which is all that one holds
_STEPS = 16  # in a round, without a branch between them
_ROUNDS = 128
_ADDRESSES = 1 << 20  # where atomic additions do not meet: 4 MiB, in the cache
_DRAWN = 8  # numbers of 16 bits that one call of Philox gives


@triton.jit
def _multiplied_and_added(x):
    return tl.fma(x, x, x)  # from numbers between -1 and 0 on, which come closer to 0


@triton.jit
def _exponential(x):
    return tl.exp2(-x)


@triton.jit
def _through_shared_memory(x):
    """The numbers change places across warps. In each group of 32 they are rotated by its place, so
    that lanes that hold every number or every fourth one read from banks of their own."""
    at = tl.arange(0, x.shape[0])
    return tl.gather(x, at // 32 * 32 + (at + at // 32) % 32, 0)


@triton.jit
def _steps(x, rounds, STEP: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    for _ in range(rounds):
        for _ in tl.static_range(STEPS):
            value = STEP(value)
    tl.store(x + at, value)


@triton.jit
def _draws(x, rounds, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at).to(tl.uint32, bitcast=True)
    b, c, d = a, a, a
    for _ in range(rounds):
        for _ in tl.static_range(STEPS):
            a, b, c, d = tl.philox(1, a, b, c, d)
    tl.store(x + at, (a ^ b ^ c ^ d).to(tl.float32, bitcast=True))


@triton.jit
def _adds(x, ADDRESSES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(x + at % ADDRESSES, 1.0, sem="relaxed")


# ---- launches -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A call that does so much of one kind of work, on a card with so many processors.

    Args:
        call: launches the kernel.
        amount: what it does.
    """

    call: Callable[[], Any]
    amount: float


def _stepped(step: Any, dtype: torch.dtype, each: int, units: int) -> Probe:
    x = -torch.rand(units * _BLOCKS * _BLOCK, device="cuda").to(dtype)
    launch = partial(_steps[units * _BLOCKS,], x, _ROUNDS, step, _STEPS, _BLOCK, num_warps=_WARPS)
    return Probe(launch, x.numel() * _ROUNDS * _STEPS * each)


def _drawn(units: int) -> Probe:
    x = torch.rand(units * _BLOCKS * _BLOCK, device="cuda")
    launch = partial(_draws[units * _BLOCKS,], x, _ROUNDS, 1, _BLOCK, num_warps=_WARPS)
    return Probe(launch, x.numel() * _ROUNDS * _DRAWN)


def _added(addresses: int, blocks: int, units: int) -> Probe:
    x = torch.zeros(addresses, device="cuda")
    launch = partial(_adds[units * blocks,], x, addresses, _BLOCK, num_warps=_WARPS)
    return Probe(launch, units * blocks * _BLOCK)


# By the names of a machine's rates, what makes the probe for a card with so many processors.
PROBES: dict[str, Callable[[int], Probe]] = {
    "operations": partial(_stepped, _multiplied_and_added, torch.float32, 1),
    "float16 operations": partial(_stepped, _multiplied_and_added, torch.float16, 1),
    "float64 operations": partial(_stepped, _multiplied_and_added, torch.float64, 1),
    "exponentials": partial(_stepped, _exponential, torch.float32, 1),
    "random": _drawn,
    "shared bytes": partial(_stepped, _through_shared_memory, torch.float32, 2 * 4),
    "atomics": partial(_added, _ADDRESSES, 16 * _BLOCKS),
    "atomics in one place": partial(_added, 1, 1),
}
