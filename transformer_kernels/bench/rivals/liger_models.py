# SPDX-License-Identifier: MIT
"""Hugging Face's models with the kernels of Liger, put in by its own call."""

from __future__ import annotations

import sys
from typing import Any

import torch

from transformer_kernels.bench.providers import why_absent as why_package_absent


def why_absent(kind: str, device: torch.device) -> str | None:
    """The reason why Liger cannot run a model of this ``model_type``; None when it can."""
    if (reason := why_package_absent("liger", device)) is not None:
        return reason
    from liger_kernel.transformers import monkey_patch

    known = monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN
    return None if kind in known else f"Liger has no kernels for models of type {kind}"


def put_in(model: Any) -> None:
    """Puts Liger's kernels into one model, those that are its defaults: in training its loss is
    computed without the logits.

    Liger also replaces functions and classes in the module that defines the model, for every model
    of that family. They hold only while this model runs, or the others would not be stock.
    """
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    scope = vars(sys.modules[type(model).__module__])
    before = dict(scope)
    _apply_liger_kernel_to_instance(model=model)
    put = {name: value for name, value in scope.items() if before.get(name) is not value}
    stock = {name: before[name] for name in put}
    scope.update(stock)
    forward = model.forward

    def with_liger(*args: Any, **kwargs: Any) -> Any:
        scope.update(put)
        try:
            return forward(*args, **kwargs)
        finally:
            scope.update(stock)

    model.forward = with_liger
