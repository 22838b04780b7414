# SPDX-License-Identifier: MIT
"""Modules: drop-in for :mod:`torch.nn`, with the same constructors and state_dict keys."""

from .attention import CausalSelfAttention, MultiheadAttention
from .norm import LayerNorm, RMSNorm
from .softmax import LogSoftmax, Softmax

__all__ = [
    "CausalSelfAttention",
    "LayerNorm",
    "LogSoftmax",
    "MultiheadAttention",
    "RMSNorm",
    "Softmax",
]
