# SPDX-License-Identifier: MIT
"""Decoding: a paged cache and an engine that batches continuously, for many sequences at once; the
step of a token through a whole model in one call, for one sequence on the CPU.

>>> cache = tfk.decode.PagedCache(num_layers=2, num_pages=64, num_heads=2, head_dim=8)
>>> cache
PagedCache(0 of 64 pages of 16 tokens, 0 of 8 sequences)
"""

from ._attention import PagedAttention
from ._batch import Batch
from ._engine import Engine, EngineFullError
from ._page_table import CachedSequence, PageTable
from ._paged_cache import PagedCache
from ._parameters import LogProbs, Parameters, Piece, Result, Status
from ._pool import CacheFullError
from ._sample import Draw
from ._static import Recordable
from .step import StepPages, StepPlan, StepSession, StepWeight, barrier_nanoseconds

__all__ = [
    "Batch",
    "CacheFullError",
    "CachedSequence",
    "Draw",
    "Engine",
    "EngineFullError",
    "LogProbs",
    "PageTable",
    "PagedAttention",
    "PagedCache",
    "Parameters",
    "Piece",
    "Recordable",
    "Result",
    "Status",
    "StepPages",
    "StepPlan",
    "StepSession",
    "StepWeight",
    "barrier_nanoseconds",
]
