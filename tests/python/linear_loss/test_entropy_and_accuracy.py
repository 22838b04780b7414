# SPDX-License-Identifier: MIT
"""Entropy and accuracy beside linear_cross_entropy, against formulas in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels as tfk
from transformer_kernels import _torch
from transformer_kernels.ops.linear_loss import _statistics
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.linear_loss_numbers import (
    CLASSES,
    gradients,
    loss_of,
    operands,
    ours,
    rows_of,
)

ASKED = {"return_entropy": True, "return_accuracy": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": True},
    "all": {"weight": True, "label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 3.0},
}
REDUCTIONS = ("none", "mean", "sum")


def statistics_of(
    logits: Tensor, target: Tensor, softcap: float, reduction: str
) -> tuple[Tensor, Tensor]:
    """Entropy and accuracy of logits, from their definitions."""
    z = softcap * torch.tanh(logits / softcap) if softcap else logits
    p = z.softmax(-1)
    counted = target != -100
    hits = (logits.argmax(-1) == target).double()
    rows = [-(p * p.log()).sum(-1) * counted, hits * counted]
    if reduction == "none":
        return rows[0], rows[1]
    by = counted.sum() if reduction == "mean" else 1
    return rows[0].sum() / by, rows[1].sum() / by


def hits_within(logits: Tensor, target: Tensor, unit: float, reduction: str) -> tuple[Tensor, ...]:
    """The least and the most accuracy that logits have whose errors are up to ``unit``."""
    near = unit * logits.abs().max()
    counted = target != -100
    own = logits.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    others = logits.scatter(-1, target.clamp(min=0).unsqueeze(-1), -torch.inf).amax(-1)
    bounds = [((own - others) > at) & counted for at in (near, -near)]
    if reduction == "none":
        return tuple(hits.double() for hits in bounds)
    by = counted.sum() if reduction == "mean" else 1
    return tuple(hits.sum() / by for hits in bounds)


def in_float64(
    leaves: list[Tensor], target: Tensor, dentropy: float, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """The three results and the gradients of ``loss + dentropy * entropy``, from whole logits of
    the operands' dtype."""
    weight = options.pop("weight", None)
    weight = None if weight is None else weight.to(leaves[0].dtype)
    logits = _torch.linear(*leaves)
    loss = loss_of(logits, target, weight, **options)
    softcap = options.get("softcap", 0.0)
    entropy, accuracy = statistics_of(logits, target, softcap, options["reduction"])
    found = gradients(loss.double().sum() + dentropy * entropy.double().sum(), leaves)
    return [loss, entropy, accuracy], found


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_numbers_and_gradients(name: str, reduction: str, dtype: torch.dtype, device: str) -> None:
    """The error against float64 is at most twice that of PyTorch's operations in the dtype."""
    leaves, target = operands(dtype, device)
    options = {**OPTIONS[name], "reduction": reduction}
    if options.get("weight"):
        options["weight"] = randn((CLASSES,), dtype, device).abs()
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact, exact_gradients = in_float64(wide, target, 0.7, **options)
    theirs, their_gradients = in_float64(leaves, target, 0.7, **options)
    loss, entropy, accuracy = ours(
        leaves, target, chunk_bytes=rows_of(5, leaves), **options, **ASKED
    )
    assert entropy.dtype is accuracy.dtype is (dtype if dtype.itemsize == 8 else torch.float32)
    assert not accuracy.requires_grad
    found = gradients(loss.double().sum() + 0.7 * entropy.double().sum(), leaves)
    unit = torch.finfo(dtype).eps
    room = (16 if dtype.itemsize == 8 else 4) * unit  # float64 is its own reference
    columns = zip(
        ("loss", "entropy", "accuracy", "dx", "dweight", "dbias"),
        (loss, entropy, accuracy, *found),
        (*theirs, *their_gradients),
        (*exact, *exact_gradients),
        strict=True,
    )
    for what, a, b, c in columns:
        if what == "accuracy":
            least, most = hits_within(_torch.linear(*wide), target, 8 * unit, reduction)
            assert (least - 1e-6 <= a).all()
            assert (a <= most + 1e-6).all()
            continue
        error, allowed = (a - c).abs().max(), 2 * (b - c).abs().max()
        assert error <= allowed + room * c.abs().max(), what


