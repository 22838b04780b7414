# SPDX-License-Identifier: MIT
"""The base of the classes that fused modules get, and what they say when they leave a call to
PyTorch's own code."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._library import log_dispatch
from .derive import GIVEN, ORIGINAL, Gate

_is_traced = torch.compiler.is_dynamo_compiling
_has_global_hook = torch.nn.modules.module._has_any_global_hook
_tracing_state = torch._C._get_tracing_state

_Base: Any = nn.Module if TYPE_CHECKING else object


class Mixin(_Base):  # type: ignore[misc]
    """Stands before a module's class. What ``forward`` does not handle goes to
    ``super().forward``."""

    _tfk_gates: dict[str, Gate]  # by pattern: which calls run our code
    _tfk_path: str = ""
    _tfk_few = 0  # calls with fewer numbers in the first argument run nothing of ours

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call of few rows goes straight to the ``forward`` of the class before fusing, where
        PyTorch would call nothing else. A step of generation has such calls alone, and what they
        cost in addition would be all that fusing does to it."""
        if self._tfk_few:
            x = args[0] if args else next(iter(kwargs.values()), None)
            if type(x) is Tensor and not _is_traced() and x.numel() < self._tfk_few:
                stock = type(self).__dict__.get(ORIGINAL)
                if stock is not None and _is_plain(self.__dict__):
                    return stock.forward(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)


def _is_plain(own: dict[str, Any]) -> bool:
    """Whether a call of the module with these attributes would run the ``forward`` of its class
    alone: no hook, other ``forward``, compiled or traced call, and no result that was left."""
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or own.get("_compiled_call_impl") is not None
        or "forward" in own
        or GIVEN in own
        or _has_global_hook()
        or _tracing_state() is not None
    )


def only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The one tensor that a module is called with, by position; None for another call."""
    x = args[0] if len(args) == 1 and not kwargs else None
    return x if isinstance(x, Tensor) else None


def attribute(module: nn.Module, name: str) -> Any:
    """An attribute of a module. One that is a parameter is found in its table, in a fifth of the
    time."""
    own = module._parameters
    if name in own:
        return own[name]
    return getattr(module, name)


_said: set[tuple[str, str]] = set()


def leave(module: Any, pattern: str, reason: str, *, runs: str = "PyTorch's own code runs") -> None:
    """Says that PyTorch's own code ``runs`` at a site of this pattern, or which other: once for
    each reason as a warning, and for each call in the log of ``TFK_LOG=dispatch``."""
    if torch.compiler.is_compiling():
        return
    text = f"fuse: {module._tfk_path or 'the model'}: {runs} ({pattern}): {reason}"
    log_dispatch(text)
    if (pattern, reason) not in _said:
        _said.add((pattern, reason))
        warnings.warn(text, RuntimeWarning, stacklevel=4)
