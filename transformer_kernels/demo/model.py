# SPDX-License-Identifier: MIT
"""Hugging Face's stock GPT-2, on bytes or on its own vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from transformer_kernels.demo.size import BYTES


def stock_model(
    layers: int,
    width: int,
    heads: int,
    block: int,
    seed: int,
    dropout: float = 0.0,
    vocabulary: int = BYTES,
) -> Any:
    """A model with random weights, which depend on the seed alone."""
    torch.manual_seed(seed)
    configure: Any = GPT2Config  # typed in part only
    config = configure(
        vocab_size=vocabulary,
        n_positions=block,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=vocabulary != BYTES,  # on few bytes, untied tables learn faster
    )
    return GPT2LMHeadModel(config)
