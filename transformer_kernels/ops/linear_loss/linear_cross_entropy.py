# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer with the arguments of torch.nn.functional, and log-probabilities
of given tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    as_count,
    as_flag,
    as_integer,
    check_tensors,
    translate,
)
from ..._library import require_backend
from ..._torch import any_autocast, is_eager
from .._constants import refuse_gradient
from .._kinds import is_distributed, require_memory
from .._public import overridable
from ..linear._choice import refusal
from ..loss._formula import NONE
from ..loss.cross_entropy import REDUCTIONS
from ._ops import LINEAR_CROSS_ENTROPY, TARGET, X, call_in_forward

_OP = "linear_cross_entropy"
_GRADIENTS = dict.fromkeys(("auto", "forward", "backward"))


class LinearCrossEntropyOutput(NamedTuple):
    """The results of :func:`linear_cross_entropy`; None for one that was not asked for."""

    loss: Tensor
    entropy: Tensor | None
    accuracy: Tensor | None


class TokenScores(NamedTuple):
    """The results of :func:`linear_token_log_probs`; None for one that was not asked for."""

    log_probs: Tensor
    entropy: Tensor | None
    accuracy: Tensor | None


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype in which autocast would multiply; None where it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _cast(x: Tensor | None, dtype: torch.dtype, *others: torch.dtype) -> Any:
    """Casts as autocast does, which leaves float64; dtypes in ``others`` are left too."""
    if x is None or not x.is_floating_point() or x.dtype in (torch.float64, *others):
        return x
    return x.to(dtype)


