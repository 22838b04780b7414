# SPDX-License-Identifier: MIT
"""The model reads a few numbers of a machine: what it offers to a call."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

_SIXTEEN_BITS = {"float16": "bfloat16", "bfloat16": "float16"}


@dataclass(frozen=True)
class Hardware:
    """A machine.

    Args:
        name: of the device.
        copy_gbps: GB/s that a large copy reads and writes together.
        products: TFLOP/s of a large matrix product, by dtype (``"bfloat16"``).
        exponentials: 1e9 exponentials a second, of all units together.
        units: streaming multiprocessors or cores, which work on blocks of their own.
        launch_us: microseconds of a call that does nothing: its launch and its end.
        copies: GB/s of smaller copies by their bytes, where those that fit in a cache are faster;
            empty where they are not.
        rates: 1e9 a second of other work of all units together, by its name: ``"operations"`` of
            vectors, numbers of 16 bits that are ``"converted"``, ``"random"`` numbers.
        page_us: microseconds until a new page of memory can be written.
        host_us: microseconds in which the host issues a call to a card, outside of graphs.
        origins: where each of these numbers comes from, by the name of the field: ``"measured"``,
            ``"data sheet"``, or another machine's name.
    """

    name: str
    copy_gbps: float
    products: Mapping[str, float]
    exponentials: float
    units: int
    launch_us: float
    copies: Mapping[int, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    page_us: float = 0.0
    host_us: float = 0.0
    origins: Mapping[str, str] = field(default_factory=dict)

    def copy_us(self, size: int) -> float:
        """Microseconds in which ``size`` bytes are read and written."""
        return size / self._copy_gbps(size) / 1e3

    def _copy_gbps(self, size: int) -> float:
        """The bandwidth at a size, between those of the measured sizes around it."""
        sizes = sorted(self.copies)
        at = bisect(sizes, size)
        if at == len(sizes):
            return self.copies[sizes[-1]] if sizes else self.copy_gbps
        if at == 0:
            return self.copies[sizes[0]]
        low, high = sizes[at - 1], sizes[at]
        share = math.log(size / low) / math.log(high / low)
        return self.copies[low] ** (1 - share) * self.copies[high] ** share

    def product_tflops(self, dtype: str) -> float:
        """The rate of products in a dtype; the two dtypes of 16 bits stand for each other.

        Raises:
            ValueError: the machine has no rate for this dtype.
        """
        for name in (dtype, _SIXTEEN_BITS.get(dtype, dtype)):
            if name in self.products:
                return self.products[name]
        known = ", ".join(sorted(self.products)) or "none"
        raise ValueError(f"hardware: {self.name} has no rate of products in {dtype}, only {known}")


def like(measured: Hardware, its_sheet: Hardware, other: Hardware) -> Hardware:
    """Another machine, from what was measured on one: each number keeps the ratio that its data
    sheet promises.

    Args:
        measured: a machine as it was measured.
        its_sheet: the data sheet of that machine.
        other: the data sheet of the machine that is wanted.
    """

    def scaled(name: str) -> float:
        ratio = getattr(other, name) / getattr(its_sheet, name)
        return float(getattr(measured, name) * ratio)

    products = {
        dtype: rate * other.product_tflops(dtype) / its_sheet.product_tflops(dtype)
        for dtype, rate in measured.products.items()
        if dtype in its_sheet.products and dtype in other.products
    }
    origin = f"{measured.name}, by the data sheets"
    return replace(
        other,
        copy_gbps=scaled("copy_gbps"),
        exponentials=scaled("exponentials"),
        products=products,
        launch_us=measured.launch_us,
        origins={f.name: origin for f in fields(Hardware)[1:6]},
    )
