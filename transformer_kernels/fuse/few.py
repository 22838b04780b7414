# SPDX-License-Identifier: MIT
"""Calls of few rows, which run the class before fusing with nothing in between.

A step of generation is nothing but such calls: what they cost in addition would be all that fusing
does to it. So a module is not asked in its ``forward`` but at the call, in the place of what
PyTorch does there, and one function asks everything: each further one would take as long again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module

from .._cuda_graph import SERVING_FEW

FEW = "_tfk_few"  # of a module: calls with fewer numbers in the first argument are few rows
GIVEN = "_tfk_given"  # of a module: a result that was left with it

_CALL = nn.Module.__call__
_is_traced = torch.compiler.is_dynamo_compiling
_tracing_state = torch._C._get_tracing_state
_BEFORE = _module._global_forward_pre_hooks
_BEHIND = _module._global_forward_hooks
_BEFORE_BACKWARD = _module._global_backward_pre_hooks
_BEHIND_BACKWARD = _module._global_backward_hooks


def call_of(stock: Any) -> Callable[..., Any]:
    """``__call__`` of a class derived from ``stock``: of few rows it is ``stock.forward``, where
    PyTorch would call nothing else. A class that does more at a call keeps its own."""
    if (stock.__call__, stock._call_impl) != (_CALL, nn.Module._call_impl):
        return stock.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        own = self.__dict__
        few = own.get(FEW, 0)
        if few:
            x = args[0] if args else next(iter(kwargs.values()), None)
            if (
                type(x) is Tensor
                and not _is_traced()
                and x.numel() < few
                and not SERVING_FEW
                and nn.Module.__call__ is _CALL
                and not (
                    own["_forward_hooks"]
                    or own["_forward_pre_hooks"]
                    or own["_backward_hooks"]
                    or own["_backward_pre_hooks"]
                    or _BEFORE
                    or _BEHIND
                    or _BEFORE_BACKWARD
                    or _BEHIND_BACKWARD
                    or "_compiled_call_impl" in own
                    or "forward" in own
                    or GIVEN in own
                )
                and _tracing_state() is None
            ):
                if len(args) == 1 and not kwargs:  # as a rule; nothing is packed again
                    return stock.forward(self, x)
                return stock.forward(self, *args, **kwargs)
        return nn.Module.__call__(self, *args, **kwargs)

    return __call__
