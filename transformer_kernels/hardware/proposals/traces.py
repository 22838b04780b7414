# SPDX-License-Identifier: MIT
"""The cache lines that attention's kernels touch, in their order: the tiles of a plan in the order
in which the multiprocessors take them.

A persistent CTA on each multiprocessor takes tiles from one queue, and spends a unit of time on
each block of the other side and one on its begin and end. Tensors are (B, T, H, D) in 16 bits, one
after another in memory. The plans are those of csrc/attention/sm90 and of csrc/attention/decode.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .cache import ADD, FIRST, LAST, LINE, LOAD, STORE, Trace

_ELEMENT, _SUM = 2, 4  # bytes of bfloat16, and of the sums of dq
_KEEP = 1 << 22  # lines that are made at a time


@dataclass(frozen=True)
class Problem:
    """Attention of ``heads`` query heads over ``kv_heads`` heads of keys.

    Args:
        batch, time, heads, kv_heads, dim: of q (B, T, H, D) and k (B, T, H_kv, D).
        causal: query i sees the keys up to i.
        section: heads whose tiles are mixed; 0 where the kernel's own rule decides.
    """

    batch: int
    time: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool
    section: int = 0

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def bytes(self, heads: int, element: int = _ELEMENT) -> int:
        """Bytes of a tensor with so many heads."""
        return self.batch * self.time * heads * self.dim * element

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.group == 1 else f"{self.heads}/{self.kv_heads}"
        causal = " causal" if self.causal else ""
        return f"{self.batch}x{self.time}x{heads}x{self.dim}{causal}"


@dataclass(frozen=True)
class Tensors:
    """Rows of heads in memory, (B, T, H, D)."""

    base: int  # address
    problem: Problem
    heads: int

    def rows(self, batch: int, head: int, first: int, count: int) -> tuple[int, int, int, int]:
        """First address, step to the next row, rows and bytes of a row, of those that exist."""
        count = max(0, min(count, self.problem.time - first))
        row = self.heads * self.problem.dim * _ELEMENT
        place = (batch * self.problem.time + first) * row + head * self.problem.dim * _ELEMENT
        return self.base + place, row, count, self.problem.dim * _ELEMENT


@dataclass(frozen=True)
class Touch:
    """Rows that a CTA reads or writes at one time."""

    time: float
    place: tuple[int, int, int, int]  # first address, step, rows, bytes of a row
    kind: int = LOAD
    hint: int = LAST


Tile = Sequence[Touch]  # times count from the tile's begin
Filter = Callable[[Tensor], Tensor]  # of lines, a mask of those that are kept


# ---- schedule -----------------------------------------------------------------------------------


def taken(tiles: Iterable[Tile], processors: int) -> Iterator[Touch]:
    """Touches of all tiles, each CTA taking the next tile when it has ended one."""
    free = [0.0] * processors
    for tile in tiles:
        start = heapq.heappop(free)
        yield from (replace(touch, time=start + touch.time) for touch in tile)
        heapq.heappush(free, start + max(touch.time for touch in tile) + 1)


def makespan(lengths: Iterable[float], processors: int) -> float:
    """When the last of the CTAs ends, which take tiles of these lengths in their order."""
    free = [0.0] * processors
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def traced(tiles: Iterable[Tile], processors: int, keep: Filter | None = None) -> Trace:
    """The lines of all touches in their order in time. ``keep`` leaves out lines while they are
    made, which saves memory."""
    ordered = sorted(taken(tiles, processors), key=lambda touch: touch.time)
    parts = [_lines(part, keep) for part in _in_parts(ordered)]
    return Trace(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _in_parts(touches: Sequence[Touch]) -> Iterator[Sequence[Touch]]:
    lines_of_one = max((t.place[2] * math.ceil(t.place[3] / LINE) for t in touches), default=1)
    step = max(1, _KEEP // max(1, lines_of_one))
    for begin in range(0, len(touches), step):
        yield touches[begin : begin + step]


def _lines(touches: Sequence[Touch], keep: Filter | None) -> tuple[Tensor, Tensor, Tensor]:
    """The lines of rows, with their kinds and hints."""
    base, step, rows, width = torch.tensor([t.place for t in touches]).unbind(1)
    whole = -(-width // LINE)  # lines of a row, which begins with a line
    counts = rows * whole
    of = torch.repeat_interleave(torch.arange(len(touches)), counts)
    place = torch.arange(len(of)) - (counts.cumsum(0) - counts)[of]
    row, column = place // whole[of], place % whole[of]
    lines = (base[of] + row * step[of]) // LINE + column
    if keep is not None:
        chosen = keep(lines)
        lines, of = lines[chosen], of[chosen]
    kinds = torch.tensor([t.kind for t in touches], dtype=torch.int8)[of]
    hints = torch.tensor([t.hint for t in touches], dtype=torch.int8)[of]
    return lines, kinds, hints


# ---- forward ------------------------------------------------------------------------------------


def forward_plan(problem: Problem) -> tuple[int, int]:
    """Queries of a tile and keys of a block, as kHopperForwardPlans chooses them.

    Raises:
        ValueError: a head dim that no plan of these traces has.
    """
    if problem.dim == 64:
        return 192, 128
    if problem.dim == 128:
        return (192, 80) if problem.time >= 2048 else (128, 128)
    raise ValueError(f"proposals: dim is {problem.dim}, expected 64 or 128")


def forward_section(problem: Problem) -> int:
    """Heads whose tiles are mixed, as heads_per_section() of the kernel."""
    if problem.section:
        return problem.section
    if not problem.causal:
        return 1
    heads = problem.batch * problem.heads
    wanted = max(4096 // problem.dim, 1) * (2 if problem.time <= 512 else 1)
    return _equal_parts(heads, wanted)


def _equal_parts(heads: int, wanted: int) -> int:
    return -(-heads // max(1, (heads + wanted // 2) // wanted))


def in_sections(heads: int, section: int, tiles: int) -> Iterator[tuple[int, int]]:
    """(head, tile) by sections of heads; within one, the first tile of every head, then the
    second ones."""
    for first in range(0, heads, section):
        here = range(first, min(first + section, heads))
        yield from ((head, tile) for tile in range(tiles) for head in here)


def forward_tiles(problem: Problem) -> Iterator[tuple[int, int, int, int]]:
    """(batch, head, first query, blocks of keys) of each tile, in the order in which the kernel
    takes them: of a head, the last queries come first."""
    queries, keys = forward_plan(problem)
    tiles = -(-problem.time // queries)
    order = in_sections(problem.batch * problem.heads, forward_section(problem), tiles)
    for number, tile in order:
        first = (tiles - 1 - tile) * queries
        seen = min(first + queries, problem.time) if problem.causal else problem.time
        yield *divmod(number, problem.heads), first, -(-seen // keys)


def forward(problem: Problem) -> Iterator[Tile]:
    """The tiles of the forward pass on Hopper. Each goes through the blocks of keys that it sees,
    the last one first."""
    queries, keys = forward_plan(problem)
    own = problem.kv_heads
    q, k, v, out = _tensors(problem, (problem.heads, own, own, problem.heads))
    for batch, head, first, blocks in forward_tiles(problem):
        yield [
            Touch(0, q.rows(batch, head, first, queries), hint=FIRST),
            *(
                Touch(i, x.rows(batch, head // problem.group, (blocks - 1 - i) * keys, keys))
                for i in range(blocks)
                for x in (k, v)
            ),
            Touch(blocks, out.rows(batch, head, first, queries), STORE, FIRST),
        ]


def _tensors(problem: Problem, heads: Sequence[int]) -> list[Tensors]:
    """Tensors one after another, by their heads."""
    made, base = [], 0
    for count in heads:
        made.append(Tensors(base, problem, count))
        base += problem.bytes(count)
    return made


# ---- backward -----------------------------------------------------------------------------------

BLOCK_QUERIES, TILE_KEYS = 64, 128


def backward_section(problem: Problem) -> int:
    """Heads of k whose tiles are mixed, as section_of() of the kernel without dropout: with 64
    columns dq is added up in order, with 128 it is not."""
    if problem.section:
        return problem.section
    size = problem.group * problem.time * problem.dim * (2 + 2 + 4)  # q, dout, dq
    most = 4096 // problem.dim
    if problem.dim == 64:
        budget, least = (96 << 20, 32) if problem.causal else (16 << 20, 12)
        wanted = min(max(budget // size, least), most)
    else:
        wanted = min(max((64 << 20) // size, 1), most) if problem.causal else 4
    return _equal_parts(problem.batch * problem.kv_heads, wanted)


def backward_tiles(problem: Problem) -> Iterator[tuple[int, int, int, int]]:
    """(batch, head of k, first key, first block of queries that sees it) of each tile, in the order
    in which the kernel takes them."""
    tiles = -(-problem.time // TILE_KEYS)
    order = in_sections(problem.batch * problem.kv_heads, backward_section(problem), tiles)
    for number, tile in order:
        first = tile * TILE_KEYS
        yield *divmod(number, problem.kv_heads), first, first // BLOCK_QUERIES * problem.causal


def backward(problem: Problem) -> Iterator[Tile]:
    """The tiles of the backward pass on Hopper: 128 keys of a head each, which go through the
    blocks of queries that see them, the last one first, for all query heads of the group."""
    own, group = problem.kv_heads, problem.group
    q, dout, k, v, dk, dv = _tensors(problem, (problem.heads, problem.heads, own, own, own, own))
    sums = dv.base + problem.bytes(own)
    blocks = -(-problem.time // BLOCK_QUERIES)
    for batch, kv_head, first, seen in backward_tiles(problem):
        touches = [Touch(0, x.rows(batch, kv_head, first, TILE_KEYS), hint=FIRST) for x in (k, v)]
        steps = ((head, block) for head in range(kv_head * group, (kv_head + 1) * group)
                 for block in range(blocks - 1, seen - 1, -1))  # fmt: skip
        now = 0
        for now, (head, block) in enumerate(steps):
            at = (batch, head, block * BLOCK_QUERIES, BLOCK_QUERIES)
            touches += [Touch(now, x.rows(*at)) for x in (q, dout)]
            touches.append(Touch(now, _sums_of(problem, sums, blocks, at), ADD))
        touches += [
            Touch(now + 1, x.rows(batch, kv_head, first, TILE_KEYS), STORE, FIRST) for x in (dk, dv)
        ]
        yield touches


def _sums_of(
    problem: Problem, base: int, blocks: int, at: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """The sums of dq of a block of queries, which lie together."""
    batch, head, first, rows = at
    row = problem.dim * _SUM
    place = (batch * problem.heads + head) * blocks + first // BLOCK_QUERIES
    return base + place * rows * row, row, rows, row


# ---- decode -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decode:
    """One new token for each of ``batch`` sequences of ``keys`` keys, of which the first ``shared``
    are in pages that all sequences share."""

    batch: int
    keys: int
    shared: int
    heads: int
    kv_heads: int
    dim: int
    page: int = 64
    steps: int = 1  # tokens, one after another

    def __str__(self) -> str:
        prefix = f", {self.shared} shared" if self.shared else ""
        again = f", {self.steps} tokens" if self.steps > 1 else ""
        return f"{self.batch}x{self.keys}x{self.heads}/{self.kv_heads}x{self.dim}{prefix}{again}"

    @property
    def cached_bytes(self) -> int:
        """Bytes of all pages of keys and values."""
        rows = self.shared + self.batch * (self.keys - self.shared)
        return 2 * rows * self.kv_heads * self.dim * _ELEMENT

    def page_of(self, sequence: int, index: int) -> int:
        """The page table: shared pages come first, then those of each sequence."""
        common, own = self.shared // self.page, (self.keys - self.shared) // self.page
        return index if index < common else common + sequence * own + index - common


def chunk_keys(problem: Decode) -> int:
    """Keys of a chunk, as KvCacheProblem::chunks()."""
    most = min(max(512 // (problem.heads // problem.kv_heads), 1), 32)
    wanted = min(max(-(-problem.keys // 256), 1), most)
    return math.ceil(math.ceil(problem.keys / wanted) / 64) * 64


def decode(problem: Decode) -> Iterator[Tile]:
    """Attention over a cache in pages: an item is a chunk of a sequence's keys for one of the
    cache's heads. Items of one chunk follow each other."""
    step = chunk_keys(problem)
    row = problem.kv_heads * problem.dim * _ELEMENT
    pages = problem.cached_bytes // (2 * problem.page * row)
    for _ in range(problem.steps):
        for sequence in range(problem.batch):
            for begin in range(0, problem.keys, step):
                indices = range(begin // problem.page,
                                -(-min(begin + step, problem.keys) // problem.page))  # fmt: skip
                for head in range(problem.kv_heads):
                    yield [
                        Touch(time, (
                            (tensor * pages + problem.page_of(sequence, index)) * problem.page * row
                            + head * problem.dim * _ELEMENT,
                            row, problem.page, problem.dim * _ELEMENT,
                        ))
                        for time, index in enumerate(indices)
                        for tensor in range(2)
                    ]  # fmt: skip
