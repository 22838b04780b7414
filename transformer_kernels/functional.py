# SPDX-License-Identifier: MIT
"""The ops as functions: drop-in for :mod:`torch.nn.functional`, with more by keyword."""

from .ops.attention._sdpa import scaled_dot_product_attention
from .ops.attention.attention import attention, attention_varlen
from .ops.embedding.embedding import embedding, embedding_add
from .ops.fpga.linear import linear
from .ops.loss.cross_entropy import cross_entropy, token_log_probs
from .ops.norm.dropout_norm import bias_dropout_add_layer_norm, bias_dropout_add_rms_norm
from .ops.norm.layer_norm import add_layer_norm, layer_norm
from .ops.norm.rms_norm import add_rms_norm, rms_norm
from .ops.pointwise.dropout import bias_dropout_add, dropout
from .ops.pointwise.pointwise import FUNCTIONS as _ACTIVATIONS
from .ops.rope.rope import rope
from .ops.rope.tables import rope_tables
from .ops.softmax.softmax import log_softmax, softmax

globals().update(_ACTIVATIONS)  # one for each row of the table

__all__ = [
    *_ACTIVATIONS,
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "attention_varlen",
    "bias_dropout_add",
    "bias_dropout_add_layer_norm",
    "bias_dropout_add_rms_norm",
    "dropout",
    "embedding",
    "embedding_add",
    "cross_entropy",
    "layer_norm",
    "linear",
    "log_softmax",
    "rms_norm",
    "rope",
    "rope_tables",
    "scaled_dot_product_attention",
    "softmax",
    "token_log_probs",
]
