# SPDX-License-Identifier: MIT
"""Packed weights, kept between calls on the CPU where no gradient is asked for.

Inference multiplies by the same weight at every token. Our product of many rows copies the weight
into its own order at each call, and that of few rows reads several lines of it at a time, which
memory serves at 70 to 80 % of its rate. A packed weight is one line of bytes for both.

It is off unless TFK_PACKED_BYTES says how many bytes the packed weights may take, because not all
changes can be seen: programs that serve fixed weights turn it on. A weight is packed when it is
used for the second time as it is, so that one that changes at every step never is. What is kept
belongs to the tensor's memory, of which views share one version: a change in place by PyTorch's
operators and ``load_state_dict``, and another tensor in its place are seen, and the weight is then
used as it lies until its second use. Fused optimizers, collectives, changes through ``.data``
(adapters that are merged, averages that are copied) and of memory that others share have no
version: ``repack`` follows them. Tensors made in inference mode have none either, and are never
packed. Weights that come after the bytes are used up are used as they lie.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._errors import ArgumentTypeError, ArgumentValueError
from ..._library import direct, log_dispatch
from ..._torch import has_dispatch_mode, is_eager
from .._declare_raw import declare_raw
from .._kinds import PLAIN_CLASSES
from .._work import products_with
from . import _formula
from ._choice import BLAS, why_not_few_rows
from ._ops import LINEAR, LINEAR_ACT
from ._tuned import Asked

_FEWEST_NUMBERS = 2**18  # of a weight: a smaller one stays in the second-level cache
_MOST_ROWS = 512  # with more, the copy of a call takes less than a tenth of the product
_DTYPES = (torch.float32, torch.bfloat16)


# ---- raw ops ------------------------------------------------------------------------------------


def _no_formula(weight: Tensor) -> Tensor:
    raise NotImplementedError("pack_weight: the order is that of the CPU's kernels")


def _fake_packed(weight: Tensor) -> Tensor:
    size: Any = torch.library.get_ctx().new_dynamic_size()
    return weight.new_empty(size, dtype=torch.uint8)


def _fake_y(
    x: Tensor, weight: Tensor, packed: Tensor, bias: Tensor | None, *_: int  # noqa: ARG001
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


PACK = declare_raw(
    "pack_weight(Tensor weight) -> Tensor packed",
    of=LINEAR, reference=_no_formula, fake=_fake_packed,
)  # fmt: skip
_LAYER = "Tensor x, Tensor weight, Tensor packed, Tensor? bias"
PACKED = declare_raw(
    f"linear_packed({_LAYER}) -> Tensor y",
    of=LINEAR,
    flops=products_with("weight"),
    reference=lambda x, weight, _, bias: _formula.linear(x, weight, bias),
    fake=_fake_y,
)
PACKED_ACT = declare_raw(
    f"linear_act_packed({_LAYER}, int activation) -> Tensor y",
    of=LINEAR_ACT,
    flops=products_with("weight"),
    reference=lambda x, weight, _, bias, act: _formula.linear_act(x, weight, bias, act)[0],
    fake=_fake_y,
)
_pack, _product, _product_and_act = direct(PACK), direct(PACKED), direct(PACKED_ACT)


# ---- what is kept -------------------------------------------------------------------------------


@dataclass
class _Weight:
    """A weight as it was used last: of a tensor's memory, and packed at its second use."""

    address: int
    version: int
    packed: Tensor | None = None
    is_refused: bool = False


@dataclass
class _Owner:
    """A tensor that has memory, and the weights in it by where they lie there."""

    tensor: weakref.ref[Tensor]
    weights: dict[Any, _Weight] = field(default_factory=dict)


def _bytes_allowed() -> int:
    given = os.environ.get("TFK_PACKED_BYTES") or "0"
    if not given.isdecimal():
        raise ArgumentValueError(f"TFK_PACKED_BYTES is {given!r}, expected a number of bytes")
    return int(given)


