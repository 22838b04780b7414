# SPDX-License-Identifier: MIT
"""The base of the patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from ..record import Call, Trace
from ..site import Refusal, Site


class Pattern:
    """Finds sites. ``match`` looks at one call of a module, from the outermost to the innermost;
    ``find`` looks at the whole record, when ``match`` has seen all calls.

    ``match`` returns None for what is something else, and raises
    :class:`~transformer_kernels.fuse.site.RefusedError` for what looks like the pattern and is not.
    """

    name: str

    def match(self, call: Call, trace: Trace) -> Site | None:  # noqa: ARG002
        return None

    def find(
        self, model: nn.Module, trace: Trace, sites: Sequence[Site]  # noqa: ARG002
    ) -> Iterator[Site | Refusal]:  # fmt: skip
        return iter(())


def unary(call: Call) -> bool:
    """Whether the call takes one tensor, by position and alone, and returns one."""
    return len(call.ins) == len(call.outs) == 1 and len(call.args) == 1 and not call.kwargs
