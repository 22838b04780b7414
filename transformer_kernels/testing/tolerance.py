# SPDX-License-Identifier: MIT
"""The rule that every result meets, and its table.

    err(ours) <= 2 * err(torch in the same dtype) + floor        err = max |result - float64|

NaN and the infinities must stand where the reference has them.
"""

from __future__ import annotations

import torch
from torch import Tensor

FACTOR = 2.0

# The floor in units of eps(dtype) * max |reference|: what a result may be off where PyTorch
# happens to be exact. Half a unit is the rounding error of one store.
FLOOR_UNITS = {
    torch.float64: 16.0,
    torch.float32: 4.0,
    torch.float16: 0.5,
    torch.bfloat16: 0.5,
}


def floor_of(reference: Tensor, dtype: torch.dtype, magnitude: float = 0.0) -> float:
    finite = reference[torch.isfinite(reference)]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    return FLOOR_UNITS[dtype] * torch.finfo(dtype).eps * max(largest, magnitude)


def _error(result: Tensor, reference: Tensor) -> float:
    finite = torch.isfinite(reference)
    difference = (result.double().cpu() - reference)[finite]
    return difference.abs().max().item() if difference.numel() else 0.0


def violation(
    ours: Tensor, torch_result: Tensor, reference: Tensor, magnitude: float = 0.0
) -> str | None:
    """What of the rule ``ours`` does not meet, in words; None where it meets all.

    ``magnitude`` is the size of the terms that cancel, where the reference is small because of it.
    """
    reference = reference.double().cpu()
    if ours.shape != reference.shape:
        return f"shape {ours.shape} != {reference.shape}"
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(test(ours).cpu(), test(reference)):
            return f"{test.__name__} differs from the reference"
    error, torch_error = _error(ours, reference), _error(torch_result, reference)
    if torch_error != torch_error:  # PyTorch's NaN excuses nothing
        torch_error = 0.0
    bound = FACTOR * torch_error + floor_of(reference, ours.dtype, magnitude)
    if error <= bound:
        return None
    return f"error {error:.3e} > {FACTOR:g} x torch's {torch_error:.3e} + floor = {bound:.3e}"


def assert_close_to_reference(
    ours: Tensor,
    torch_result: Tensor,
    reference: Tensor,
    what: str = "",
    magnitude: float = 0.0,
) -> None:
    """Hold ``ours`` to the rule."""
    found = violation(ours, torch_result, reference, magnitude)
    assert found is None, f"{what}: {found}"
