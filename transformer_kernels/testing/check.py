# SPDX-License-Identifier: MIT
"""Runs a problem three ways and holds our results to the rule."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops._dtype import accumulate_dtype
from .case import Problem, as_tuple
from .cases import run
from .inputs import poisoned
from .tolerance import assert_close_to_reference


def random_gradients(problem: Problem) -> tuple[Tensor, ...]:
    """A random gradient for each result, of its dtype."""
    with torch.no_grad():
        results = as_tuple(problem.torch(*problem.tensors))
    return tuple(torch.randn(r.shape, dtype=torch.float64).to(r.dtype) for r in results)


def _partial_sums(problem: Problem, result: Tensor) -> float:
    """The size of the partial sums in a parameter's gradient, which adds up rows in the
    arithmetic's dtype.

    Terms are of order one, so the rounding of their partial sums grows with the root of their
    number. A gradient with another dtype than x is a parameter's, even where x has one row.
    """
    x = problem.tensors[0]
    if not 0 < result.numel() < x.numel() + (result.dtype != x.dtype):
        return 0.0
    term_error = max(torch.finfo(accumulate_dtype(x)).eps, problem.term_error)
    accuracy = term_error / torch.finfo(result.dtype).eps
    return float(8.0 * (x.numel() / result.numel()) ** 0.5 * accuracy)


def check_same_but_rounded(result: Tensor, expected: Tensor) -> None:
    """Compares one problem computed twice, where the second run may add up in another order."""
    size = expected.abs().mean(dtype=torch.float32).item()
    torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6 * size)


def check_problem(
    problem: Problem,
    gradients: tuple[Tensor, ...] | None = None,
    backend: str = "auto",
    magnitude: float = 0.0,
) -> None:
    """Holds our forward and backward pass, in poisoned memory, to the tolerance rule."""
    gradients = random_gradients(problem) if gradients is None else gradients
    with poisoned():
        ours = run(problem.ours, problem.tensors, gradients, backend=backend)
    theirs = run(problem.torch, problem.tensors, gradients)
    exact_tensors = tuple(tensor.detach().double() for tensor in problem.tensors)
    exact = run(problem.reference, exact_tensors, gradients)
    for kind, *group in zip(("result", "gradient"), ours, theirs, exact, strict=True):
        for index, (a, b, c) in enumerate(zip(*group, strict=True)):
            size = max(magnitude, _partial_sums(problem, a))
            assert_close_to_reference(a, b, c, f"{kind} {index}", size)
