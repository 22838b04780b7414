# SPDX-License-Identifier: MIT
"""Times the plans of our kernels on the CPU, and keeps those that beat the rules.

A plan is a way to run a kernel: results that are written into the cache or past it (norms, softmax,
activations), blocks of a product. All plans of a kernel give the same bits. :func:`autotune` tries
those of a call; later processes of this user on this machine run the plans that it kept.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from . import _times
from ._errors import ArgumentValueError
from ._library import c_function

_CPU = torch.device("cpu")
_LEAST_GAIN = 0.02  # of the rule's time: less may be noise
_HOPELESS = 1.1  # times the rule's time after a few rounds: timing stops
_FEW_ROUNDS, _LEAST_ROUNDS = 3, 7
_ROUND_SECONDS = 0.002  # of calls in a row: changing the plan takes a part of it
_LONGEST = 1 << 16  # of the text of what was recorded


@dataclass(frozen=True)
class Tuned:
    """A kernel of a call has plans, and this was found of them.

    Args:
        timed: the op and its problem, as the file of times names them.
        rule: the plan by rule.
        us: microseconds of a call and of reading its results by each plan, of those that gave the
            right results.
        kept: the plan that was kept; None where the rule's stays.
    """

    timed: str
    rule: str
    us: dict[str, float]
    kept: str | None


def autotune(call: Callable[[], Any], seconds: float = 0.5) -> list[Tuned]:
    """Tries the plans of the kernels that a call runs on the CPU, and keeps the fastest of each.

    The rule's plan is timed in turn with each other one, in the order of their table, each with a
    reading of the results, because the next op pays for what is not in the cache. A plan is
    timed only if it gives the rule's results to the bit, and no longer than a few rounds if it is
    much slower. The best one is kept in the file of times (:func:`~transformer_kernels.tune_file`)
    if it takes at least 2 % less time than the rule's, also when both are timed once more; an older
    time of a plan that does not is removed.

    Args:
        call: takes nothing; what it returns is compared. It runs many times, and must not change
            what it reads.
        seconds: of timing for each kernel.

    Raises:
        ArgumentValueError: ``seconds`` is negative.

    >>> x = torch.randn(64, 512)
    >>> tried = tfk.autotune(lambda: tfk.functional.softmax(x, -1), seconds=0)
    >>> all(found.kept != found.rule for found in tried)
    True
    """
    if seconds < 0:
        raise ArgumentValueError(f"autotune: seconds is {seconds}, expected at least 0")
    return [_tuned(call, line.split("\t"), seconds) for line in _recorded(call)]


# ---- what a call asks for -----------------------------------------------------------------------


def _recorded(call: Callable[[], Any]) -> list[str]:
    """A line for each kernel with plans that the call runs on the CPU; none where the library has
    no plans."""
    record, text = c_function("tfk_record_plans"), ctypes.create_string_buffer(_LONGEST)
    if record is None:
        return []
    record(1)
    try:
        call()
    finally:
        record(0)
    c_function("tfk_recorded_plans")(text, _LONGEST)
    return text.value.decode().splitlines()


# ---- timing -------------------------------------------------------------------------------------


def _tuned(call: Callable[[], Any], line: list[str], seconds: float) -> Tuned:
    timed, rule, *others = line
    with _running(timed, rule):
        expected = _results(call())
    us: dict[str, float] = {}
    for plan in others:
        with _running(timed, plan):
            is_right = _equal(_results(call()), expected)
        if not is_right:
            continue
        rules, found = _in_turn(call, timed, (rule, plan), seconds / len(others))
        us[plan] = found / rules * us.setdefault(rule, rules)
    best = min(us, key=lambda name: us[name], default=rule)
    wins = best != rule and _wins(us[rule], us[best])
    if wins:  # a second look, in case another program took the rule's time
        wins = _wins(*_in_turn(call, timed, (rule, best), seconds / len(others)))
    machine = _times.machine_of(_CPU)
    if wins:
        _times.keep(machine, timed, {name: round(us[name], 3) for name in (best, rule)})
    else:
        _times.drop(machine, timed)
    return Tuned(timed, rule, us, best if wins else None)


def _wins(rules: float, us: float) -> bool:
    return us <= (1 - _LEAST_GAIN) * rules


def _in_turn(
    call: Callable[[], Any], timed: str, plans: tuple[str, str], seconds: float
) -> tuple[float, float]:
    """The microseconds of a call by either plan, in rounds in which both take turns: 10th
    percentiles, since time that other programs take is not the plan's."""
    begin = time.perf_counter()
    _read(call())
    calls = max(1, int(_ROUND_SECONDS / max(time.perf_counter() - begin, 1e-9)))
    found: dict[str, list[float]] = {plan: [] for plan in plans}
    rounds, begin = 0, time.perf_counter()
    while rounds < _LEAST_ROUNDS or time.perf_counter() - begin < seconds:
        for plan in plans:
            with _running(timed, plan):
                found[plan].append(_once(call, calls))
        rounds += 1
        rules, other = (sorted(found[plan])[rounds // 10] for plan in plans)
        if rounds >= _FEW_ROUNDS and other > _HOPELESS * rules:
            break
    return rules, other


def _once(call: Callable[[], Any], calls: int) -> float:
    """The microseconds of a call and of reading its results, as the op behind it does: a result
    that was written past the cache has to come back."""
    _read(call())
    begin = time.perf_counter()
    for _ in range(calls):
        _read(call())
    return 1e6 * (time.perf_counter() - begin) / calls


def _read(found: Any) -> None:
    with torch.no_grad():
        for result in _results(found):
            result.sum()


@contextmanager
def _running(timed: str, plan: str) -> Iterator[None]:
    """Makes one kernel run by a plan, whatever its times are."""
    with _times.instead(_times.machine_of(_CPU), timed, {plan: 1.0}):
        yield


def _results(found: Any) -> list[Tensor]:
    return [x for x in _pytree.tree_leaves(found) if isinstance(x, Tensor)]


def _equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether all results are the same bits; numbers that are none equal each other."""
    return len(found) == len(expected) and all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(found, expected, strict=True)
    )
