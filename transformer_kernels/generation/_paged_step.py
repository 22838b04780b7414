# SPDX-License-Identifier: MIT
"""A Llama on the CPU whose step is one call of C++, for many sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..decode import Batch, CachedSequence, PageTable
from ..decode.step import StepPages, StepPlan
from ..models import Llama
from ._step import plan_of


class StepCache(PageTable):
    """A page table with the memory of :class:`transformer_kernels.decode.StepPages`."""

    def __init__(self, plan: StepPlan, num_pages: int, **options: Any) -> None:
        super().__init__(num_pages, StepPages.size, **options)
        self.memory = StepPages(plan, num_pages)

    def reserve(self, sequence: CachedSequence, count: int) -> list[tuple[int, int]]:
        copies = super().reserve(sequence, count)
        for page, copy in copies:
            self.memory.copy(page, copy)
        return copies


class PagedStep:
    """A model that :func:`transformer_kernels.generation._step.runs`, as an engine's ``model``. The
    bits of a row do not depend on the others.

    Args:
        model: the model.
    """

    page_size = StepPages.size

    def __init__(self, model: Llama) -> None:
        self.model = model.eval()

    def new_cache(self, num_pages: int, *, page_size: int, **options: Any) -> StepCache:
        """Makes a cache of pages of ``page_size``, which are 64 tokens."""
        length = min(self.model.config.context, num_pages * page_size)
        with torch.no_grad():
            plan = plan_of(self.model, length)
        return StepCache(plan, num_pages, **{"max_length": length, **options})

    def __call__(self, batch: Batch, cache: StepCache) -> Tensor:
        """Runs the model on packed rows; returns the logits (M, V) of ``batch.outputs``."""
        return cache.memory.step(
            batch.tokens, batch.cu_seqlens, batch.lengths, batch.block_tables, batch.outputs
        )
