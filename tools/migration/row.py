# SPDX-License-Identifier: MIT
"""A row of a table, and the tensors that rows are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import transformer_kernels as tfk

BATCH, TIME, HEADS, DIM, CHANNELS, CLASSES = 2, 6, 4, 16, 64, 11


@dataclass(frozen=True)
class Row:
    theirs: str
    ours: str
    expected: str
    differs: str = ""
    inputs: str = ""


@dataclass(frozen=True)
class Library:
    name: str
    note: str  # what holds for all rows: the layout of q, k and v first
    layout: str  # the dimensions of q, k and v
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def page(self) -> str:
        """The name of the generated table."""
        return f"migration_{self.name.lower().replace(' ', '_').replace('-', '_')}.md"


def tensors(layout: str) -> dict[str, Any]:
    """Random tensors of every name that rows use; q, k and v in a library's layout."""
    sizes = {"B": BATCH, "T": TIME, "H": HEADS, "D": DIM}
    angles = torch.randn(TIME, DIM // 2)
    randn: Callable[..., torch.Tensor] = torch.randn
    found: dict[str, Any] = {name: randn([sizes[letter] for letter in layout]) for name in "qkv"}
    return found | {
        "qkv": randn(BATCH, TIME, 3, HEADS, DIM),
        "kv": randn(BATCH, TIME, 2, HEADS, DIM),
        "packed": randn(10, HEADS, DIM),  # sequences of 4 and 6 tokens
        "cu_seqlens": torch.tensor([0, 4, 10], dtype=torch.int32),
        "bias": randn(BATCH, HEADS, TIME, TIME),
        "mask": (torch.rand(BATCH, 1, TIME, TIME) > 0.3) | torch.eye(TIME, dtype=torch.bool),
        "slopes": torch.rand(HEADS),
        "cos": angles.cos(),
        "sin": angles.sin(),
        "cos2": torch.cat((angles, angles), -1)[None].cos(),  # as Hugging Face has them
        "sin2": torch.cat((angles, angles), -1)[None].sin(),
        "freqs": torch.cat((angles, angles), -1)[:, None, None],
        "scores": randn(BATCH, HEADS, TIME, TIME),
        "x": randn(BATCH, TIME, CHANNELS),
        "residual": randn(BATCH, TIME, CHANNELS),
        "w": randn(CHANNELS),
        "b": randn(CHANNELS),
        "W": randn(CLASSES, CHANNELS),
        "gate": randn(BATCH, TIME, CHANNELS),
        "up": randn(BATCH, TIME, CHANNELS),
        **{name: randn(96, CHANNELS) / 8 for name in ("w1", "w2")},
        **{name: randn(96) for name in ("b1", "b2")},
        "w3": randn(CHANNELS, 96) / 8,
        "b3": randn(CHANNELS),
        "rows": randn(BATCH * TIME, CHANNELS),
        "logits": randn(BATCH * TIME, CLASSES),
        "target": torch.randint(CLASSES, (BATCH * TIME,)),
        "tokens": torch.randint(CLASSES, (BATCH, TIME)),
        "images": randn(BATCH, 3, 32, 32),
        "edges": torch.randint(12, (2, 40)),
        "implementations": {
            "torch": torch.nn.functional.scaled_dot_product_attention,
            "ours": tfk.compat.flash_attention,
        },
    }
