# SPDX-License-Identifier: MIT
"""The simulation of many GPUs: its formulas, and the trends that they must have."""

from __future__ import annotations

import pytest

from transformer_kernels.parallel.scaling import WAYS, Cluster, all_reduce, all_to_all, to_the_next

CLUSTER = Cluster(inside_gbps=100.0, outside_gbps=10.0, latency_us=5.0, message_us=2.0)


def test_collectives() -> None:
    inside = all_reduce(CLUSTER, 8e6, 8)
    assert inside.bytes == 14e6
    assert inside.us == pytest.approx(14e6 / 100e3 + 6 * 5)
    assert all_reduce(CLUSTER, 8e6, 16).us == pytest.approx(15e6 / 80e3 + 8 * 5)  # 8 links a node
    assert all_to_all(CLUSTER, 8e6, 8) == pytest.approx((7e6, 7e6 / 100e3 + 5 + 6 * 2))
    assert all_to_all(CLUSTER, 16e6, 16) == pytest.approx((15e6, 8e6 / 10e3 + 5 + 14 * 2))
    assert to_the_next(CLUSTER, 1e6, 8) == pytest.approx((1e6, 10 + 5))
    assert to_the_next(CLUSTER, 1e6, 9) == pytest.approx((1e6, 100 + 5))
    for collective in (all_reduce, all_to_all, to_the_next):
        assert collective(CLUSTER, 1e6, 1) == (0.0, 0.0)


@pytest.mark.parametrize("name", WAYS)
def test_a_way(name: str) -> None:
    way, cluster = WAYS[name], Cluster()
    assert way.efficiency(cluster, 1) == 1.0
    counts = [2**n for n in range(1, 11) if 2**n <= way.most]
    shares = [way.efficiency(cluster, n) for n in counts]
    assert all(0 < share < 1 for share in shares)
    assert shares[-1] < shares[0]
    reach = way.reach(cluster)
    assert way.efficiency(cluster, reach) >= 0.5
    assert reach == way.most or way.efficiency(cluster, 2 * reach) < 0.5


def test_better_links_scale_further() -> None:
    near = Cluster(inside_gbps=4500.0, outside_gbps=500.0, latency_us=1.0, message_us=0.1)
    for way in WAYS.values():
        assert way.reach(near) >= way.reach(Cluster())
        assert way.efficiency(near, 8) > way.efficiency(Cluster(), 8)


def test_the_slowest_of_many() -> None:
    assert Cluster().slowest(1) == 1.0
    assert 1.05 < Cluster().slowest(1024) < 1.1
