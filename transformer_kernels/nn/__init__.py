# SPDX-License-Identifier: MIT
"""Modules: drop-in for :mod:`torch.nn`, with the same constructors and state_dict keys."""

from .activation import MODULES as _ACTIVATIONS
from .attention import CausalSelfAttention, MultiheadAttention
from .dropout import Dropout, DropoutAdd
from .embedding import Embedding
from .loss import CrossEntropyLoss
from .norm import LayerNorm, RMSNorm
from .rope import RotaryEmbedding
from .softmax import LogSoftmax, Softmax

globals().update(_ACTIVATIONS)  # one for each activation

__all__ = [
    *_ACTIVATIONS,
    "CausalSelfAttention",
    "Dropout",
    "DropoutAdd",
    "Embedding",
    "CrossEntropyLoss",
    "LayerNorm",
    "LogSoftmax",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "Softmax",
]
