# SPDX-License-Identifier: MIT
"""The base of the classes that fused modules get, and what they say when they leave a call to
PyTorch's own code."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._library import log_dispatch
from .derive import Gate

_Base: Any = nn.Module if TYPE_CHECKING else object


class Mixin(_Base):  # type: ignore[misc]
    """Stands before a module's class. What ``forward`` does not handle goes to
    ``super().forward``."""

    _tfk_gates: dict[str, Gate]  # by pattern: which calls run our code
    _tfk_path: str = ""


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
