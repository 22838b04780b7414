# SPDX-License-Identifier: MIT
"""Where each way of splitting a model stops scaling: a simulation on paper.

A rank sends some bytes over links of two kinds, inside a node and between nodes, while it computes
or before and after. It then waits for the slowest of N ranks. No number is fitted: rates are those
of data sheets, and what no sheet tells is an assumption that :class:`Cluster` names.

>>> cluster = tfk.parallel.scaling.Cluster()
>>> ring = tfk.parallel.scaling.WAYS["ring attention"]
>>> ring.efficiency(cluster, 8) > ring.efficiency(cluster, 1024)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..hardware import DATASHEETS, Hardware, Plan, predict
from ..hardware.model import SHOWN

_TWO, _FOUR = 2, 4  # bytes of bfloat16 and of float32


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs.

    Args:
        gpu: each of them.
        node: the GPUs of a node, each with a link of its own to the other nodes.
        inside_gbps: GB/s that a GPU sends inside its node: half of the 900 of NVLink 4.
        outside_gbps: GB/s that it sends to other nodes: the 400 Gb/s of ConnectX-7.
        latency_us: the start of a collective or of a message. Assumed.
        message_us: what each further message of an all-to-all adds. Assumed.
        spread: the standard deviation of the ranks' computing time, as a share. Assumed.
    """

    gpu: Hardware = field(default_factory=lambda: DATASHEETS["H100"])
    node: int = 8
    inside_gbps: float = 450.0
    outside_gbps: float = 50.0
    latency_us: float = 10.0
    message_us: float = 1.0
    spread: float = 0.02

    def slowest(self, ranks: int) -> float:
        """The time of the slowest of N ranks over the mean: the expected maximum of N normal
        numbers, at most sqrt(2 ln N) deviations."""
        return 1 + self.spread * math.sqrt(2 * math.log(ranks))


class Traffic(NamedTuple):
    """The bytes that a rank sends, and the microseconds of its links."""

    bytes: float = 0.0
    us: float = 0.0

    def times(self, count: int) -> Traffic:
        return Traffic(count * self.bytes, count * self.us)

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(self.bytes + other.bytes, self.us + other.us)


def all_reduce(cluster: Cluster, size: float, ranks: int) -> Traffic:
    """Rings, of which each GPU of a node leaves it by its own link: 2 (N - 1) / N of the size."""
    if ranks == 1:
        return Traffic()
    sent = 2 * (ranks - 1) / ranks * size
    between = cluster.outside_gbps * cluster.node
    rate = cluster.inside_gbps if ranks <= cluster.node else min(cluster.inside_gbps, between)
    return Traffic(sent, sent / rate / 1e3 + 2 * math.log2(ranks) * cluster.latency_us)


def all_to_all(cluster: Cluster, size: float, ranks: int) -> Traffic:
    """An equal part of the size to each rank; both kinds of links work at once."""
    if ranks == 1:
        return Traffic()
    part, inside = size / ranks, min(ranks, cluster.node)
    us = max(
        (inside - 1) * part / cluster.inside_gbps / 1e3,
        (ranks - inside) * part / cluster.outside_gbps / 1e3,
    )
    start = cluster.latency_us + (ranks - 2) * cluster.message_us
    return Traffic((ranks - 1) * part, us + start)


def to_the_next(cluster: Cluster, size: float, ranks: int) -> Traffic:
    """A message round a ring, where the step waits for the link between two nodes."""
    if ranks == 1:
        return Traffic()
    rate = cluster.inside_gbps if ranks <= cluster.node else cluster.outside_gbps
    return Traffic(size, size / rate / 1e3 + cluster.latency_us)


def ring(cluster: Cluster, numbers: float, ranks: int) -> Traffic:
    """Ring attention of keys and values of so many numbers on a rank: they go round in both
    passes, and their gradients in float32, which also come home."""
    keys = to_the_next(cluster, _TWO * numbers, ranks).times(2 * (ranks - 1))
    return keys.plus(to_the_next(cluster, _FOUR * numbers, ranks).times(ranks))


