# SPDX-License-Identifier: MIT
"""The model: the resource that a call uses longest, and half of what the others take.

A kernel that overlaps its resources perfectly takes as long as the slowest of them (the roofline of
Williams, Waterman and Patterson, 2009). Real kernels hide about half of the rest: what the others
take is added by half. Nothing hides a launch, or the pages that an operating system clears for new
memory. The host issues calls while the card works, and bounds those that it issues more slowly than
the card runs them. Nothing in the model is fitted to an op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .description import Hardware

SHOWN = 0.5  # of the time of the resources that are not the bound


@dataclass(frozen=True)
class Plan:
    """A call asks a machine for this.

    Args:
        bytes: the fewest bytes that it reads and writes.
        flops: operations of its matrix products.
        dtype: of these products.
        exponentials: how many it computes.
        longest: the share of products and exponentials that the longest block has; 0 where there
            are many equal blocks.
        launches: kernels that run one after the other.
        work: how much other work it has, by the names of a machine's ``rates``.
        pages: of new memory that it is the first to write.
        issued: calls that the host issues one by one, outside of a graph.
    """

    bytes: int
    flops: float = 0.0
    dtype: str = "bfloat16"
    exponentials: float = 0.0
    longest: float = 0.0
    launches: int = 1
    work: Mapping[str, float] = field(default_factory=dict)
    pages: int = 0
    issued: int = 0

    @property
    def operations(self) -> float:
        """All arithmetic that is known of the call."""
        return self.flops + self.exponentials + self.work.get("operations", 0.0)


@dataclass(frozen=True)
class Prediction:
    """The time of a call, and of each resource alone, in microseconds."""

    us: float
    parts: Mapping[str, float]

    @property
    def bound(self) -> str:
        """The resource that is used longest."""
        return max(self.parts, key=lambda name: self.parts[name])


def predict(plan: Plan, machine: Hardware) -> Prediction:
    """Predicts the time of a call.

    Raises:
        ValueError: the plan has products, and the machine no rate for their dtype.
        KeyError: the plan has other work, and the machine no rate for it.
    """
    products = plan.flops / machine.product_tflops(plan.dtype) / 1e6 if plan.flops else 0.0
    idle = max(1.0, plan.longest * machine.units)
    used = {
        "memory": machine.copy_us(plan.bytes),
        "products": products * idle,
        "exponentials": plan.exponentials / machine.exponentials / 1e3 * idle,
        **{
            name: amount / machine.rates[name] / 1e3 * idle
            for name, amount in plan.work.items()
            if amount
        },
    }
    alone = {"launches": plan.launches * machine.launch_us}
    if plan.pages:
        alone["pages"] = plan.pages * machine.page_us
    longest = max(used.values())
    us = sum(alone.values()) + longest + SHOWN * (sum(used.values()) - longest)
    if plan.issued:
        alone["host"] = plan.issued * machine.host_us
        us = max(us, alone["host"])
    return Prediction(us, {**used, **alone})
