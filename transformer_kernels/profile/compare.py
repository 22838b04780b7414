# SPDX-License-Identifier: MIT
"""Compares implementations of one function: verifies all, then times them in rotation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import ArgumentTypeError, ArgumentValueError, as_number
from ..measure import verify
from ..measure.table import ABSENT
from ..testing.tolerance import TOLERANCES
from ._arguments import Inputs, as_call, as_inputs, device_of
from ._report import Report, microseconds, number, percent, table
from .timing import Timing, copied, measure

_WHO = "compare_implementations"
_COARSEST = TOLERANCES[torch.bfloat16]
_OF_ROUNDED = 2  # if the reference is rounded too, both errors may add up


@dataclass(frozen=True)
class Implementation:
    """One of the compared implementations: timed, or refused."""

    name: str
    error: float | None  # largest relative error of its results
    refused: str | None  # why it was not timed; None where it was
    timing: Timing | None
    speedup: float | None  # relative to the first implementation


@dataclass(frozen=True)
class Comparison(Report):
    """The compared implementations, in the order in which they were given."""

    reference: str
    implementations: list[Implementation]

    def __getitem__(self, name: str) -> Implementation:
        for implementation in self.implementations:
            if implementation.name == name:
                return implementation
        raise KeyError(name)

    @property
    def fastest(self) -> Implementation | None:
        """The implementation with the least median; None where all were refused."""
        timed = [i for i in self.implementations if i.timing is not None]
        return min(timed, key=_median, default=None)

    @property
    def refused(self) -> dict[str, str]:
        return {i.name: i.refused for i in self.implementations if i.refused is not None}

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "name": i.name, "error": i.error, "refused": i.refused, "speedup": i.speedup,
                **({} if i.timing is None else i.timing.as_dict()),
            }
            for i in self.implementations
        ]  # fmt: skip

    def scalars(self) -> dict[str, float]:
        timed = [i.timing for i in self.implementations if i.timing is not None]
        return {key: value for timing in timed for key, value in timing.scalars().items()}

    def text(self) -> str:
        headings = [("Implementation", 20), ("median", 8), ("mean", 8), ("spread", 7),
                    ("speed-up", 8), ("error", 8)]  # fmt: skip
        body = [_cells(implementation) for implementation in self.implementations]
        subtitle = f"us; errors are relative, against {self.reference}"
        drawn = table("IMPLEMENTATIONS", subtitle, headings, body)
        refused = [f"not timed: {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join([drawn, *refused])


def compare_implementations(
    implementations: Mapping[str, Callable[..., Any]],
    inputs: Any,
    *,
    reference: str | Callable[..., Any] | None = None,
    tolerance: float | None = None,
    warmup: int | None = None,
    repeat: int | None = None,
    seconds: float = 0.5,
    timer: str = "graph",
    device: Any = None,
) -> Comparison:
    """Times functions of the same inputs. One with wrong results is refused and not timed.

    Each is called with copies of the inputs, and its results lie in memory that was filled with
    NaN. :attr:`Comparison.refused` holds the reasons of refusals, exceptions among them.

    Args:
        implementations: functions by name, which return tensors or trees of tensors.
        inputs: as for :func:`benchmark_kernel`.
        reference: what results are verified against: the name of an implementation, by default the
            first, or another function, which is called with float64 for every floating-point input.
        tolerance: the largest relative error of the norm; one element may differ by four times as
            much, relative to the largest element. The default is the benchmark's tolerance of the
            results' dtype, twice that where the reference is not in float64. Integers and booleans
            have to be equal.
        warmup, repeat, seconds, timer, device: as for :func:`benchmark_kernel`.

    >>> implementations = {
    ...     "torch": lambda x: torch.softmax(x, -1),
    ...     "ours": lambda x: tfk.functional.softmax(x, -1),
    ...     "wrong": lambda x: torch.softmax(x, 0),
    ... }
    >>> found = tfk.profile.compare_implementations(
    ...     implementations, torch.randn(64, 256), warmup=1, repeat=3)
    >>> list(found.refused)
    ['wrong']
    """
    if not isinstance(implementations, Mapping) or not implementations:
        raise ArgumentTypeError(
            f"{_WHO}: implementations is {implementations!r}, expected functions by their names"
        )
    for name, function in implementations.items():
        as_call(_WHO, f"implementations[{name!r}]", function)
    given = as_inputs(_WHO, inputs)
    where = device_of(_WHO, given, device)
    held = None if tolerance is None else float(as_number(_WHO, "tolerance", tolerance))
    title, expected, allowance = _expected(implementations, given, reference)
    judge = partial(_judged, given, where, expected, held, allowance)
    verdicts = {name: judge(function) for name, function in implementations.items()}
    errors = {name: found for name, found in verdicts.items() if isinstance(found, float)}
    refused = {name: found for name, found in verdicts.items() if isinstance(found, str)}
    right = {name: implementations[name] for name in errors}
    times = {}
    if right:
        times = measure(
            _WHO, right, copied(given), where, warmup, repeat, seconds, timer, as_bench=True
        )
    first = times.get(next(iter(implementations)))
    return Comparison(
        title,
        [
            Implementation(
                name=name,
                error=errors.get(name),
                refused=refused.get(name),
                timing=times.get(name),
                speedup=first.median / times[name].median if first and name in times else None,
            )
            for name in implementations
        ],
    )


def plot_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Draws the medians as bars, with the 10th and 90th percentiles. It needs matplotlib.

    Args:
        comparison: a result of :func:`compare_implementations`.
        path: the file to write; its suffix is the format.

    >>> found = tfk.profile.compare_implementations(
    ...     {"torch": torch.relu, "ours": tfk.functional.relu}, torch.randn(64, 256),
    ...     warmup=1, repeat=3)
    >>> tfk.profile.plot_comparison(found, "relu.svg").name
    'relu.svg'
    """
    if not isinstance(comparison, Comparison):
        raise ArgumentTypeError(
            f"plot_comparison: comparison is {type(comparison).__name__}, expected a Comparison"
        )
    timed = {i.name: i.timing for i in comparison.implementations if i.timing is not None}
    if not timed:
        raise ArgumentValueError("plot_comparison: comparison has no times, expected at least one")
    target = Path(path)
    try:
        from ..measure import style
    except ImportError as error:
        raise ImportError(
            "plot_comparison: the package matplotlib is absent, expected it"
            " (pip install 'transformer-kernels[bench]')"
        ) from error
    with style.figure(1, 1, 6.0, 0.9 + 0.4 * len(timed)) as (drawn, (panel, *_)):
        medians = [timing.median for timing in timed.values()]
        below = [timing.median - timing.p10 for timing in timed.values()]
        above = [timing.p90 - timing.median for timing in timed.values()]
        colours = [style.COLOURS.get(name, style.COLOURS["torch"]) for name in timed]
        places = range(len(timed))
        panel.barh(places, medians, xerr=[below, above], color=colours, height=0.6)
        panel.set_yticks(places, list(timed))
        panel.invert_yaxis()
        panel.set_xlabel("microseconds, median")
        target.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(target, facecolor="white")
    return target


