# SPDX-License-Identifier: MIT
"""AdamW on CUDA: graphs, and what the host does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.optim.adamw import _TINY

from .conftest import EXTENSIONS, copies, parameters, set_gradients

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("options", EXTENSIONS, ids=str)
def test_a_graph_makes_the_steps(options: dict[str, Any]) -> None:
    """Each replay counts a step, and reads the gradients and the learning rate anew."""
    params = parameters(torch.float32, ((40, 500), (33,), (5,)), device="cuda")
    others = copies(params)
    lr = torch.tensor(1e-2, device="cuda")
    eager = tfk.optim.AdamW(others, lr=float(lr), **options)
    ours = tfk.optim.AdamW(params, lr=lr, capturable=True, **options)
    set_gradients(params, others)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ours.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    eager.step()
    for rate in (1e-2, 3e-2, 1e-3):
        lr.fill_(rate)
        for group in eager.param_groups:
            group["lr"] = float(lr)
        for p, q in zip(params, others, strict=True):
            p.grad.normal_()
            q.grad.copy_(p.grad)
        graph.replay()
        eager.step()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        assert ours.state[p]["step"] == eager.state[q]["step"] == 4


def test_waits_for_no_device() -> None:
    """The host reads nothing back, whatever the options."""
    params = parameters(torch.bfloat16, ((4000, 50), (33,)), device="cuda")
    optimizer = tfk.optim.AdamW(
        params,
        lr=torch.tensor(1e-2, device="cuda"),
        master_weights=True,
        state_dtype=torch.uint8,
        max_norm=1.0,
        skip_nonfinite=True,
    )
    set_gradients(params)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert optimizer.state[params[0]]["step"] == 2


def test_loads_steps_that_were_counted_on_the_host() -> None:
    params = parameters(torch.float32, device="cuda")
    stock = torch.optim.AdamW(params, foreach=True)
    set_gradients(params)
    stock.step()
    ours = tfk.optim.AdamW(params, foreach=True)
    ours.load_state_dict(stock.state_dict())
    ours.step()
    assert all(ours.state[p]["step"].is_cuda and ours.state[p]["step"] == 2 for p in params)


@pytest.mark.parametrize(("capturable", "is_stock"), [(False, True), (True, False)])
def test_lists_that_the_host_bounds_are_pytorchs(
    capturable: bool, is_stock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_TINY, "cuda", 1 << 10)
    params = parameters(torch.float32, [(8,)] * 3, device="cuda")
    set_gradients(params)
    made = tfk.optim.AdamW(params, capturable=capturable)
    calls = []
    step = made._step_lists
    monkeypatch.setattr(made, "_step_lists", lambda *given: (calls.append(1), step(*given)))
    made.step()
    assert (not calls) == is_stock
