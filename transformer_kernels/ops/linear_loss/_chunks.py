# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer in chunks of rows: only one chunk of logits is in memory.

A chunk is a product that computes logits, a pass that computes losses and overwrites the logits
with their gradient, and two products with that gradient, each only if it is needed. Factors that
all losses share (1 / total for a mean, and the incoming gradient) are multiplied into the class
weights, so a logit's gradient is rounded once, as in PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..._library import log_copy
from .._dtype import accumulate_dtype
from ..loss._formula import MEAN, NONE, SUM, counted_labels
from ..loss._ops import CROSS_ENTROPY, loss_with_gradient_in_place
from ._products import PackedProducts, Products, TorchProducts
from ._statistics import (
    add_entropy_gradient,
    gains_of_rows,
    reduced,
    write_accuracy,
    write_entropy,
)

# Bytes of logits in memory if the call does not say: on a CPU, enough rows for products at full
# speed; elsewhere, as many bytes as the weight's gradient, within limits, so that a large gradient
# is summed only a few times.
DEFAULT_BYTES = 64 << 20
LEAST_BYTES_ELSEWHERE, MOST_BYTES_ELSEWHERE = 512 << 20, 1 << 30

# With up to this many chunks, a 16-bit gradient of the weight is summed in its own dtype.
MOST_NARROW_SUMS = 4

_ROWS_CAST = 256  # at a time, for products that are added to sums of another dtype

# Bytes. On a GPU rows of logits start at multiples of a line, and products have as many columns as
# libraries need for their fast kernels, whatever the vocabulary.
_LINE, _EVEN = 128, 16

Given = Mapping[str, Any]
Needed = tuple[bool, bool, bool]  # whether the gradients of x, weight and bias are needed
Pass = TypeVar("Pass", bound=Callable[..., Any])


def default_bytes(x: Tensor, weight: Tensor) -> int:
    if x.is_cpu:
        return DEFAULT_BYTES
    bytes_of_gradient = weight.numel() * x.itemsize
    return min(max(LEAST_BYTES_ELSEWHERE, bytes_of_gradient), MOST_BYTES_ELSEWHERE)


