# SPDX-License-Identifier: MIT
"""The parts of a plan: sites that are fused, and refusals of those that are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from .derive import OPEN, Gate


class Refusal(NamedTuple):
    """A place that looks like a pattern and is left to PyTorch's own code."""

    path: str
    pattern: str
    reason: str
    help: str = ""  # what would help; empty where nothing would


class RefusedError(Exception):
    """Raised by a pattern that knows its shape but cannot serve it."""

    def __init__(self, reason: str, help: str = "") -> None:  # noqa: A002
        super().__init__(reason)
        self.help = help


class Times(NamedTuple):
    """Microseconds of a site: PyTorch's own code beside ours."""

    stock: float
    ours: float


class Predicted(NamedTuple):
    """The times that the machine's table of operations gives; None where it cannot."""

    training: Times | None
    inference: Times | None


class Calls(NamedTuple):
    """The two codes of a site as functions of the same tensors."""

    stock: Callable[..., Any]
    ours: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()


Trial = Callable[[int], Calls]  # of a number of rows


@dataclass(eq=False)
class Site:
    """A module that gets a derived class, or attributes of its own where its class has to stay.

    ``state`` is what the class reads from the module, by attribute; ``covers`` names the modules
    that the fused call leaves out. ``trial`` makes the calls to time: (stock, ours) on random
    tensors of the recorded shapes.
    """

    pattern: str
    path: str
    module: nn.Module
    mixin: type | None
    state: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)  # are set as a user would set them
    covers: tuple[str, ...] = ()
    partners: tuple[nn.Module, ...] = ()  # get the class, too, and are given results
    function: str = ""  # the public function that runs, "functional.rms_norm"
    key: tuple[Any, ...] = ()  # equal for sites that do the same work
    shape: tuple[int, ...] = ()  # of the input, as recorded
    rows: int = 0  # of a call, as its gate counts them; by default those of the shape
    features: int = 0  # of a row of its module's first argument, whose numbers tell the rows
    gate: Gate = OPEN
    trial: Trial | None = None
    has_products: bool = False  # which take long to time
    launches: tuple[int, int] | None = None  # of the forward pass, stock's and ours
    bytes: tuple[int, int] | None = None  # moved by the forward pass, stock's and ours
    training: Times | None = None  # forward and backward
    inference: Times | None = None
    host: tuple[Times, Times] | None = None  # of launching both passes, and the forward pass
    predicted: Predicted | None = None
    needs: tuple[tuple[str, str], ...] = ()  # the sites that it builds on, by pattern and path

    @property
    def few(self) -> int:
        """A call with fewer numbers in its first argument runs nothing of ours; 0 where that is not
        known of any call."""
        return self.gate.rows * self.features if self.gate.rows > 1 else 0

    @property
    def times(self) -> Times | None:
        """The times of both passes; where ours runs without gradients alone, of the forward
        pass."""
        return self.training if self.gate.training else self.inference

    @property
    def predicted_times(self) -> Times | None:
        """The prediction of :attr:`times`."""
        if self.predicted is None:
            return None
        return self.predicted.training if self.gate.training else self.predicted.inference
