# SPDX-License-Identifier: MIT
"""Attention in Triton: rungs 3 and 4 in one kernel, on tiles instead of threads.

A program has 64 queries and goes through the keys by tiles of 64. What rung 4 does by hand Triton's
compiler does: it gives the elements of a tile to lanes, picks `mma.sync` or `wgmma` for `tl.dot`,
and copies the next tiles while this one is multiplied. The online softmax is ours still.

Without a card Triton's interpreter computes the result in NumPy; then there is no time to show.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable

import torch

HAS_CARD = torch.cuda.is_available()
if not HAS_CARD:
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported
try:
    import triton
    import triton.language as tl
except ImportError:
    print("triton is not installed")
    sys.exit(77)

DIM = 64


@triton.jit
def attention(q, k, v, o, time, scale, TILE: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * time * DIM
    tile, d = tl.arange(0, TILE), tl.arange(0, DIM)
    rows = head + (tl.program_id(0) * TILE + tile)[:, None] * DIM + d[None, :]
    query = tl.load(q + rows)
    most = tl.full([TILE], -float("inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    result = tl.zeros([TILE, DIM], tl.float32)
    for key in range(0, time, TILE):
        at = head + (key + tile)[:, None] * DIM + d[None, :]
        scores = tl.dot(query, tl.trans(tl.load(k + at))) * scale  # in units of log 2
        larger = tl.maximum(most, tl.max(scores, 1))
        shrink = tl.exp2(most - larger)
        p = tl.exp2(scores - larger[:, None])
        total = total * shrink + tl.sum(p, 1)
        result = result * shrink[:, None]
        result = tl.dot(p.to(query.dtype), tl.load(v + at), result)
        most = larger
    tl.store(o + rows, (result / total[:, None]).to(query.dtype))


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> None:
    heads, time, dim = q.shape
    grid = (time // 64, heads)
    attention[grid](q, k, v, o, time, dim**-0.5 / 0.6931471805599453, TILE=64, DIM=dim)


def microseconds(call: Callable[[], object]) -> float:
    """The median of nine batches of three launches, after one that warms up."""
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(3):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / 3)
    return statistics.median(times[1:])


def product_rate() -> float:
    """The ceiling: operations a microsecond of a large product."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / microseconds(lambda: a @ a)


def error(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> float:
    """The largest error of the first head, against double precision."""
    one = (tensor[:1].double() for tensor in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*one)
    return float((o[:1].double() - wanted).abs().max())


def main(arguments: list[str]) -> int:
    heads, time = map(int, arguments) if arguments else (32, 2048)
    device, dtype = ("cuda", torch.bfloat16) if HAS_CARD else ("cpu", torch.float32)
    if not HAS_CARD:
        heads, time = 2, 128
    q, k, v = torch.randn(3, heads, time, DIM, device=device, dtype=dtype)
    o = torch.empty_like(q)
    run(q, k, v, o)
    off, bound = error(q, k, v, o), 2**-7 if HAS_CARD else 1e-5
    if off > bound:
        print(f"wrong: the error is above {bound}")
        return 1
    if not HAS_CARD:
        print(f"Triton's interpreter: the error is {off:.1e}\nthere is no CUDA card")
        return 77
    us = microseconds(lambda: run(q, k, v, o))
    operations = 4.0 * heads * time * time * DIM
    share = 100 * operations / product_rate() / us
    print(f"cuda5_triton | {torch.cuda.get_device_name()} | {heads}x{time}x64 bfloat16"
          f" | {us:.1f} us | {operations / us / 1e3:.5g} GFLOP/s | {share:.1f} %"
          f" | {off:.1e}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
