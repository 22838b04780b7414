# SPDX-License-Identifier: MIT
"""Master weights on CUDA under autocast: gradients in float32, and added to ``.grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _choice, _mlp, _tuned, _weights, linear
from transformer_kernels.testing.arrivals import Arrivals
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import poisoned, randn

F = tfk.functional

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="elsewhere linear is PyTorch's, which autocast lowers",
    ),
]

ROWS, FEATURES, HIDDEN = 4096, 768, 3072
NARROW = (torch.float16, torch.bfloat16)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


def _gated(x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    return F.gated_mlp(x, weight, None, down, bias=bias, down_bias=down_bias)


def _gated_formula(x: Tensor, weight: Tensor, bias: Tensor, *down: Tensor) -> Tensor:
    gate, up = in_torch.linear(x, weight, bias).chunk(2, -1)
    return in_torch.linear(in_torch.silu(gate) * up, *down)


def _mlp_formula(x: Tensor, weight: Tensor, bias: Tensor, *down: Tensor) -> Tensor:
    return in_torch.linear(in_torch.gelu(in_torch.linear(x, weight, bias)), *down)


OURS: dict[str, Callable[..., Tensor]] = {"linear": _linear, "mlp": F.mlp, "gated": _gated}
FORMULAS: dict[str, Callable[..., Tensor]] = {
    "linear": in_torch.linear, "mlp": _mlp_formula, "gated": _gated_formula,
}  # fmt: skip
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda w: w,
    "columns": lambda w: w.t().contiguous().t(),
}

each_op = pytest.mark.parametrize("op", OURS)
each_order = pytest.mark.parametrize("order", ORDERS)
each_narrow = pytest.mark.parametrize("narrow", NARROW, ids=str)


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with torch.device("cuda"):
        yield


def _leaves(op: str, order: str = "rows") -> list[Tensor]:
    """x and float32 parameters whose values fit in 16 bits, so that casts are exact."""
    hidden = 2 * HIDDEN if op == "gated" else HIDDEN
    sizes = [(hidden, FEATURES), (hidden,), (FEATURES, HIDDEN), (FEATURES,)]
    parameters = [
        (randn(size, torch.float64) * size[-1] ** -0.5 / 4).half().float().bfloat16().float()
        for size in sizes[: 2 if op == "linear" else 4]
    ]
    x = randn((ROWS, FEATURES), torch.bfloat16).half().float()
    turned = [ORDERS[order](t) if t.dim() == 2 else t for t in parameters]
    return [t.requires_grad_() for t in (x, *turned)]


def _under_autocast(op: str, narrow: torch.dtype, leaves: list[Tensor], dy: Tensor) -> list[Tensor]:
    with torch.autocast("cuda", narrow), poisoned():
        y = OURS[op](*leaves)
        return [y, *torch.autograd.grad(y, leaves, dy.to(narrow))]


def _formula(op: str, leaves: list[Tensor], dy: Tensor) -> list[Tensor]:
    y = FORMULAS[op](*leaves)
    return [y, *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def _error(a: Tensor, exact: Tensor) -> float:
    return float((a.double() - exact).norm() / exact.norm())


@each_op
@each_order
@each_narrow
def test_gradients(op: str, order: str, narrow: torch.dtype) -> None:
    """Gradients are no further from float64 than PyTorch's under autocast."""
    leaves, dy = _leaves(op, order), randn((ROWS, HIDDEN), torch.bfloat16).half().float()
    dy = dy if op == "linear" else dy[:, :FEATURES].contiguous()
    found = _under_autocast(op, narrow, leaves, dy)
    with torch.autocast("cuda", narrow):
        theirs = _formula(op, leaves, dy)
    exact = _formula(op, [t.detach().double().requires_grad_() for t in leaves], dy.double())
    for a, b, c, leaf in zip(found[1:], theirs[1:], exact[1:], leaves, strict=True):
        assert a.dtype is torch.float32
        assert a.stride() == leaf.stride()
        assert _error(a, c) <= 2 * _error(b, c) + 1e-6
    assert found[0].dtype is narrow


@each_order
@each_narrow
def test_nothing_is_rounded_to_16_bits(order: str, narrow: torch.dtype) -> None:
    leaves, dy = _leaves("linear", order), randn((ROWS, HIDDEN), torch.bfloat16).half().float()
    _, _, dweight, dbias = _under_autocast("linear", narrow, leaves, dy)
    exact = dy.double().t() @ leaves[0].double()
    assert _error(dweight, exact) < 1e-5
    assert _error(dbias, dy.double().sum(0)) < 1e-5


