# SPDX-License-Identifier: MIT
"""The ops as functions: drop-in for :mod:`torch.nn.functional`, with more by keyword.

>>> x = torch.randn(2, 4, 16, 16)
>>> y = tfk.functional.softmax(x, -1)
>>> torch.allclose(y, torch.nn.functional.softmax(x, -1), atol=1e-6)
True
>>> y = tfk.functional.softmax(x, -1, scale=0.125, causal=True)  # one pass over memory
"""

from .ops.attention._sdpa import scaled_dot_product_attention
from .ops.attention.attention import attention, attention_varlen
from .ops.attention.decode import attention_with_kv_cache
from .ops.attention_block.attention_block import attention_block
from .ops.decode.sample_logits import SampledTokens, sample_logits
from .ops.decode.speculative_accept import speculative_accept
from .ops.embedding.embedding import embedding, embedding_add
from .ops.graph.gather_reduce import (
    edge_dot,
    gather_reduce,
    graph_attention,
    segment_reduce,
    segment_softmax,
)
from .ops.graph.graph import Graph, segment_offsets
from .ops.linear.grouped_linear import grouped_linear
from .ops.linear.linear import gated_linear, linear, linear_act
from .ops.linear.linear_list import linear_list
from .ops.linear.mlp import gated_mlp, mlp
from .ops.linear.quantized_linear import dequantize_weight, quantize_weight, quantized_linear
from .ops.linear_loss.linear_cross_entropy import linear_cross_entropy, linear_token_log_probs
from .ops.loss.cross_entropy import cross_entropy, token_log_probs
from .ops.moe.balance import expert_counts, load_balancing_loss, router_z_loss
from .ops.moe.dispatch import Dispatch, moe_dispatch, moe_permute, moe_unpermute
from .ops.moe.experts import moe_experts
from .ops.moe.reroute import moe_reroute
from .ops.moe.router import moe_router
from .ops.norm.dropout_norm import bias_dropout_add_layer_norm, bias_dropout_add_rms_norm
from .ops.norm.layer_norm import add_layer_norm, layer_norm
from .ops.norm.rms_norm import add_rms_norm, rms_norm
from .ops.pointwise.dropout import bias_dropout_add, dropout
from .ops.pointwise.pointwise import FUNCTIONS as _ACTIVATIONS
from .ops.rope.qk_norm import qk_norm
from .ops.rope.rope import rope
from .ops.rope.tables import rope_tables
from .ops.softmax.softmax import log_softmax, softmax

globals().update(_ACTIVATIONS)  # one function for each row of the table

__all__ = [
    *_ACTIVATIONS,
    "Dispatch",
    "Graph",
    "SampledTokens",
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "attention_block",
    "attention_varlen",
    "attention_with_kv_cache",
    "bias_dropout_add",
    "bias_dropout_add_layer_norm",
    "bias_dropout_add_rms_norm",
    "dequantize_weight",
    "dropout",
    "edge_dot",
    "embedding",
    "embedding_add",
    "expert_counts",
    "cross_entropy",
    "gated_linear",
    "gated_mlp",
    "gather_reduce",
    "graph_attention",
    "grouped_linear",
    "layer_norm",
    "linear",
    "linear_act",
    "linear_cross_entropy",
    "linear_list",
    "linear_token_log_probs",
    "load_balancing_loss",
    "log_softmax",
    "mlp",
    "moe_dispatch",
    "moe_experts",
    "moe_permute",
    "moe_reroute",
    "moe_router",
    "moe_unpermute",
    "qk_norm",
    "quantize_weight",
    "quantized_linear",
    "rms_norm",
    "rope",
    "rope_tables",
    "sample_logits",
    "router_z_loss",
    "scaled_dot_product_attention",
    "segment_offsets",
    "segment_reduce",
    "segment_softmax",
    "softmax",
    "speculative_accept",
    "token_log_probs",
]
