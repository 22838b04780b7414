# SPDX-License-Identifier: MIT
"""Models of Hugging Face's Transformers in :class:`transformer_kernels.decode.Engine`.

>>> from transformer_kernels.integrations.paged_model import PagedModel
>>> served = PagedModel(model)
>>> engine = tfk.decode.Engine(served, served.new_cache(num_pages=1024))
"""

from __future__ import annotations

import inspect
import threading
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from .._errors import ArgumentValueError
from ..decode import Batch, PagedAttention, PagedCache
from ..ops.attention._transformers import refuse_unknown_scores
from .transformers import attention_forward, make_mask

__all__ = ["PAGED_ATTENTION", "PagedModel"]

PAGED_ATTENTION = "transformer_kernels_paged"


_step: ContextVar[PagedAttention | None] = ContextVar("transformer_kernels_step", default=None)


def paged_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes attention over the pages of the step that runs; elsewhere as
    ``attn_implementation="transformer_kernels"``.

    Args:
        module: a layer's attention, which has the layer's number as ``layer_idx``.
        query, key, value: (1, H, N, D), (1, Hk, N, D), (1, Hk, N, Dv) of packed rows.
        attention_mask: None in a step.
        scaling, softcap, s_aux, sliding_window: as models pass them.
        options: those that do not change the result.

    Returns:
        (1, N, H, Dv), and None in place of the weights.
    """
    step = _step.get()
    if step is None:
        options |= {"softcap": softcap, "s_aux": s_aux, "sliding_window": sliding_window}
        return attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    refuse_unknown_scores(options)
    if options.get("position_bias") is not None:
        raise ArgumentValueError("PagedModel: the model has a position_bias, expected None")
    layer: Any = module.layer_idx
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = step(
        layer, q, k, v, window=sliding_window, scale=scaling, softcap=softcap or 0.0, sinks=s_aux
    )
    return out.unsqueeze(0), None


def paged_mask(*arguments: Any, **options: Any) -> Tensor | None:
    """Makes no mask in a step, whose attention knows what is seen; elsewhere that of
    ``attn_implementation="transformer_kernels"``."""
    return make_mask(*arguments, **options) if _step.get() is None else None


AttentionInterface.register(PAGED_ATTENTION, paged_attention_forward)
AttentionMaskInterface.register(PAGED_ATTENTION, paged_mask)


_lock = threading.Lock()
# How many serve a model, and the attention that it had before the first of them.
_serving: WeakKeyDictionary[Any, tuple[int, str | None]] = WeakKeyDictionary()


class PagedModel:
    """A causal language model of Transformers, fused or not, as an engine's ``model``.

    Its attention becomes ``"transformer_kernels_paged"``, by which it also runs elsewhere.

    Args:
        model: a model with Transformers' interface of attention.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.serve()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self, num_pages: int, **options: Any) -> PagedCache:
        """Makes a cache of the model's sizes, dtype and device, whose sequences are at most as long
        as the model's positions.

        Args:
            num_pages: number of pages.
            options: further arguments of :class:`transformer_kernels.decode.PagedCache`.
        """
        config = self.model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        size = options.get("page_size", 16)
        context = getattr(config, "max_position_embeddings", None) or num_pages * size
        options.setdefault("max_length", min(context, num_pages * size))
        return PagedCache(
            config.num_hidden_layers,
            num_pages,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            **{"dtype": self.model.dtype, "device": self.model.device, **options},
        )

    def serve(self) -> None:
        """Lets the model's attention run over pages."""
        with _lock:
            users, before = _serving.get(self.model, (0, self.model.config._attn_implementation))
            self.model.set_attn_implementation(PAGED_ATTENTION)
            _serving[self.model] = (users + 1, before)

    def rest(self) -> None:
        """Gives the model the attention that it had before, where nobody else serves it."""
        with _lock:
            users, before = _serving.pop(self.model)
            if users > 1:
                _serving[self.model] = (users - 1, before)
            elif before is not None:
                self.model.set_attn_implementation(before)

    def read(self, cache: PagedCache) -> list[nn.Module | Tensor]:  # noqa: ARG002
        """Lists what a step reads; as :class:`transformer_kernels.decode.Recordable`."""
        return [self.model]

    @torch.no_grad()
    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Runs the model on packed rows; returns the logits (M, V) of ``batch.outputs``.

        Raises:
            ArgumentValueError: the model computes attention by itself.
        """
        step = PagedAttention(batch, cache)
        options = {"logits_to_keep": batch.outputs} if self._keeps else {}
        token = _step.set(step)
        try:
            logits: Tensor = self.model(
                batch.tokens[None], position_ids=batch.positions[None], use_cache=False, **options
            ).logits[0]
        finally:
            _step.reset(token)
        if sorted(step.layers) != list(range(cache.num_layers)):
            raise ArgumentValueError(
                f"PagedModel: attention of layers {step.layers} ran over the cache, expected each "
                f"of {cache.num_layers} layers once; {type(self.model).__name__} may compute it "
                "by itself"
            )
        return logits if self._keeps else logits[batch.outputs]
