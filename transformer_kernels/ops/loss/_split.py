# SPDX-License-Identifier: MIT
"""Cross-entropy of logits that are split between processes, by rows or by classes.

A process reads its own classes once in each pass. With the largest of all logits of a row, top, and
the coefficients a of the declaration,

    spread = log(sum(exp(z - top)))      lse = top + spread
    loss = sum(a (top - z)) + sum(a) spread + z_loss v lse^2

every sum over classes is a sum over processes: each row costs a maximum and three sums.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ..._library import require_backend
from .._declare import Kernels, Op
from .._declare_arguments import Given
from .._declare_formula import formula_forward
from .._dtype import accumulate_dtype
from .._parallel import Part, Run, total
from . import _formula
from ._formula import MEAN, NONE, SUM

_IGNORED = -100  # of labels that count from a process's first class
_EMPTY = -torch.inf  # the largest of no logits


def passes_of(op: Op, backend: str, x: Tensor) -> Kernels:
    """The passes of a backend, with the signatures of the raw ops."""
    require_backend(op.title, backend, x)
    if backend == "triton" and op.triton is not None:
        return op.triton()
    if backend == "reference":
        assert op.gradient is not None
        forward = partial(formula_forward, op)
        return Kernels(forward, op.gradient, forward)
    return op.raw


class Merged(NamedTuple):
    """The statistics of all classes that the backward pass reads, for each row."""

    top: Tensor
    spread: Tensor
    power: Tensor  # the gradient's coefficient of the softmax

    def of(self, rows: slice) -> Merged:
        return Merged(*(each[rows] for each in self))


class Columns:
    """A process's classes of the logits (N, C) of a call, whose arguments ``given`` has."""

    def __init__(
        self, title: str, given: Given, part: Part, classes: int, kernels: Kernels
    ) -> None:
        self.given, self.part, self.classes, self._kernels = given, part, classes, kernels
        self._dtype = accumulate_dtype(given["x"])
        self._own = slice(part.start, part.start + classes)
        self.weight, self._mass = None, classes  # and the sum of the weights
        if given["weight"] is not None:
            self.weight = given["weight"][self._own].contiguous()
            self._mass = self.weight.to(self._dtype).sum()
        smoothing = given["label_smoothing"]
        # The kernels spread the smoothing over the classes that they see. With this factor in all
        # coefficients, those of labels and of smoothing have their true proportion.
        here = smoothing * classes / part.size
        self._factor = 1 / (1 - smoothing + here) if classes else 1.0
        self._smoothing = self._factor * here
        self._each = smoothing / part.size  # the smoothing's coefficient of a class of weight 1
        if given["target"] is not None:
            self._place_labels(title, given["target"].reshape(-1))

    def _place_labels(self, title: str, target: Tensor) -> None:
        given, size = self.given, self.part.size
        self._ignored = target == given["ignore_index"]
        no_class = ((target < 0) | (target >= size)) & ~self._ignored
        if target.is_cpu and not torch.compiler.is_compiling() and bool(no_class.any()):
            row = int(no_class.nonzero()[0])
            raise ArgumentValueError(
                f"{title}: target is {int(target[row])} in row {row}, expected one of"
                f" [0, {size - 1}] or {given['ignore_index']} (ignore_index)"
            )
        self._is_here = (target >= self._own.start) & (target < self._own.stop) & ~self._ignored
        # A label of another process counts here as the nearest class.
        local = (target - self._own.start).clamp(0, max(self.classes - 1, 0))
        self._label = torch.where(self._ignored, _IGNORED, local)
        self._place = torch.where(self._ignored, 0, local).long().unsqueeze(1)
        self.counted = _formula.counted_labels(
            target, size, given["weight"], given["ignore_index"], self._dtype
        )

    @property
    def has_labels(self) -> bool:
        return self.given["target"] is not None

    def _options(self, smoothing: float) -> tuple[Any, ...]:
        return (_IGNORED, smoothing, 0.0, self.given["softcap"], NONE)

    def _at_labels(self, x: Tensor, rows: slice) -> Tensor:
        z = x.gather(1, self._place[rows]).squeeze(1).to(self._dtype)
        cap = self.given["softcap"]
        return cap * torch.tanh(z / cap) if cap > 0 else z

    # ---- forward --------------------------------------------------------------------------------

    def observe(self, x: Tensor, q: Tensor | None, rows: slice = slice(None)) -> Tensor:
        """For rows of logits, and of probabilities: their largest, the log-sum-exp relative to it,
        the sum of a (top - z) and that of a, over this process's classes; (4, rows)."""
        if not self.classes:
            nothing = x.new_zeros(4, len(x), dtype=self._dtype)
            nothing[:2] = _EMPTY
            return nothing
        label = self._label[rows] if self.has_labels else None
        smooths = self._each > 0
        # Labels are few, so kernels sum the smoothing alone, without a label's coefficient.
        smoothing = float(smooths) if self.has_labels else self._smoothing
        loss, top, spread, share, _ = self._kernels.forward(
            x, label, q, self.weight, *self._options(smoothing), True
        )
        if not self.has_labels:
            share = share / self._factor
            return torch.stack((top, spread, loss / self._factor - share * spread, share))
        base = torch.where(top == _EMPTY, 0.0, top)
        own = (1 - self.given["label_smoothing"]) * self.counted[rows]
        own = torch.where(self._is_here[rows], own, 0.0)
        away = torch.where(self._is_here[rows], own * (base - self._at_labels(x, rows)), 0.0)
        if smooths:
            away = away + self._each * (self.classes * loss - self._mass * spread)
            own = own + self._each * self._mass
        return torch.stack((top, spread, away, own))

    def merged(self, observed: Tensor) -> tuple[Tensor, Merged]:
        """The loss of each row, by the statistics of all processes."""
        top, spread, away, share = observed
        base = torch.where(top == _EMPTY, 0.0, top)
        highest = self.part.largest(top.clone())
        origin = torch.where(highest == _EMPTY, 0.0, highest)
        sums = torch.stack((((top - origin) + spread).exp(), away + share * (origin - base), share))
        powers, away, share = self.part.sum(sums)
        spread = powers.log()
        lse = origin + spread
        counted = self.counted if self.has_labels else torch.ones_like(lse)
        by_square = self.given["z_loss"] * counted * lse
        loss = away + share * spread + by_square * lse
        if self.has_labels:
            loss = torch.where(self._ignored, 0.0, loss)
        return loss, Merged(highest, spread, share + 2 * by_square)

    # ---- backward -------------------------------------------------------------------------------

    def gradient(
        self, x: Tensor, q: Tensor | None, gains: Tensor, merged: Merged, rows: slice = slice(None)
    ) -> Tensor:
        """The gradient of rows of logits, from that of each row's loss."""
        if not self.classes:
            return torch.empty_like(x)
        label = self._label[rows] if self.has_labels else None
        top, spread, power = merged.of(rows)
        gains = gains[rows]
        dx: Tensor = self._kernels.backward(
            gains / self._factor, x, label, q, self.weight, top, spread, power * self._factor,
            x.new_empty(0, dtype=self._dtype), *self._options(self._smoothing),
        )  # fmt: skip
        if not self.has_labels:
            return dx
        # Where the label is another process's, the kernel has counted the nearest class as such.
        place, z = self._place[rows], self._at_labels(x, rows)
        weight = 1.0 if self.weight is None else self.weight.to(self._dtype)[place.squeeze(1)]
        dz = gains * (power * (z - top - spread).exp() - self._each * weight)
        if self.given["softcap"] > 0:
            dz = dz * (1 - (z / self.given["softcap"]).square())
        is_right = self._is_here[rows] | self._ignored[rows]
        right = torch.where(
            is_right.unsqueeze(1), dx.gather(1, place), dz.unsqueeze(1).to(dx.dtype)
        )
        return dx.scatter(1, place, right)

    # ---- reductions -----------------------------------------------------------------------------

    def reduced(self, losses: Tensor) -> Tensor:
        """A call's result from each row's loss."""
        x, reduction = self.given["x"], self.given["reduction"]
        loss = losses.view(x.shape[:-1]) if reduction == NONE else losses.sum()
        if reduction == MEAN:
            loss = loss / (self.counted.sum() if self.has_labels else len(losses))
        return loss if self.given["wide"] else loss.to(x.dtype)


