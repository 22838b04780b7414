# SPDX-License-Identifier: MIT
"""Moves tokens to their experts and back."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_integer,
    as_number,
    check_kind,
    check_tensors,
    dtype_name,
    translate,
)
from .._kinds import is_distributed
from .._public import overridable
from .._sharding import on_whole
from ._dispatch_ops import MOE_PERMUTE, MOE_UNPERMUTE, moe_sort


class Dispatch(NamedTuple):
    """The places of tokens sorted by expert; :func:`moe_dispatch` makes it.

    Attributes:
        offsets: (E + 1), int32: the places of expert e are ``offsets[e]`` to ``offsets[e + 1]``.
        tokens: (T * K), int32: the token at each place, or -1 behind all experts.
        places: (T, K), int32: the place of each token's assignment, or ``-1 - place`` where it is
            dropped.
    """

    offsets: Tensor
    tokens: Tensor
    places: Tensor

    @property
    def num_experts(self) -> int:
        return self.offsets.numel() - 1

    def counts(self) -> Tensor:
        """The assignments of each expert, without dropped ones, (E), int32."""
        return self.offsets.diff()

    def drop_rate(self) -> Tensor:
        """The share of the assignments that are dropped, a number on the device."""
        count = self.tokens.numel()
        return (count - self.offsets[-1]) / max(count, 1)


DISPATCH = "a Dispatch (moe_dispatch)"  # as messages call it


def _places_of(op: str, dispatch: Dispatch) -> Tensor:
    check_kind(op, "dispatch", dispatch, Dispatch, DISPATCH)
    return dispatch.places


def capacity_of(op: str, capacity_factor: float, assignments: int, experts: int) -> int:
    """The assignments that each expert takes."""
    factor = as_number(op, "capacity_factor", capacity_factor)
    if not 0 < factor < math.inf:
        raise ArgumentValueError(
            f"{op}: capacity_factor is {factor:g}, expected a finite number above 0"
        )
    return max(1, math.ceil(min(factor, experts) * assignments / experts))


@overridable
def moe_dispatch(
    indices: Tensor, num_experts: int, *, capacity_factor: float | None = None
) -> Dispatch:
    """Sorts tokens by expert, on their device: stable, without atomics and without the host, so
    that a CUDA graph can replay it with other indices.

    Args:
        indices: (..., K), int32 or int64: the experts of each token, K at most 16. An assignment
            to a number that is no expert is dropped.
        num_experts: E, at most 4096.
        capacity_factor: each expert takes ``ceil(capacity_factor * T * K / E)`` assignments, those
            of the first tokens, and all others are dropped; by default none is.

    Raises:
        ValueError: a shape or number is none of these.
        TypeError: a dtype is none of these.

    >>> d = tfk.functional.moe_dispatch(torch.tensor([[2, 0], [0, 1], [0, 2]]), 3)
    >>> d.offsets.tolist(), d.tokens.tolist()
    ([0, 3, 4, 6], [0, 1, 2, 1, 0, 2])
    """
    op = "moe_dispatch"
    check_tensors(op, {"indices": indices})
    if indices.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(
            f"{op}: indices is {dtype_name(indices.dtype)}, expected int32 or int64"
        )
    if indices.dim() == 0:
        raise ArgumentValueError(f"{op}: indices has 0 dimensions, expected at least 1")
    experts = as_integer(op, "num_experts", num_experts)
    if not 1 <= experts <= 4096:
        raise ArgumentValueError(f"{op}: num_experts is {experts}, expected 1 to 4096")
    rows = indices.reshape(-1, indices.shape[-1])
    if rows.dtype is torch.int64:  # what int32 does not hold is no expert
        rows = rows.clamp(-1, experts).to(torch.int32)
    capacity = 0
    if capacity_factor is not None:
        capacity = capacity_of(op, capacity_factor, rows.numel(), experts)
    try:
        if is_distributed(rows):
            sort = partial(moe_sort, num_experts=experts, capacity=capacity)
            return Dispatch(*on_whole(sort, rows))
        return Dispatch(*moe_sort(rows, experts, capacity))
    except RuntimeError as error:
        raise translate(op, error) from None


def _rows(op: str, name: str, x: Tensor) -> Tensor:
    check_tensors(op, {name: x})
    if x.dim() < 2:
        raise ArgumentValueError(f"{op}: {name} has {x.dim()} dimensions, expected at least 2")
    return x if x.dim() == 2 else x.flatten(0, -2)


@overridable
def moe_permute(x: Tensor, dispatch: Dispatch, *, backend: str = "auto") -> Tensor:
    """Copies the row of each token to its places, so that those of an expert follow one another.

    The backward pass sums the gradients of a token's places, without atomics.

    Args:
        x: (..., C), a row for each token.
        dispatch: the places, T tokens of K experts.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"`` or ``"reference"``.

    Returns:
        (T * K, C). Rows of dropped assignments, behind those of all experts, are zeros.

    Raises:
        ValueError: a shape is none of these.
        TypeError: a dtype is none of these.

    >>> x, indices = torch.randn(3, 4), torch.tensor([[2, 0], [0, 1], [0, 2]])
    >>> d = tfk.functional.moe_dispatch(indices, 3)
    >>> torch.equal(tfk.functional.moe_permute(x, d), x[d.tokens])
    True
    """
    rows = _rows("moe_permute", "x", x)
    y: Tensor = MOE_PERMUTE.call(rows, _places_of("moe_permute", dispatch), backend)
    return y


@overridable
def moe_unpermute(
    x: Tensor, dispatch: Dispatch, weights: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Sums for each token the rows at its places, with weights, in the order of its experts.

    Args:
        x: (T * K, C), a row for each place, as :func:`moe_permute` orders them.
        dispatch: the places, T tokens of K experts.
        weights: (..., K), the factor of each row, of ``x``'s dtype or float32; by default 1.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"`` or ``"reference"``.

    Returns:
        (T, C). A dropped assignment adds nothing.

    Raises:
        ValueError: a shape is none of these.
        TypeError: a dtype is none of these.

    >>> x, logits = torch.randn(3, 4), torch.randn(3, 8)
    >>> weights, indices = tfk.functional.moe_router(logits, 2)
    >>> d = tfk.functional.moe_dispatch(indices, 8)
    >>> y = tfk.functional.moe_unpermute(tfk.functional.moe_permute(x, d), d, weights)
    >>> torch.allclose(y, x, atol=1e-6)  # renormalised weights have a sum of 1
    True
    """
    op = "moe_unpermute"
    places = _places_of(op, dispatch)
    if weights is not None:
        check_tensors(op, {"weights": weights})
        weights = weights if weights.dim() == 2 else weights.reshape(-1, weights.shape[-1])
    y: Tensor = MOE_UNPERMUTE.call(x, places, weights, backend)
    return y
