# SPDX-License-Identifier: MIT
"""Master weights, and gradients that products add to ``.grad``, where that is allowed.

On a CPU this is never done; these tests enable it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as in_torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _routed, _weights
from transformer_kernels.ops.linear._mlp_ops import GATED_MLP, MLP
from transformer_kernels.ops.linear._tuned import OURS, TORCH
from transformer_kernels.testing.arrivals import Arrivals
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.programs import leave

F = tfk.functional

ROWS, FEATURES = 24, 16

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, weight: _routed.call(x, weight, None, OURS, OURS, TORCH),
    "mlp": lambda x, weight: F.mlp(x, weight, None, torch.eye(len(weight))),
    "down": lambda x, weight: F.mlp(x, torch.eye(x.shape[-1]), None, weight),
    "gated": lambda x, weight: F.gated_mlp(x, weight, None, torch.eye(len(weight) // 2)),
}
FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": in_torch.linear,
    "mlp": lambda x, weight: in_torch.gelu(in_torch.linear(x, weight)),
    "down": lambda x, weight: in_torch.linear(in_torch.gelu(x), weight),
    "gated": lambda x, weight: (
        in_torch.silu(in_torch.linear(x, weight.chunk(2)[0]))
        * in_torch.linear(x, weight.chunk(2)[1])
    ),
}
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {"rows": lambda w: w, "columns": Tensor.t}

each_call = pytest.mark.parametrize("call", CALLS)
each_order = pytest.mark.parametrize("order", ORDERS)


@pytest.fixture(autouse=True)
def one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "_has_one_writer", lambda _: True)


def _leaf() -> Tensor:
    return randn((FEATURES, FEATURES), torch.float32).requires_grad_()


def _assert_close(found: Tensor | None, expected: Tensor, rtol: float = 1e-4) -> None:
    assert found is not None
    atol = 0.1 * rtol * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def _gradient(name: str, order: str, x: Tensor, leaf: Tensor) -> Tensor:
    """The gradient of a sum of the results, by autograd of the formula."""
    copy = leaf.detach().requires_grad_()
    return torch.autograd.grad(FORMULAS[name](x, ORDERS[order](copy)).sum(), copy)[0]


def _train(name: str, order: str, leaf: Tensor, times: int = 2) -> tuple[Tensor, Tensor]:
    """The expected ``.grad`` after so many backward passes, and the actual one after the first."""
    expected, first = torch.zeros_like(leaf), leaf
    for at in range(times):
        x = randn((ROWS, FEATURES), torch.float32)
        CALLS[name](x, ORDERS[order](leaf)).sum().backward()
        expected += _gradient(name, order, x, leaf)
        if at == 0:
            assert leaf.grad is not None
            first = leaf.grad
    return expected, first


@each_call
@each_order
def test_a_product_adds_to_grad(call: str, order: str) -> None:
    leaf = _leaf()
    arrived = Arrivals(leaf)
    expected, first = _train(call, order, leaf, times=3)
    assert leaf.grad is first
    _assert_close(first, expected)
    assert arrived[0] is not None
    assert arrived[1:] == [None, None]


@each_call
def test_a_weight_that_is_used_twice(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    expected, _ = _train(call, "rows", leaf)
    (CALLS[call](x, leaf).sum() + CALLS[call](2 * x, leaf).sum()).backward()
    expected += _gradient(call, "rows", x, leaf) + _gradient(call, "rows", 2 * x, leaf)
    _assert_close(leaf.grad, expected)


@each_call
def test_twice_through_the_same_graph(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    y = CALLS[call](x, leaf).sum()
    for _ in range(3):
        y.backward(retain_graph=True)
    _assert_close(leaf.grad, 3 * _gradient(call, "rows", x, leaf))


def _by_hook(leaf: Tensor) -> Any:
    leaf.register_hook(lambda gradient: 10 * gradient)


def _by_post_hook(leaf: Tensor) -> Any:
    def scale(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 10

    leaf.register_post_accumulate_grad_hook(scale)


@each_call
@each_order
@pytest.mark.parametrize("watch", [_by_hook, _by_post_hook])
def test_a_hook_sees_the_gradient(call: str, order: str, watch: Callable[[Tensor], Any]) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = torch.zeros_like(leaf)
    watch(leaf)
    CALLS[call](x, ORDERS[order](leaf)).sum().backward()
    _assert_close(leaf.grad, 10 * _gradient(call, order, x, leaf))


class _Scale(torch.autograd.Function):
    """A view with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 10 * gradient.t()


