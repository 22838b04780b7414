# SPDX-License-Identifier: MIT
"""Ring attention: ranks together compute what one process computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.parallel import ring_attention, scaling, shard_sequence, unshard_sequence
from transformer_kernels.testing.attention import Call, check_outcome, tensors
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.processes import device, run_together, unable
from transformer_kernels.testing.programs import leave

ALL = 0  # the size that stands for all processes
# The sequences are of two lengths, out of their order, and one is empty.
OFFSETS = torch.tensor([0, 24, 24, 40, 64], dtype=torch.int32)


@cache
def _groups() -> dict[int, Any]:
    """Groups of one of four processes, by their sizes: all, its pair, and itself; -1 is the other
    pair."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([rank]) for rank in range(4)]
    rank = dist.get_rank()
    return {2: pairs[rank // 2], 1: alone[rank], -1: pairs[1 - rank // 2]}


def _call(dtype: torch.dtype, **options: Any) -> Call:
    q, k, v = tensors(32, 32, 4, 2, dim=16, value_dim=8, dtype=dtype)
    return Call(q, k, v, options=options)


def _check(call: Call, size: int, layout: str, **options: Any) -> None:
    """Holds the results and gradients of a call, computed in parts, to the rule."""
    group = None if size == ALL else _groups()[size]
    where: dict[str, Any] = {"group": group, "layout": layout}
    parts = {n: shard_sequence(x, **where) for n, x in call.differentiable.items()}
    gradient = randn((*call.q.shape[:-1], call.v.shape[-1]), call.q.dtype)
    leaves = {n: x.requires_grad_() for n, x in parts.items()}
    with poisoned():
        out, lse = ring_attention(**leaves, **call.options, **options, **where, return_lse=True)
        dout = shard_sequence(gradient, **where)
        found = torch.autograd.grad(out, list(leaves.values()), dout)
    results = {
        "out": unshard_sequence(out.detach(), **where),
        "lse": unshard_sequence(lse.detach(), **where, dim=-1),
    }
    gradients = {n: unshard_sequence(x, **where) for n, x in zip(leaves, found, strict=True)}
    check_outcome(call, gradient, (results, gradients))


# ---- cases --------------------------------------------------------------------------------------


def every_layout_and_group() -> None:
    for size, layout, options in itertools.product(
        (ALL, 2, 1),
        ("zigzag", "contiguous"),
        ({"causal": True}, {"causal": False}, {"causal": True, "window": (12, -1)}),
    ):
        _check(_call(torch.float32, **options), size, layout)


def every_dtype() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        _check(_call(dtype, causal=True), ALL, "zigzag")


def options() -> None:
    _check(_call(torch.float32, causal=True, softcap=2.0, scale=0.5), ALL, "zigzag")


def windows() -> None:
    """Chunks have 4 or 8 of 32 tokens: windows end within them and beyond, on both sides."""
    for layout, (left, right, causal) in itertools.product(
        ("zigzag", "contiguous"), ((5, -1, True), (3, 10, False), (-1, 2, False))
    ):
        call = _call(torch.float32, causal=causal, window=(left, right))
        _check(call, ALL, layout)
    _check(call, ALL, "zigzag", backend="reference")


def the_formula() -> None:
    for layout in ("zigzag", "contiguous"):
        _check(_call(torch.float32, causal=True, softcap=2.0), ALL, layout, backend="reference")


def far_scores() -> None:
    """exp(score - lse) needs the part of lse that rounding takes."""
    call = _call(torch.float32, causal=True)
    call.q.mul_(0.0)
    call.k.add_(3e6)
    call.q[..., 0] = 1.0
    _check(call, ALL, "zigzag")


def _leaves(shape: tuple[int, ...], **where: Any) -> tuple[list[Tensor], list[Tensor]]:
    """q, k and v in float64 of 4, 2 and 2 heads, whole and in parts."""
    wholes = [randn((*shape, heads, 8), torch.float64) for heads in (4, 2, 2)]
    parts = [shard_sequence(x, **where).requires_grad_() for x in wholes]
    return [x.requires_grad_() for x in wholes], parts


def _compare(
    wholes: list[Tensor], expected: Any, parts: list[Tensor], found: Any, **where: Any
) -> None:
    """Compares pairs (out, lse), and the gradients of a loss of both."""
    for out, lse in (expected, found):
        (out.square().sum() + lse.sin().sum()).backward()
    for part, whole, dim in zip(found, expected, (-3, -1), strict=True):
        joined = unshard_sequence(part.detach(), **{**where, "dim": dim})
        torch.testing.assert_close(joined, whole.detach())
    for part, whole in zip(parts, wholes, strict=True):
        torch.testing.assert_close(unshard_sequence(part.grad, **where), whole.grad)


def gradients_of_lse() -> None:
    wholes, parts = _leaves((2, 16))
    expected = attention(*wholes, causal=True, return_lse=True)
    _compare(wholes, expected, parts, ring_attention(*parts, causal=True, return_lse=True))


def packed_sequences() -> None:
    everything = (-1, -1)
    for layout, (causal, window) in itertools.product(
        ("zigzag", "contiguous"),
        ((True, everything), (False, everything), (True, (4, -1)), (False, (2, 7))),
    ):
        where: dict[str, Any] = {"layout": layout, "cu_seqlens": OFFSETS, "dim": 0}
        wholes, parts = _leaves((64,), **where)
        options = {"causal": causal, "window": window, "return_lse": True}
        expected = attention_varlen(*wholes, OFFSETS.to(device()), **options)
        found = ring_attention(*parts, layout=layout, cu_seqlens=OFFSETS, **options)
        _compare(wholes, expected, parts, found, **where)


def a_mesh_and_heads_first() -> None:
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("batch", "time"))
    wholes, parts = _leaves((2, 16), group=mesh["time"])
    by_heads = [x.transpose(1, 2) for x in parts]
    found = ring_attention(*by_heads, mesh["time"], causal=True, heads_first=True)
    expected = attention(*wholes, causal=True)
    joined = unshard_sequence(found.detach().transpose(1, 2), mesh["time"])
    torch.testing.assert_close(joined, expected.detach())
    with pytest.raises(ValueError, match="ring_attention: group is a mesh of 2 dimensions"):
        ring_attention(*parts, mesh)


def the_same_bits() -> None:
    call = _call(torch.bfloat16)
    parts = [shard_sequence(x).requires_grad_() for x in (call.q, call.k, call.v)]
    for window in ((-1, -1), (5, 3)):
        runs = []
        for _ in range(2):
            out = ring_attention(*parts, causal=True, window=window)
            runs.append([out, *torch.autograd.grad(out.float().square().sum(), parts)])
        assert all(map(torch.equal, *runs))


def _bytes_sent(parts: list[Tensor], **options: Any) -> int:
    """The bytes of this rank's messages in both passes."""
    sent = 0

    def counted(operations: list[Any]) -> Any:
        nonlocal sent
        sent += sum(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return send(operations)

    send = dist.batch_isend_irecv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", counted)
        ring_attention(*parts, causal=True, **options).float().sum().backward()
    return sent


def what_is_sent() -> None:
    """The bytes are those of the simulation of many GPUs; under a window keys go no further than
    they are seen, and their gradients come home from there."""
    call = _call(torch.bfloat16)
    parts = [shard_sequence(x).requires_grad_() for x in (call.q, call.k, call.v)]
    numbers = parts[1].numel() + parts[2].numel()
    whole = scaling.ring(scaling.Cluster(), numbers, dist.get_world_size()).bytes
    assert _bytes_sent(parts) == _bytes_sent(parts, window=(7, 0)) == whole
    there, gradients = 2 * parts[0].element_size() * numbers, 2 * 4 * numbers
    assert _bytes_sent(parts, window=(7, 0), layout="contiguous") == there + gradients
    assert _bytes_sent(parts, window=(0, 0), layout="contiguous") == 0


def autocast() -> None:
    q, k, v = (shard_sequence(x) for x in _call(torch.float32).differentiable.values())
    with torch.autocast(device().type, torch.bfloat16):
        assert ring_attention(q, k, v).dtype is torch.bfloat16


def refusals() -> None:
    x = torch.randn(2, 8, 4, 8)
    q = shard_sequence(x)
    cases: list[tuple[str, Any]] = [
        ("layout is 'spiral', expected 'zigzag' or 'contiguous'", {"layout": "spiral"}),
        ("backend is 'cuda', expected 'auto' or 'reference'", {"backend": "cuda"}),
        ("group is 'all', expected a ProcessGroup, a DeviceMesh or None", {"group": "all"}),
        ("group is one without this process", {"group": _groups()[-1]}),
        ("q has 4 dimensions, expected 3", {"cu_seqlens": OFFSETS}),
        ("scale is nan", {"scale": float("nan")}),
        ("causal is 1, expected True or False", {"causal": 1}),
        ("window is 3, expected two ints", {"window": 3}),
        ("window_left is -2, expected -1", {"window": (-2, 0)}),
    ]
    for message, options in cases:
        with pytest.raises((ValueError, TypeError), match=f"ring_attention: {message}"):
            ring_attention(q, q, q, **options)
    with pytest.raises(ValueError, match=r"ring_attention: k has shape \(2, 1, 4, 8\)"):
        ring_attention(q, q[:, :1], q)
    with pytest.raises(ValueError, match="ring_attention: q has 4 heads, expected a multiple of 3"):
        ring_attention(q, q[:, :, :3], q[:, :, :3])
    with pytest.raises(ValueError, match="q has 1 rows of each sequence, expected a multiple of 2"):
        ring_attention(q[:, :1], q[:, :1], q[:, :1])
    with pytest.raises(ValueError, match="shard_sequence: a sequence has 6 tokens, expected a mul"):
        shard_sequence(x[:, :6])
    with pytest.raises(ValueError, match="goes from 0 to 64, expected 0 to 8"):
        shard_sequence(x, cu_seqlens=OFFSETS)
    with pytest.raises(ValueError, match="unshard_sequence: x requires a gradient"):
        unshard_sequence(q.requires_grad_())


CASES = [
    every_layout_and_group, every_dtype, options, windows, the_formula, far_scores,
    gradients_of_lse, packed_sequences, a_mesh_and_heads_first, the_same_bits, what_is_sent,
    autocast, refusals,
]  # fmt: skip
PAIR = [
    every_dtype, options, windows, the_formula, far_scores, gradients_of_lse, packed_sequences,
    the_same_bits, what_is_sent, autocast,
]  # fmt: skip


def a_rank_dies() -> None:
    """The other rank gets an error, at once or within the group's timeout."""
    q = torch.randn(1, 8, 2, 8)
    if q.is_cuda:  # communicators are made by the first call; what follows are its peers' messages
        ring_attention(q, q, q, causal=True)
        dist.barrier()
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        leave()
    with pytest.raises(RuntimeError):
        ring_attention(q, q, q, causal=True)
    leave()  # no barrier waits for the dead


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES, pair=PAIR)


@pytest.mark.distributed
def test_a_rank_that_dies(device: str, tmp_path: Path) -> None:
    if reason := unable(2, device):
        pytest.skip(reason)
    limit = timedelta(seconds=15) if device == "cuda" else None
    run_together([a_rank_dies], 2, tmp_path, device, limit)
