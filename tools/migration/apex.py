# SPDX-License-Identifier: MIT
"""Calls of Apex."""

from __future__ import annotations

from .expected import GELU_MLP, NORM, RMS, SEEN
from .row import Library, Row

APEX = Library(
    "Apex",
    "Norms take the normalised shape before the weights, as PyTorch's. Masks are true where a score"
    " **is seen**; Apex's are true where it is hidden.",
    "BTHD",
    (
        Row(
            "FusedLayerNorm(64)",
            "tfk.nn.LayerNorm(64)",
            "nn.LayerNorm(64)",
            "no `memory_efficient`: the backward pass reads x and two numbers a row",
            "x",
        ),
        Row(
            "MixedFusedLayerNorm(64)",
            "tfk.nn.LayerNorm(64, dtype=torch.float32)",
            "nn.LayerNorm(64)",
            "float32 weights beside 16-bit `x` always work",
            "x",
        ),
        Row(
            "FusedRMSNorm(64)",
            "tfk.nn.RMSNorm(64, 1e-5)",
            "nn.RMSNorm(64, 1e-5)",
            "the default of `eps` is the machine epsilon, Apex's 1e-5",
            "x",
        ),
        Row(
            "fused_layer_norm_affine(x, w, b, (64,), 1e-6)",
            "tfk.functional.layer_norm(x, (64,), w, b, 1e-6)",
            NORM.format(eps="1e-6"),
            "the order; the default of `eps` is 1e-5",
        ),
        Row(
            "fused_rms_norm_affine(x, w, (64,), 1e-6)",
            "tfk.functional.rms_norm(x, (64,), w, 1e-6)",
            RMS.format(eps="1e-6"),
            "the order",
        ),
        Row(
            "scaled_masked_softmax(scores, ~mask, 0.125)",
            "tfk.functional.softmax(scores, -1, scale=0.125, mask=mask)",
            "F.softmax((0.125 * scores).masked_fill(~mask, -torch.inf), -1)",
            "the mask's sense; any shape and dtype",
        ),
        Row(
            "scaled_upper_triang_masked_softmax(scores.flatten(0, 1), None, 0.125)",
            "tfk.functional.softmax(scores.flatten(0, 1), -1, scale=0.125, causal=True)",
            "F.softmax((0.125 * scores.flatten(0, 1)).masked_fill("
            f"~{SEEN}.tril(), -torch.inf), -1)",
        ),
        Row(
            "FusedDense(64, 64)",
            "tfk.nn.Linear(64, 64)",
            "nn.Linear(64, 64)",
            "a subclass of PyTorch's",
            "x",
        ),
        Row(
            "FusedDenseGeluDense(64, 96, 64)",
            'tfk.nn.MLP(64, 96, activation="gelu_tanh")',
            GELU_MLP,
            "`weight1`, `bias1`, ... are `fc1.weight`, `fc1.bias`, ...",
            "x",
        ),
        Row(
            "SoftmaxCrossEntropyLoss.apply(logits, target, 0.1, 0)",
            'tfk.functional.cross_entropy(logits, target, reduction="none", label_smoothing=0.1,'
            " ignore_index=0)",
            "F.cross_entropy(logits, target, reduction='none', label_smoothing=0.1,"
            " ignore_index=0)",
            "Apex ignores class 0 unless told otherwise, PyTorch and this library -100",
        ),
    ),
)
