# SPDX-License-Identifier: MIT
"""Engines of whole models."""

from __future__ import annotations

from typing import Any

from .._errors import ArgumentTypeError, as_count
from ..decode import Engine
from . import _step
from ._decoders import vocabulary_of
from ._paged import paged
from ._paged_step import PagedStep

_USUAL_LENGTH = 2048  # of a sequence, where nobody says how much memory there is


def engine(
    model: Any, num_pages: int | None = None, *, page_size: int | None = None,
    max_sequences: int = 8,
    **options: Any,
) -> Engine:  # fmt: skip
    """Makes an :class:`transformer_kernels.decode.Engine` with a cache of the model's sizes.

    A model whose weights change needs a new engine: the cache holds keys and values of the weights
    from before, and on the CPU the engine may keep a copy of them.

    Args:
        model: a :class:`transformer_kernels.models.Llama`, with packed weights or not, a
            :class:`transformer_kernels.models.LanguageModel`, or a causal language model of
            transformers, fused or not.
        num_pages: pages of the cache; by default those of ``max_sequences`` sequences of 2,048
            tokens.
        page_size: 16, 64 or 256 tokens of a page; by default 16, and 64 where a step is one call
            of C++: a ``Llama`` on the CPU whose weights have 16 bits or fewer.
        max_sequences: the most sequences that run at a time.
        options: further arguments of the engine, such as ``detokenize`` and ``graphs``.

    Raises:
        ArgumentTypeError: the model is of another kind.

    >>> model = tfk.models.Llama(tfk.models.LlamaConfig(
    ...     vocab_size=256, context=64, dim=32, num_layers=2, num_heads=4, num_kv_heads=2,
    ...     inner_dim=48))
    >>> engine = tfk.engine(model)
    >>> results = engine.generate([[1, 2, 3], [4, 5]], tfk.decode.Parameters(max_new_tokens=4))
    >>> [len(result.tokens) for result in results]
    [4, 4]
    """
    as_count("engine", "max_sequences", max_sequences)
    if page_size is not None:
        as_count("engine", "page_size", page_size)
    served: Any
    if page_size in (None, PagedStep.page_size) and _step.runs(model, 1):
        served, page_size = PagedStep(model), PagedStep.page_size
    else:
        served = paged(model)
    if served is None:
        raise ArgumentTypeError(
            f"engine: model is {type(model).__name__}, expected a Llama, a LanguageModel or a "
            "causal language model of transformers"
        )
    page_size = 16 if page_size is None else page_size
    if num_pages is None:
        num_pages = max_sequences * -(-_USUAL_LENGTH // page_size)
    as_count("engine", "num_pages", num_pages)
    cache = served.new_cache(num_pages, page_size=page_size, max_sequences=max_sequences)
    return Engine(served, cache, **{"vocab_size": vocabulary_of(model), **options})
