# SPDX-License-Identifier: MIT
"""Level 2: the block of level 1 through TorchScript.

Compared with level 1 it saves Python's time: one call runs the whole block in C++, and frees each
tensor after its last use, where a Python function keeps it until it returns. The operators are the
same and move the same bytes; on a GPU, neighbouring elementwise ones may become one kernel. This
pays off where kernels are so short that Python cannot launch them fast enough.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .._errors import ArgumentValueError
from . import native
from ._level import Level, Weights


@functools.cache
def _script() -> Callable[..., Tensor] | str:
    """The compiled function, or the reason why there is none: PyTorch is removing TorchScript."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that it is deprecated
            function: Callable[..., Tensor] = torch.jit.script(native.block)
    except Exception as error:  # PyTorch without TorchScript, or unreadable Python
        lines = str(error).splitlines() or [""]
        return f"torch.jit.script does not work here ({type(error).__name__}: {lines[0]})"
    return function


class Scripted(Level):
    name = "torchscript"
    title = "TorchScript"

    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        function = _script()
        if isinstance(function, str):
            raise ArgumentValueError(f"Block: level is {self.name!r}, expected another: {function}")
        return function(x, w, num_heads, causal, eps)

    def why_absent(self, device: torch.device) -> str | None:  # noqa: ARG002
        function = _script()
        return function if isinstance(function, str) else None
