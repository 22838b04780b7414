# SPDX-License-Identifier: MIT
"""Modules: drop-in for :mod:`torch.nn`, with the same constructors and state_dict keys.

>>> layers = [tfk.nn.LayerNorm(64), tfk.nn.MLP(64, 256)]
>>> torch.nn.Sequential(*layers)(torch.randn(2, 5, 64)).shape
torch.Size([2, 5, 64])
"""

from collections.abc import Callable
from typing import Any

from .._names import explain_names
from ..ops.linear_loss.linear_cross_entropy import linear_cross_entropy
from ..ops.moe.router import moe_router
from .activation import MODULES as _ACTIVATIONS
from .attention import CausalSelfAttention, MultiheadAttention
from .attention_block import AttentionBlock
from .dropout import Dropout, DropoutAdd
from .embedding import Embedding
from .experts import Experts, MoE
from .gpt2 import FusedGPT2Block
from .linear import MLP, FusedLinearReLU, GatedMLP, Linear, LinearAct
from .loss import CrossEntropyLoss, LinearCrossEntropyLoss
from .moe import ExpertGating, LoadBalancer, MoERouter
from .norm import LayerNorm, RMSNorm
from .quantized_linear import QuantizedLinear
from .rope import RotaryEmbedding
from .softmax import LogSoftmax, Softmax

globals().update(_ACTIVATIONS)  # one module for each activation

__all__ = [
    *_ACTIVATIONS,
    "AttentionBlock",
    "CausalSelfAttention",
    "Dropout",
    "DropoutAdd",
    "Embedding",
    "ExpertGating",
    "Experts",
    "FusedGPT2Block",
    "FusedLinearReLU",
    "GatedMLP",
    "CrossEntropyLoss",
    "LayerNorm",
    "Linear",
    "LinearAct",
    "LinearCrossEntropyLoss",
    "LoadBalancer",
    "LogSoftmax",
    "MLP",
    "MoE",
    "MoERouter",
    "MultiheadAttention",
    "QuantizedLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "Softmax",
]

# Functions that take the arguments of a constructor that this does not name.
_PASSED_TO: dict[str, Callable[..., Any]] = {
    "LinearCrossEntropyLoss": linear_cross_entropy,
    "MoE": moe_router,
    "MoERouter": moe_router,
}
for _name in __all__:
    explain_names(globals()[_name], _PASSED_TO.get(_name))
