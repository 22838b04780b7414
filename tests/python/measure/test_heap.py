# SPDX-License-Identifier: MIT
"""Tests the allocator in a process of its own, because its settings are global."""

from __future__ import annotations

import subprocess
import sys

import pytest

from transformer_kernels.measure import heap

_PROGRAM = """
import resource
import torch
from transformer_kernels.measure.heap import LARGE, Heap

CALLS = 32  # a block finds its place in the heap after some

def faults(size, outputs):
    heap.choose(outputs)
    found = []
    for _ in range(CALLS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(size, dtype=torch.uint8).fill_(1)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found)

heap = Heap()
pages = LARGE // 4096
for _ in range(3):
    heap.keep_apart()
    arguments = [torch.ones(LARGE * 3 // 4, dtype=torch.uint8) for _ in range(4)]
    small, large = LARGE * 3 // 4, LARGE
    fresh, reused = ([faults(n, o) for n in (small, large)] for o in ("fresh", "reused"))
    assert fresh[0] < pages // 8, fresh
    assert fresh[1] >= LARGE // (2 << 20), fresh
    assert max(reused) < LARGE // (2 << 20), reused
    del arguments
"""


@pytest.mark.skipif(not heap.is_known(), reason="another C library than glibc")
def test_fresh_outputs_are_mapped_anew_and_reused_ones_are_not():
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_elsewhere_nothing_is_told(monkeypatch):
    monkeypatch.setattr(heap, "_libc", lambda: None)
    assert not heap.is_known()
    told = heap.Heap()
    for outputs in heap.OUTPUTS:
        told.keep_apart()
        told.choose(outputs)
    assert told._plugs == []