@each_call
def test_a_view_with_a_gradient_of_its_own(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = torch.zeros_like(leaf)
    CALLS[call](x, _Scale.apply(leaf)).sum().backward()
    _assert_close(leaf.grad, 10 * _gradient(call, "columns", x, leaf))


@each_call
@each_order
def test_a_gradient_that_is_returned(call: str, order: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = torch.zeros_like(leaf)
    expected = _gradient(call, order, x, leaf)
    for again in (False, True):
        weight = ORDERS[order](leaf)
        y = CALLS[call](x, weight).sum()
        (gradient,) = torch.autograd.grad(y, leaf, create_graph=again, retain_graph=True)
        _assert_close(gradient, expected)
        (gradient,) = torch.autograd.grad(y, weight, create_graph=again)
        _assert_close(ORDERS[order](gradient), expected)
    assert not leaf.grad.any()


@each_call
def test_the_gradient_of_something_else(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32).requires_grad_()
    leaf.grad = torch.zeros_like(leaf)
    CALLS[call](x, leaf).sum().backward(inputs=[x])
    assert x.grad is not None
    assert not leaf.grad.any()


@each_call
def test_a_backward_pass_that_is_differentiated(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = torch.zeros_like(leaf)
    CALLS[call](x, leaf).square().sum().backward(create_graph=True)
    assert leaf.grad.requires_grad


OTHER_SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "in another order": lambda zeros: zeros.t(),
    "spread": lambda zeros: zeros.new_zeros(FEATURES, 2 * FEATURES)[:, ::2],
}


@each_call
@each_order
@pytest.mark.parametrize("other", OTHER_SUMS)
def test_a_grad_of_other_strides(call: str, order: str, other: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = OTHER_SUMS[other](torch.zeros(FEATURES, FEATURES))
    CALLS[call](x, ORDERS[order](leaf)).sum().backward()
    _assert_close(leaf.grad, _gradient(call, order, x, leaf))


@each_call
@each_order
def test_a_parameter_that_is_frozen_meanwhile(call: str, order: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32).requires_grad_()
    leaf.grad = torch.zeros_like(leaf)
    y = CALLS[call](x, ORDERS[order](leaf)).sum()
    leaf.requires_grad_(False)
    y.backward()
    assert x.grad is not None
    assert not leaf.grad.any()


@each_call
def test_a_transpose_that_keeps_its_gradient(call: str) -> None:
    leaf, x = _leaf(), randn((ROWS, FEATURES), torch.float32)
    leaf.grad = torch.zeros_like(leaf)
    weight = leaf.t()
    weight.retain_grad()
    CALLS[call](x, weight).sum().backward()
    _assert_close(leaf.grad, _gradient(call, "columns", x, leaf))
    assert weight.grad is not None
    _assert_close(weight.grad.t(), leaf.grad)


@each_call
@pytest.mark.parametrize("turned", [False, True])
def test_one_of_several_weights_of_a_parameter(call: str, turned: bool) -> None:
    """Several weights are parts of one parameter, as experts' are."""
    leaf, x = randn((3, FEATURES, FEATURES), torch.float32), randn((ROWS, FEATURES), torch.float32)
    leaf.requires_grad_().grad = torch.zeros_like(leaf)
    weight = leaf[1].t() if turned else leaf[1]
    CALLS[call](x, weight).sum().backward()
    expected = _gradient(call, "columns" if turned else "rows", x, leaf[1])
    assert leaf.grad is not None
    _assert_close(leaf.grad[1], expected)
    assert not leaf.grad[::2].any()


@each_call
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(call: str, reentrant: bool) -> None:
    leaf, expected = _leaf(), torch.zeros(FEATURES, FEATURES)
    for _ in range(2):
        x = randn((ROWS, FEATURES), torch.float32).requires_grad_()
        y = checkpoint(CALLS[call], x, leaf, use_reentrant=reentrant)
        y.sum().backward()
        expected += _gradient(call, "rows", x.detach(), leaf)
    _assert_close(leaf.grad, expected)


@each_call
def test_what_watches_sees_a_gradient_of_its_own(call: str) -> None:
    leaf = _leaf()
    expected, _ = _train(call, "rows", leaf)
    arrived = Arrivals(leaf)
    x = randn((ROWS, FEATURES), torch.float32)
    with FlopCounterMode(display=False) as flops:
        CALLS[call](x, leaf).sum().backward()
    expected += _gradient(call, "rows", x, leaf)
    with torch.autograd.detect_anomaly(check_nan=False):
        CALLS[call](x, leaf).sum().backward()
    expected += _gradient(call, "rows", x, leaf)
    _assert_close(leaf.grad, expected)
    assert flops.get_total_flops() > 0
    assert len(arrived) == 2
    assert None not in arrived


def test_products_that_are_added_are_counted() -> None:
    """PyTorch's counter counts them; it refuses a sum of two dtypes."""
    out, a, b = (
        torch.zeros(4, 4, device="meta", dtype=d) for d in (torch.float32, *[torch.half] * 2)
    )
    with FlopCounterMode(display=False) as flops:
        _weights.write_product(out, a, b, add=True)
    assert flops.get_total_flops() == 2 * 4**3


def _train_in_parallel(view: bool) -> None:
    model = tfk.nn.MLP(FEATURES, FEATURES)
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    leaf = model.fc1.weight
    arrived = Arrivals(leaf)
    once = None
    x = randn((ROWS, FEATURES), torch.float32)
    for _ in range(3):
        parallel(x).sum().backward()
        assert leaf.grad is not None
        once = leaf.grad.clone() if once is None else once
    assert once is not None
    _assert_close(leaf.grad, 3 * once)
    assert arrived[1:] == [None, None]


def _process(_: int, store: str) -> None:
    torch.set_num_threads(1)
    _weights._has_one_writer = lambda _: True
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    for view in (False, True):
        _train_in_parallel(view)
    leave()


def test_distributed_data_parallel(tmp_path: Path) -> None:
    """DistributedDataParallel's hooks find the gradient that was added, in copies and in views.

    It runs in a process of its own: PyTorch does not free what a parallel model holds, and gloo's
    threads would live on, after `destroy_process_group`, in the process that runs the tests.
    """
    torch.multiprocessing.spawn(_process, (str(tmp_path / "store"),))


class _Stream:
    """Stands in for a stream of a GPU."""

    device = "cuda:0"

    def __init__(self) -> None:
        self.waits: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        self.waits.append(other)


def test_a_node_on_another_stream_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_product, leaf = _Stream(), _Stream(), _leaf()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: own)
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    for expected in ([of_product], [of_product]):
        if not own.waits:
            _weights._keep_in_order(node, of_product)  # type: ignore[arg-type]
        leaf.sum().backward()
        assert own.waits == expected
    _weights._keep_in_order(node, own)  # type: ignore[arg-type]
    leaf.sum().backward()
    assert own.waits == [of_product]


def test_several_threads_of_a_cpu_do_not_add_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    leaf = _leaf()
    arrived = Arrivals(leaf)
    _train("mlp", "rows", leaf)
    assert None not in arrived


# ---- master weights -----------------------------------------------------------------------------


def _masters(op: Any, recompute: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """An op of x and its parameters, and these tensors; all but x are float32."""
    hidden, gated = 48, op is GATED_MLP
    sizes = [(hidden, FEATURES), (hidden,), (FEATURES, hidden), (FEATURES,)]
    sizes = [sizes[0], *sizes[:2], sizes[1], *sizes[2:]] if gated else sizes
    if op is _routed.ROUTED_LINEAR:
        sizes, choices = sizes[:2], (OURS, OURS, OURS)
    else:
        choices = (0, recompute, False)
    x = randn((ROWS, FEATURES), torch.bfloat16).requires_grad_()
    parameters = [(randn(size, torch.float32) * FEATURES**-0.5).requires_grad_() for size in sizes]
    return lambda *given: op.call(*given, *choices), [x, *parameters]


each_op = pytest.mark.parametrize(
    "op", [MLP, GATED_MLP, _routed.ROUTED_LINEAR], ids=lambda op: op.name
)


@each_op
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_weights_of_float32_beside_16_bits(op: Any, recompute: int) -> None:
    """Results equal those with copies in 16 bits; gradients are float32."""
    call, leaves = _masters(op, recompute)
    lowered = [t.bfloat16() if t.dim() == 2 else t for t in leaves]
    y, expected = call(*leaves), call(*lowered)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    dy = randn(y.shape, torch.bfloat16)
    found = torch.autograd.grad(y, leaves, dy)
    theirs = torch.autograd.grad(expected, leaves, dy)
    for a, b, leaf in zip(found, theirs, leaves, strict=True):
        assert a.dtype is leaf.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@each_op
def test_gradients_of_gradients_at_weights_of_float32(op: Any) -> None:
    call, leaves = _masters(op, 1)
    lowered = [t.bfloat16() if t.dim() == 2 else t for t in leaves]

    def second(given: list[Tensor]) -> tuple[Tensor, ...]:
        y = call(*given)
        first = torch.autograd.grad(y.float().square().sum(), leaves, create_graph=True)
        total = sum(gradient.float().square().sum() for gradient in first)
        assert isinstance(total, Tensor)
        return torch.autograd.grad(total, leaves)

    for a, b in zip(second(leaves), second(lowered), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


@each_op
def test_nothing_of_other_dtypes(op: Any) -> None:
    call, leaves = _masters(op, 1)
    leaves[1] = leaves[1].half()
    with pytest.raises(tfk.ArgumentTypeError, match="weight is float16, expected bfloat16"):
        call(*leaves)


def test_routes_take_no_other_dtypes() -> None:
    x = randn((ROWS, FEATURES), torch.bfloat16)
    weight = randn((FEATURES, FEATURES), torch.float64)
    with pytest.raises((TypeError, ValueError), match="weight is float64, expected bfloat16"):
        _routed.call(x, weight, None, OURS, OURS, OURS)


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_only_autocast_makes_masters(with_gradients: bool, backend: str) -> None:
    x, weight = randn((ROWS, FEATURES), torch.bfloat16), _leaf().requires_grad_(with_gradients)
    for call in (
        lambda: F.mlp(x, weight, None, weight, backend=backend),
        lambda: F.gated_mlp(x, weight, None, weight[:, : FEATURES // 2], backend=backend),
        lambda: F.linear(x, weight, backend=backend),
    ):
        with pytest.raises((TypeError, ValueError), match="weight is float32, expected bfloat16"):
            call()


@pytest.mark.parametrize("biases", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_under_autocast(
    biases: torch.dtype | None, recompute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of masters equal those of copies, and are added to ``.grad``."""
    monkeypatch.setattr(_weights, "_DEVICES", ("cpu",))
    weights, x = (_leaf(), _leaf(), _leaf()), randn((ROWS, FEATURES), torch.float32)
    given: dict[str, Any] = {"recompute": recompute}
    if biases is not None:
        given["bias"] = randn((FEATURES,), torch.float32)
        given["up_bias"] = randn((FEATURES,), biases)
    gate, up, down = (w.detach().bfloat16().requires_grad_() for w in weights)
    arrived = [Arrivals(leaf) for leaf in weights]
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.gated_mlp(x, weights[0], weights[1], weights[2], **given)
        y.sum().backward()
    given |= {name: t.bfloat16() for name, t in given.items() if name != "recompute"}
    theirs = F.gated_mlp(x.bfloat16(), gate, up, down, **given)
    theirs.sum().backward()
    torch.testing.assert_close(y, theirs, rtol=0, atol=0)
    for leaf, copy, seen in zip(weights, (gate, up, down), arrived, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.dtype is torch.float32
        assert copy.grad is not None
        _assert_close(leaf.grad, 2 * copy.grad.float())
        assert seen[1:] == [None]


@pytest.mark.parametrize("second", [torch.float32, torch.bfloat16], ids=str)
def test_biases_stay_wide_together(second: torch.dtype) -> None:
    x, weight = randn((ROWS, FEATURES), torch.float32), _leaf()
    biases = randn((FEATURES,), torch.float32), randn((FEATURES,), second)
    with torch.autocast("cpu", torch.bfloat16):
        wide = _weights.as_multiplied(x, weight, *biases, None, masters=False, wide_biases=True)
        low = _weights.as_multiplied(x, weight, *biases, None, masters=False, wide_biases=False)
    assert [t.dtype for t in wide[:2]] == [torch.bfloat16] * 2
    assert {t.dtype for t in wide[2:4]} == {second}
    assert {t.dtype for t in low[:4]} == {torch.bfloat16}
    assert wide[4] is None is low[4]


def test_a_master_that_changes_between_the_passes() -> None:
    """A master that changes between the passes is refused, as a weight without autocast is."""
    call, leaves = _masters(MLP, 1)
    y = call(*leaves)
    with torch.no_grad():
        leaves[1] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.float().sum().backward()
