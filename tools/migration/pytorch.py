# SPDX-License-Identifier: MIT
"""Calls of PyTorch."""

from __future__ import annotations

from .expected import NORM, SUM, sdpa
from .row import Library, Row

TORCH = Library(
    "torch",
    "`q`, `k`, `v` are (batch, heads, time, dim). `tfk.functional` and `tfk.nn` have PyTorch's"
    " names and arguments, so that replacing `F` and `nn` is mostly all; further arguments are"
    " keywords.",
    "BHTD",
    (
        Row(
            "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
            "tfk.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
            sdpa("attn_mask=mask", "BHTD"),
            "nothing; a query that sees no key gives 0",
        ),
        Row(
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "tfk.functional.attention(q, k, v, causal=True, top_left=True, heads_first=True)",
            sdpa("is_causal=True", "BHTD"),
            "layout (batch, time, heads, dim) without `heads_first`; without `top_left` the last"
            " query sees the last key",
        ),
        Row(
            "F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.1)",
            "tfk.functional.attention(q, k, v, bias=bias, scale=0.1, heads_first=True)",
            sdpa("attn_mask=bias, scale=0.1", "BHTD"),
            "numbers are `bias=`, with a gradient; booleans are `mask=`; `dropout_p` is `dropout=`",
        ),
        Row(
            "nn.MultiheadAttention(64, 4, batch_first=True)",
            "tfk.nn.MultiheadAttention(64, 4, batch_first=True)",
            "nn.MultiheadAttention(64, 4, batch_first=True)",
            "nothing; kernels run with `need_weights=False`",
            "x, x, x, need_weights=False",
        ),
        Row(
            "F.layer_norm(x, (64,), w, b)",
            "tfk.functional.layer_norm(x, (64,), w, b)",
            NORM.format(eps="1e-5"),
            "float32 weights beside 16-bit `x` need no cast",
        ),
        Row(
            "nn.LayerNorm(64)",
            "tfk.nn.LayerNorm(64)",
            "nn.LayerNorm(64)",
            "nothing; the same `state_dict`, and a subclass",
            "x",
        ),
        Row(
            "y = x + residual; F.rms_norm(y, (64,), w, 1e-6), y",
            "tfk.functional.add_rms_norm(x, residual, (64,), w, 1e-6)",
            SUM.format(eps="1e-6"),
            "one pass over memory",
        ),
        Row(
            "F.softmax((0.125 * scores).masked_fill(~mask, -torch.inf), -1)",
            "tfk.functional.softmax(scores, -1, scale=0.125, mask=mask)",
            "F.softmax((0.125 * scores).masked_fill(~mask, -torch.inf), -1)",
            "one pass; a row without a true element gives 0 instead of NaN",
        ),
        Row(
            "F.gelu(F.linear(x, w1, b1))",
            'tfk.functional.linear_act(x, w1, b1, "gelu")',
            "F.gelu(F.linear(x, w1, b1))",
            "the activation is applied to the product before it is stored",
        ),
        Row(
            "F.cross_entropy(logits, target, label_smoothing=0.1)",
            "tfk.functional.cross_entropy(logits, target, label_smoothing=0.1)",
            "F.cross_entropy(logits, target, label_smoothing=0.1)",
            "also `z_loss=` and `softcap=`",
        ),
        Row(
            "F.cross_entropy(rows @ W.t(), target)",
            "tfk.functional.linear_cross_entropy(rows, W, target)",
            "F.cross_entropy(rows @ W.t(), target)",
            "logits are never stored whole",
        ),
        Row(
            "F.embedding(tokens, W)",
            "tfk.functional.embedding(tokens, W)",
            "F.embedding(tokens, W)",
            "no `max_norm`, no sparse gradient",
        ),
    ),
)
