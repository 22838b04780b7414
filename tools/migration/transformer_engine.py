# SPDX-License-Identifier: MIT
"""Calls of Transformer Engine."""

from __future__ import annotations

from .expected import GELU_MLP, rotated, sdpa
from .row import Library, Row

TE = Library(
    "Transformer Engine",
    '`q`, `k`, `v` are (time, batch, heads, dim), its `qkv_format="sbhd"`. `params_dtype` is'
    " `dtype=`. FP8 recipes and tensor parallelism have no counterpart here.",
    "TBHD",
    (
        Row(
            "te.LayerNorm(64)",
            "tfk.nn.LayerNorm(64)",
            "nn.LayerNorm(64)",
            "`zero_centered_gamma` is `zero_centered_weight=`",
            "x",
        ),
        Row(
            "te.RMSNorm(64, zero_centered_gamma=True)",
            "tfk.nn.RMSNorm(64, 1e-5, zero_centered_weight=True)",
            "lambda m, x: F.rms_norm(x, (64,), 1 + m.weight, 1e-5)",
            "the default of `eps` is the machine epsilon, TE's 1e-5",
            "x",
        ),
        Row("te.Linear(64, 64)", "tfk.nn.Linear(64, 64)", "nn.Linear(64, 64)", "", "x"),
        Row(
            "te.LayerNormLinear(64, 192)",
            "nn.Sequential(tfk.nn.LayerNorm(64), tfk.nn.Linear(64, 192))",
            "nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 192))",
            "two modules, two passes",
            "x",
        ),
        Row(
            "te.LayerNormMLP(64, 96)",
            'nn.Sequential(tfk.nn.LayerNorm(64), tfk.nn.MLP(64, 96, activation="gelu_tanh"))',
            f"lambda m, x: ({GELU_MLP})(m[1], F.layer_norm(x, (64,), m[0].weight, m[0].bias))",
            "`fc1_weight` is `fc1.weight`; for `swiglu` a `tfk.nn.GatedMLP`",
            "x",
        ),
        Row(
            "te.DotProductAttention(4, 16)(q, k, v)",
            "tfk.functional.attention(*(x.transpose(0, 1) for x in (q, k, v)), causal=True,"
            " top_left=True).transpose(0, 1).flatten(2)",
            f"{sdpa('is_causal=True', 'TBHD')}.flatten(2)",
            'causal by default there; `"causal_bottom_right"` is without `top_left`; transposed'
            " tensors are read in place; heads are joined by `flatten`",
        ),
        Row(
            "apply_rotary_pos_emb(q, freqs)",
            "tfk.functional.rope(q.transpose(0, 1), None, freqs[:, 0, 0, :8].cos(),"
            " freqs[:, 0, 0, :8].sin()).transpose(0, 1)",
            rotated("q", "freqs.cos()", "freqs.sin()"),
            "cosines and sines instead of angles (`tfk.functional.rope_tables`)",
        ),
        Row(
            "parallel_cross_entropy(logits[None], target[None], 0.1, True)",
            "tfk.functional.cross_entropy(logits, target, label_smoothing=0.1)",
            "F.cross_entropy(logits, target, label_smoothing=0.1)",
            "rows of logits; the mean by default",
        ),
    ),
)
