# SPDX-License-Identifier: MIT
"""Times of linear layers' products: what is timed, and what the file of times says of it.

Products are timed only on request: by ``transformer-kernels tune``, by
:func:`transformer_kernels.tuning`, or with ``TFK_TUNE=1``. From then on, in every process of the
user, the times choose between our product and PyTorch's, and on CUDA for each product of a layer
the fastest among these and cuBLASLt's algorithms. With ``TFK_TUNE=0`` rules choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

# Values of a route: one of these, or the number of one of cuBLASLt's algorithms.
OURS, TORCH = -1, -2
_ROUTE_WORDS = {OURS: "ours", TORCH: "torch"}


class Routes(NamedTuple):
    """The route of each product of a layer."""

    y: int = OURS
    dx: int = OURS
    dweight: int = OURS

    def __str__(self) -> str:
        named = self._asdict().items()
        return ", ".join(f"{name} {_ROUTE_WORDS.get(route, route)}" for name, route in named)


class Times(NamedTuple):
    """Times of a call with its gradients, in microseconds: ours, PyTorch's, and with a route for
    each product."""

    ours: float
    torch: float
    routed: float | None = None
    routes: Routes | str = ""

    @property
    def fastest(self) -> str:
        """``"ours"``, ``"torch"`` or ``"routed"``."""
        if self.routed is not None and self.routed < min(self.ours, self.torch):
            return "routed"
        return "ours" if self.ours <= self.torch else "torch"

    def named(self) -> dict[str, float]:
        """The times by the names that they have in the file."""
        found = {"ours": self.ours, "torch": self.torch}
        return found if self.routed is None else {**found, str(self.routes): self.routed}

    @classmethod
    def of(cls, named: Mapping[str, float]) -> Times:
        routes = next((name for name in named if name not in ("ours", "torch")), "")
        return cls(named["ours"], named["torch"], named.get(routes), routes)


# ---- what is asked for --------------------------------------------------------------------------

# Takes x, the weight, and the text by which the times are kept.
Measure = Callable[[Tensor, Tensor, str], Times]


class Asked:
    measure: Measure | None = None  # measures products that have no times
