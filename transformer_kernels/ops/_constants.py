# SPDX-License-Identifier: MIT
"""Constants: tensors that an op reads without having a gradient for them, such as masks, tables of
angles and class weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentValueError
from .._library import log_dispatch


def refuse_gradient(op: str, **constants: Any) -> None:
    """Raises where the gradient of a constant would be asked for. Under ``torch.no_grad()`` a
    Parameter is fine."""
    if not torch.is_grad_enabled():
        return
    for name, x in constants.items():
        if isinstance(x, Tensor) and x.requires_grad:
            raise ArgumentValueError(
                f"{op}: {name} requires a gradient, expected a constant (it has none)"
            )


def as_saved(op: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call, in a form that autograd can save where the call is differentiated: a
    tensor that was made in inference mode is copied."""
    values = tuple(given.values())
    tensors = [x for x in values if isinstance(x, Tensor)]
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not differentiated or not any(x.is_inference() for x in tensors):
        return values
    return tuple(_copied(op, *named) for named in given.items())


def _copied(op: str, name: str, x: Any) -> Any:
    if not (isinstance(x, Tensor) and x.is_inference()):
        return x
    log_dispatch(f"{op}: {name} was made in inference mode: copied")
    return x.clone()