def _rows(op: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Flattens to rows: x (T, K) and target (T,)."""
    X.check(op, x, {})
    TARGET.check(op, target, {"x": x})
    if x.dim() == 1:
        return x.unsqueeze(0), target.unsqueeze(0)
    return (x, target) if x.dim() == 2 else (x.flatten(0, -2), target.flatten())


def _makes_gradients(
    gradient: str, backend: str, number: int, operands: Any, with_entropy: bool
) -> bool:
    """Whether the forward pass computes the gradients."""
    graph = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if not (graph or is_eager()) or backend in ("triton", "reference") or number == NONE:
        return False
    if is_distributed(operands[0]):
        return False
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in operands):
        return False
    # A float16 loss is scaled so that small gradients are not lost: the incoming gradient has to be
    # known before they are rounded. So has that of the entropy.
    asks = gradient == "auto" and operands[0].dtype is not torch.float16 and not with_entropy
    return gradient == "forward" or asks


def _call(
    x: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor,
    weight: Tensor | None, numbers: tuple[Any, ...], wide: bool, gradient: str,
    chunk_bytes: int | None, float32_sums: bool, backend: str, with_entropy: bool = False,
    with_accuracy: bool = False,
) -> LinearCrossEntropyOutput:  # fmt: skip
    require_memory(_OP, {"x": x, "linear_weight": linear_weight, "target": target})
    if any_autocast() and (dtype := _autocast_dtype(x)) is not None:
        # Parameters are cast only for the products: their gradients stay in float32. So does the
        # loss, as in PyTorch.
        x, wide = _cast(x, dtype), True
        linear_weight = _cast(linear_weight, dtype, torch.float32)
        linear_bias = _cast(linear_bias, dtype, torch.float32)
    leading = x.shape[:-1]
    x, target = _rows(_OP, x, target)
    limit = 0 if chunk_bytes is None else as_count(_OP, "chunk_bytes", chunk_bytes)
    packed = backend == "cpu" or (
        backend == "auto" and x.is_cpu and refusal(_OP, x, linear_weight, by_rules=True) is None
    )
    arguments = (
        x, linear_weight, linear_bias, target, weight, *numbers, wide, limit, float32_sums, packed,
        with_entropy, with_accuracy,
    )  # fmt: skip
    number, operands = numbers[-1], (x, linear_weight, linear_bias)
    if _makes_gradients(gradient, backend, number, operands, with_entropy):
        require_backend(_OP, backend, x)
        try:
            loss, entropy, accuracy = call_in_forward(arguments)
        except RuntimeError as error:
            raise translate(_OP, error) from None
    else:
        loss, entropy, accuracy = LINEAR_CROSS_ENTROPY.call(*arguments, backend)

    def shaped(result: Tensor) -> Tensor:
        return result.reshape(leading) if number == NONE else result

    return LinearCrossEntropyOutput(
        shaped(loss),
        shaped(entropy) if with_entropy else None,
        shaped(accuracy).detach() if with_accuracy else None,
    )


@overridable
def linear_cross_entropy(
    input: Tensor,  # noqa: A002
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    gradient: str = "auto",
    chunk_bytes: int | None = None,
    float32_sums: bool = False,
    return_entropy: bool = False,
    return_accuracy: bool = False,
    backend: str = "auto",
) -> Any:
    """Computes ``cross_entropy(linear(input, linear_weight, linear_bias), target)`` without storing
    the logits.

    Only a chunk of rows of logits is in memory at a time. The arguments are those of
    ``torch.nn.functional.linear_cross_entropy`` (since PyTorch 2.13), and those that
    :func:`cross_entropy` has in addition. Classes have one dimension, and targets are labels.

    Args:
        input: (..., K), float64, float32, float16 or bfloat16.
        linear_weight: (V, K), of ``input``'s dtype or float32; in float32 it is cast, and its
            gradient is summed in float32.
        target: (...), int32 or int64.
        linear_bias: (V,), of ``input``'s dtype or float32.
        weight: weight of each class (V,), without a gradient. It, ``reduction``, ``ignore_index``
            (None means -100), ``label_smoothing``, ``z_loss`` and ``softcap`` are those of
            :func:`cross_entropy`.
        options: must be None: PyTorch's ``LinearCrossEntropyOptions`` configure its own chunks. Use
            ``chunk_bytes``, ``float32_sums`` and ``gradient`` here.
        gradient: ``"forward"`` computes the gradients in the forward pass, while a chunk's logits
            exist: three products, and the backward pass scales them unless the incoming gradient is
            1. ``"backward"`` computes the logits again: four products, and nothing is kept between
            the passes. ``"auto"`` is ``"forward"``, except with ``reduction="none"``, with
            ``return_entropy``, and in float16, whose loss is scaled.
        chunk_bytes: the most bytes of logits in memory, but at least one row; by default 64 MiB on
            a CPU, and elsewhere the size of ``linear_weight`` in the input's dtype, between 512 MiB
            and 1 GiB.
        float32_sums: sum a 16-bit gradient of ``linear_weight`` over chunks in float32 even if
            there are four or fewer, which takes memory.
        return_entropy: also return the entropy of the classes' probabilities in nats, which has a
            gradient unless ``gradient="forward"``.
        return_accuracy: also return whether the target's logit is the largest (the first of equal
            ones), as numbers 0 and 1 without a gradient.
        backend: ``"auto"`` runs the product that :func:`linear` would choose; ``"cpu"`` runs ours,
            ``"reference"`` PyTorch operations that store the logits.

    Returns:
        The loss, as :func:`cross_entropy` of the logits would return it. If the entropy or the
        accuracy is asked for, a named tuple ``(loss, entropy, accuracy)`` with None for what is
        not. Both are float32 (float64 for float64) and 0 for ignored rows; their mean is over the
        other rows, whatever ``weight`` is.

    Raises:
        ValueError, TypeError: as in :func:`cross_entropy`; also for ``gradient="forward"`` with
            ``reduction="none"``, whose gradients depend on the incoming one.

    >>> x, head = torch.randn(2, 8, 32, requires_grad=True), torch.randn(1000, 32)
    >>> labels = torch.randint(1000, (2, 8))
    >>> loss = tfk.functional.linear_cross_entropy(x, head, labels)
    >>> loss.backward()
    >>> x.grad.shape
    torch.Size([2, 8, 32])
    >>> loss, entropy, accuracy = tfk.functional.linear_cross_entropy(
    ...     x, head, labels, return_entropy=True, return_accuracy=True
    ... )
    >>> (loss - 0.01 * entropy).backward()
    """
    tensors = {
        "x": input, "linear_weight": linear_weight, "target": target, "linear_bias": linear_bias,
        "weight": weight,
    }  # fmt: skip
    try:
        number = as_choice(_OP, "reduction", reduction, REDUCTIONS)
        as_choice(_OP, "gradient", gradient, _GRADIENTS)
        if gradient == "forward" and number == NONE:
            raise ArgumentValueError(
                f"{_OP}: gradient is 'forward', expected 'auto' or 'backward' (reduction='none')"
            )
        refuse_gradient(_OP, weight=weight)
        if options is not None:
            raise ArgumentTypeError(
                f"{_OP}: options is {type(options).__name__}, expected None (chunk_bytes,"
                " float32_sums and gradient say how it runs)"
            )
        index = -100 if ignore_index is None else as_integer(_OP, "ignore_index", ignore_index)
        numbers = (index, label_smoothing, z_loss, softcap, number)
        asked = (
            as_flag(_OP, "return_entropy", return_entropy),
            as_flag(_OP, "return_accuracy", return_accuracy),
        )
        found = _call(
            input, linear_weight, linear_bias, target, weight, numbers, False, gradient,
            chunk_bytes, float32_sums, backend, *asked,
        )  # fmt: skip
        return found if any(asked) else found.loss
    except (RuntimeError, AttributeError, TypeError):
        check_tensors(_OP, tensors, "linear_bias", "weight")
        raise


@overridable
def linear_token_log_probs(
    input: Tensor,  # noqa: A002
    linear_weight: Tensor,
    tokens: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    softcap: float = 0.0,
    chunk_bytes: int | None = None,
    float32_sums: bool = False,
    return_entropy: bool = False,
    return_accuracy: bool = False,
    backend: str = "auto",
) -> Any:
    """Computes ``token_log_probs(linear(input, linear_weight, linear_bias), tokens)`` without
    storing the logits.

    Args:
        tokens: (...), int32 or int64.
        ignore_index: rows with this token have a result of 0, without a gradient.
        return_entropy: also return the entropy of each row in nats, which has a gradient.
        return_accuracy: also return 1 where the token is the most likely one, and 0 elsewhere.

    The other arguments are those of :func:`linear_cross_entropy`, which computes the result; the
    backward pass computes the logits again.

    Returns:
        (...), float32 (float64 for float64). If the entropy or the accuracy is asked for, a named
        tuple ``(log_probs, entropy, accuracy)``, all alike, with None for what is not.

    >>> x, head, tokens = torch.randn(2, 8, 32), torch.randn(1000, 32), torch.randint(1000, (2, 8))
    >>> tfk.functional.linear_token_log_probs(x, head, tokens).shape
    torch.Size([2, 8])
    """
    try:
        index = as_integer("linear_token_log_probs", "ignore_index", ignore_index)
        asked = (
            as_flag("linear_token_log_probs", "return_entropy", return_entropy),
            as_flag("linear_token_log_probs", "return_accuracy", return_accuracy),
        )
        surprise, entropy, accuracy = _call(
            input, linear_weight, linear_bias, tokens, None, (index, 0.0, 0.0, softcap, NONE),
            True, "backward", chunk_bytes, float32_sums, backend, *asked,
        )  # fmt: skip
        return TokenScores(-surprise, entropy, accuracy) if any(asked) else -surprise
    except (RuntimeError, AttributeError, TypeError):
        check_tensors(
            "linear_token_log_probs",
            {
                "x": input, "linear_weight": linear_weight, "tokens": tokens,
                "linear_bias": linear_bias,
            },
            "linear_bias",
        )  # fmt: skip
        raise
