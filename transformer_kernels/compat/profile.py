# SPDX-License-Identifier: MIT
"""A profiler that also compares, and a comparison of functions. Times are microseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..profile import (
    Comparison,
    compare_implementations,
    plot_comparison,
    quick_benchmark,
)
from ..profile import KernelProfiler as _KernelProfiler

__all__ = ["KernelProfiler", "compare_functions", "quick_benchmark"]


class KernelProfiler(_KernelProfiler):
    """:class:`transformer_kernels.profile.KernelProfiler`, with the comparison as its methods.

    Args:
        device: ``"cuda"`` or ``"cpu"``, of the profile; by default the GPU where there is one.

    >>> profiler, x = tfk.compat.KernelProfiler(), torch.randn(64)
    >>> functions = {"torch": torch.relu, "ours": tfk.functional.relu}
    >>> found = profiler.compare_implementations(functions, args=(x,), seconds=0.01)
    >>> found.refused
    {}

    ``profiler.plot_comparison(found, "comparison.png")`` draws it.
    """

    _compared: Comparison | None = None

    def compare_implementations(
        self, implementations: Mapping[str, Callable[..., Any]], args: Any, **options: Any
    ) -> Comparison:
        """Calls :func:`transformer_kernels.profile.compare_implementations`: verifies all
        implementations against the first, then times those that are right.

        Args:
            implementations: functions by name.
            args: their arguments: a tensor, a sequence, or a dict by name.
            options: the other arguments of that function.
        """
        self._compared = compare_implementations(implementations, args, **options)
        return self._compared

    def plot_comparison(
        self,
        comparison: Comparison | None = None,
        path: str | os.PathLike[str] = "comparison.png",
    ) -> Path:
        """Draws a comparison, by default the last one: calls
        :func:`transformer_kernels.profile.plot_comparison`."""
        last = self._recorded(self._compared) if comparison is None else comparison
        return plot_comparison(last, path)


def compare_functions(
    functions: Mapping[str, Callable[..., Any]], *args: Any, **options: Any
) -> Comparison:
    """Verifies functions of the same arguments against the first, and times those that are right:
    :func:`transformer_kernels.profile.compare_implementations`, with arguments as in a call.

    Args:
        functions: functions by name.
        args: their arguments.
        options: the other arguments of ``compare_implementations``.

    >>> functions = {"torch": torch.relu, "ours": tfk.functional.relu}
    >>> found = tfk.compat.compare_functions(functions, torch.randn(64), seconds=0.01)
    >>> found["ours"].timing["mean_time"] > 0  # microseconds
    True
    """
    return compare_implementations(functions, args, **options)
