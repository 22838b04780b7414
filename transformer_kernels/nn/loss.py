# SPDX-License-Identifier: MIT
"""CrossEntropyLoss. It is a subclass of PyTorch's, so isinstance checks keep working."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.loss.cross_entropy import cross_entropy

_OPTIONS = ("z_loss", "softcap", "gradient", "backend")


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """:class:`torch.nn.CrossEntropyLoss`; ``z_loss``, ``softcap`` and ``gradient`` as in
    :func:`transformer_kernels.functional.cross_entropy`."""

    __constants__ = [*nn.CrossEntropyLoss.__constants__, *_OPTIONS]  # noqa: RUF012

    # They serve modules saved without them.
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
