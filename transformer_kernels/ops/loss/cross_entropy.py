# SPDX-License-Identifier: MIT
"""Cross-entropy with the arguments of torch.nn.functional, and log-probabilities of given
tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    as_integer,
    check_tensors,
    dtype_name,
    not_floating,
    shape_text,
    translate,
)
from ..._library import log_copy, log_dispatch
from ..._torch import autocasts, is_eager, jagged_like
from .._constants import refuse_gradient
from .._declare_checks import as_declared
from .._kinds import (
    is_distributed,
    is_jagged,
    jagged_values,
    require_memory,
)
from .._public import overridable
from ._formula import MEAN, NONE, SUM
from ._in_forward import call_in_forward
from ._ops import CROSS_ENTROPY

_call = CROSS_ENTROPY.call
_OP = "cross_entropy"
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
_GRADIENTS = dict.fromkeys(("backward", "forward", "in_place"))


def _check_tensors(op: str, tensors: dict[str, Any]) -> None:
    check_tensors(op, tensors, "weight")
    require_memory(op, tensors, jagged=[name for name in tensors if name != "weight"])


def _classes_last(x: Tensor) -> Tensor:
    """Reshapes (N, C, d1, ...) to rows of classes."""
    if x.dim() <= 2:
        return x
    rows = x.movedim(1, -1).reshape(-1, x.shape[1])
    log_copy(f"{_OP}: the classes of x are not its last dimension", rows, x)
    return rows


def _same_dtype(x: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    if x.dtype is probabilities.dtype:
        return x, probabilities
    dtype = torch.promote_types(x.dtype, probabilities.dtype)
    log_dispatch(f"{_OP}: x and target are cast to {dtype_name(dtype)}")
    return x.to(dtype), probabilities.to(dtype)


def _widens(x: Tensor) -> bool:
    """Whether autocast makes the loss float32, as in PyTorch; logits keep their dtype."""
    low = x.dtype in (torch.float16, torch.bfloat16)
    return low and autocasts(x)


def _target(
    x: Tensor, target: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rows of logits, with labels or with rows of probabilities."""
    if x.dim() == 0:
        raise ArgumentValueError(f"{_OP}: x has 0 dimensions, expected at least 1")
    if target.shape == x.shape:
        if not target.is_floating_point():
            raise not_floating(_OP, "target", target.dtype)
        if ignore_index >= 0:
            raise ArgumentValueError(
                f"{_OP}: ignore_index is {ignore_index}, expected none (target has probabilities)"
            )
        x, target = _same_dtype(x, target)
        return _classes_last(x), None, _classes_last(target)
    rows = x.shape[:1] + x.shape[2:] if x.dim() > 1 else x.shape[:0]
    if target.shape != rows:
        raise ArgumentValueError(
            f"{_OP}: target has shape {shape_text(target)}, expected {tuple(rows)} (labels) or"
            f" {shape_text(x)} (probabilities)"
        )
    return _classes_last(x), target.flatten() if x.dim() > 2 else target, None


def _reduction_of(size_average: Any, reduce: Any, reduction: Any) -> int:
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    return as_choice(_OP, "reduction", reduction, REDUCTIONS)


def _check_options(weight: Tensor | None, gradient: Any, backend: Any) -> None:
    if gradient != "backward":
        as_choice(_OP, "gradient", gradient, _GRADIENTS)
        if backend in ("triton", "reference"):
            raise ArgumentValueError(
                f"{_OP}: gradient is {gradient!r}, expected 'backward' (backend={backend!r})"
            )
    refuse_gradient(_OP, weight=weight)


