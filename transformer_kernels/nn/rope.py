# SPDX-License-Identifier: MIT
"""Rotary position embedding as a module that holds its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.rope.rope import rope
from ..ops.rope.tables import base_of, rope_tables


class RotaryEmbedding(nn.Module):
    """:func:`transformer_kernels.functional.rope` with tables of its own.

    The tables are not in the ``state_dict``. They stay float32 when the module is cast to 16 bits,
    and become float64 with it.

    Args:
        dim: R, the numbers of a head that are rotated.
        max_positions: positions that the tables have.
        base: base of the frequencies.
        scaling: scaling of the frequencies, as :func:`transformer_kernels.functional.rope_tables`
            takes it.
        sections: how many frequencies belong to time, height and width.
        interleaved: whether pairs are neighbours instead of halves.
        heads_first: whether tensors are (B, H, T, D) instead of (B, T, H, D).
        backend: as in :func:`transformer_kernels.functional.rope`.
        device: device of the tables.

    >>> rope = tfk.nn.RotaryEmbedding(64, max_positions=4096)
    >>> q, k = rope(torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64))
    >>> q.shape
    torch.Size([2, 16, 8, 64])
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        max_positions: int = 2048,
        base: float | None = None,
        *,
        scaling: Mapping[str, Any] | None = None,
        sections: tuple[int, int, int] | None = None,
        interleaved: bool = False,
        heads_first: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.max_positions = max_positions
        self.base = base_of(base, scaling)
        self.scaling = scaling
        self.sections = sections
        self.interleaved = interleaved
        self.heads_first = heads_first
        self.backend = backend
        self._fill(device, torch.float32)

    def _fill(self, device: Any, dtype: torch.dtype) -> None:
        with torch.inference_mode(False):  # training may follow wherever it is made or moved
            tables = rope_tables(
                self.max_positions, self.dim, self.base, self.scaling, dtype=dtype, device=device
            )
        for name, table in zip(("cos", "sin"), tables, strict=True):
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        super()._apply(fn, recurse)
        is_double = self.cos.dtype is torch.float64
        self._fill(self.cos.device, torch.float64 if is_double else torch.float32)
        return self

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        offsets: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        inplace: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        return rope(
            q, k, self.cos, self.sin, position_ids=position_ids, offsets=offsets,
            cu_seqlens=cu_seqlens, sections=self.sections, interleaved=self.interleaved,
            heads_first=self.heads_first, inplace=inplace, backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        parts = [f"{self.dim}, max_positions={self.max_positions}, base={self.base:g}"]
        for name in ("scaling", "sections"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value!r}")
        parts += [f"{name}=True" for name in ("interleaved", "heads_first") if getattr(self, name)]
        if self.backend != "auto":
            parts.append(f"backend={self.backend!r}")
        return ", ".join(parts)
