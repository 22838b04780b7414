# SPDX-License-Identifier: MIT
"""Calls of flash-attn."""

from __future__ import annotations

from .expected import GELU_MLP, SEEN, SUM, rotated, sdpa
from .row import Library, Row

FLASH_ATTN = Library(
    "flash-attn",
    "`q`, `k`, `v` are (batch, time, heads, dim), as here. Causal masks and windows end at the last"
    " key in both. Arguments after `v` go by name.",
    "BTHD",
    (
        Row(
            "flash_attn_func(q, k, v, softmax_scale=0.1, causal=True)",
            "tfk.functional.attention(q, k, v, scale=0.1, causal=True)",
            sdpa("scale=0.1, is_causal=True"),
            "any dtype, float64 included; head dims from 1 to 256; `dropout_p` is `dropout=`",
        ),
        Row(
            "flash_attn_func(q, k, v, window_size=(2, 1))",
            "tfk.functional.attention(q, k, v, window=(2, 1))",
            sdpa(f"attn_mask={SEEN}.triu(-2).tril(1)"),
        ),
        Row(
            "flash_attn_func(q, k, v, alibi_slopes=slopes)",
            "tfk.functional.attention(q, k, v, alibi_slopes=slopes)",
            sdpa(
                "attn_mask=-slopes[:, None, None]"
                " * (torch.arange(6)[:, None] - torch.arange(6)).abs()"
            ),
            "also any `bias=`, with a gradient, and `sinks=`",
        ),
        Row(
            "flash_attn_func(q, k, v, return_attn_probs=True)[:2]",
            "tfk.functional.attention(q, k, v, return_lse=True)",
            f"{sdpa()}, (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / 4).logsumexp(-1)",
            "a pair; the log-sum-exp has a gradient",
        ),
        Row(
            "flash_attn_qkvpacked_func(qkv)",
            "tfk.functional.attention(*qkv.unbind(2))",
            "(lambda q, k, v: " + sdpa() + ")(*qkv.unbind(2))",
            "views are read in place",
        ),
        Row(
            "flash_attn_kvpacked_func(q, kv)",
            "tfk.functional.attention(q, *kv.unbind(2))",
            "(lambda k, v: " + sdpa() + ")(*kv.unbind(2))",
        ),
        Row(
            "flash_attn_varlen_func(packed, packed, packed, cu_seqlens, cu_seqlens, 6, 6)",
            "tfk.functional.attention_varlen(packed, packed, packed, cu_seqlens)",
            "torch.cat([(lambda q, k, v: " + sdpa() + ")(*[s[None]] * 3)[0]"
            " for s in packed.split([4, 6])])",
            "no `max_seqlen`; `cu_seqlens_k` where it differs",
        ),
        Row(
            "apply_rotary_emb(q, cos, sin)",
            "tfk.functional.rope(q, None, cos, sin)",
            rotated("q", "cos2[:, :, None]", "sin2[:, :, None]"),
            "q and k in one call; `seqlen_offsets` is `offsets=`",
        ),
        Row(
            "rms_norm_fn(x, w, None, residual=residual, eps=1e-6, prenorm=True)",
            "tfk.functional.add_rms_norm(x, residual, w.shape, w, 1e-6)",
            SUM.format(eps="1e-6"),
            "with dropout: `bias_dropout_add_rms_norm`",
        ),
        Row(
            "FusedMLP(64, 96)",
            'tfk.nn.MLP(64, 96, activation="gelu_tanh")',
            GELU_MLP,
            "the same `state_dict`; any activation; `recompute=` 0 to 2 is `checkpoint_lvl`",
            "x",
        ),
        Row(
            "CrossEntropyLoss(lse_square_scale=1e-4)",
            "tfk.nn.CrossEntropyLoss(z_loss=1e-4)",
            "lambda m, s, t: F.cross_entropy(s, t) + 1e-4 * s.logsumexp(-1).square().mean()",
            "a subclass of PyTorch's; `inplace_backward` is not needed",
            "logits, target",
        ),
    ),
)
