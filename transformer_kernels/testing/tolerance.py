# SPDX-License-Identifier: MIT
"""The rule that every result meets, and the table of tolerances.

    err(ours) <= 2 * err(torch in the same dtype) + floor        err = max |result - float64|

NaN and infinities must be where the reference has them.

PyTorch's error is that of one draw of numbers, and sometimes a lucky one. An error just past its
bound therefore raises :class:`NearMissError`: pytest draws the numbers of such a test once more
(tests/conftest.py), and a second miss fails it. A wrong kernel misses by more, or each time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FACTOR = 2.0
NEAR = 1.5  # times the bound


class Tolerance(NamedTuple):
    """The error that a result of a dtype may have."""

    # In the rule, in units of eps(dtype) * max |reference|, for results that PyTorch happens to
    # compute exactly. Half a unit is the rounding error of one store.
    floor: float
    # Where no result of PyTorch's is at hand: ||result - float64|| / ||float64||, as benchmarks
    # verify.
    relative: float


TOLERANCES = {
    torch.float64: Tolerance(16.0, 1e-12),
    torch.float32: Tolerance(4.0, 1e-5),
    torch.float16: Tolerance(0.5, 2e-3),
    torch.bfloat16: Tolerance(0.5, 1.2e-2),
}


def floor_unit(dtype: torch.dtype) -> float:
    """The floor for a reference of size one."""
    return TOLERANCES[dtype].floor * torch.finfo(dtype).eps


def floor_of(reference: Tensor, dtype: torch.dtype, magnitude: float = 0.0) -> float:
    finite = reference[torch.isfinite(reference)]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    return floor_unit(dtype) * max(largest, magnitude)


def _error(result: Tensor, reference: Tensor) -> float:
    finite = torch.isfinite(reference)
    difference = (result.double().cpu() - reference)[finite]
    return difference.abs().max().item() if difference.numel() else 0.0


class NearMissError(AssertionError):
    """An error past its bound by less than the difference of two draws of numbers."""


class Violation(NamedTuple):
    """How a result breaks the rule."""

    words: str
    excess: float = math.inf  # the error, in units of its bound

    def __str__(self) -> str:
        return self.words

    def error(self, what: str) -> AssertionError:
        kind = NearMissError if self.excess <= NEAR else AssertionError
        return kind(f"{what}: {self.words}")


def violation(
    ours: Tensor, torch_result: Tensor, reference: Tensor, magnitude: float = 0.0
) -> Violation | None:
    """Describes how ``ours`` breaks the rule; None where it meets it.

    ``magnitude`` is the size of the terms where they cancel and the reference is small.
    """
    reference = reference.double().cpu()
    if ours.shape != reference.shape:
        return Violation(f"shape {ours.shape} != {reference.shape}")
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(test(ours).cpu(), test(reference)):
            return Violation(f"{test.__name__} differs from the reference")
    error, torch_error = _error(ours, reference), _error(torch_result, reference)
    if torch_error != torch_error:  # NaN in PyTorch's result excuses no error of ours
        torch_error = 0.0
    bound = FACTOR * torch_error + floor_of(reference, ours.dtype, magnitude)
    if error <= bound:
        return None
    words = f"error {error:.3e} > {FACTOR:g} x torch's {torch_error:.3e} + floor = {bound:.3e}"
    return Violation(words, error / bound if bound > 0 else math.inf)


def assert_close_to_reference(
    ours: Tensor,
    torch_result: Tensor,
    reference: Tensor,
    what: str = "",
    magnitude: float = 0.0,
) -> None:
    """Asserts that ``ours`` meets the rule."""
    found = violation(ours, torch_result, reference, magnitude)
    if found is not None:
        raise found.error(what)