@dataclass(frozen=True)
class Way:
    """A way of splitting, with an example of its work, forward and backward.

    Args:
        work: the example in words.
        flops: operations of one GPU's products.
        launches: calls that these are made in.
        traffic: what each of N ranks sends.
        overlaps: whether it sends while it computes.
        in_steps: whether N ranks make N times the calls, each of 1 / N of the work.
        grows: whether the work grows with the ranks (weak scaling), or is shared (strong scaling).
        most: the ranks that the way can take.
    """

    work: str
    flops: float
    launches: int
    traffic: Callable[[Cluster, int], Traffic]
    overlaps: bool = False
    in_steps: bool = False
    grows: bool = False
    most: int = 1024

    def computing_us(self, cluster: Cluster, ranks: int) -> float:
        flops = self.flops if self.grows else self.flops / ranks
        plan = Plan(0, flops, launches=self.launches * (ranks if self.in_steps else 1))
        return predict(plan, cluster.gpu).us * cluster.slowest(ranks)

    def us(self, cluster: Cluster, ranks: int) -> float:
        """The time of a step. What overlaps hides all but half of the shorter part, as in
        :func:`transformer_kernels.hardware.predict`."""
        parts = self.computing_us(cluster, ranks), self.traffic(cluster, ranks).us
        return max(parts) + (SHOWN if self.overlaps else 1.0) * min(parts)

    def efficiency(self, cluster: Cluster, ranks: int) -> float:
        """The share of N times one GPU's speed."""
        one, each = self.us(cluster, 1), self.us(cluster, ranks)
        return one / each / (1 if self.grows else ranks)

    def reach(self, cluster: Cluster, least: float = 0.5) -> int:
        """The most ranks, a power of two, that keep this efficiency."""
        counts = [2**n for n in range(int(math.log2(self.most)) + 1)]
        return max(n for n in counts if self.efficiency(cluster, n) >= least)


# ---- examples -----------------------------------------------------------------------------------

_HIDDEN, _HEADS, _KV_HEADS, _DIM, _FEATURES = 4096, 32, 8, 128, 14336  # a layer of Llama 3 8B
_SHORT, _LONG = 8192, 131072  # tokens
_EXPERTS, _CHOSEN, _EXPERT_HIDDEN, _EXPERT_FEATURES = 128, 8, 2048, 768  # of Qwen3 30B-A3B
_GPT2, _BATCH = 124_439_808, 16 * 1024  # parameters, and tokens of a rank

_LAYER = _HIDDEN * _DIM * (2 * _HEADS + 2 * _KV_HEADS) + 3 * _HIDDEN * _FEATURES


def _attention(tokens: int) -> float:
    """Two products forward and five backward of half of all pairs of tokens."""
    return 7.0 * tokens * tokens * _HEADS * _DIM


def _tensor_parallel(cluster: Cluster, ranks: int) -> Traffic:
    """An all-reduce behind attention and one behind the MLP, in both passes."""
    return all_reduce(cluster, _TWO * _SHORT * _HIDDEN, ranks).times(4)


def _ring(cluster: Cluster, ranks: int) -> Traffic:
    return ring(cluster, 2 * _LONG / ranks * _KV_HEADS * _DIM, ranks)


def _ulysses(cluster: Cluster, ranks: int) -> Traffic:
    """q, k and v in one message and the result in another, in both passes. Key heads are repeated
    where there are more ranks."""
    kv_heads = max(_KV_HEADS, ranks)
    rows = _TWO * _LONG // ranks * _DIM
    there = all_to_all(cluster, rows * (_HEADS + 2 * kv_heads), ranks)
    return there.plus(all_to_all(cluster, rows * _HEADS, ranks)).times(2)


def _experts(cluster: Cluster, ranks: int) -> Traffic:
    """Rows there and back, in both passes."""
    return all_to_all(cluster, _TWO * _SHORT * _CHOSEN * _EXPERT_HIDDEN, ranks).times(4)


def _data_parallel(cluster: Cluster, ranks: int) -> Traffic:
    """The gradients of all parameters in float32, once a step."""
    return all_reduce(cluster, _FOUR * _GPT2, ranks)


WAYS = {
    "tensor parallel": Way(
        f"a layer of Llama 3 8B, {_SHORT} tokens shared",
        flops=6.0 * _SHORT * _LAYER + _attention(_SHORT), launches=12, traffic=_tensor_parallel,
        most=_HEADS,
    ),
    "ring attention": Way(
        f"its attention, {_LONG} tokens shared",
        flops=_attention(_LONG), launches=2, traffic=_ring, overlaps=True, in_steps=True,
    ),
    "ulysses attention": Way(
        f"its attention, {_LONG} tokens shared",
        flops=_attention(_LONG), launches=2, traffic=_ulysses, most=_HEADS,
    ),
    "expert parallel": Way(
        f"{_EXPERTS} experts of Qwen3 30B-A3B, {_SHORT} tokens a rank",
        flops=18.0 * _SHORT * _CHOSEN * _EXPERT_HIDDEN * _EXPERT_FEATURES, launches=9,
        traffic=_experts, grows=True, most=_EXPERTS,
    ),
    "data parallel": Way(
        f"GPT-2 124M, {_BATCH} tokens a rank",
        flops=6.0 * _BATCH * _GPT2, launches=1, traffic=_data_parallel, overlaps=True, grows=True,
    ),
}  # fmt: skip
