# SPDX-License-Identifier: MIT
"""A machine from the copies and products that result files hold beside every op."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

import torch

from ..measure.schema import Result
from .description import Hardware

_LEAST_COPIES = 3  # of different sizes, to tell a launch from bandwidth


def of_results(results: Sequence[Result], sheet: Hardware) -> Hardware:
    """The machine on which these results were measured.

    The time of a launch and the bandwidth are those of a line through the copies that are larger
    than the cache, by their bytes. Rates of products are the medians of the results' ceilings. What
    no result holds is the data sheet's, or what was measured before of a card without one: the rate
    of exponentials, and of products in other dtypes.

    Raises:
        ValueError: the results have too few copies.
    """
    name = results[0].machine.device_name
    launch_us, gbps = _line(copies_of(results), name)
    products = products_of(results)
    unknown = ", ".join(sorted({*sheet.products} - {*products}))
    origins = {**sheet.origins, **dict.fromkeys(("copy_gbps", "products", "launch_us"), "measured")}
    if unknown:
        origins["products"] += f", {unknown}: {sheet.origins['products']}"
    return Hardware(
        name=name,
        copy_gbps=gbps,
        products={**sheet.products, **products},
        exponentials=sheet.exponentials,
        units=sheet.units,
        launch_us=launch_us,
        origins=origins,
    )


def copies_of(results: Sequence[Result], cold: bool = True) -> dict[int, float]:
    """The median time of a copy from memory, by its bytes; on a CPU, whose results are never cold,
    of a copy from wherever its bytes are."""
    times = defaultdict(list)
    for row in (row for result in results for row in result.rows):
        if row.provider == "copy" and row.cold is cold:
            times[row.bytes].append(row.median_us)
    return {size: statistics.median(found) for size, found in times.items()}


def _line(copies: dict[int, float], name: str) -> tuple[float, float]:
    """Microseconds of a launch and GB/s, by least squares of the relative error."""
    if len(copies) < _LEAST_COPIES:
        raise ValueError(
            f"analyze: {len(copies)} sizes of copies on {name}, expected at least {_LEAST_COPIES}"
        )
    size, time = torch.tensor([*copies.items()], dtype=torch.float64).unbind(1)
    terms = torch.stack((1 / time, size / time), 1)
    solved = torch.linalg.lstsq(terms, torch.ones_like(time)).solution
    launch_us, us_a_byte = map(float, solved)
    return max(0.0, launch_us), 1 / us_a_byte / 1e3


def products_of(results: Sequence[Result]) -> dict[str, float]:
    """The median rate of a large product in TFLOP/s, by dtype."""
    rates = defaultdict(list)
    for result in results:
        for dtype, rate in result.ceilings.all_products.items() if result.ceilings else ():
            rates[dtype].append(rate)
    return {dtype: statistics.median(found) for dtype, found in rates.items()}