class _Kept:
    """All packed weights of the process."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.repacks = 0  # calls of repack(), for what others have packed
        self._owners: dict[int, _Owner] = {}
        self._lock = threading.RLock()  # the garbage collector may run drop() inside another call

    def packed(self, weight: Tensor) -> Tensor | None:
        """The packed weight; None at the first use of a version, or where there is no room."""
        owner = weight if weight._base is None else weight._base
        place = (weight.storage_offset(), weight.shape, weight.stride(), weight.dtype)
        address, version = weight.data_ptr(), weight._version
        weights = self._weights_of(owner)
        found = weights.get(place)
        if found is None or found.version != version or found.address != address:
            with self._lock:
                self._forget(weights.get(place))
                weights[place] = _Weight(address, version)
            return None
        if found.packed is None and not found.is_refused:
            self._fill(found, weight)
        return found.packed

    def _weights_of(self, owner: Tensor) -> dict[Any, _Weight]:
        key = id(owner)
        found = self._owners.get(key)
        if found is not None and found.tensor() is owner:
            return found.weights
        with self._lock:
            self.drop(key)
            made = self._owners[key] = _Owner(weakref.ref(owner, lambda _: self._drop_dead(key)))
            return made.weights

    def _fill(self, found: _Weight, weight: Tensor) -> None:
        with self._lock:
            if found.packed is not None:
                return
            if self.bytes + weight.nbytes > self.most_bytes:
                found.is_refused = True
                log_dispatch("linear: packed weight refused: TFK_PACKED_BYTES are used")
                return
            packed = _pack(weight)
            self.bytes += packed.nbytes
            found.packed = packed

    def _forget(self, weight: _Weight | None) -> None:
        if weight is not None and weight.packed is not None:
            self.bytes -= weight.packed.nbytes
            weight.packed = None

    def _drop_dead(self, key: int) -> None:
        """Drops a tensor that is gone, unless another one has its number already."""
        with self._lock:
            found = self._owners.get(key)
            if found is not None and found.tensor() is None:
                self.drop(key)

    def drop(self, key: int) -> None:
        with self._lock:
            found = self._owners.pop(key, None)
            for weight in found.weights.values() if found is not None else ():
                self._forget(weight)

    def drop_all(self) -> None:
        for key in tuple(self._owners):
            self.drop(key)


KEPT = _Kept(_bytes_allowed())


def repack(weights: Any) -> None:
    """Forgets the packed copies of a weight, or of all parameters of a module; the next uses make
    new ones, also of the weights that ``generate`` has packed. Call it after a change that has no
    version: through ``.data``, by PyTorch's fused optimizers, by collectives, or of memory that
    NumPy shares.

    Args:
        weights: a weight of linear layers, or a module.

    Raises:
        ArgumentTypeError: ``weights`` is neither.

    >>> layer = tfk.nn.Linear(512, 512)
    >>> layer.weight.data.mul_(0.5)  # doctest: +ELLIPSIS
    tensor(...)
    >>> tfk.repack(layer)
    """
    if not isinstance(weights, (Tensor, torch.nn.Module)):
        kind = type(weights).__name__
        raise ArgumentTypeError(f"repack: weights is {kind}, expected a Tensor or a Module")
    tensors = weights.parameters() if isinstance(weights, torch.nn.Module) else [weights]
    for tensor in tensors:
        KEPT.drop(id(tensor if tensor._base is None else tensor._base))
    KEPT.repacks += 1


# ---- products -----------------------------------------------------------------------------------


@functools.cache
def _keeps_size(dtype: torch.dtype) -> bool:
    """Whether a packed weight of this dtype takes no more memory than the weight."""
    weight = torch.zeros(96, 32, dtype=dtype)
    return bool(_pack(weight).nbytes <= weight.nbytes)


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of the packed weight was measured to be faster than PyTorch's."""
    if why_not_few_rows(x) is not None:
        few_enough = x.numel() <= _MOST_ROWS * x.shape[-1]
        return few_enough and not BLAS[1] and _keeps_size(weight.dtype)
    one = x.numel() == x.shape[-1]
    if weight.dtype is torch.float32 and one and BLAS[0]:
        return False
    return _keeps_size(weight.dtype)


def _takes(x: Any, weight: Any, bias: Any) -> bool:
    """Whether the operands are plain memory that forms a product, without gradients."""
    if type(weight) not in PLAIN_CLASSES or type(x) not in PLAIN_CLASSES:
        return False
    if not (weight.is_cpu and x.is_cpu and weight.dtype is x.dtype and x.dtype in _DTYPES):
        return False
    if weight.numel() < _FEWEST_NUMBERS or weight.dim() != 2 or x.shape[-1:] != weight.shape[1:]:
        return False
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return False
    if bias is not None and not (
        type(bias) in PLAIN_CLASSES
        and bias.is_cpu
        and bias.shape == weight.shape[:1]
        and (bias.dtype is x.dtype or bias.dtype is torch.float32)
    ):
        return False
    return x.numel() > 0 and not weight.is_inference()


def product(x: Any, weight: Any, bias: Any, activation: int | None = None) -> Tensor | None:
    """Computes the layer by the packed weight; None where there is none, or it would not pay."""
    if KEPT.most_bytes == 0 or not _takes(x, weight, bias):
        return None
    if not is_eager() or has_dispatch_mode() or torch.is_autocast_enabled("cpu"):
        return None
    if Asked.measure is not None or torch.are_deterministic_algorithms_enabled():
        return None
    if not _pays(x, weight):
        return None
    packed = KEPT.packed(weight)
    if packed is None:
        return None
    y: Tensor = (
        _product(x, weight, packed, bias)
        if activation is None
        else _product_and_act(x, weight, packed, bias, activation)
    )
    return y
