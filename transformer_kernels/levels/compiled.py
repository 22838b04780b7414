# SPDX-License-Identifier: MIT
"""Level 3: the same text through torch.compile.

What it saves over level 2 is memory traffic: between two matrix products the compiler writes one
kernel for all that is elementwise or a sum over a row, so that the residual is added where the next
norm reads it, and GELU is applied once and not written and read again. Matrix products and
attention are left to the libraries, and a kernel that the compiler writes knows no hardware beyond
what its language has.
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
    """Of the whole graph: what cannot be compiled is an error then, and not level 1."""
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