@each_op
@each_order
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_products_add_to_grad(
    op: str, order: str, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr(_mlp, "features_of_part", lambda _, __, hidden, ___: hidden // 2)
    leaves = _leaves(op, order)
    matrices = [t for t in leaves[1:] if t.dim() == 2]
    arrived = [Arrivals(t) for t in matrices]
    columns = HIDDEN if op == "linear" else FEATURES
    once: list[Tensor] = []
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            y = OURS[op](*leaves)
        y.backward(torch.ones(ROWS, columns, dtype=torch.bfloat16))
        once = once or [t.grad.clone() for t in leaves if t.grad is not None]
    assert all(seen[1:] == [None, None] for seen in arrived)
    for leaf, first in zip(leaves, once, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, 3 * first, rtol=1e-4, atol=1e-4)


def test_the_transpose_of_a_parameter() -> None:
    """Hugging Face's ``Conv1D`` stores its weight transposed."""
    x, weight, bias = _leaves("linear")
    kept = weight.detach().t().contiguous().requires_grad_()
    gradients: list[Tensor] = []
    for parameter, view in ((weight, weight), (kept, kept.t())):
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                y = F.linear(x, view, bias)
            y.backward(torch.ones_like(y))
        assert parameter.grad is not None
        gradients.append(parameter.grad)
    torch.testing.assert_close(gradients[0], gradients[1].t(), rtol=1e-5, atol=1e-4)


def _step(op: str, leaves: list[Tensor]) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        y = OURS[op](*leaves)
    y.backward(torch.ones_like(y))


@each_op
def test_on_another_stream_autograd_adds(op: str) -> None:
    leaves = _leaves(op)
    _step(op, leaves)
    once = [t.grad.clone() for t in leaves if t.grad is not None]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        arrived = Arrivals(leaves[1])
        _step(op, leaves)
    torch.cuda.current_stream().wait_stream(side)
    assert None not in arrived
    for leaf, first in zip(leaves, once, strict=True):
        torch.testing.assert_close(leaf.grad, 2 * first)


@each_op
def test_a_graph_of_the_step(op: str) -> None:
    """Each replay of a step's graph adds to the same memory."""
    leaves = _leaves(op)
    _step(op, leaves)
    once = [t.grad.clone() for t in leaves if t.grad is not None]
    for leaf in leaves:
        assert leaf.grad is not None
        leaf.grad.zero_()
    graph, _ = capture(lambda: _step(op, leaves))
    for leaf in leaves:
        assert leaf.grad is not None
        leaf.grad.zero_()
    for _ in range(2):
        graph.replay()
    for leaf, first in zip(leaves, once, strict=True):
        torch.testing.assert_close(leaf.grad, 2 * first)


@pytest.mark.parametrize("view", [False, True], ids=["copied", "views"])
def test_distributed_data_parallel(view: bool, tmp_path: Any) -> None:
    """DistributedDataParallel's hooks find the gradient that was added."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = tfk.nn.Linear(FEATURES, HIDDEN)
        parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
        arrived = Arrivals(model.weight)
        x = randn((ROWS, FEATURES), torch.float32)
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                y = parallel(x)
            y.backward(torch.ones_like(y))
        exact = 3 * x.bfloat16().double().sum(0).expand(HIDDEN, FEATURES)
        assert model.weight.grad is not None
        assert _error(model.weight.grad, exact) < 1e-5
        assert arrived[1:] == [None, None]
    finally:
        torch.distributed.destroy_process_group()


def test_by_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product computes the gradient of a master weight, whatever runs the others."""
    leaves, dy = _leaves("linear"), randn((ROWS, HIDDEN), torch.bfloat16)
    expected = _under_autocast("linear", torch.bfloat16, leaves, dy)
    for routes in ((0, 0, 0), (_tuned.TORCH,) * 3, (_tuned.OURS,) * 3):
        choice = _choice.Choice(None, _tuned.Routes(*routes))
        monkeypatch.setattr(linear, "choose", lambda *_, c=choice, **__: c)
        found = _under_autocast("linear", torch.bfloat16, leaves, dy)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype is b.dtype
            assert _error(a, b.double()) < 1e-2
        assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize(("workspace", "error"), [("", 4e-3), (":4096:8", 1e-5)])
def test_deterministic_algorithms(
    workspace: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where deterministic algorithms refuse cuBLAS, every product is ours and a gradient is rounded
    to 16 bits."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    leaves, dy = _leaves("linear"), randn((ROWS, HIDDEN), torch.bfloat16)
    found: list[list[Tensor]] = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                y = F.linear(*leaves)
            found.append([y, *torch.autograd.grad(y, leaves, dy)])
    finally:
        torch.use_deterministic_algorithms(False)
    exact = dy.double().t() @ leaves[0].double()
    assert found[0][2].dtype is torch.float32
    assert _error(found[0][2], exact) < error
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_a_wide_bias_without_gradients() -> None:
    """The bias is added unrounded: the difference from its rounded value is not lost."""
    bias = randn((HIDDEN,), torch.float32)
    weight = torch.zeros(HIDDEN, FEATURES)
    weight[:, 0] = -bias.bfloat16()
    x = torch.zeros(ROWS, FEATURES)
    x[:, 0] = 1
    with torch.autocast("cuda", torch.bfloat16), poisoned():
        y = F.linear(x, weight, bias, backend="cuda")
    remains = (bias - bias.bfloat16()).bfloat16()
    assert remains.count_nonzero() > 0
    assert torch.equal(y, remains.expand(ROWS, HIDDEN))


def test_which_are_masters() -> None:
    x, weight, _ = _leaves("linear")
    assert not _weights.is_master(x, weight)
    with torch.autocast("cuda", torch.bfloat16):
        assert _weights.is_master(x, weight)
        assert not _weights.is_master(x, weight.detach())
        assert not _weights.is_master(x, weight.half())
        assert not _weights.is_master(x.double(), weight)
        with torch.no_grad():
            assert not _weights.is_master(x, weight)
