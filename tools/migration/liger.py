# SPDX-License-Identifier: MIT
"""Calls of Liger Kernel."""

from __future__ import annotations

from .expected import GATED, NORM, RMS, SUM, rotated
from .row import Library, Row

LIGER = Library(
    "Liger Kernel",
    "`q` and `k` are (batch, heads, time, dim). Norms take the normalised shape before the weight,"
    " as in PyTorch. Results do not overwrite inputs, and CPUs have kernels too.",
    "BHTD",
    (
        Row(
            "liger_rms_norm(x, w, 1e-6)",
            "tfk.functional.rms_norm(x, w.shape, w, 1e-6)",
            RMS.format(eps="1e-6"),
            "the default of `eps` is the machine epsilon, as in PyTorch",
        ),
        Row(
            "liger_rms_norm(x, w, 1e-6, offset=1.0)",
            "tfk.functional.rms_norm(x, w.shape, w, 1e-6, zero_centered_weight=True)",
            "F.rms_norm(x, (64,), 1 + w, 1e-6)",
            "Gemma's norm; no `casting_mode`: the arithmetic is in float32",
        ),
        Row(
            "LigerRMSNorm(64)",
            "tfk.nn.RMSNorm(64, 1e-6)",
            "nn.RMSNorm(64, 1e-6)",
            '`init_fn="zeros"` follows from `zero_centered_weight=True`',
            "x",
        ),
        Row(
            "liger_layer_norm(x, w, b, 1e-6)",
            "tfk.functional.layer_norm(x, w.shape, w, b, 1e-6)",
            NORM.format(eps="1e-6"),
            "the default of `eps` is 1e-5",
        ),
        Row(
            "liger_fused_add_rms_norm(x, residual, w, 1e-6)",
            "tfk.functional.add_rms_norm(x, residual, w.shape, w, 1e-6)",
            SUM.format(eps="1e-6"),
        ),
        Row(
            "liger_rope(q, k, cos2, sin2)",
            "tfk.functional.rope(q, k, cos2[0, :, :8], sin2[0, :, :8], heads_first=True)",
            f"{rotated('q', 'cos2', 'sin2')}, {rotated('k', 'cos2', 'sin2')}",
            "tables are (positions, dim / 2): Hugging Face's repeat their columns and have a batch;"
            " positions of a batch are `position_ids=`",
        ),
        Row(
            "liger_swiglu(gate, up)",
            "tfk.functional.swiglu(gate, up)",
            "F.silu(gate) * up",
            "also one packed tensor, and biases",
        ),
        Row(
            "liger_geglu(gate, up)",
            'tfk.functional.geglu(gate, up, "tanh")',
            "F.gelu(gate, approximate='tanh') * up",
            "Liger's is the tanh approximation; ours is exact by default",
        ),
        Row(
            "LigerSwiGLUMLP(config)",
            "tfk.nn.GatedMLP(64, 96)",
            GATED,
            "sizes instead of a configuration; the same `state_dict`; the products too are fused",
            "x",
        ),
        Row("liger_softmax(scores)", "tfk.functional.softmax(scores, -1)", "F.softmax(scores, -1)"),
        Row(
            "liger_cross_entropy(logits, target, lse_square_scale=1e-4, softcap=30.0)",
            "tfk.functional.cross_entropy(logits, target, z_loss=1e-4, softcap=30.0)",
            "(lambda s: F.cross_entropy(s, target) + 1e-4 * s.logsumexp(-1).square().mean())"
            "(30 * torch.tanh(logits / 30))",
            "logits are not overwritten; `softcap` is 0 instead of None for none",
        ),
        Row(
            "liger_fused_linear_cross_entropy(rows, W, target)",
            "tfk.functional.linear_cross_entropy(rows, W, target)",
            "F.cross_entropy(rows @ W.t(), target)",
            "`bias` is `linear_bias=`, `ce_weight` is `weight=`",
        ),
        Row(
            "LigerFusedLinearCrossEntropyLoss()(W, rows, target)",
            "tfk.functional.linear_cross_entropy(rows, W, target)",
            "F.cross_entropy(rows @ W.t(), target)",
            "rows come first; `tfk.nn.LinearCrossEntropyLoss` holds the weight itself",
        ),
    ),
)
