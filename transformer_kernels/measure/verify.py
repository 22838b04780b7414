# SPDX-License-Identifier: MIT
"""Checks each provider's results against float64 before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_kernels.measure.case import Arguments, Case, Draw, Part
from transformer_kernels.measure.timing import Call
from transformer_kernels.testing.tolerance import TOLERANCES

# An element may differ by this many times the tolerance, relative to the largest element.
_ELEMENT_FACTOR = 4
_SAMPLED_ROWS = 192
_CHUNK_ELEMENTS = 1 << 22
_POISONED_COPIES = 2
_DEVIATIONS = 5  # how many standard deviations the share of dropped elements may be off


class VerificationError(Exception):
    """The provider's result is wrong, so it is not timed."""


class Reference:
    """The float64 results of one pass: some rows of each, and every element of the column sums."""

    def __init__(self, op: Case, pass_: str, arguments: Arguments) -> None:
        self._op = op
        self._pass = pass_
        self._arguments = arguments
        self._reference = op.with_indices(op.reference, arguments)
        x = arguments[op.inputs[0]]
        self._tolerance = TOLERANCES[x.dtype].relative
        self._device = x.device
        self._part = op.verified(arguments) if op.verified else _random_rows(x.shape[0], x.device)
        inputs = op.differentiable[: None if pass_ == "both" else op.gradients]
        self._names = op.outputs if pass_ == "forward" else inputs + op.parameters
        self._kept: Tensor | None = None  # the mask of the elements that a random op kept
        self._expected = [] if op.draw else self._exact()

    def _exact(self) -> list[Tensor]:
        with torch.enable_grad():
            if self._pass == "forward":
                return self._forward()
            return self._gradients(len(self._names) - len(self._op.parameters))

    def check(self, call: Call, allowance: float = 1) -> float:
        """Runs the call into poisoned memory; returns the largest relative error of its results.

        Raises VerificationError past `allowance` times the tolerance, and on NaN.
        """
        results = _as_tuple(call())
        if len(results) < len(self._names):
            raise VerificationError(f"gave {len(results)} results, expected {len(self._names)}")
        blanks = [torch.empty_like(result, device="meta") for result in results]
        del results
        poison(blanks, self._device)
        results = _as_tuple(call())[: len(self._names)]
        if self._op.draw:
            self._kept = self._draw(self._op.draw, results)
            self._expected = self._exact()
        checked = zip(self._names, results, self._expected, strict=True)
        return max(self._error(*triple, allowance) for triple in checked)

    def _draw(self, draw: Draw, results: Sequence[Tensor]) -> Tensor:
        kept = draw.kept(self._pass, self._arguments, results)
        share = 1 - float(kept.double().mean())
        deviation = math.sqrt(draw.p * (1 - draw.p) / kept.numel())
        loses = draw.in_sum and self._pass == "forward"
        hidden = torch.finfo(results[0].dtype).eps if loses else 0.0
        if abs(share - draw.p) > _DEVIATIONS * deviation + hidden:
            raise VerificationError(f"drops {share:.5f} of all elements, expected {draw.p}")
        return kept

    def _error(self, name: str, result: Tensor, expected: Tensor, allowance: float) -> float:
        if not bool(torch.isfinite(result).all()):
            raise VerificationError("a result holds NaN or infinity, or was not written")
        is_sum = name in self._op.parameters
        part = result if is_sum else self._part(name, result)
        return hold(part, expected, allowance * self._tolerance)

    def _operands(self, part: Part) -> list[Tensor]:
        rows = ((name, part(name, self._arguments[name])) for name in self._op.inputs)
        inputs = [t if name in self._op.integers else t.double() for name, t in rows]
        return inputs + [self._arguments[name].double() for name in self._op.parameters]

    def _outputs(self, part: Part, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        drawn = [] if self._kept is None else [part("kept", self._kept)]
        return _as_tuple(self._reference(*operands, *drawn))

    def _forward(self) -> list[Tensor]:
        with torch.no_grad():
            return list(self._outputs(self._part, self._operands(self._part)))

    def _part_gradients(self, part: Part) -> tuple[Tensor, ...]:
        operands = self._operands(part)
        leaves = [tensor.requires_grad_() for tensor in operands if tensor.is_floating_point()]
        outputs = self._outputs(part, operands)
        gradients = [
            part(of, self._arguments[name]).double()
            for name, of in zip(self._op.cotangents, self._op.outputs, strict=True)
        ]
        return torch.autograd.grad(outputs, leaves, gradients)

    def _gradients(self, inputs: int) -> list[Tensor]:
        expected = list(self._part_gradients(self._part)[:inputs])
        if self._op.parameters:
            expected += self._column_sums()
        return expected

    def _column_sums(self) -> list[Tensor]:
        rows, columns = self._arguments[self._op.inputs[0]].shape
        step = max(1, _CHUNK_ELEMENTS // columns)
        sums: list[Tensor] = []
        for begin in range(0, rows, step):
            chunk = _rows(slice(begin, begin + step))
            found = self._part_gradients(chunk)[len(self._op.differentiable) :]
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else list(found)
        return sums


def hold(result: Tensor, expected: Tensor, tolerance: float) -> float:
    """The relative error of a result; raises VerificationError past the tolerance."""
    difference = result.double() - expected
    relative = float(difference.norm() / expected.norm())
    worst = float(difference.abs().max() / expected.abs().max())
    if not (relative <= tolerance and worst <= _ELEMENT_FACTOR * tolerance):
        raise VerificationError(
            f"relative error {relative:.2e}, worst element {worst:.2e}, "
            f"expected at most {tolerance:.1e}"
        )
    return relative


def _rows(index: Tensor | slice) -> Part:
    return lambda _, tensor: tensor[index]


def _random_rows(rows: int, device: torch.device) -> Part:
    if rows <= _SAMPLED_ROWS:
        return _rows(slice(None))
    edges = torch.tensor([0, rows - 1], device=device)
    inner = torch.randint(1, rows - 1, (_SAMPLED_ROWS - 2,), device=device)
    return _rows(torch.cat([edges, inner]))


def poison(like: Sequence[Tensor], device: torch.device) -> None:
    """Fills with NaN the blocks that the allocator will hand out next."""
    blanks = [*like] * _POISONED_COPIES
    poison = [torch.full_like(blank, torch.nan, device=device) for blank in blanks]
    del poison


def _as_tuple(outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
