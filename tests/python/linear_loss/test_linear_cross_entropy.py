# SPDX-License-Identifier: MIT
"""linear_cross_entropy and linear_token_log_probs: numbers, chunks, autograd, messages, the module;
declared/test_declare.py tests the declaration."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels import _torch
from transformer_kernels.ops.linear_loss import _chunks
from transformer_kernels.ops.linear_loss._ops import LINEAR_CROSS_ENTROPY
from transformer_kernels.testing.graphs import check_replay
from transformer_kernels.testing.inputs import LAYOUTS, randn
from transformer_kernels.testing.linear_loss_numbers import (
    CLASSES,
    ROWS,
    TERMS,
    check,
    gradients,
    loss_of,
    operands,
    ours,
    rows_of,
)

lce = tfk.functional.linear_cross_entropy
ce = tfk.functional.cross_entropy
log_probs = tfk.functional.linear_token_log_probs

WAYS = ("forward", "backward")
NUMBERS = {"forward": ("mean", "sum"), "backward": ("mean", "sum", "none")}
each_way = pytest.mark.parametrize("way", WAYS)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": True},
    "smoothing": {"label_smoothing": 0.1},
    "z-loss": {"z_loss": 1e-2},
    "softcap": {"softcap": 3.0},
    "all": {"weight": True, "label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 3.0},
}


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@each_way
def test_options(name: str, way: str, dtype: torch.dtype, device: str) -> None:
    """The mean is over many rows, so that factors are no powers of two."""
    leaves, target = operands(dtype, device)
    options = dict(OPTIONS[name])
    if options.get("weight"):
        options["weight"] = randn((CLASSES,), dtype, device).abs()
    for reduction in NUMBERS[way]:
        check(
            leaves, target, 0.37, reduction=reduction, gradient=way, backend="auto",
            chunk_bytes=rows_of(5, leaves), **options,
        )  # fmt: skip


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_classes_are_not_rounded_again(low: torch.dtype, device: str) -> None:
    """Only the logits are rounded in a mean that is wanted in float32."""
    leaves, target = operands(low, device)
    weight = randn((CLASSES,), low, device).abs()
    values = dict.fromkeys(LINEAR_CROSS_ENTROPY.names, 0) | {
        "x": leaves[0], "linear_weight": leaves[1], "linear_bias": leaves[2], "target": target,
        "weight": weight, "ignore_index": -100, "reduction": 1, "wide": True,
        "label_smoothing": 0.1, "z_loss": 0.0, "softcap": 0.0, "float32_sums": False,
        "packed": False, "with_entropy": False, "with_accuracy": False,
    }  # fmt: skip
    loss = LINEAR_CROSS_ENTROPY.raw.forward(*values.values())[0]
    logits = _torch.linear(*leaves).double()
    exact = loss_of(logits, target, weight.double(), label_smoothing=0.1)
    assert loss.dtype is torch.float32
    assert abs(loss.item() / exact.item() - 1) < 5e-4


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("count", [2, 3], ids=["no bias", "bias"])
def test_products(backend: str, count: int, dtype: torch.dtype) -> None:
    leaves, target = operands(dtype)
    for way in WAYS:
        check(leaves[:count], target, backend=backend, gradient=way, chunk_bytes=rows_of(4, leaves))


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (2, 50257), (33, 257), (64, 8)])
def test_sizes(rows: int, classes: int, dtype: torch.dtype, device: str) -> None:
    leaves, target = operands(dtype, device, rows, classes)
    check(leaves, target, gradient="auto", backend="auto", chunk_bytes=None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, device: str) -> None:
    leaves, target = operands(torch.float32, device)
    leaves = [LAYOUTS[layout](leaf.detach()).requires_grad_() for leaf in leaves[:2]] + leaves[2:]
    check(leaves, target, gradient="auto", backend="auto", chunk_bytes=rows_of(5, leaves))


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 12, 13, 99])
def test_chunk_borders(rows: int, device: str) -> None:
    """Chunks of any number of rows give the same result."""
    leaves, target = operands(torch.float64, device)
    whole = ours(leaves, target, reduction="none")
    parts = ours(leaves, target, reduction="none", chunk_bytes=rows_of(rows, leaves))
    torch.testing.assert_close(parts, whole)
    for a, b in zip(gradients(parts, leaves), gradients(whole, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_chunks_are_alike_and_within_the_limit() -> None:
    for rows, limit in itertools.product((1, 5, 8, 1000), (1, 10, 64, 10**6)):
        at_once = _chunks.rows_at_once(rows, 7, limit)
        assert 1 <= at_once <= max(rows, 1)
        assert at_once * 7 <= max(limit, 7)
        assert rows - (-(-rows // at_once) - 1) * at_once > 0
    assert _chunks.rows_at_once(0, 7, 64) == 1


@pytest.mark.parametrize("way", ["weight in float32", "on request", "many chunks"])
def test_sums_in_float32(way: str, device: str) -> None:
    """The weight's gradient is rounded once."""
    leaves, target = operands(torch.bfloat16, device, 96, 33)
    x, weight = leaves[0], leaves[1]
    chunk = rows_of(1 if way == "many chunks" else 24, leaves)
    if way == "weight in float32":
        weight = weight.detach().float().requires_grad_()
    loss = lce(
        x, weight, target, reduction="sum", chunk_bytes=chunk, float32_sums=way == "on request"
    )
    (found,) = gradients(loss, [weight])
    assert found.dtype is weight.dtype
    wide = [leaf.detach().double().requires_grad_() for leaf in (x, weight)]
    logits = _torch.linear(*wide)
    # Differences between bfloat16 logits, with their rounded gradients, and exact ones are no error
    # of the sums.
    (exact,) = gradients(F.cross_entropy(logits, target, reduction="sum"), [wide[1]])
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.05)


