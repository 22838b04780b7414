# SPDX-License-Identifier: MIT
"""Linear layers on CUDA with a route for each product: ours, PyTorch's, or cuBLASLt's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels import _times, tune
from transformer_kernels.ops.linear import _choice, _routed
from transformer_kernels.ops.linear._tuned import OURS, TORCH, Routes, Times
from transformer_kernels.testing.graphs import check_replay
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.passes import both_passes, check_layer
from transformer_kernels.testing.programs import LEAVE

F = tfk.functional

pytestmark = pytest.mark.cuda

NARROW = (torch.float16, torch.bfloat16)
BEYOND = 99
LARGE = (4096, 768, 3072)  # rows, terms and columns
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda w: w,
    "columns": lambda w: w.t().contiguous().t(),
}

each_order = pytest.mark.parametrize("order", ORDERS)
each_narrow = pytest.mark.parametrize("narrow", NARROW, ids=str)
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="elsewhere PyTorch's product alone is chosen",
)

_check = partial(check_layer, units=16)


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with torch.device("cuda"):
        yield


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "tune.txt"
    monkeypatch.setenv("TFK_TUNE_FILE", str(path))
    monkeypatch.delenv("TFK_TUNE", raising=False)
    _times.mode.cache_clear()
    _times.read()
    yield path
    monkeypatch.undo()
    _times.mode.cache_clear()
    _times.read()


def _operands(
    rows: int, terms: int, cols: int, dtype: torch.dtype = torch.bfloat16, order: str = "rows"
) -> list[Tensor]:
    weight = (randn((cols, terms), torch.float64) * terms**-0.5).to(dtype)
    return [randn((rows, terms), dtype), ORDERS[order](weight), randn((cols,), dtype)]


def _by(*routes: int) -> Callable[..., Tensor]:
    return lambda x, weight, bias=None: _routed.call(x, weight, bias, *routes)


def _keep(x: Tensor, weight: Tensor, routes: Routes) -> None:
    times = Times(ours=2.0, torch=2.0, routed=1.0, routes=routes)
    _times.keep(_times.machine_of(x.device), _choice.timed_as(x, weight), times.named())


def _offered(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> list[int]:
    """The algorithms that cuBLASLt offers for every product of a layer; the first exists for
    any."""

    def is_offered(route: int) -> bool:
        try:
            _routed.y_by(route, x, weight, bias)
            _routed.dx_by(route, dy, x, weight)
            _routed.dweight_by(route, dy, x, weight)
        except RuntimeError:
            return False
        return True

    found = [route for route in range(16) if is_offered(route)]
    assert 0 in found
    return found


# ---- values -------------------------------------------------------------------------------------


@each_order
@each_narrow
def test_every_route_gives_the_same_layer(order: str, narrow: torch.dtype) -> None:
    leaves = _operands(520, 264, 776, narrow, order)
    dy = randn((520, 776), narrow)
    for route in (OURS, TORCH, *_offered(*leaves, dy)):
        _check(_by(route, route, route), in_torch.linear, leaves, dy)
        _check(_by(route, route, route), in_torch.linear, leaves[:2], dy)
    _check(_by(0, OURS, TORCH), in_torch.linear, leaves, dy)
    _check(_by(TORCH, 0, OURS), in_torch.linear, leaves, dy)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_wide_numbers(wide: torch.dtype) -> None:
    leaves, dy = _operands(96, 64, 72, wide), randn((96, 72), wide)
    _check(_by(0, 0, 0), in_torch.linear, leaves, dy)


@each_order
def test_gradients_lie_as_what_they_are_of(order: str) -> None:
    leaves = _operands(520, 264, 776, order=order)
    dy = randn((520, 776), torch.bfloat16)
    for route in (OURS, TORCH, 0):
        _, dx, dweight, _ = both_passes(_by(route, route, route), leaves, dy)
        assert dx.is_contiguous()
        assert dweight.stride() == leaves[1].stride()


def test_rows_that_are_uneven_or_shared() -> None:
    x, weight, bias = _operands(520, 264, 776)
    x = randn((520, 265), torch.bfloat16)[:, 1:]
    dy = randn((1, 776), torch.bfloat16).expand(520, 776)
    _check(_by(0, 0, 0), in_torch.linear, [x, weight, bias], dy)


def test_leading_dimensions_and_a_second_derivative() -> None:
    x, weight, bias = (t.requires_grad_() for t in _operands(64, 72, 40, torch.float32))
    y = _by(0, 0, 0)(x.view(4, 16, 72), weight, bias)
    assert y.shape == (4, 16, 40)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(dx.sum(), weight)
    expected = in_torch.linear(x, weight, bias)
    (dx,) = torch.autograd.grad(expected.square().sum(), x, create_graph=True)
    torch.testing.assert_close(
        found, torch.autograd.grad(dx.sum(), weight)[0], rtol=1e-3, atol=1e-3
    )


def test_results_repeat_bit_for_bit() -> None:
    leaves, dy = _operands(8192, 264, 776), randn((8192, 776), torch.bfloat16)
    for route in _offered(*leaves, dy):
        first = both_passes(_by(route, route, route), leaves, dy)
        for _ in range(3):
            again = both_passes(_by(route, route, route), leaves, dy)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), route


# ---- what is refused ----------------------------------------------------------------------------


def test_an_algorithm_that_is_not_offered() -> None:
    leaves, dy = _operands(520, 264, 776), randn((520, 776), torch.bfloat16)
    x, weight, bias = leaves
    reason = "linear: algorithm is 99, expected another: cuBLASLt does not offer it"
    for run in (
        lambda: _routed.y_by(BEYOND, x, weight, bias),
        lambda: _routed.dx_by(BEYOND, dy, x, weight),
        lambda: _routed.dweight_by(BEYOND, dy, x, weight),
    ):
        with pytest.raises(RuntimeError, match=reason):
            run()
    # A layer runs ours there.
    ours = both_passes(partial(F.linear, backend="cuda"), leaves, dy)
    found = both_passes(_by(BEYOND, BEYOND, BEYOND), leaves, dy)
    assert all(torch.equal(a, b) for a, b in zip(found, ours, strict=True))


def test_a_bias_that_cublaslt_does_not_add() -> None:
    x, weight, bias = _operands(520, 264, 776)
    with pytest.raises(RuntimeError, match="bias is of another dtype"):
        _routed.y_by(0, x, weight, bias.float())
    y = _by(0, 0, 0)(x, weight, bias.float())
    assert torch.equal(y, F.linear(x, weight, bias.float(), backend="cuda"))


# ---- the choice ---------------------------------------------------------------------------------


@on_hopper
@pytest.mark.usefixtures("file")
def test_a_choice_is_kept_for_calls_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = _choice.ask, []
    monkeypatch.setattr(_choice, "ask", lambda *a, **how: asked.append(a) or ask(*a, **how))
    x, weight, _ = _operands(*LARGE)
    other = torch.empty_like(weight)
    calls: list[tuple[Tensor, Tensor]] = [
        (x, weight), (x[:100], weight), (x.float(), weight.float()),
        (x, weight.t().contiguous().t()), (x, weight.detach().requires_grad_()),
    ]  # fmt: skip
    expected = [_choice.choose("linear", *call, fakes=True) for call in calls]  # is not kept
    asked.clear()
    for _ in range(3):
        assert [_choice.choose("linear", *call) for call in calls] == expected
    assert len(asked) == len(calls)
    _choice.choose("linear", x, other)
    assert len(asked) == len(calls)
    with torch.autocast("cuda", torch.float16):
        assert _choice.choose("linear", x.float(), weight.float()).reason is None
    _keep(x, weight, Routes(dx=TORCH))
    assert _choice.choose("linear", x, weight).routes == Routes(dx=TORCH)


@on_hopper
@pytest.mark.usefixtures("file")
def test_gradients_of_few_tiles_are_pytorchs_by_rules() -> None:
    x, weight, _ = _operands(*LARGE)
    assert _choice.choose("linear", x, weight) == (None, None)
    assert _choice.choose("linear", x.requires_grad_(), weight) == (None, None)
    weight.requires_grad_()
    assert _choice.choose("linear", x, weight) == (None, Routes(dweight=TORCH))
    large = weight.new_empty(16384, 4096).requires_grad_()
    assert _choice.choose("linear", x.new_empty(2048, 4096), large) == (None, None)
    dy = randn((4096, 3072), torch.bfloat16)
    _check(F.linear, in_torch.linear, _operands(*LARGE), dy)


@on_hopper
@pytest.mark.parametrize("trained", [False, True], ids=["forward", "both"])
def test_tuning_finds_routes_and_changes_nothing(trained: bool, file: Path) -> None:
    leaves = [t.requires_grad_(trained) for t in _operands(*LARGE)]
    before, state = [t.detach().clone() for t in leaves], torch.cuda.get_rng_state()
    with tfk.tuning():
        F.linear(*leaves)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert all(torch.equal(a.detach(), b) for a, b in zip(leaves, before, strict=True))
    ((_, _, us),) = _times.records()
    assert {"ours", "torch"} <= set(us)
    if not trained:
        assert Times.of(us).routes == "" or "dx ours, dweight ours" in Times.of(us).routes
    _check(F.linear, in_torch.linear, leaves, randn((4096, 3072), torch.bfloat16))


def test_algorithms_that_are_offered_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[set[str]] = []

    def instead(calls: dict[str, Any], *_: Any) -> dict[str, float]:
        timed.append(set(calls))
        return {name: 1.0 if name == "0" else 2.0 for name in calls}

    monkeypatch.setattr(tune, "_timed", instead)
    routes = tune._fastest_routes(tuple(_operands(*LARGE)), ["x", "weight"], 0.0)
    assert routes == Routes(0, 0, 0)
    assert len(timed) == 3
    assert all({"-1", "-2", "0"} <= names for names in timed)


@on_hopper
@each_order
@pytest.mark.usefixtures("file")
def test_cuda_graph_and_no_synchronisation(order: str) -> None:
    leaves = [t.requires_grad_() for t in _operands(*LARGE, order=order)]
    dy = randn((4096, 3072), torch.bfloat16)
    _keep(leaves[0], leaves[1], Routes(0, 1, TORCH))

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.linear(*leaves), leaves, dy)

    check_replay(step)


CALL = """
import torch
from transformer_kernels import functional as F
x = torch.randn(4096, 768, device="cuda").bfloat16().requires_grad_()
weight = torch.randn(3072, 768, device="cuda").bfloat16().requires_grad_()
F.linear(x, weight, torch.zeros(3072, device="cuda").bfloat16()).sum().backward()
"""


@on_hopper
def test_the_log_names_who_runs(file: Path) -> None:
    x, weight, _ = (t.requires_grad_() for t in _operands(*LARGE))
    _keep(x, weight, Routes(0, BEYOND, TORCH))
    found = subprocess.run(
        [sys.executable, "-c", CALL + LEAVE],
        env={**os.environ, "TFK_LOG": "dispatch", "TFK_TUNE_FILE": str(file)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    for line in (
        "linear: packed runs: it took 2.0 us here, PyTorch's 2.0, by routes 1.0",
        "linear: products run by routes: y 0, dx 99, dweight torch",
        "linear product bfloat16 4096x768x3072: cublaslt runs by algorithm 0",
        "linear: algorithm is 99, expected another: cuBLASLt does not offer it .*; ours runs",
        "linear product bfloat16 4096x3072x768: hopper runs",
    ):
        assert re.search(line, found.stderr), found.stderr
