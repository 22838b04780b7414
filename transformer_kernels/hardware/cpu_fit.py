# SPDX-License-Identifier: MIT
"""A CPU from result files: its caches and memory from the copies beside every op, and a few rates
that no file holds, fitted to the times of all ops together.

The fitted rates are those of vectors' exponentials and operations, of numbers converted from and to
16 bits, of random numbers, of products in each dtype, and the time of a new page: each is one
number of the machine for every op, pass and shape. Whoever asks how good they are fits them without
the ops that are then predicted (:func:`without`).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..measure.schema import Result
from .description import Hardware
from .fit import copies_of, products_of
from .model import SHOWN, Plan, predict

_LAUNCH_US = 5.0  # of a call and of waking its threads; no result file tells it
# The search begins at these: the rates are of one core, of any of the last ten years.
_EXPONENTIALS, _PAGE_US, _TFLOPS = 4.0, 0.25, 0.1
_RATES = {"operations": 50.0, "converted": 20.0, "random": 4.0}
_SIXTEEN_BITS = 2  # products in 16 bits are this much faster, where neither is measured
_STEPS = (2.0, 1.4, 1.2, 1.1, 1.05, 1.02)
_FIXED = ("memory", "launches")
_ADDED = ("launches", "pages")
_RELUCTANCE = 0.001  # of the search to leave a rate on which no time depends


@dataclass(frozen=True)
class Measured:
    """A call of an op, and of the kernel that ops may share, asked this of a machine and took so
    long."""

    op: str
    kernel: str
    plan: Plan
    us: float


def cpu_of_results(results: Sequence[Result]) -> Hardware:
    """The CPU on which these results were measured, before its rates are fitted.

    Raises:
        ValueError: the results hold no copy.
    """
    units = max(int(result.settings["threads"]) for result in results)
    copies = _bandwidths(copies_of(results, cold=False))
    if not copies:
        raise ValueError(f"analyze: no copies on {results[0].machine.device_name}")
    known = products_of(results)
    wide = known.get("float32", _TFLOPS * units)
    return Hardware(
        name=results[0].machine.device_name,
        copy_gbps=copies[max(copies)],
        products={"bfloat16": wide * _SIXTEEN_BITS, "float32": wide, **known},
        exponentials=_EXPONENTIALS * units,
        units=units,
        launch_us=_LAUNCH_US,
        copies=copies,
        rates={name: rate * units for name, rate in _RATES.items()},
        page_us=_PAGE_US,
        origins={
            **dict.fromkeys(("products", "exponentials", "rates", "page_us"), "assumed"),
            **dict.fromkeys(("copy_gbps", "copies"), "measured"), "launch_us": "assumed",
        },
    )  # fmt: skip


def left_out(machine: Hardware, measured: Sequence[Measured], by: str) -> list[float]:
    """Relative errors of predictions by a machine that is fitted to the others.

    Args:
        by: ``"op"``, for machines without the calls of one op each, or ``"kernel"``, without those
            of all ops that share its kernel.
    """
    errors = []
    for name in sorted({getattr(one, by) for one in measured}):
        fit = fitted(machine, [one for one in measured if getattr(one, by) != name])
        left = (one for one in measured if getattr(one, by) == name)
        errors += [predict(one.plan, fit).us / one.us - 1 for one in left]
    return errors


def _bandwidths(copies: Mapping[int, float]) -> dict[int, float]:
    """GB/s of the copies between two powers of the root of two, by their mean size."""
    bins = defaultdict(list)
    for size, us in copies.items():
        bins[round(2 * math.log2(size))].append((size, size / us / 1e3))
    return {
        round(statistics.geometric_mean(size for size, _ in found)): statistics.median(
            gbps for _, gbps in found
        )
        for found in bins.values()
    }


# ---- the fit ------------------------------------------------------------------------------------


def fitted(machine: Hardware, measured: Sequence[Measured]) -> Hardware:
    """The machine with the rates that predict these times best, by the mean size of the logarithm
    of predicted over measured. A rate that no call needs stays as it is."""
    if not measured:
        return machine
    table = _Table(machine, measured)
    scales = _search(table.loss, len(table.names))
    factors = dict(zip(table.names, scales, strict=True))

    def faster(name: str) -> float:
        return 1 / factors.get(name, 1.0)

    names = {name.removeprefix("products ") for name in factors if name.startswith("products ")}
    products = {
        dtype: rate * faster(f"products {dtype}") for dtype, rate in machine.products.items()
    }
    fit = dict.fromkeys(("exponentials", "rates", "page_us"), "fitted to the ops' times")
    if names:
        fit["products"] = f"fitted in {' and '.join(sorted(names))}"
    return replace(
        machine,
        products=products,
        exponentials=machine.exponentials * faster("exponentials"),
        rates={name: rate * faster(name) for name, rate in machine.rates.items()},
        page_us=machine.page_us / faster("pages"),
        origins={**machine.origins, **fit},
    )


class _Table:
    """The time of each resource that each call uses, at the rates where the search begins."""

    def __init__(self, machine: Hardware, measured: Sequence[Measured]) -> None:
        rows = [_by_resource(one.plan, machine) for one in measured]
        used = {name for row in rows for name, us in row.items() if us}
        self.names = sorted(used - set(_FIXED))
        self._free, self._added = self._columns(rows, self.names)
        self._fixed, self._launches = (
            torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in _FIXED
        )
        self._us = torch.tensor([one.us for one in measured], dtype=torch.float64)

    @staticmethod
    def _columns(rows: list[dict[str, float]], names: list[str]) -> tuple[Tensor, Tensor]:
        table = torch.tensor(
            [[row.get(name, 0.0) for name in names] for row in rows], dtype=torch.float64
        )
        is_added = torch.tensor([name in _ADDED for name in names], dtype=torch.bool)
        return table, is_added

    def loss(self, scales: list[float]) -> float:
        times = self._free * torch.tensor(scales, dtype=torch.float64)
        used = torch.cat((self._fixed[:, None], times[:, ~self._added]), 1)
        longest = used.amax(1)
        alone = self._launches + times[:, self._added].sum(1)
        us = alone + longest + SHOWN * (used.sum(1) - longest)
        moved = sum(abs(math.log(scale)) for scale in scales)
        return float((us / self._us).log().abs().mean()) + _RELUCTANCE * moved


def _by_resource(plan: Plan, machine: Hardware) -> dict[str, float]:
    """The parts of a prediction, with products named by their dtype."""
    parts = dict(predict(plan, machine).parts)
    wide = plan.dtype == "float32"
    parts[f"products {'float32' if wide else 'bfloat16'}"] = parts.pop("products")
    return parts


def _search(loss: Callable[[list[float]], float], count: int) -> list[float]:
    """The factors with the least loss that is found from ones, one factor at a time."""
    scales = [1.0] * count
    least = loss(scales)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for i in range(count):
                for factor in (step, 1 / step):
                    tried = [*scales[:i], scales[i] * factor, *scales[i + 1 :]]
                    if (found := loss(tried)) < least * (1 - 1e-6):
                        scales, least, improved = tried, found, True
    return scales
