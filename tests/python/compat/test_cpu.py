# SPDX-License-Identifier: MIT
"""Attention on a CPU, in (batch, heads, time, dim)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.compat import (
    CPUKernelBenchmark,
    cpu_fused_attention,
    optimized_cpu_attention,
)

attention = tfk.functional.attention
WINDOWS = [(-1, -1), (3, -1), (2, 1), (1, 5)]
CHUNKS = [(None, "auto"), (1, "auto"), (3, "auto"), (3, "reference"), (100, "auto")]


def _qkv(queries: int, keys: int, dim: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(2, 4, queries, dim, requires_grad=True)
    k, v = (torch.randn(2, 2, keys, dim, requires_grad=True) for _ in range(2))
    return q, k, v


def test_fused_is_attention() -> None:
    q, k, v = _qkv(5, 7)
    options: dict[str, Any] = {"causal": True, "softcap": 5.0, "return_lse": True}
    for ours, theirs in zip(
        cpu_fused_attention(q, k, v, **options),
        attention(q, k, v, heads_first=True, **options),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"chunk_size": 5}])
def test_heads_come_before_time(options: dict[str, Any]) -> None:
    """As in PyTorch: a tensor of another layout would give other numbers, silently."""
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))
    function = optimized_cpu_attention if options else cpu_fused_attention
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(function(q, k, v, **options), expected.float())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (1, 9), (12, 7), (5, 13), (4, 0)])
def test_chunks_are_the_whole(
    queries: int, keys: int, causal: bool, window: tuple[int, int]
) -> None:
    tensors = _qkv(queries, keys)
    options: dict[str, Any] = {
        "causal": causal, "window": window, "return_lse": True, "sinks": torch.randn(4),
        "bias": torch.randn(4, queries, keys), "mask": torch.rand(2, 1, 1, keys) > 0.3,
    }  # fmt: skip
    expected, gradients = None, None
    for size, backend in CHUNKS:
        found = optimized_cpu_attention(*tensors, chunk_size=size, backend=backend, **options)
        grads = torch.autograd.grad(found[0].square().sum(), tensors)
        expected, gradients = expected or found, gradients or grads
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(grads, gradients)


def test_time_first_by_request() -> None:
    q, k, v = (x.transpose(1, 2) for x in _qkv(9, 9))
    found = optimized_cpu_attention(q, k, v, chunk_size=4, causal=True, heads_first=False)
    torch.testing.assert_close(found, attention(q, k, v, causal=True))
    whole = cpu_fused_attention(q, k, v, causal=True, heads_first=False)
    torch.testing.assert_close(found, whole)


def _peaks(time: int, chunk: int | None, backend: str) -> tuple[int, int]:
    """Peak memory of a forward pass and of a training pass, beyond inputs and results."""
    q, k, v = (torch.randn(1, 2, time, 16, requires_grad=True) for _ in range(3))
    call = {"chunk_size": chunk, "backend": backend}
    with torch.no_grad(), tfk.workbench.account_memory() as forward:
        out = optimized_cpu_attention(q, k, v, **call)  # type: ignore[arg-type]
    with tfk.workbench.account_memory() as training:
        optimized_cpu_attention(q, k, v, **call).sum().backward()  # type: ignore[arg-type]
    return forward.peak_bytes - out.nbytes, training.peak_bytes - out.nbytes


def test_memory_of_chunks_is_bounded() -> None:
    """PyTorch's operations hold all scores, several times; chunks of C hold a share of C / T."""
    time, chunk, heads, float32 = 128, 16, 2, 4
    scores = heads * time * time * float32
    whole, chunked = _peaks(time, None, "reference"), _peaks(time, chunk, "reference")
    for all_at_once, in_chunks in zip(whole, chunked, strict=True):
        assert all_at_once >= 2 * scores
        assert in_chunks <= all_at_once / 3
    # Twice the time: four times the scores, but twice the memory of a chunk.
    longer = _peaks(2 * time, chunk, "reference")
    assert all(b <= 2.2 * a for a, b in zip(chunked, longer, strict=True))


@pytest.mark.skipif(not tfk.info().library_loaded, reason="the library is not built")
def test_memory_of_kernels_grows_with_time_alone() -> None:
    short, long = _peaks(256, None, "cpu"), _peaks(512, None, "cpu")
    assert long[0] <= 2.1 * short[0] + 1024
    assert long[1] <= 2.1 * short[1] + 1024
    assert long[1] < 2 * 512 * 512 * 4  # less than the scores of both heads once


@pytest.mark.parametrize("function", [cpu_fused_attention, optimized_cpu_attention])
def test_bad_tensors(function: Any) -> None:
    q, k, v = _qkv(4, 4)
    with pytest.raises(ValueError, match=rf"^{function.__name__}: k is on meta, expected cpu$"):
        function(q, k.to("meta"), v)
    for bad in (None, 3):
        with pytest.raises(TypeError, match=rf"^{function.__name__}: v is .*, expected a Tensor$"):
            function(q, k, bad)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"chunk_size": 0}, "optimized_cpu_attention: chunk_size is 0, expected at least 1"),
        ({"chunk_size": 1.5}, "optimized_cpu_attention: chunk_size is 1.5, expected an int"),
        ({"backend": "cuda"}, "optimized_cpu_attention: backend is 'cuda', expected 'auto'"),
        ({"mask": torch.ones(2, 1, 4, 3)}, "attention: mask is float32, expected bool"),
        ({"bias": torch.ones(5, 4)}, "attention: bias has shape (5, 4), expected one that"),
        ({"window": 3}, "attention: window is 3, expected two ints"),
        ({"heads_first": 1}, "optimized_cpu_attention: heads_first is 1, expected True or False"),
    ],
)
def test_bad_options_before_the_first_chunk(named: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        optimized_cpu_attention(*_qkv(4, 4), **{"chunk_size": 2, **named})
    assert str(caught.value).startswith(words)


def test_shapes_are_refused_as_by_attention() -> None:
    q, k, v = _qkv(4, 4)
    with pytest.raises(ValueError, match=r"^attention: k has shape"):
        optimized_cpu_attention(q, k[:1], v, chunk_size=2)
    with pytest.raises(ValueError, match=r"^attention: q has 3 dimensions"):
        optimized_cpu_attention(q[0], k, v, chunk_size=2)


def test_implementations_agree() -> None:
    benchmark = CPUKernelBenchmark(1, 2, 24, 8, causal=True)
    tensors = [torch.randn(benchmark.shape) for _ in range(3)]
    expected, *others = (f(*tensors) for f in benchmark.implementations().values())
    for found in others:
        torch.testing.assert_close(found, expected)


def test_implementations_are_compared() -> None:
    benchmark = CPUKernelBenchmark(1, 2, 24, 8)
    comparison = benchmark.compare_implementations(seconds=0.01)
    assert not comparison.refused
    assert [row["name"] for row in comparison.records()] == [*benchmark.implementations()]
    wrong = {"right": torch.sin, "wrong": torch.cos}
    comparison = benchmark.compare_implementations(wrong, torch.randn(8), seconds=0.01)
    assert [*comparison.refused] == ["wrong"]


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_of_a_benchmark(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^CPUKernelBenchmark: time is {size}, expected at"):
        CPUKernelBenchmark(time=size)
