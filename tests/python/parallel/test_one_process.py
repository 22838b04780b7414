# SPDX-License-Identifier: MIT
"""Without a process group there is one rank, with all tokens and all experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from transformer_kernels import _library, nn, parallel
from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.parallel._blocks import Options
from transformer_kernels.parallel._ranks import Ranks
from transformer_kernels.parallel.ring import _Call, _Rows
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn

WAYS: list[Callable[..., Any]] = [parallel.ring_attention, parallel.ulysses_attention]


@pytest.mark.parametrize("way", WAYS)
def test_attention(way: Callable[..., Any]) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(12, 12, 4, 2, dim=8, dtype=torch.float64))
    options = {"causal": True, "softcap": 2.0, "return_lse": True}
    runs = []
    for function in (way, attention):
        out, lse = function(q, k, v, **options)
        gradients = torch.autograd.grad(out.square().sum() + lse.sin().sum(), (q, k, v))
        runs.append([out.detach(), lse.detach(), *gradients])
    torch.testing.assert_close(*runs)


@pytest.mark.parametrize("way", WAYS)
def test_packed_sequences(way: Callable[..., Any]) -> None:
    q, k, v = (randn((12, 2, 8), torch.float64) for _ in range(3))
    offsets = torch.tensor([0, 6, 6, 12], dtype=torch.int32)
    for window in ((-1, -1), (2, 0)):
        options: dict[str, Any] = {"causal": True, "window": window}
        expected = attention_varlen(q, k, v, offsets, **options)
        torch.testing.assert_close(way(q, k, v, cu_seqlens=offsets, **options), expected)


@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
def test_no_packed_rows(window: tuple[int, int]) -> None:
    x, offsets = torch.zeros(0, 2, 8), torch.zeros(3, dtype=torch.int32)
    options: dict[str, Any] = {"window": window, "cu_seqlens": offsets, "return_lse": True}
    out, lse = parallel.ring_attention(x, x, x, **options)
    assert (out.shape, lse.shape) == (x.shape, (2, 0))


def test_blocks_outside_of_a_window_are_left_out() -> None:
    """Chunks of 8 tokens of four ranks, of which the last one sees its own and 7 before."""
    options = Options(1.0, 0.0, True, "auto")
    call = _Call(Ranks(None, 3, 4), 1, (7, 0), _Rows(), options)
    parts = [call.parts(step, 8) for step in range(4)]
    assert [len(found) for found in parts] == [1, 1, 0, 0]
    assert parts[0] == [(slice(0, 8), slice(0, 8), (-1, 0))]
    assert parts[1] == [(slice(0, 7), slice(1, 8), (0, -1))]


@pytest.mark.parametrize(
    ("chunks", "window", "steps"),
    [(1, (0, 0), 1), (1, (8, 0), 2), (1, (9, 0), 3), (1, (8, 1), 4), (2, (8, 0), 4)],
)
def test_keys_go_as_far_as_they_are_seen(chunks: int, window: tuple[int, int], steps: int) -> None:
    """Parts of 8 tokens of four ranks; the rank before sees keys behind it in the last step."""
    options = Options(1.0, 0.0, True, "auto")
    assert _Call(Ranks(None, 0, 4), chunks, window, _Rows(), options).steps(8) == steps


@pytest.mark.parametrize("way", WAYS)
def test_windows(way: Callable[..., Any]) -> None:
    q, k, v = (randn((1, 12, 2, 8), torch.float64) for _ in range(3))
    options: dict[str, Any] = {"window": (2, 4)}
    torch.testing.assert_close(way(q, k, v, **options), attention(q, k, v, **options))


def test_the_order_of_tokens_stays() -> None:
    x = torch.arange(12)
    assert torch.equal(parallel.shard_sequence(x, dim=0), x)
    assert torch.equal(parallel.unshard_sequence(x, dim=0), x)


def test_experts_stay() -> None:
    moe = nn.MoE(8, 4, num_experts=3, top_k=1)
    experts = moe.experts
    assert parallel.expert_parallel(moe) is moe
    assert moe.experts is experts


@pytest.mark.parametrize("way", WAYS)
def test_the_log_says_which_way_it_took(
    way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_library, "_log_dispatch", True)
    q = torch.randn(1, 4, 2, 8)
    way(q, q, q)
    assert f"[tfk] {way.__name__}: 1 ranks, none, " in capsys.readouterr().err


def test_offsets_are_checked() -> None:
    q = torch.randn(12, 2, 8)
    bad = {
        "no int32 vector": torch.tensor([0, 12]),
        "goes from 0 to 11, expected 0 to 12": torch.tensor([0, 11], dtype=torch.int32),
        "never falling": torch.tensor([0, 14, 12], dtype=torch.int32),
    }
    for message, offsets in bad.items():
        with pytest.raises((TypeError, ValueError), match=message):
            parallel.ring_attention(q, q, q, cu_seqlens=offsets)