def _median(implementation: Implementation) -> float:
    assert implementation.timing is not None
    return implementation.timing.median


def _cells(implementation: Implementation) -> list[str]:
    timing, error, speedup = implementation.timing, implementation.error, implementation.speedup
    times = [ABSENT] * 3
    if timing is not None:
        times = [microseconds(timing.median), microseconds(timing.mean_time)]
        times.append(f"±{percent(timing.spread)}")
    return [implementation.name, *times, number(speedup, ".2f"), number(error, ".1e")]


# ---- verification -------------------------------------------------------------------------------


def _expected(
    implementations: Mapping[str, Callable[..., Any]],
    inputs: Inputs,
    reference: str | Callable[..., Any] | None,
) -> tuple[str, list[Tensor], float]:
    """The reference's name, its results, and the factor by which its own rounding widens
    tolerances."""
    if callable(reference):
        name = getattr(reference, "__name__", type(reference).__name__)
        return f"{name} in float64", _results(reference, inputs, wide=True), 1
    name = next(iter(implementations)) if reference is None else reference
    if name not in implementations:
        known = ", ".join(map(repr, implementations))
        raise ArgumentValueError(
            f"{_WHO}: reference is {name!r}, expected a function or one of {known}"
        )
    return name, _results(implementations[name], inputs), _OF_ROUNDED


def _results(function: Callable[..., Any], inputs: Inputs, wide: bool = False) -> list[Tensor]:
    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        copied = x.detach().clone()
        copied = copied.double() if wide and x.is_floating_point() else copied
        return copied.requires_grad_(x.requires_grad)

    given, named = tree_map(copy, inputs)
    results = [x for x in tree_leaves(function(*given, **named)) if isinstance(x, Tensor)]
    return [result.detach() for result in results]


def _judged(
    inputs: Inputs,
    device: torch.device,
    expected: list[Tensor],
    tolerance: float | None,
    allowance: float,
    function: Callable[..., Any],
) -> float | str:
    """The largest relative error, or the reason why the implementation is refused."""
    try:
        return _verified(function, inputs, device, expected, tolerance, allowance)
    except verify.VerificationError as error:
        return str(error)
    except Exception as error:  # a wrong implementation may raise anything; the others go on
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _verified(
    function: Callable[..., Any],
    inputs: Inputs,
    device: torch.device,
    expected: list[Tensor],
    tolerance: float | None,
    allowance: float,
) -> float:
    """The largest relative error; raises VerificationError where it exceeds the tolerance."""
    blanks = [torch.empty_like(x, device="meta") for x in _results(function, inputs)]
    verify.poison([x for x in blanks if x.is_floating_point()], device)
    results = _results(function, inputs)
    if len(results) != len(expected):
        raise verify.VerificationError(f"gave {len(results)} results, expected {len(expected)}")
    pairs = zip(results, expected, strict=True)
    return max((_error(*pair, tolerance, allowance) for pair in pairs), default=0.0)


def _error(result: Tensor, expected: Tensor, tolerance: float | None, allowance: float) -> float:
    if result.shape != expected.shape:
        raise verify.VerificationError(
            f"a result has shape {tuple(result.shape)}, expected {tuple(expected.shape)}"
        )
    if not (result.is_floating_point() and expected.is_floating_point()):
        if not torch.equal(result, expected.to(result.dtype)):
            raise verify.VerificationError(
                "a result of numbers that are not floating-point differs"
            )
        return 0.0
    finite, infinite = torch.isfinite(expected), torch.isinf(expected)
    same = torch.equal(result[infinite].double(), expected[infinite].double())
    if not (same and bool(result[expected.isnan()].isnan().all())):
        raise verify.VerificationError("a result is finite where infinity or NaN is expected")
    if not bool(torch.isfinite(result[finite]).all()):
        raise verify.VerificationError("a result holds NaN or infinity, or was not written")
    if not bool(expected[finite].any()):
        if bool(result[finite].any()):
            raise verify.VerificationError("a result is not zero, expected zeros")
        return 0.0
    if tolerance is None:
        coarsest = max(TOLERANCES.get(x.dtype, _COARSEST).relative for x in (result, expected))
        tolerance = allowance * coarsest
    return verify.hold(result[finite], expected[finite].double(), tolerance)
