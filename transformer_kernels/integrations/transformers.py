# SPDX-License-Identifier: MIT
"""The kernels in Hugging Face's Transformers, for every model with its attention interface.

>>> import transformer_kernels.integrations.transformers
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="transformer_kernels")

The import registers the name ``"transformer_kernels"`` with the interfaces of attention and of
masks. Calls that the kernels do not take (devices other than CPU and CUDA, head dims above 256,
broadcast batches) go to ``sdpa``; ``TFK_LOG=dispatch`` says so. As with ``sdpa``, no attention
weights are returned.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import logging

from .._library import log_dispatch
from ..ops.attention._transformers import attend, refuse_unknown_scores, why_not_ours
from ._masks import attention_mask as make_mask

__all__ = ["ATTENTION", "attend", "attention_forward", "make_mask"]

ATTENTION = "transformer_kernels"

_logger = logging.get_logger(__name__)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes attention as Transformers asks for it: :func:`attend` where it can, else its own
    ``sdpa``.

    Args:
        query, key, value: (B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv).
        attention_mask: broadcasts to (B, H, Tq, Tk), or None.
        options: as models pass them: ``scaling``, ``dropout``, ``is_causal``, ``softcap``,
            ``s_aux``, ``position_bias``, ``sliding_window``, ``cu_seq_lens_q``, and others, which
            do not change the result.

    Returns:
        (B, Tq, H, Dv), and None in place of the weights.

    Raises:
        ValueError: the model chooses keys by an index (sparse attention), has a sink of each query,
            or has a soft cap or sinks where only ``sdpa`` could run.
    """
    if options.get("output_attentions"):
        _logger.warning_once(
            "transformer_kernels returns no attention weights; set_attn_implementation('eager')"
            " does"
        )
    reason = why_not_ours(query, key, value)
    if reason is None or options.get("softcap") or options.get("s_aux") is not None:
        return attend(module, query, key, value, attention_mask, **options)
    refuse_unknown_scores(options)
    log_dispatch(f"attention: sdpa of Transformers runs, because of {reason}")
    out: Tensor = AttentionInterface()["sdpa"](
        module, query, key, value, attention_mask, **options
    )[0]
    return out, None


AttentionInterface.register(ATTENTION, attention_forward)
AttentionMaskInterface.register(ATTENTION, make_mask)