def test_reductions_add_up(device: str) -> None:
    """Chunks and pieces of any size give the same numbers."""
    leaves, target = operands(torch.float64, device, 12)
    whole = ours(leaves, target, reduction="none", **ASKED)
    counted = target != -100
    assert not whole.entropy[~counted].any()
    assert not whole.accuracy[~counted].any()
    for rows, piece in itertools.product((1, 5, 99), (1, 3 * 8 * CLASSES, 1 << 20)):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_CPU_BYTES", "_OTHER_BYTES"):
                patch.setattr(_statistics, name, piece)
            size = rows_of(rows, leaves)
            for reduction, by in (("sum", 1), ("mean", counted.sum())):
                found = ours(leaves, target, reduction=reduction, chunk_bytes=size, **ASKED)
                for a, b in zip(found[1:], whole[1:], strict=True):
                    torch.testing.assert_close(a, b.sum() / by)
            expected = gradients(whole.entropy.sum() / counted.sum(), leaves)
            whole = ours(leaves, target, reduction="none", **ASKED)
            for a, b in zip(gradients(found.entropy, leaves), expected, strict=True):
                torch.testing.assert_close(a, b)


def test_the_gradient_in_the_forward_pass(device: str) -> None:
    """The loss has the gradients that it has alone; the entropy has none."""
    leaves, target = operands(torch.float32, device)
    loss, entropy, accuracy = ours(leaves, target, gradient="forward", **ASKED)
    assert not entropy.requires_grad
    assert not accuracy.requires_grad
    alone = ours(leaves, target, gradient="forward")
    assert torch.equal(loss, alone)
    for a, b in zip(gradients(loss, leaves), gradients(alone, leaves), strict=True):
        assert torch.equal(a, b)
    other = ours(leaves, target, **ASKED)
    torch.testing.assert_close((entropy, accuracy), tuple(x.detach() for x in other[1:]))
    only = ours(leaves, target, return_accuracy=True)
    assert only.entropy is None
    assert type(only.loss.grad_fn).__name__.startswith("_InForward")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_derivatives(reduction: str, device: str) -> None:
    leaves, target = operands(torch.float64, device, 5, 7)
    leaves = [leaf.detach()[..., :4].requires_grad_() for leaf in leaves[:2]]

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = tfk.functional.linear_cross_entropy(
            x, weight, target, reduction=reduction, softcap=2.0, z_loss=0.1, label_smoothing=0.1,
            chunk_bytes=2 * 7 * 8, return_entropy=True,
        )  # fmt: skip
        return found.loss, found.entropy

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_entropy_alone_and_frozen_operands(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    x, weight, bias = leaves
    _, entropy, _ = ours(leaves, target, return_entropy=True)
    expected = gradients(statistics_of(_torch.linear(*leaves), target, 0.0, "mean")[0], leaves)
    for a, b in zip(gradients(entropy, leaves), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    frozen = ours([x, weight.detach(), bias.detach()], target, return_entropy=True)
    torch.testing.assert_close(gradients(frozen.entropy, [x])[0], expected[0], rtol=1e-4, atol=1e-6)


def test_hidden_classes_and_ties(device: str) -> None:
    """A class with a logit of -inf adds nothing; of equal largest logits the first counts."""
    x = torch.eye(3, device=device)
    weight = torch.zeros(4, 3, device=device)
    bias = torch.tensor([0.0, 0.0, -torch.inf, 0.0], device=device).requires_grad_()
    target = torch.tensor([0, 1, 3], device=device)
    found = tfk.functional.linear_cross_entropy(
        x, weight, target, linear_bias=bias, reduction="none", **ASKED
    )
    torch.testing.assert_close(found.entropy, torch.full_like(found.entropy, 3.0).log())
    assert found.accuracy.tolist() == [1.0, 0.0, 0.0]
    (dbias,) = gradients(found.entropy.sum(), [bias])
    assert torch.equal(dbias, torch.zeros_like(dbias))


def test_no_rows_and_none_that_count(device: str) -> None:
    leaves, target = operands(torch.float32, device)
    ignored = torch.full_like(target, -100)
    for x, labels in ((leaves[0], ignored), (leaves[0][:0], ignored[:0])):
        for reduction in REDUCTIONS:
            found = ours([x, *leaves[1:]], labels, reduction=reduction, **ASKED)
            for result in found:
                assert result.isnan().all() if reduction == "mean" else not result.any()
            for gradient in gradients(found.entropy, leaves):
                assert not gradient.any() or reduction == "mean"


def test_ignored_rows_may_hold_anything(device: str) -> None:
    (x, weight, bias), target = operands(torch.float32, device)
    x.data[target == -100] = torch.nan
    found = ours([x, weight, bias], target, **ASKED)
    assert all(result.isfinite() for result in found)
    (dx,) = gradients(found.loss + found.entropy, [x])
    assert dx.isfinite().all()


def test_log_probabilities_and_shapes(device: str) -> None:
    leaves, target = operands(torch.float32, device, 12)
    x, weight, bias = leaves
    pair = tfk.functional.linear_token_log_probs(
        x.view(3, 4, -1), weight, target.view(3, 4), linear_bias=bias, return_entropy=True
    )
    found = ours(leaves, target, reduction="none", return_entropy=True)
    torch.testing.assert_close(pair[0].flatten(), -found.loss)
    assert torch.equal(pair[1].flatten(), found.entropy)
    assert pair[0].shape == pair[1].shape == (3, 4)


def test_the_module(device: str) -> None:
    loss = tfk.nn.LinearCrossEntropyLoss(8, 5, device=device, **ASKED)
    x, target = randn((6, 8), torch.float32, device), torch.arange(6, device=device) % 5
    expected = tfk.functional.linear_cross_entropy(x, loss.linear.weight, target, **ASKED)
    torch.testing.assert_close(tuple(loss(x, target)), tuple(expected))
    loss.linear.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="LinearCrossEntropyLoss: return_entropy is True"):
        loss(x, target)


def test_compiled(device: str) -> None:
    torch._dynamo.reset()

    def step(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        found = tfk.functional.linear_cross_entropy(x, weight, target, **ASKED)
        only = tfk.functional.linear_cross_entropy(x, weight, target, return_accuracy=True)
        return found.loss + 0.1 * found.entropy + found.accuracy + only.loss + only.accuracy

    (x, weight, _), target = operands(torch.float32, device)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found, expected = compiled(x, weight, target), step(x, weight, target)
    torch.testing.assert_close(found, expected)
    pairs = (gradients(y, [x, weight]) for y in (found, expected))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_memory_is_that_of_chunks_and_pieces(low: torch.dtype, reduction: str) -> None:
    """Beside the gradients a pass holds two chunks of logits, two pieces in the arithmetic's dtype,
    and numbers of rows; whole logits would be many times that."""
    rows, classes = 512, 2048
    leaves, target = operands(low, rows=rows, classes=classes)
    chunk, piece = rows_of(16, leaves), 1 << 16

    def step() -> None:
        found = ours(leaves, target, reduction=reduction, chunk_bytes=chunk, **ASKED)
        gradients(found.loss.sum() + found.entropy.sum(), leaves)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_statistics, "_CPU_BYTES", piece)
        step()
        with tfk.profile.MemoryProfiler("cpu") as watch:
            step()
    own = sum(leaf.numel() * 4 for leaf in leaves) * 2 + 16 * 4 * rows
    assert watch.report.peak_bytes <= 2 * chunk + 4 * piece + own
    assert 2 * chunk + 4 * piece + own < rows * classes * low.itemsize
