# SPDX-License-Identifier: MIT
"""Level 3: the block of level 1 through torch.compile.

Compared with level 2 it saves memory traffic. Between two matrix products the compiler writes one
kernel for everything that is elementwise or a sum over a row: the residual is added where the next
norm reads it, and GELU's input is not written and read again. Matrix products and attention are
left to libraries, and the compiler's kernels use no hardware feature that its language lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .. import _torch
from . import native
from ._level import Level, Weights


@functools.cache
def _compile() -> Callable[..., Tensor]:
    """Compiles the whole graph; code that cannot be compiled is an error, instead of running as
    level 1."""
    function: Callable[..., Tensor] = torch.compile(native.block, fullgraph=True)
    return function


class Compiled(Level):
    name = "compile"
    title = "torch.compile"
    hides = "the kernels that torch.compile writes are no operators"

    def run(self, x: Tensor, w: Weights, num_heads: int, causal: bool, eps: float) -> Tensor:
        return _compile()(x, w, num_heads, causal, eps)

    def why_absent(self, device: torch.device) -> str | None:
        return _torch.why_no_compiler(device)
