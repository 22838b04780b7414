# SPDX-License-Identifier: MIT
"""Traces of attention's kernels: what they touch, in which order, by the rules of the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from transformer_kernels.hardware.proposals import cache, traces
from transformer_kernels.hardware.proposals.cache import ADD, LINE, LOAD, STORE
from transformer_kernels.hardware.proposals.traces import Decode, Problem, Touch

SOURCES = Path(__file__).parents[3] / "csrc" / "attention"
_BF16 = 2


def _lines(trace: cache.Trace, kind: int) -> set[int]:
    return set(trace.lines[trace.kinds == kind].tolist())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_forward_reads_q_k_and_v_and_writes_out(dim: int, causal: bool) -> None:
    problem = Problem(2, 300, 4, 2, dim, causal)
    trace = traces.traced(traces.forward(problem), 5)
    inputs, outputs = problem.bytes(4) + 2 * problem.bytes(2), problem.bytes(4)
    assert _lines(trace, LOAD) == set(range(inputs // LINE))
    assert _lines(trace, STORE) == set(range(inputs // LINE, (inputs + outputs) // LINE))
    assert (trace.kinds == STORE).sum() == outputs // LINE
    assert cache.least(trace) == inputs + outputs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_backward_adds_to_every_sum_of_dq(dim: int, causal: bool) -> None:
    problem = Problem(1, 256, 4, 2, dim, causal)
    trace = traces.traced(traces.backward(problem), 3)
    inputs, outputs = 2 * problem.bytes(4) + 2 * problem.bytes(2), 2 * problem.bytes(2)
    sums = problem.bytes(4, element=4)
    assert len(_lines(trace, LOAD)) == inputs // LINE
    assert len(_lines(trace, STORE)) == outputs // LINE
    assert len(_lines(trace, ADD)) == sums // LINE
    assert not _lines(trace, ADD) & _lines(trace, LOAD) | _lines(trace, ADD) & _lines(trace, STORE)
    tiles = 256 // traces.TILE_KEYS
    pairs = tiles * 4 if not causal else 4 + 2  # of tiles and blocks of 64 queries, of a head
    assert (trace.kinds == ADD).sum() == pairs * 4 * traces.BLOCK_QUERIES * dim * 4 // LINE


def test_a_causal_mask_leaves_blocks_out() -> None:
    problem = Problem(1, 512, 1, 1, 64, causal=True)
    tiles = list(traces.forward_tiles(problem))
    assert [first for _, _, first, _ in tiles] == [384, 192, 0]  # the longest come first
    assert [blocks for *_, blocks in tiles] == [4, 3, 2]
    assert [seen for *_, seen in traces.backward_tiles(problem)] == [0, 2, 4, 6]


def test_a_cta_takes_the_next_tile_when_it_ends_one() -> None:
    def tile(number: int, length: int) -> list[Touch]:
        return [Touch(i, (number * LINE, LINE, 1, LINE)) for i in range(length)]

    lengths = (3, 1, 1, 2)
    touches = list(traces.taken([tile(i, n) for i, n in enumerate(lengths)], processors=2))
    starts = {touch.place[0] // LINE: touch.time for touch in reversed(touches)}
    assert starts == {0: 0, 1: 0, 2: 1, 3: 2}
    assert traces.makespan(lengths, 2) == 4
    times = traces.traced([tile(i, n) for i, n in enumerate(lengths)], 2)
    assert times.lines.tolist() == [0, 1, 0, 2, 0, 3, 3]


def test_sections_mix_heads() -> None:
    assert list(traces.in_sections(3, 2, 2)) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_heads_of_a_group_read_the_same_keys() -> None:
    alone, grouped = (
        traces.traced(traces.forward(Problem(1, 256, 4, kv, 64, False)), 1) for kv in (4, 1)
    )
    assert len(alone.lines) == len(grouped.lines)
    assert len(_lines(alone, LOAD)) > len(_lines(grouped, LOAD))


def test_pages_that_are_shared_are_read_by_every_sequence() -> None:
    problem = Decode(3, 256, 128, 4, 2, 64)
    trace = traces.traced(traces.decode(problem), 4)
    assert len(trace.lines) * LINE == 3 * 256 * 2 * 2 * 64 * _BF16
    assert cache.least(trace) == problem.cached_bytes == (128 + 3 * 128) * 2 * 2 * 64 * _BF16
    uses = torch.unique(trace.lines, return_counts=True)[1]
    assert sorted(uses.unique().tolist()) == [1, 3]


def test_each_token_reads_the_cache_again() -> None:
    once, twice = (
        traces.traced(traces.decode(Decode(2, 128, 0, 4, 2, 64, steps=steps)), 4)
        for steps in (1, 2)
    )
    assert torch.equal(twice.lines.sort().values, torch.cat([once.lines] * 2).sort().values)


@pytest.mark.parametrize(("dim", "time"), [(64, 1024), (128, 1024), (128, 2048)])
def test_tiles_are_those_of_the_first_plan_that_fits(dim: int, time: int) -> None:
    source = (SOURCES / "sm90" / "forward" / "engine.h").read_text(encoding="utf-8")
    rows = re.findall(r'\{"hopper_forward_\w+", +(\d+), (\d+), +(\d+), \d, \d, +(\d+), 0,', source)
    plans = [tuple(map(int, row)) for row in rows]
    wanted = next(
        (64 * groups, keys) for most, groups, keys, shortest in plans
        if dim <= most and time >= shortest
    )  # fmt: skip
    assert traces.forward_plan(Problem(1, time, 1, 1, dim, False)) == wanted


def test_other_head_dims_are_refused() -> None:
    with pytest.raises(ValueError, match="dim is 80, expected 64 or 128"):
        traces.forward_plan(Problem(1, 64, 1, 1, 80, False))


def test_constants_of_the_backward_pass_are_those_of_the_source() -> None:
    source = (SOURCES / "sm90" / "backward" / "geometry.h").read_text(encoding="utf-8")
    assert f"kBlockQueries = {traces.BLOCK_QUERIES};" in source
    assert f"kTileKeys = {traces.TILE_KEYS};" in source


@pytest.mark.parametrize(
    ("problem", "forward", "backward"),
    [
        (Problem(4, 4096, 32, 8, 128, True), 32, 4),  # 64 MiB of q, dout and dq at a time
        (
            Problem(4, 4096, 32, 32, 64, True),
            64,
            43,
        ),  # 96 MiB are 48 heads: 128 make three sections
        (Problem(1, 512, 96, 96, 128, True), 48, 32),  # 64 wanted: two equal sections
        (Problem(2, 8192, 16, 16, 128, False), 1, 4),
        (Problem(2, 8192, 16, 16, 64, False), 1, 11),  # 12 wanted, of 32 heads
        (Problem(2, 8192, 16, 16, 64, False, section=5), 5, 5),
    ],
)
def test_sections_are_those_of_the_kernels(problem: Problem, forward: int, backward: int) -> None:
    if not problem.section:
        assert traces.forward_section(problem) == forward
    assert traces.backward_section(problem) == backward
