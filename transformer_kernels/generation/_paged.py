# SPDX-License-Identifier: MIT
"""Models over packed rows and a paged cache."""

from __future__ import annotations

from typing import Any

from ..models import LanguageModel, Llama
from ._paged_language_model import PagedLanguageModel
from ._paged_llama import PagedLlama


def paged(model: Any) -> Any:
    """The model as an engine's ``model``; None for other kinds."""
    if isinstance(model, Llama):
        return PagedLlama(model)
    if isinstance(model, LanguageModel):
        return PagedLanguageModel(model)
    if not hasattr(model, "prepare_inputs_for_generation"):
        return None
    from ..integrations.paged_model import PagedModel

    return PagedModel(model)
