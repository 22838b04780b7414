# SPDX-License-Identifier: MIT
"""CrossEntropyLoss, a subclass of PyTorch's, so that isinstance checks keep working, and
LinearCrossEntropyLoss, which contains the linear layer before the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentValueError
from .._torch import forwards_of, is_bare
from ..ops.linear_loss.linear_cross_entropy import linear_cross_entropy
from ..ops.loss.cross_entropy import cross_entropy

_OPTIONS = ("z_loss", "softcap", "gradient", "backend")
_LINEAR = forwards_of(nn.Linear)
# Arguments of the loss both with logits and without them.
_SHARED = ("reduction", "ignore_index", "label_smoothing", "z_loss", "softcap", "backend")
_STATISTICS = ("return_entropy", "return_accuracy")


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """:class:`torch.nn.CrossEntropyLoss`, with a z-loss, a soft cap and a choice of when the
    gradient is computed.

    Args:
        weight: weight of each class, (C).
        size_average: deprecated, as in PyTorch.
        ignore_index: rows with this label are ignored.
        reduce: deprecated, as in PyTorch.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: the share of the uniform distribution in the target, from 0 to 1.
        z_loss: factor of the squared log-sum-exp of each row.
        softcap: above 0, logits are ``softcap * tanh(logits / softcap)``.
        gradient: ``"backward"``, ``"forward"`` or ``"in_place"``.
        backend: as for :func:`transformer_kernels.functional.cross_entropy`, which explains all of
            these.

    >>> loss = tfk.nn.CrossEntropyLoss(z_loss=1e-4)
    >>> logits = torch.randn(8, 1000, requires_grad=True)
    >>> loss(logits, torch.randint(1000, (8,))).backward()
    """

    # The class attributes serve modules saved without them.
    z_loss: float = 0.0
    softcap: float = 0.0
    gradient: str = "backward"
    backend: str = "auto"

    def __init__(
        self,
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
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss = z_loss
        self.softcap = softcap
        self.gradient = gradient
        self.backend = backend

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, z_loss=self.z_loss, softcap=self.softcap,
            gradient=self.gradient, backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in _OPTIONS}
        return ", ".join(
            f"{name}={value!r}"
            for name, value in options.items()
            if value != getattr(CrossEntropyLoss, name)
        )


class LinearCrossEntropyLoss(nn.Module):
    """A linear layer and the cross-entropy of its results, the logits, which are never stored
    whole: :func:`transformer_kernels.functional.linear_cross_entropy` as a module.

    The constructor and the ``state_dict`` are those of ``torch.nn.LinearCrossEntropyLoss`` (since
    PyTorch 2.13) for classes of one dimension: ``linear.weight``, ``linear.bias`` and, where it is
    given, ``weight``. ``loss.linear.weight = embedding.weight`` ties the two. If an adapter stands
    in the place of ``linear``, or it has a hook, that module computes the logits.

    Args:
        in_features: K, the columns of the input.
        num_classes: V, the number of classes.
        bias: whether the layer has a bias.
        device: device of the parameters.
        dtype: dtype of the parameters.
        weight: weight of each class, (V,).
        options: the other arguments of the function, by keyword.

    >>> loss = tfk.nn.LinearCrossEntropyLoss(32, 1000)
    >>> x, labels = torch.randn(2, 8, 32), torch.randint(1000, (2, 8))
    >>> loss(x, labels).backward()
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Any:  # noqa: A002
        if not is_bare(self.linear, _LINEAR):
            return self._loss_of_logits(self.linear(input), target)
        return linear_cross_entropy(
            input, self.linear.weight, target, linear_bias=self.linear.bias, weight=self.weight,
            **self.options,
        )  # fmt: skip

    def _loss_of_logits(self, logits: Tensor, target: Tensor) -> Any:
        asked = [name for name in _STATISTICS if self.options.get(name)]
        if asked:
            raise ArgumentValueError(
                f"LinearCrossEntropyLoss: {asked[0]} is True, expected False (a module with a hook"
                " or an adapter stands in the place of linear)"
            )
        given = {name: self.options.get(name) for name in _SHARED}
        options = {name: value for name, value in given.items() if value is not None}
        rows = logits.reshape(-1, logits.shape[-1])
        loss = cross_entropy(rows, target.flatten(), self.weight, **options)
        return loss.view(target.shape) if loss.dim() else loss

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