@overridable
def cross_entropy(
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    gradient: str = "backward",
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.cross_entropy`, with a soft cap of the logits and a z-loss.

    Args:
        input: logits (N, C), (C) or (N, C, d1, ...), float64, float32, float16 or bfloat16. If
            classes are not the last dimension, the logits are copied.
        target: labels, int32 or int64, or probabilities with ``input``'s shape.
        weight: weight of each class (C), of ``input``'s dtype or float32; it has no gradient.
        size_average: deprecated, as in PyTorch, and so is ``reduce``.
        ignore_index: rows with this label are ignored.
        reduction: ``"mean"`` over the weights of labels that are not ignored, ``"sum"`` or
            ``"none"``.
        label_smoothing: the share of the uniform distribution in the target, from 0 to 1.
        z_loss: factor of the squared log-sum-exp of each row, which is weighted as its label is.
        softcap: above 0, logits are ``softcap * tanh(input / softcap)``.
        gradient: ``"backward"`` computes the gradient in the backward pass. ``"forward"`` computes
            it in the forward pass, while a row is on the chip, for a single backward pass, which
            scales it unless the incoming gradient is 1. ``"in_place"`` does so too, and writes it
            over ``input``. Graphs and transforms of PyTorch only support ``"backward"``.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Raises:
        ValueError: a shape or number is none of these. A label that is no class is one on the CPU;
            on CUDA its row is NaN instead, and so are sums that it is in.
        TypeError: a dtype is none of these.

    Under autocast the loss is float32, as in PyTorch, and the logits keep their dtype.

    >>> logits, labels = torch.randn(8, 1000), torch.randint(1000, (8,))
    >>> loss = tfk.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    >>> theirs = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    >>> torch.allclose(loss, theirs, atol=1e-5)
    True
    """
    tensors = {"x": input, "target": target, "weight": weight}
    try:
        if is_jagged(input):
            return _jagged(
                input, target, weight, size_average, ignore_index, reduce, reduction,
                label_smoothing, z_loss=z_loss, softcap=softcap, gradient=gradient, backend=backend,
            )  # fmt: skip
        number = _reduction_of(size_average, reduce, reduction)
        _check_options(weight, gradient, backend)
        index = as_integer(_OP, "ignore_index", ignore_index)
        x, labels, probabilities = _target(input, target, index)
        wide = _widens(x)
        arguments = (
            x, labels, probabilities, weight, index, label_smoothing, z_loss, softcap, number, wide
        )  # fmt: skip
        asks = gradient != "backward" and x.requires_grad and torch.is_grad_enabled()
        asks = asks and not is_distributed(x)
        if asks and is_eager():
            loss = _in_forward(gradient == "in_place", arguments)
        else:
            loss = _call(*arguments, backend)
    except (RuntimeError, AttributeError, TypeError):
        _check_tensors(_OP, tensors)
        raise
    if number != NONE or input.dim() <= 2:
        return loss
    return loss.reshape(input.shape[:1] + input.shape[2:])


def _in_forward(in_place: bool, arguments: tuple[Any, ...]) -> Tensor:
    declared = as_declared(CROSS_ENTROPY, arguments)
    try:
        return call_in_forward(in_place, declared)
    except RuntimeError as error:
        raise translate(_OP, error) from None


def _jagged(x: Tensor, target: Tensor, *others: Any, **options: Any) -> Tensor:
    """Runs sequences of logits (B, j, C) with labels (B, j), or probabilities, as rows."""
    if x.dim() != 3 or x._ragged_idx != 1:  # type: ignore[attr-defined]
        raise ArgumentValueError(
            f"{_OP}: x is jagged with {x.dim()} dimensions, expected sequences of rows (B, j, C)"
        )
    if not is_jagged(target):
        raise ArgumentTypeError(f"{_OP}: target is a Tensor, expected a jagged one as x is")
    rows, labels = jagged_values(_OP, "x", x), jagged_values(_OP, "target", target)
    loss: Tensor = cross_entropy(rows, labels, *others, **options)
    return loss if loss.dim() == 0 else jagged_like(x, loss)


@overridable
def token_log_probs(
    logits: Tensor,
    tokens: Tensor,
    *,
    ignore_index: int = -100,
    softcap: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Computes log-probabilities of given tokens: ``log_softmax(logits, -1)`` at ``tokens``.

    Args:
        logits: (..., C), float64, float32, float16 or bfloat16.
        tokens: (...), int32 or int64.
        ignore_index: rows with this token have a result of 0, without a gradient.
        softcap: above 0, logits are ``softcap * tanh(logits / softcap)``.
        backend: as for :func:`cross_entropy`.

    Returns:
        (...), float32 (float64 for float64).

    Raises:
        ValueError, TypeError: as in :func:`cross_entropy`, whose kernels compute the result.

    >>> logits, tokens = torch.zeros(2, 4), torch.tensor([1, 3])
    >>> tfk.functional.token_log_probs(logits, tokens)  # log(1 / 4)
    tensor([-1.3863, -1.3863])
    """
    try:
        index = as_integer("token_log_probs", "ignore_index", ignore_index)
        x, labels = logits, tokens
        if is_jagged(logits) and is_jagged(tokens):
            x = jagged_values("token_log_probs", "logits", logits)
            labels = jagged_values("token_log_probs", "tokens", tokens)
        surprise: Tensor = _call(
            x, labels, None, None, index, 0.0, 0.0, softcap, NONE, True, backend
        )
    except (RuntimeError, AttributeError, TypeError):
        _check_tensors("token_log_probs", {"x": logits, "tokens": tokens})
        raise
    return -(jagged_like(logits, surprise) if is_jagged(logits) else surprise)
