# SPDX-License-Identifier: MIT
"""Calls of xFormers."""

from __future__ import annotations

from .expected import GATED, RMS, SEEN, SUM, SWIGLU, sdpa
from .row import Library, Row

XFORMERS = Library(
    "xFormers",
    "`q`, `k`, `v` are (batch, time, heads, dim), as here. A mask object is an argument.",
    "BTHD",
    (
        Row(
            "memory_efficient_attention(q, k, v, scale=0.1)",
            "tfk.functional.attention(q, k, v, scale=0.1)",
            sdpa("scale=0.1"),
            "`p` is `dropout=`; heads are shared where `k` has fewer",
        ),
        Row(
            "memory_efficient_attention(q, k, v, LowerTriangularMask())",
            "tfk.functional.attention(q, k, v, causal=True, top_left=True)",
            sdpa("is_causal=True"),
            "without `top_left`: `LowerTriangularFromBottomRightMask`",
        ),
        Row(
            "memory_efficient_attention(q, k, v, attn_bias=bias)",
            "tfk.functional.attention(q, k, v, bias=bias)",
            sdpa("attn_mask=bias"),
            "the bias may be broadcast, and needs no alignment",
        ),
        Row(
            "memory_efficient_attention(q, k, v, LocalAttentionFromBottomRightMask(2, 1))",
            "tfk.functional.attention(q, k, v, window=(2, 1))",
            sdpa(f"attn_mask={SEEN}.triu(-2).tril(1)"),
        ),
        Row(
            "memory_efficient_attention(*[packed[None]] * 3,"
            " BlockDiagonalMask.from_seqlens([4, 6]))",
            "tfk.functional.attention_varlen(packed, packed, packed, cu_seqlens)",
            "torch.cat([(lambda q, k, v: " + sdpa() + ")(*[s[None]] * 3)[0]"
            " for s in packed.split([4, 6])])",
            "no batch of one; `cu_seqlens` are where sequences begin, [0, 4, 10]",
        ),
        Row(
            "rms_norm(x, w, 1e-6)",
            "tfk.functional.rms_norm(x, w.shape, w, 1e-6)",
            RMS.format(eps="1e-6"),
            "the shape before the weight",
        ),
        Row(
            "rms_norm_add(x, residual, w, 1e-6)",
            "tfk.functional.add_rms_norm(x, residual, w.shape, w, 1e-6)",
            SUM.format(eps="1e-6"),
            "returns the sum too, and does not overwrite `x`",
        ),
        Row(
            "swiglu(x, w1, b1, w2, b2, w3, b3)",
            "tfk.functional.gated_mlp(x, w1, w2, w3, bias=b1, up_bias=b2, down_bias=b3)",
            SWIGLU,
            "weights first, biases by name; other gates by `activation`",
        ),
        Row(
            "SwiGLU(64, 96)",
            "tfk.nn.GatedMLP(64, 96, bias=True)",
            GATED,
            "`w1`, `w2`, `w3` are `gate_proj`, `up_proj`, `down_proj`; no bias by default",
            "x",
        ),
    ),
)
