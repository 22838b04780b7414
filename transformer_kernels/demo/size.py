# SPDX-License-Identifier: MIT
"""The sizes of the demo's models, and the options that change them."""

from __future__ import annotations

from dataclasses import dataclass

BYTES = 256  # the vocabulary of text as bytes
TOKENS = 50257  # the size of GPT-2's


@dataclass(frozen=True)
class Size:
    """The sizes of a model and of its training."""

    layers: int
    width: int
    heads: int
    block: int  # bytes of a sequence
    batch: int
    steps: int
    learning_rate: float
    experts: int = 8  # of a mixture
    top_k: int = 2

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, {self.heads} heads"


# Options, the fields that they change, and their words.
OPTIONS = (
    ("--batch-size", "batch", "sequences in a batch"),
    ("--seq-len", "block", "bytes of a sequence"),
    ("--d-model", "width", "channels of the model"),
    ("--num-heads", "heads", "attention heads, which divide the channels"),
    ("--num-layers", "layers", "transformer blocks"),
    ("--num-experts", "experts", "experts of each layer, with --model mixtral"),
    ("--top-k", "top_k", "experts that see a token, with --model mixtral"),
    ("--steps", "steps", "training steps; fewer than 30 show no speed-up"),
)
