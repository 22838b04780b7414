# SPDX-License-Identifier: MIT
"""Holds the refusals of attention that are not C++'s."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
)
from .._kinds import refuse_in_words
from ._formula import Inputs, Options

_OP = "attention"
MOST_DIM = 256

refuse_in_words(
    _OP,
    causal=(
        "is a CausalBias, expected causal=True instead, with top_left=True for causal_upper_left"
    ),
    masked="is a MaskedTensor, which does not know this op, expected a plain tensor",
    jagged=(
        "is a jagged nested tensor, expected a strided one (attention() takes jagged ones as q, k"
        " and v, all three)"
    ),
    layout="has the layout {layout}, expected strided (to_dense() gives it)",
)


def _fail(message: str) -> None:
    raise ArgumentValueError(f"{_OP}: {message}")


# ---- Triton's kernels ----------------------------------------------------------------------------


def refuse_in_triton(inputs: Inputs, options: Options, interpreted: bool) -> None:
    """Raises for features that only other backends have; the message names the argument."""
    refusals = (
        (inputs.cu_seqlens_q is not None, "cu_seqlens_q", "sequences of one length"),
        (inputs.alibi_slopes is not None, "alibi_slopes", "none"),
        (inputs.sinks is not None, "sinks", "none"),
        (options.softcap != 0, "softcap", "0"),
        (options.dropout != 0, "dropout", "0"),
        (options.window_left >= 0, "window_left", "-1"),
        (options.window_right > 0, "window_right", "-1, or causal"),
    )
    for applies, name, expected in refusals:
        if applies:
            _fail(f"{name} is given, expected {expected} (Triton's kernels have no such scores)")
    if inputs.q.dtype is torch.float64 and not interpreted:
        raise ArgumentTypeError(
            f"{_OP}: q is float64, expected float32, float16 or bfloat16 (Triton compiles no"
            " product of float64)"
        )


def refuse_learned_bias(bias: Tensor | None) -> None:
    """Refuses a bias with a gradient, before a differentiated call of Triton's kernels."""
    if bias is not None and bias.requires_grad:
        _fail(
            "bias requires a gradient, expected none with backend 'triton' (its kernels give those"
            " of q, k and v)"
        )
