# SPDX-License-Identifier: MIT
"""Embedding, a subclass of PyTorch's, so that isinstance checks keep working."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..ops.embedding.embedding import embedding, refuse_options


class Embedding(nn.Embedding):
    """:class:`torch.nn.Embedding` with ``backend``, without ``max_norm`` and ``sparse``."""

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
