# SPDX-License-Identifier: MIT
"""Declares the choice of tokens: csrc/include/transformer_kernels/decode has what it computes."""

# Functions have the signatures of the raw ops, even where they do not read every argument.
# ruff: noqa: ARG001

from __future__ import annotations

import torch
from torch import Tensor

from .._declare_raw import declare_raw
from . import _formula


def _fake_sample(
    logits: Tensor, parameters: Tensor, seed: Tensor, position: Tensor, previous: Tensor | None,
    prompt_lengths: Tensor | None, bias: Tensor | None, allowed: Tensor | None, top: int,
    need_probabilities: bool, stages: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, vocabulary = logits.shape
    shape = (batch, top) if top > 0 else (0,)
    return (
        logits.new_empty(batch, dtype=torch.int64),
        logits.new_empty(batch if top >= 0 else 0, dtype=torch.float32),
        logits.new_empty(shape, dtype=torch.int64),
        logits.new_empty(shape, dtype=torch.float32),
        logits.new_empty((batch, vocabulary) if need_probabilities else (0,), dtype=torch.float32),
    )


SAMPLE_LOGITS = declare_raw(
    "sample_logits(Tensor logits, Tensor parameters, Tensor seed, Tensor position,"
    " Tensor? previous, Tensor? prompt_lengths, Tensor? bias, Tensor? allowed, int top,"
    " bool need_probabilities, int stages) -> (Tensor tokens, Tensor log_probs, Tensor top_tokens,"
    " Tensor top_log_probs, Tensor probabilities)",
    of=None,
    reference=_formula.sample_logits,
    fake=_fake_sample,
)


def _fake_accept(
    draft_tokens: Tensor, draft: Tensor | None, target: Tensor, lengths: Tensor | None,
    seed: Tensor, position: Tensor, logits: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch = target.shape[0]
    return seed.new_empty(batch), seed.new_empty(batch)


SPECULATIVE_ACCEPT = declare_raw(
    "speculative_accept(Tensor draft_tokens, Tensor? draft, Tensor target, Tensor? lengths,"
    " Tensor seed, Tensor position, bool logits) -> (Tensor accepted, Tensor token)",
    of=None,
    reference=_formula.speculative_accept,
    fake=_fake_accept,
)