def rows_at_once(rows: int, row_bytes: int, most_bytes: int) -> int:
    """Rows per chunk, for chunks of equal size of up to ``most_bytes`` (or one row, if that is
    larger)."""
    most = max(1, most_bytes // max(row_bytes, 1))
    chunks = max(1, -(-rows // most))
    return max(1, -(-rows // chunks))


def _padded(tensor: Tensor | None, x: Tensor, rows: int) -> Any:
    """Casts to the dtype of ``x``, and appends rows of zeros up to ``rows``."""
    if tensor is None or len(tensor) == rows:
        return None if tensor is None else tensor.to(x.dtype)
    padded = x.new_zeros(rows, *tensor.shape[1:])
    padded[: len(tensor)].copy_(tensor)
    return padded


class RowChunks:
    """The rows of a call, in chunks; ``copies`` buffers of a chunk's size are in memory."""

    def __init__(self, given: Given, copies: int = 1) -> None:
        self._given = given
        x, weight, bias = given["x"], given["linear_weight"], given["linear_bias"]
        # oneDNN reads beyond the end of 16-bit rows that are not adjacent.
        self.x: Tensor = (x if x.dim() == 2 else x.flatten(0, -2)).contiguous()
        log_copy("linear_cross_entropy: rows of x do not follow each other", self.x, x)
        self.target: Tensor = given["target"].reshape(-1)
        self.arithmetic = accumulate_dtype(x)
        self._classes = len(weight)
        step = self._row_step()
        limit = given["chunk_bytes"] or default_bytes(x, weight)
        at_once = rows_at_once(len(self.x), copies * step * x.itemsize, limit)
        self.parts = [slice(i, i + at_once) for i in range(0, len(self.x), at_once)]
        columns = self._classes if given["packed"] or self._is_even() else step
        weight, bias = _padded(weight, x, columns), _padded(bias, x, columns)
        if given["packed"]:
            self.products: Products = PackedProducts(weight, bias)
        else:
            memory = x.new_empty(at_once, step)[:, :columns]
            self.products = TorchProducts(weight, bias, memory, self._classes)

    def _row_step(self) -> int:
        line = _LINE // self.x.itemsize if self.x.is_cuda else 1
        return -(-self._classes // line) * line

    def _is_even(self) -> bool:
        return not self.x.is_cuda or self._classes * self.x.itemsize % _EVEN == 0

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yields rows and their logits, in memory that the next chunk may reuse."""
        for part in self.parts:
            yield part, self.products.logits(self.x[part])

    def counted(self) -> Tensor:
        """Whether each row is not ignored."""
        counted: Tensor = self.target != self._given["ignore_index"]
        return counted

    def total(self) -> Tensor | None:
        """The divisor of a mean; None for other reductions."""
        if self._given["reduction"] != MEAN:
            return None
        weight, ignored = self._given["weight"], self._given["ignore_index"]
        return counted_labels(self.target, self._classes, weight, ignored, self.arithmetic).sum()

    def options(self, total: Tensor | None = None, dloss: Tensor | None = None) -> tuple[Any, ...]:
        """The options of each row's loss, with the shared factors in the class weights."""
        weight = self._given["weight"]
        gain = None if dloss is None else dloss.to(self.arithmetic)
        if total is not None:
            mean = torch.where(total == 0, 0.0, 1 / total)  # 0 where no row counts
            gain = mean if gain is None else gain * mean
        if gain is not None:
            of_classes = gain.new_ones(self._classes) if weight is None else weight.to(gain.dtype)
            weight = gain * of_classes
        names = ("ignore_index", "label_smoothing", "z_loss", "softcap")
        return (weight, *(self._given[name] for name in names), NONE)

    def reduced(self, losses: Tensor, total: Tensor | None) -> Tensor:
        x = self._given["x"]
        loss = losses.view(x.shape[:-1]) if self._given["reduction"] == NONE else losses.sum()
        if total is not None:
            loss = torch.where(total == 0, torch.nan, loss)
        return loss if self._given["wide"] else loss.to(x.dtype)


def _add(sums: Tensor, product: Tensor) -> None:
    """Adds a product to sums. For two dtypes PyTorch adds number by number on a CPU, so rows that
    stay in the cache are cast first."""
    if sums.dtype is product.dtype or not sums.is_cpu:
        sums.add_(product)
        return
    cast = sums.new_empty(_ROWS_CAST, sums.shape[1])
    for rows, terms in zip(sums.split(_ROWS_CAST), product.split(_ROWS_CAST), strict=True):
        rows.add_(cast[: len(terms)].copy_(terms))


class _WeightSums:
    """The weight's gradient, summed over chunks in its own dtype or in the arithmetic's."""

    def __init__(self, given: Given, rows: RowChunks) -> None:
        x, weight = given["x"], given["linear_weight"]
        self._products = rows.products
        self._dtype = weight.dtype
        few = len(rows.parts) <= MOST_NARROW_SUMS and not given["float32_sums"]
        narrow = x.dtype in rows.products.sums and weight.dtype is x.dtype and few
        dtype = x.dtype if narrow else rows.arithmetic
        make = weight.new_empty if rows.parts else weight.new_zeros
        shape, self._classes = (rows.products.columns, *weight.shape[1:]), len(weight)
        self._sums: Tensor = make(shape, dtype=dtype)
        self._in_place = dtype in rows.products.sums
        own = self._in_place or dtype is x.dtype
        self._product = self._sums if own else x.new_empty(shape)
        self._is_first = True

    def add(self, dlogits: Tensor, x: Tensor) -> None:
        first, self._is_first = self._is_first, False
        if self._in_place:
            self._products.dweight(dlogits, x, self._sums, add=not first)
            return
        product = self._products.dweight(dlogits, x, self._product, add=False)
        if first:
            self._sums.copy_(product)
        else:
            _add(self._sums, product)

    def result(self) -> Tensor:
        return self._sums[: self._classes].to(self._dtype)


class Gradients:
    """The gradients that are needed, computed chunk by chunk; others have no elements."""

    def __init__(self, given: Given, rows: RowChunks, needed: Needed) -> None:
        x, bias = given["x"], given["linear_bias"]
        need_dx, need_dweight, need_dbias = needed
        self._given, self._rows = given, rows
        self._dx = x.new_empty(rows.x.shape) if need_dx else None
        self._dweight = _WeightSums(given, rows) if need_dweight else None
        self._dbias: Tensor | None = None
        if need_dbias and bias is not None:
            self._dbias = bias.new_zeros(bias.shape, dtype=rows.arithmetic)

    def add(self, part: slice, dlogits: Tensor) -> None:
        if self._dx is not None:
            self._rows.products.dx(dlogits, self._dx[part])
        if self._dweight is not None:
            self._dweight.add(dlogits, self._rows.x[part])
        if self._dbias is not None:
            self._dbias += dlogits.sum(0, dtype=self._dbias.dtype)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        x, bias = self._given["x"], self._given["linear_bias"]
        return (
            x.new_empty(0) if self._dx is None else self._dx.view(x.shape),
            x.new_empty(0) if self._dweight is None else self._dweight.result(),
            x.new_empty(0) if self._dbias is None else self._dbias.to(bias.dtype),
        )


class _Statistics:
    """The entropy and the accuracy of each row, of those that are asked for, from the logits that a
    chunk has anyway."""

    def __init__(self, given: Given, rows: RowChunks) -> None:
        self._given, self._rows = given, rows
        self._nothing = rows.x.new_empty(0, dtype=rows.arithmetic)
        make = self._nothing.new_empty
        self._entropy = make(len(rows.x)) if given["with_entropy"] else None
        self._accuracy = make(len(rows.x)) if given["with_accuracy"] else None

    def observe(self, part: slice, logits: Tensor) -> None:
        """Reads a chunk's logits, before gradients overwrite them."""
        if self._entropy is not None:
            write_entropy(logits, self._given["softcap"], self._entropy[part])
        if self._accuracy is not None:
            counted, target = self._rows.counted()[part], self._rows.target[part]
            write_accuracy(logits, target, counted, self._accuracy[part])

    def results(self) -> tuple[Tensor, Tensor]:
        if self._entropy is not None:
            self._entropy.masked_fill_(~self._rows.counted(), 0.0)
        return self._reduced(self._entropy), self._reduced(self._accuracy)

    def _reduced(self, of_rows: Tensor | None) -> Tensor:
        if of_rows is None:
            return self._nothing.clone()
        found = reduced(of_rows, self._rows.counted(), self._given["reduction"])
        return found.view(self._given["x"].shape[:-1]) if found.dim() else found


# ---- passes -------------------------------------------------------------------------------------


def as_pass(function: Pass) -> Pass:
    """Runs a pass without autograd and autocast: dtypes and derivatives are handled here."""

    @wraps(function)
    def run(given: Given, *others: Any) -> Any:
        with torch.no_grad(), torch.autocast(given["x"].device.type, enabled=False):
            return function(given, *others)

    return cast(Pass, run)


@as_pass
def loss_alone(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the loss, the entropy and the accuracy."""
    rows = RowChunks(given)
    total = rows.total()
    options, statistics = rows.options(total), _Statistics(given, rows)
    losses = rows.x.new_empty(len(rows.x), dtype=rows.arithmetic)
    for part, logits in rows.chunks():
        target = rows.target[part]
        losses[part] = CROSS_ENTROPY.raw.inference(logits, target, None, *options, True)
        statistics.observe(part, logits)
    return rows.reduced(losses, total), *statistics.results()


@as_pass
def loss_and_gradients(given: Given, needed: Needed) -> tuple[Tensor, ...]:
    """Computes a reduced loss, the entropy and the accuracy, and the loss's gradients for an
    incoming gradient of 1."""
    rows = RowChunks(given)
    total = rows.total()
    options, statistics = rows.options(total), _Statistics(given, rows)
    gradients = Gradients(given, rows, needed)
    losses = rows.x.new_empty(len(rows.x), dtype=rows.arithmetic)
    for part, logits in rows.chunks():
        target = rows.target[part]
        statistics.observe(part, logits)
        losses[part] = loss_with_gradient_in_place(logits, target, None, *options, True)
        gradients.add(part, logits)
    return rows.reduced(losses, total), *statistics.results(), *gradients.results()


@as_pass
def gradients_alone(given: Given, needed: Needed) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients from those of the loss and of the entropy, of which each may be
    absent; the logits are computed again."""
    dloss, dentropy = given["dloss"], given["dentropy"]
    dentropy = dentropy if dentropy is not None and dentropy.numel() else None
    if given["reduction"] == NONE or dentropy is not None or dloss is None:
        return _gradients_of_rows(given, dloss, dentropy, needed)
    rows = RowChunks(given)
    options = rows.options(rows.total(), dloss)
    gradients = Gradients(given, rows, needed)
    for part, logits in rows.chunks():
        loss_with_gradient_in_place(logits, rows.target[part], None, *options, True)
        gradients.add(part, logits)
    return gradients.results()


def _gradients_of_rows(
    given: Given, dloss: Tensor | None, dentropy: Tensor | None, needed: Needed
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients for separate incoming gradients per row, which the kernel that
    overwrites logits does not support."""
    rows = RowChunks(given, copies=2)
    weight, *numbers = options = rows.options(rows.total())
    counted, softcap = rows.counted(), given["softcap"]
    gradients = Gradients(given, rows, needed)
    of_rows = rows.x.new_empty(len(rows.x), dtype=rows.arithmetic)
    loss_reduction = NONE if given["reduction"] == NONE else SUM  # the weights divide a mean
    loss_gains = gains_of_rows(dloss, counted, loss_reduction, of_rows)
    entropy_gains = gains_of_rows(dentropy, counted, given["reduction"], of_rows)
    for part, logits in rows.chunks():
        target = rows.target[part]
        _, *saved = CROSS_ENTROPY.raw.forward(logits, target, None, *options, True)
        inputs = (loss_gains[part], logits, target, None, weight, *saved, *numbers)
        dlogits = CROSS_ENTROPY.raw.backward(*inputs)
        if dentropy is not None:
            gains = entropy_gains[part]
            add_entropy_gradient(dlogits, logits, gains, counted[part], softcap)
        if rows.products.columns > logits.shape[1]:
            dlogits = logits.copy_(dlogits)
        gradients.add(part, dlogits)
    return gradients.results()
