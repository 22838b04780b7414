# SPDX-License-Identifier: MIT
"""Embedding, a subclass of PyTorch's, so that isinstance checks keep working."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..ops.embedding.embedding import embedding, refuse_options


class Embedding(nn.Embedding):
    """:class:`torch.nn.Embedding`: its constructor, ``from_pretrained`` and ``state_dict``.

    Args:
        args: the arguments of :class:`torch.nn.Embedding`, by position. ``max_norm`` and
            ``sparse=True`` are refused.
        backend: as for :func:`transformer_kernels.functional.embedding`.
        kwargs: its arguments by keyword.

    >>> table = tfk.nn.Embedding(1000, 64, padding_idx=0)
    >>> table(torch.tensor([[3, 1, 0]])).shape
    torch.Size([1, 3, 64])
    """

    backend: str = "auto"  # serves modules saved without it

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_options(self.max_norm, self.sparse)
        self.backend = backend

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq, self.sparse, backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.backend == "auto" else f"{text}, backend={self.backend!r}"