def refuse_derivative(title: str) -> None:
    """Refuses to differentiate a gradient whose sums other processes have."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{title}: classes are split between devices, and the gradient has no derivative,"
            " expected create_graph=False (redistributed logits have one)"
        )


class _ByClasses(torch.autograd.Function):
    """The loss of each row (N,) of logits (N, C) and of probabilities."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor | None, columns: Columns) -> Tensor:
        loss, merged = columns.merged(columns.observe(x, q))
        ctx.save_for_backward(x, q, *merged)
        ctx.columns = columns
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        refuse_derivative("cross_entropy")
        x, q, *saved = ctx.saved_tensors
        columns, merged = ctx.columns, Merged(*saved)
        need_x, need_q, _ = ctx.needs_input_grad
        dloss = dloss.contiguous()
        dx = columns.gradient(x, q, dloss, merged) if need_x else None
        dq = None
        if need_q:
            values = {**columns.given, "x": x, "probabilities": q, "weight": columns.weight}
            values |= {"dloss": dloss, "total": None, "reduction": NONE}
            dq = _formula.gradient_of_probabilities({**values, **merged._asdict()})
        return dx, dq, None


def by_classes(op: Op, part: Part, call: Run, given: Given) -> tuple[Tensor]:  # noqa: ARG001
    """The loss of a process's columns of the logits, with the others'."""
    x, q = given["x"], given["probabilities"]
    columns = Columns(op.title, given, part, x.shape[-1], passes_of(op, part.backend, x))
    rows = x.reshape(-1, x.shape[-1])
    losses = _ByClasses.apply(rows, None if q is None else q.reshape(rows.shape), columns)
    return (columns.reduced(losses),)


def mean_by_rows(part: Part, call: Run, given: Given) -> tuple[Tensor, ...]:
    """Means over a process's rows and the others': the loss by the weight of the rows, statistics
    by the number of those that count."""
    x = given["x"]
    loss, *others = call({**given, "reduction": SUM, "wide": True})
    by = part.sum(_weights_of_rows(given).sum())
    loss = total(loss, part) / by
    if any(each.numel() for each in others):
        counted = part.sum((given["target"] != given["ignore_index"]).sum())
        others = [total(each, part) / counted if each.numel() else each for each in others]
    return loss if given["wide"] else loss.to(x.dtype), *others


def _weights_of_rows(given: Given) -> Tensor:
    """The weight of each row in a mean. The loss knows which labels are no classes."""
    x, target, weight = (given[name] for name in ("x", "target", "weight"))
    dtype = accumulate_dtype(x)
    if target is None:
        return torch.ones(x.shape[:-1], dtype=dtype, device=x.device)
    classes = torch.iinfo(torch.int32).max if weight is None else len(weight)
    return _formula.counted_labels(target, classes, weight, given["ignore_index"], dtype)
