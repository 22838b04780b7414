# SPDX-License-Identifier: MIT
"""Attention by an all-to-all: ranks together compute what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from transformer_kernels.functional import attention_varlen
from transformer_kernels.parallel import shard_sequence, ulysses_attention, unshard_sequence
from transformer_kernels.testing.attention import Call, check_outcome, tensors
from transformer_kernels.testing.inputs import poisoned, randn

LAYOUT = {"layout": "contiguous"}


def _check(heads: tuple[int, int], dtype: torch.dtype, **options: Any) -> None:
    """Holds the results and gradients of a call, computed in parts, to the rule."""
    q, k, v = tensors(20, 20, *heads, dim=16, value_dim=8, dtype=dtype)
    call = Call(q, k, v, options={"causal": True, **options})
    gradient = randn((*q.shape[:-1], 8), dtype)
    leaves = {
        n: shard_sequence(x, **LAYOUT).requires_grad_() for n, x in call.differentiable.items()
    }
    with poisoned():
        out, lse = ulysses_attention(**leaves, **call.options, return_lse=True)
        dout = shard_sequence(gradient, **LAYOUT)
        found = torch.autograd.grad(out, list(leaves.values()), dout)
    results = {
        "out": unshard_sequence(out.detach(), **LAYOUT),
        "lse": unshard_sequence(lse.detach(), **LAYOUT, dim=-1),
    }
    gradients = {n: unshard_sequence(x, **LAYOUT) for n, x in zip(leaves, found, strict=True)}
    check_outcome(call, gradient, (results, gradients))


# ---- cases --------------------------------------------------------------------------------------


def every_number_of_key_heads() -> None:
    for heads in ((4, 4), (8, 8), (8, 4), (4, 2), (4, 1), (12, 6), (12, 3)):
        _check(heads, torch.float32)


def every_dtype() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        _check((8, 2), dtype)


def options() -> None:
    _check((4, 2), torch.float32, softcap=2.0, scale=0.5)
    _check((4, 2), torch.float32, window=(5, 0))


def packed_sequences() -> None:
    offsets = torch.tensor([0, 7, 7, 20], dtype=torch.int32)
    wholes = [randn((20, heads, 8), torch.float64).requires_grad_() for heads in (4, 2, 2)]
    where: dict[str, Any] = {"dim": 0, **LAYOUT}
    parts = [shard_sequence(x.detach(), **where).requires_grad_() for x in wholes]
    expected = attention_varlen(*wholes, offsets, causal=True)
    found = ulysses_attention(*parts, causal=True, cu_seqlens=offsets)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(unshard_sequence(found.detach(), **where), expected.detach())
    for part, whole in zip(parts, wholes, strict=True):
        torch.testing.assert_close(unshard_sequence(part.grad, **where), whole.grad)


def heads_first() -> None:
    q, k, v = (x[:, :5] for x in tensors(20, 20, 4, 4, dim=8))
    expected = ulysses_attention(q, k, v, causal=True)
    by_heads = [x.transpose(1, 2) for x in (q, k, v)]
    found = ulysses_attention(*by_heads, causal=True, heads_first=True)
    assert torch.equal(found.transpose(1, 2), expected)


def the_same_bits() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(5, 5, 8, 2, dim=16, dtype=torch.bfloat16))
    runs = []
    for _ in range(2):
        out = ulysses_attention(q, k, v, causal=True)
        runs.append([out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))])
    assert all(map(torch.equal, *runs))


def refusals() -> None:
    q = torch.randn(2, 3, 4, 8)
    cases: list[tuple[str, Any]] = [
        ("q has 6 heads, expected a multiple of 4 .the ranks", (torch.randn(2, 3, 6, 8), q, q)),
        ("q has 4 heads, expected a multiple of 3 .the heads", (q, q[:, :, 1:], q[:, :, 1:])),
        ("v has 2 heads, expected 4 as k has", (q, q, q[:, :, :2])),
        (r"k has shape \(2, 2, 4, 8\), expected the rows of q", (q, q[:, 1:], q)),
        ("v is float64, expected float32 as q is", (q, q, q.double())),
        ("k has 3 dimensions, expected 4", (q, q[0], q)),
        ("k is NoneType, expected a Tensor", (q, None, q)),
    ]
    for message, tensors_ in cases:
        with pytest.raises((ValueError, TypeError), match=f"ulysses_attention: {message}"):
            ulysses_attention(*tensors_)
    with pytest.raises(TypeError, match="ulysses_attention: group is 3, expected a ProcessGroup"):
        ulysses_attention(q, q, q, 3)


CASES = [
    every_number_of_key_heads, every_dtype, options, packed_sequences, heads_first, the_same_bits,
    refusals,
]  # fmt: skip


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES, pair=CASES[:-1])
