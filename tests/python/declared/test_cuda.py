# SPDX-License-Identifier: MIT
"""Streams, graphs and devices. Every test here needs a CUDA device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import add_layer_norm, rms_norm, softmax
from transformer_kernels.testing.case import Case, as_tuple
from transformer_kernels.testing.cases import MAIN_CASES, run
from transformer_kernels.testing.check import (
    check_problem,
    check_same_but_rounded,
    random_gradients,
)
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import randn

pytestmark = pytest.mark.cuda
each_main_case = pytest.mark.parametrize("case", MAIN_CASES, ids=str)


@each_main_case
def test_second_stream(case: Case) -> None:
    """The kernels run on the current stream, so they see work queued there before them."""
    problem = case.build(randn((512, 1024), torch.float32, "cuda"))
    expected = as_tuple(problem.ours(*problem.tensors))
    x, *rest = problem.tensors
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        results = as_tuple(problem.ours(late, *rest))
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@each_main_case
def test_graph_capture(case: Case) -> None:
    """Captures forward and backward once, and replays them on new inputs."""
    problem = case.build(randn((64, 1024), torch.float32, "cuda"))
    gradients = tuple(g.cuda() for g in random_gradients(problem))
    static = tuple(t.detach().clone().requires_grad_() for t in problem.tensors)

    def step() -> tuple[torch.Tensor, ...]:
        results = as_tuple(problem.ours(*static))
        grads = torch.autograd.grad(results, static, gradients, allow_unused=True)
        return (*results, *grads)

    graph, captured = capture(step)
    for _ in range(2):
        with torch.no_grad():
            for tensor in static:
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        results, grads = run(problem.ours, static, gradients)
        for a, b in zip(captured, (*results, *grads), strict=True):
            assert torch.equal(a, b)


@each_main_case
@pytest.mark.parametrize("cols", [32768, 131072])
def test_many_wide_rows(case: Case, cols: int, dtype: torch.dtype) -> None:
    """A CTA that processes one row after another gives the results of CTAs with one row each, in
    every launch: the next row must not arrive before the last one is read, however long stores
    take."""
    at_once, launches = 64, 12
    problem = case.build(torch.randn(2**26 // cols, cols, dtype=dtype, device="cuda"))
    full = tuple(t.detach() for t in problem.tensors)
    few = [
        tuple(t[first : first + at_once] if t.ndim == 2 else t for t in full)  # not the weights
        for first in range(0, full[0].shape[0], at_once)
    ]
    with torch.no_grad():
        parts = zip(*(as_tuple(problem.ours(*tensors)) for tensors in few), strict=True)
        expected = [torch.cat(part) for part in parts]
        for _ in range(launches):
            for a, b in zip(as_tuple(problem.ours(*full)), expected, strict=True):
                check_same_but_rounded(a, b)  # fewer rows may run another plan


@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
def test_chain(captured: bool) -> None:
    """Small kernels start before the previous one ends, and still see everything that it wrote."""
    x, residual = (randn((64, 4096), torch.bfloat16, "cuda") for _ in range(2))
    weight = torch.ones_like(x[0])

    def chain(finish_each: bool) -> Tensor:
        out, total = x, residual
        for link in range(60):
            if link % 3 == 0:
                out, total = add_layer_norm(out, total, [4096], weight, weight)
            else:
                out = softmax(out, -1) if link % 3 == 1 else rms_norm(out, [4096], weight)
            if finish_each:
                torch.cuda.synchronize()
        return out + total

    expected = chain(finish_each=True)
    graph, result = capture(lambda: chain(finish_each=False))
    for _ in range(20):
        if captured:
            graph.replay()
        else:
            result = chain(finish_each=False)
        assert torch.equal(result, expected)


@each_main_case
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_second_device(case: Case) -> None:
    """Kernels run on their tensors' device, and leave the current device as it was."""
    torch.cuda.set_device(0)
    check_problem(case.build(randn((33, 515), torch.float32, "cuda:1")))
    assert torch.cuda.current_device() == 0


@each_main_case
def test_reduce_overhead_mode(case: Case) -> None:
    """Runs in torch.compile's mode with CUDA graphs."""
    torch._dynamo.reset()
    problem = case.build(randn((32, 256), torch.float32, "cuda"))
    compiled = torch.compile(problem.ours, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        expected = as_tuple(problem.ours(*problem.tensors))
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            results = as_tuple(compiled(*problem.tensors))
            for a, b in zip(results, expected, strict=True):
                torch.testing.assert_close(a, b)