def test_float16_takes_a_scaled_loss(device: str) -> None:
    """A GradScaler scales the loss: no gradient may be lost before that."""
    leaves, target = operands(torch.float16, device, 64, 700)
    loss = ours(leaves, target)
    assert type(loss.grad_fn).__name__ == "LinearCrossEntropyBackward"
    scale = torch.tensor(1024.0)
    found = gradients(loss, leaves, scale)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = gradients(F.cross_entropy(_torch.linear(*wide), target), wide, scale)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=5e-3 * b.abs().max().item())


# ---- what counts --------------------------------------------------------------------------------


@each_way
def test_no_rows_and_none_that_count(way: str, device: str) -> None:
    leaves, _ = operands(torch.float32, device)
    x, weight, bias = leaves
    ignored = torch.full((ROWS,), -100, device=device)
    for rows, target in ((x, ignored), (x[:0], ignored[:0])):
        for reduction in NUMBERS[way]:
            loss = lce(rows, weight, target, linear_bias=bias, reduction=reduction, gradient=way)
            assert loss.isnan().all() if reduction == "mean" else not loss.any()
            for leaf, gradient in zip(leaves, gradients(loss, leaves), strict=True):
                assert gradient.shape == leaf.shape
                assert not gradient.any()


def test_gradients_of_ignored_rows_count_nothing(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    dloss = torch.where(target == -100, torch.nan, 1.0)
    found = gradients(ours(leaves, target, reduction="none"), leaves, dloss)
    expected = gradients(ours(leaves, target, reduction="sum"), leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_dimensions(device: str) -> None:
    leaves, target = operands(torch.float32, device, 12)
    x, weight, _ = leaves
    flat = lce(x, weight, target, reduction="none")
    folded = lce(x.view(3, 4, TERMS), weight, target.view(3, 4), reduction="none")
    assert torch.equal(folded, flat.view(3, 4))
    torch.testing.assert_close(lce(x[0], weight, target[0]), flat[0])
    one = lce(x[0], weight, target[0], reduction="none")
    assert one.shape == ()
    torch.testing.assert_close(lce(x, weight, target.int()), lce(x, weight, target))


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="since PyTorch 2.13")
def test_what_torch_has(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    x, weight, bias = leaves
    w = randn((CLASSES,), torch.float32, device).abs()
    for options in (
        {}, {"linear_bias": bias, "weight": w}, {"reduction": "none", "ignore_index": 3},
        {"label_smoothing": 0.2, "reduction": "sum", "ignore_index": None},
    ):  # fmt: skip
        labels = target.abs() if "ignore_index" in options else target
        labels = labels % CLASSES if labels is not target else target
        torch.testing.assert_close(
            lce(x, weight, labels, **options), F.linear_cross_entropy(x, weight, labels, **options)
        )


# ---- autograd -----------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("needed", list(itertools.product((False, True), repeat=3)), ids=str)
def test_frozen_operands(needed: tuple[bool, ...], way: str, device: str) -> None:
    leaves, target = operands(torch.float32, device)
    every = gradients(ours(leaves, target, gradient=way), leaves)
    some = [leaf.detach().requires_grad_(n) for leaf, n in zip(leaves, needed, strict=True)]
    loss = ours(some, target, gradient=way)
    assert loss.requires_grad == any(needed)
    if any(needed):
        loss.backward()
    for leaf, gradient, need in zip(some, every, needed, strict=True):
        assert (leaf.grad is not None) == need
        if need:
            assert torch.equal(leaf.grad, gradient)


@each_way
def test_products_that_nobody_needs_do_not_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, target = operands(torch.float32)
    called = []
    for name in ("dx", "dweight"):
        kind: Any = _chunks.TorchProducts
        own: Callable[..., Any] = getattr(kind, name)

        def spy(*arguments: Any, own: Any = own, name: str = name, **named: Any) -> Any:
            called.append(name)
            return own(*arguments, **named)

        monkeypatch.setattr(kind, name, spy)
    x, weight, _ = leaves
    lce(x.detach(), weight, target, gradient=way).backward()
    lce(x, weight.detach(), target, gradient=way).backward()
    with torch.no_grad():
        lce(x, weight, target, gradient=way)
    assert called == ["dweight", "dx"]


def test_derivatives(device: str) -> None:
    leaves, target = operands(torch.float64, device, 5, 7)
    leaves = [leaf.detach()[..., :4].requires_grad_() for leaf in leaves[:2]]
    for way in WAYS:
        for reduction in NUMBERS[way]:

            def function(x: Tensor, weight: Tensor, r: str = reduction, w: str = way) -> Tensor:
                return lce(
                    x, weight, target, reduction=r, gradient=w, softcap=2.0, z_loss=0.1,
                    chunk_bytes=2 * 7 * 8,
                )  # fmt: skip

            assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
            assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_a_second_backward_pass(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    loss = ours(leaves, target)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    first[1].zero_()  # it is the caller's
    expected = gradients(ours(leaves, target, gradient="backward"), leaves)
    for a, b in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        torch.testing.assert_close(a, b)


@each_way
def test_calls_repeat(way: str, device: str) -> None:
    leaves, target = operands(torch.float32, device, 40)
    runs = []
    for _ in range(2):
        loss = ours(leaves, target, gradient=way, chunk_bytes=rows_of(7, leaves))
        runs.append([loss, *gradients(loss, leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(("reduction", "dynamic"), [("mean", True), ("none", False)])
def test_compile(reduction: str, dynamic: bool, device: str) -> None:
    torch._dynamo.reset()

    def step(*leaves: Tensor) -> Tensor:
        x, weight, bias, target = leaves
        loss = lce(x.sin(), weight, target, linear_bias=bias, reduction=reduction, chunk_bytes=4000)
        return loss * 2

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (ROWS, ROWS + 4):
        leaves, target = operands(torch.float32, device, rows)
        found, expected = compiled(*leaves, target), step(*leaves, target)
        torch.testing.assert_close(found, expected)
        pairs = zip(gradients(found, leaves), gradients(expected, leaves), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b)


def test_the_gradient_op_is_well_defined(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    x, weight, bias = (leaf.detach() for leaf in leaves)
    op = torch.ops.transformer_kernels.linear_cross_entropy_gradient.default
    numbers = (-100, 0.1, 0.0, 0.0, 1, False, 4000, False, False, True, True)
    for needed in ((True, True, True), (False, True, False)):
        torch.library.opcheck(op, (x, weight, bias, target, None, *numbers, *needed))


def test_func_transforms_and_export(device: str) -> None:
    leaves, target = operands(torch.float64, device)
    x, weight, _ = (leaf.detach() for leaf in leaves)
    found = torch.func.grad(lambda w: lce(x, w, target))(weight)
    expected = torch.func.grad(lambda w: F.cross_entropy(_torch.linear(x, w), target))(weight)
    torch.testing.assert_close(found, expected)

    class Head(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return lce(x, weight, target)

    exported = torch.export.export(Head(), (x, weight))
    torch.testing.assert_close(exported.module()(x, weight), lce(x, weight, target))


def test_autocast() -> None:
    leaves, target = operands(torch.float32)
    x, weight, bias = leaves
    with torch.autocast("cpu", torch.bfloat16):
        found = lce(x, weight, target, linear_bias=bias)
        theirs = F.cross_entropy(F.linear(x, weight, bias), target)
    assert found.dtype is theirs.dtype
    torch.testing.assert_close(found, theirs, rtol=0.02, atol=0.02)
    for a, b in zip(gradients(found, leaves), gradients(theirs, leaves), strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=2e-3)


each_way_and_reduction = pytest.mark.parametrize(
    ("way", "reduction"), [("forward", "mean"), ("backward", "mean"), ("backward", "none")]
)


def pad_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pads columns, as on a GPU with a vocabulary of an uneven size."""
    monkeypatch.setattr(_chunks.RowChunks, "_row_step", lambda _: CLASSES + 61)
    monkeypatch.setattr(_chunks.RowChunks, "_is_even", lambda _: False)


@each_way_and_reduction
def test_columns_that_are_no_classes(
    way: str, reduction: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_columns(monkeypatch)
    leaves, target = operands(dtype)
    size = 2 * rows_of(5, leaves)
    check(leaves, target, reduction=reduction, gradient=way, chunk_bytes=size, backend="auto")


@each_way_and_reduction
def test_infinite_rows_that_are_ignored_have_no_gradient(
    way: str, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_columns(monkeypatch)
    (x, weight, _), target = operands(torch.float32)
    x.data[target == -100] = torch.inf
    (dx,) = gradients(lce(x, weight.detach(), target, gradient=way, reduction=reduction), [x])
    assert not dx[target == -100].any()
    assert dx.isfinite().all()


@pytest.mark.cuda
@each_way_and_reduction
@pytest.mark.parametrize("chunks", [3, 6])  # the weight's gradient in bfloat16, and in float32
@pytest.mark.parametrize("classes", [1000, 1003])
def test_vocabularies_on_cuda(classes: int, chunks: int, way: str, reduction: str) -> None:
    leaves, target = operands(torch.bfloat16, "cuda", 300, classes)
    size = rows_of(300, leaves) // chunks
    check(leaves, target, reduction=reduction, gradient=way, chunk_bytes=size, backend="auto")


@pytest.mark.cuda
@each_way
@pytest.mark.parametrize("rows", [ROWS, 4])  # of a chunk, of which each is a whole line
def test_autocast_on_cuda(rows: int, way: str) -> None:
    leaves, target = operands(torch.float32, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        size = rows * 192 * 2
        found = ours(leaves, target, gradient=way, chunk_bytes=size)
        theirs = F.cross_entropy(F.linear(*leaves), target)
    assert found.dtype is theirs.dtype is torch.float32
    for a, b in zip(gradients(found, leaves), gradients(theirs, leaves), strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=2e-3)


@pytest.mark.cuda
@each_way
@pytest.mark.parametrize("chunks", [1, 3, 6])
def test_float32_weights_sum_what_is_not_rounded(chunks: int, way: str) -> None:
    """Products with a 16-bit gradient of the logits add to float32 weights' gradients directly."""
    (x, weight, _), target = operands(torch.float32, "cuda", 300, 1003)
    size = -(-300 // chunks) * 1024 * 2  # rows of logits are whole lines
    with torch.autocast("cuda", torch.bfloat16):
        found = gradients(lce(x, weight, target, gradient=way, chunk_bytes=size), [weight])[0]
    narrow, wide = weight.detach().bfloat16(), x.detach().bfloat16().double()
    logits = (wide @ narrow.double().t()).bfloat16().double().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(logits, target), logits)
    expected = slope.bfloat16().double().t() @ wide
    # A logit at the border of two bfloat16 changes a row's slopes, which no sum can mend: the
    # median is that of numbers whose logits are the same.
    far, rounded = ((x - expected).abs().median() for x in (found, expected.bfloat16()))
    assert far < rounded / 2


@pytest.mark.cuda
@each_way
def test_cuda_graph_and_no_synchronisation(way: str) -> None:
    leaves, target = operands(torch.bfloat16, "cuda", 64, 5003)

    def step() -> list[Tensor]:
        return gradients(ours(leaves, target, gradient=way, chunk_bytes=10**5), leaves)

    check_replay(step)


@pytest.mark.cuda
def test_memory_is_that_of_a_chunk() -> None:
    leaves, target = operands(torch.bfloat16, "cuda", 4096, 50257)
    ours(leaves, target).backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours(leaves, target, chunk_bytes=64 << 20).backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < (80 << 20) + sum(6 * leaf.nbytes for leaf in leaves)


# ---- messages -----------------------------------------------------------------------------------

X, W = torch.randn(6, 8), torch.randn(5, 8)
LABELS = torch.tensor([0, 4, 3, -100, 2, 2])
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no dimensions": ((torch.tensor(1.0), W, LABELS[0]), {}, "x has 0 dimensions, expected"),
    "too few labels": ((X, W, LABELS[1:]), {}, r"target has shape \(5,\), expected \(6,\)"),
    "columns": ((X, W[:, 1:], LABELS), {}, "linear_weight has 7 columns, expected 8"),
    "no classes": ((X, W[:0], LABELS), {}, r"linear_weight has shape \(0, 8\), expected a class"),
    "label": ((X, W, LABELS + 1), {}, "target is 5 in row 1, expected one of"),
    "gradient": ((X, W, LABELS), {"gradient": "sideways"}, "gradient is 'sideways', expected"),
    "none": (
        (X, W, LABELS), {"gradient": "forward", "reduction": "none"},
        "gradient is 'forward', expected 'auto' or 'backward'",
    ),
    "reduction": ((X, W, LABELS), {"reduction": "all"}, "reduction is 'all', expected"),
    "chunk": ((X, W, LABELS), {"chunk_bytes": 0}, "chunk_bytes is 0, expected at least 1"),
    "triton": ((X, W, LABELS), {"backend": "triton"}, "backend is 'triton', expected"),
    "other device": ((X, W, LABELS), {"backend": "cuda"}, "backend is 'cuda', expected"),
    "jagged": (
        (torch.nested.nested_tensor([X, X], layout=torch.jagged), W, LABELS), {},
        "x is a jagged nested tensor, expected a dense one",
    ),
    "options": (
        (X, W, LABELS), {"options": object()}, r"options is object, expected None \(chunk_bytes,"
    ),
    "gradient of weight": (
        (X, W, LABELS), {"weight": torch.ones(5, requires_grad=True)}, "weight requires a gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_messages(name: str) -> None:
    arguments, options, words = REFUSED[name]
    for needs in (False, True):
        x = arguments[0].detach().requires_grad_(needs)
        with pytest.raises((ValueError, TypeError), match=f"^linear_cross_entropy: {words}"):
            lce(x, *arguments[1:], **options)


# ---- log-probabilities, the module --------------------------------------------------------------


def test_token_log_probs(dtype: torch.dtype, device: str) -> None:
    leaves, tokens = operands(dtype, device, 12)
    x, weight, bias = leaves
    found = log_probs(
        x.view(3, 4, TERMS), weight, tokens.view(3, 4), linear_bias=bias, softcap=5.0,
        chunk_bytes=rows_of(5, leaves),
    )  # fmt: skip
    logits = _torch.linear(x, weight, bias)
    expected = tfk.functional.token_log_probs(logits, tokens, softcap=5.0)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found.flatten(), expected)
    assert not found.flatten()[1]
    dy = randn((12,), torch.float32, device)
    size = 0.02 if dtype.itemsize == 2 else 1e-5
    pairs = zip(
        gradients(found.flatten(), leaves, dy), gradients(expected, leaves, dy), strict=True
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=size, atol=size)


def test_module() -> None:
    options = {"label_smoothing": 0.1, "z_loss": 1e-3, "chunk_bytes": 100}
    module = tfk.nn.LinearCrossEntropyLoss(8, 5, bias=True, weight=torch.rand(5), **options)
    assert set(module.state_dict()) == {"linear.weight", "linear.bias", "weight"}
    expected = ce(module.linear(X), LABELS, module.weight, label_smoothing=0.1, z_loss=1e-3)
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(X, LABELS), expected)
    assert "z_loss=0.001" in repr(module)
    layer = {"linear_bias": module.linear.bias, "weight": module.weight}
    plain = lce(X, module.linear.weight, LABELS, options=None, **layer, **options)
    assert torch.equal(module(X, LABELS), plain)
    tied = tfk.nn.LinearCrossEntropyLoss(8, 5)
    table = torch.nn.Embedding(5, 8)
    tied.linear.weight = table.weight
    tied(table(LABELS.abs() % 5), LABELS).backward()
    assert table.weight.grad is not None
    theirs = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if theirs is not None:
        assert tied.state_dict().keys() == theirs(8, 5).state_dict().keys()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_a_layer_that_is_not_bare_is_called(shape: tuple[int, ...], reduction: str) -> None:
    """A layer with a hook, as sharding and adapters set, is called as a module."""
    options = {"reduction": reduction, "chunk_bytes": 100, "softcap": 3.0, "ignore_index": None}
    module = tfk.nn.LinearCrossEntropyLoss(8, 5, weight=torch.rand(5), **options)
    x, target = torch.randn(*shape, 8), torch.randint(5, shape)
    expected = module(x, target)
    seen = []
    module.linear.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(module(x, target), expected)
    assert seen == [1]
    module.linear = torch.nn.Sequential(module.linear)
    torch.testing.assert_close(module(x, target), expected)
