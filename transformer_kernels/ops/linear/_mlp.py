# SPDX-License-Identifier: MIT
"""Both passes of an MLP, made of matrix products and pointwise kernels.

The backward pass runs over the hidden features in parts, so that its temporaries are never as large
as the hidden layer. Each part computes its own rows or columns of the weights' gradients; the
gradient of x is summed over the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..._library import direct
from ..pointwise._ops import GATED, PLAIN
from . import _formula
from ._formula import as_rows, bias_gradient
from ._ops import (
    GATED_LINEAR,
    LINEAR,
    LINEAR_ACT,
    LINEAR_DACT,
    LINEAR_DGATED,
    LINEAR_DWEIGHT,
)
from ._weights import Gradient, copy_of, gradient_of, multiplied

Tensors = tuple[Tensor, ...]
Optionals = Sequence[Tensor | None]

# The sum over the parts is rounded to the dtype of x after each: with 4 parts the error stays
# within twice that of one product. On CUDA, from these bytes and features on, 2 parts are as fast
# as one or faster, and 4 take up to 5 % longer. Below that, more calls cost more than a working set
# in the cache saves, or than the memory is worth.
_PARTS = {"cpu": 4, "cuda": 2}
_FEWEST_BYTES = {"cpu": 2**24, "cuda": 2**28}
_FEWEST_FEATURES_ON_CUDA = 4096  # per part: smaller products leave processors idle
_STEP = 64  # parts begin at multiples, where rows of hidden features are aligned


class Products(NamedTuple):
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x weight^T + bias
    dx: Callable[[Tensor, Tensor], Tensor]  # dz weight
    add: Callable[[Tensor, Tensor, Tensor], Any]  # to a sum dz weight
    dweight: Callable[[Gradient, Tensor, Tensor], None]  # (its memory, dz, x)


_packed = direct(LINEAR.raw.forward)
_packed_backward = direct(LINEAR.raw.backward)
_write_dweight = direct(LINEAR_DWEIGHT)


def _packed_dx(dz: Tensor, weight: Tensor) -> Tensor:
    return cast(Tensor, _packed(dz, weight.t(), None))


def _packed_dweight(gradient: Gradient, dz: Tensor, x: Tensor) -> None:
    _write_dweight(gradient.allocated(), dz, x, gradient.adds)


_OURS = Products(
    _packed,
    _packed_dx,
    lambda total, dz, weight: total.add_(_packed_dx(dz, weight)),
    _packed_dweight,
)
_TORCHS = Products(
    _formula.linear,
    torch.mm,
    lambda total, dz, weight: torch.addmm(total, dz, weight, out=total),
    Gradient.product,
)
_ON_CUDA = _TORCHS._replace(linear=_packed, dx=_packed_dx)


def products_of(x: Tensor, packed: bool) -> Products:
    """Our products, or PyTorch's."""
    if not packed:
        return _TORCHS
    return _ON_CUDA if x.is_cuda else _OURS


class Fused(NamedTuple):
    """Products that include an activation. Here z includes the bias, which the first product
    added."""

    number: int  # of the activation

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Returns h, and z if it is to be saved."""
        if keep:
            h, z = _act_forward(x, weight, bias, self.number)
            return h, z
        return _act_inference(x, weight, bias, self.number), None

    def backward(
        self, dy: Tensor, down_weight: Tensor, bias: Tensor | None, z: Tensor, need_dbias: bool,
        need_h: bool,
    ) -> Tensors:  # fmt: skip
        """Returns dz, the gradient of the bias, and h."""
        return cast(Tensors, _dact(dy, down_weight, bias, z, self.number, need_dbias, need_h))


_act_forward = direct(LINEAR_ACT.raw.forward)
_act_inference = direct(LINEAR_ACT.raw.inference)
_dact = direct(LINEAR_DACT)
_gated_forward = direct(GATED_LINEAR)
_dgated = direct(LINEAR_DGATED)


class Kernels(NamedTuple):
    """The kernels of one activation, from the pointwise family, and the products."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensors]
    products: Products
    fused: Fused | None = None
    # The activation of gate and up in one kernel with their products, and the way back through it.
    gated: int | None = None


_PLAIN = [(direct(op.raw.forward), direct(op.raw.backward)) for op in PLAIN.values()]
_GATED = [(direct(op.raw.forward), direct(op.raw.backward)) for op in GATED.values()]


@cache
def _plain_kernels(activation: int, products: Products, fuses: bool) -> Kernels:
    return Kernels(*_PLAIN[activation], products, fused=Fused(activation) if fuses else None)


@cache
def _gated_kernels(activation: int, products: Products, fuses: bool) -> Kernels:
    return Kernels(*_GATED[activation], products, gated=activation if fuses else None)


# ---- the forward pass ---------------------------------------------------------------------------


def _forward(
    kernels: Kernels, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, recompute: int,
) -> Optionals:  # fmt: skip
    """Returns y, the product of each of ``weights`` before its bias, the activation's result, and
    copies of master weights; None for each that is not saved."""
    linear, keep = kernels.products.linear, recompute < 2
    every = (*weights, down_weight)
    copies = [copy_of(weight, x) for weight in every]
    *weights, down_weight = [w if c is None else c for w, c in zip(every, copies, strict=True)]
    z: Optionals
    if kernels.gated is not None:
        h, gate, up = _gated_forward(x, *weights, *biases, kernels.gated, keep)
        z = (gate, None if weights[1] is None else up)
    elif kernels.fused is not None:
        h, *z = kernels.fused.forward(x, cast(Tensor, weights[0]), biases[0], keep)
    else:
        z = [None if weight is None else linear(x, weight, None) for weight in weights]
        h = kernels.forward(*z, *biases)
    kept = z if keep else [None for _ in z]
    if down_weight is None:
        return (h, *kept, None, *copies)
    return (linear(h, down_weight, down_bias), *kept, h if recompute == 0 else None, *copies)


def mlp_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, activation: int, recompute: int, packed: bool,
) -> Optionals:  # fmt: skip
    fuses = packed and x.is_cuda and down_weight is not None
    kernels = _plain_kernels(activation, products_of(x, packed), fuses)
    return _forward(kernels, x, (weight,), (bias,), down_weight, down_bias, recompute)


def gated_mlp_forward(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    recompute: int, packed: bool,
) -> Optionals:  # fmt: skip
    kernels = _gated_kernels(activation, products_of(x, packed), packed and x.is_cuda)
    weights, biases = (weight, up_weight), (bias, up_bias)
    return _forward(kernels, x, weights, biases, down_weight, down_bias, recompute)


# ---- the backward pass --------------------------------------------------------------------------


def _cut(tensors: Sequence[Any], *index: slice) -> list[Any]:
    return [None if t is None else t[index] for t in tensors]


class _Call(NamedTuple):
    """The inputs of the backward pass, of all hidden features or of a part of them, and where it
    writes the gradients of weights; None for those that are not asked for."""

    kernels: Kernels
    dy: Tensor  # this, x, z and h as rows
    x: Tensor
    weights: Sequence[Tensor]
    biases: Optionals
    down_weight: Tensor | None
    z: Sequence[Tensor] | None  # None if it was not saved
    h: Tensor | None
    need_dx: bool
    need_dbias: bool
    dweights: Sequence[Gradient | None]
    ddown_weight: Gradient | None

    def parts(self) -> list[_Call]:
        hidden, device = self.weights[0].shape[0], self.x.device.type
        count, fewest = _PARTS.get(device, 1), _FEWEST_BYTES.get(device, 0)
        whole = self.x.shape[0] * hidden * self.x.itemsize < fewest or (
            device == "cuda" and hidden < count * _FEWEST_FEATURES_ON_CUDA
        )
        if whole or not hidden:
            return [self]
        step = -(-hidden // (count * _STEP)) * _STEP
        return [self._part(slice(at, min(at + step, hidden))) for at in range(0, hidden, step)]

    def _part(self, part: slice) -> _Call:
        whole = slice(None)
        down_weight, h = _cut((self.down_weight, self.h), whole, part)
        return self._replace(
            dy=self.dy[:, part] if down_weight is None else self.dy,
            weights=_cut(self.weights, part), biases=_cut(self.biases, part),
            down_weight=down_weight, z=None if self.z is None else _cut(self.z, whole, part), h=h,
            dweights=[None if g is None else g.part(part) for g in self.dweights],
            ddown_weight=None if self.ddown_weight is None else self.ddown_weight.part(whole, part),
        )  # fmt: skip


def _operands(call: _Call) -> tuple[Tensor | None, ...]:
    """The activation's operands: z, and biases that z does not include."""
    none: Optionals = [None for _ in call.biases]
    added, left = (none, call.biases) if call.kernels.fused is None else (call.biases, none)
    if call.z is not None:
        return (*call.z, *left)
    linear = call.kernels.products.linear
    z = [linear(call.x, *pair) for pair in zip(call.weights, added, strict=False)]
    return (*z, *left)


def _bias_sums(call: _Call, dz: Sequence[Tensor]) -> Optionals:
    """Computes the biases' gradients, by our kernel of sums alone."""
    return [
        None
        if bias is None or not call.need_dbias
        else _packed_backward(own, call.x, weight, bias, False, False, True)[2]
        for own, weight, bias in zip(dz, call.weights, call.biases, strict=True)
    ]


def _through_activation(call: _Call) -> Sequence[Any]:
    """Returns dz of each weight, the gradients of their biases, and h if it was not saved."""
    kernels, dy, down_weight = call.kernels, call.dy, call.down_weight
    need_h = call.ddown_weight is not None and call.h is None
    if down_weight is None:
        dh = dy
    elif kernels.fused is not None:
        z = cast(Tensor, _operands(call)[0])
        bias = call.biases[0]
        return kernels.fused.backward(dy, down_weight, bias, z, call.need_dbias, need_h)
    elif kernels.gated is not None:
        *dz, h = _dgated(dy, down_weight, *_operands(call), kernels.gated, need_h)
        return *dz, *_bias_sums(call, dz), h
    else:
        dh = kernels.products.dx(dy, down_weight)
    return kernels.backward(dh, *_operands(call), call.need_dbias, need_h)


def _through_hidden(call: _Call) -> Sequence[Any]:
    """Returns dz of each weight and the gradients of their biases, where any of these or dx is
    asked for; writes the gradient of the second weight."""
    needs_dz = call.need_dx or call.need_dbias or any(call.dweights)
    found = _through_activation(call) if needs_dz else ()
    if call.ddown_weight is not None:
        h = call.h
        if h is None:
            h = found[-1] if needs_dz else call.kernels.forward(*_operands(call))
        call.kernels.products.dweight(call.ddown_weight, call.dy, h)
    return found[:-1]


def _through_first(call: _Call, dx: Tensor | None) -> tuple[Tensor | None, Optionals]:
    """Returns dx with this call's share added, and the gradients of the biases; writes those of the
    first weights."""
    products, found = call.kernels.products, _through_hidden(call)
    for dz, weight, gradient in zip(found, call.weights, call.dweights, strict=False):
        if gradient is not None:
            products.dweight(gradient, dz, call.x)
        if not call.need_dx:
            continue
        if dx is None:
            dx = products.dx(dz, weight)
        else:
            products.add(dx, dz, weight)
    return dx, found[len(call.weights) :]


def _gradients(
    kernels: Kernels, dy: Tensor, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, z: Optionals, h: Tensor | None,
    copies: Optionals, recompute: int, need_dx: bool, need_dweights: Sequence[bool],
    need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, in_place: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of x, each weight, each bias, the second weight and its bias. Those that are
    not asked for, or that were added to ``.grad``, are None."""
    every = (*weights, down_weight)
    *dweights, ddown_weight = [
        gradient_of(weight, in_place) if needed and weight is not None else None
        for weight, needed in zip(every, (*need_dweights, need_ddown_weight), strict=True)
    ]
    is_pair = len(weights) == 2 and weights[1] is None  # gate and up are packed
    *weights, down_weight = [
        None if weight is None else multiplied(weight, copy, x)
        for weight, copy in zip(every, copies, strict=True)
    ]

    def each(whole: Sequence[Any], dim: int = 0) -> Any:
        if not is_pair:
            return whole
        return (None, None) if whole[0] is None else whole[0].chunk(2, dim)

    dy_rows = as_rows(dy)
    calls = _Call(
        kernels, dy_rows, as_rows(x), each(weights), each(biases), down_weight,
        each([as_rows(t) for t in z if t is not None], 1) if recompute < 2 else None,
        as_rows(h) if recompute == 0 and h is not None else None,
        need_dx, need_dbias and any(b is not None for b in biases), each(dweights), ddown_weight,
    ).parts()  # fmt: skip
    dx: Tensor | None = None
    dbiases: list[Optionals] = []
    for call in calls:
        dx, found = _through_first(call, dx)
        dbiases.append(found)
    return (
        None if dx is None else dx.view(x.shape),
        *(None if gradient is None else gradient.result for gradient in dweights),
        *(
            _joined(dbiases, (0, 1) if is_pair else (at,))
            if need_dbias and bias is not None
            else None
            for at, bias in enumerate(biases)
        ),
        None if ddown_weight is None else ddown_weight.result,
        bias_gradient(dy_rows, down_bias.dtype)
        if need_ddown_bias and down_bias is not None
        else None,
    )


def _joined(found: Sequence[Optionals], places: tuple[int, ...]) -> Tensor:
    """The gradient of a bias, whose parts stand at these places of what the calls found."""
    parts = [cast(Tensor, of_call[at]) for at in places for of_call in found]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, z: Tensor | None, h: Tensor | None, weight_copy: Tensor | None,
    down_weight_copy: Tensor | None, activation: int, recompute: int, packed: bool, need_dx: bool,
    need_dweight: bool, need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, *,
    in_place: bool = False,
) -> Optionals:  # fmt: skip
    fuses = packed and x.is_cuda and down_weight is not None
    return _gradients(
        _plain_kernels(activation, products_of(x, packed), fuses), dy, x, (weight,), (bias,),
        down_weight, down_bias, (z,), h, (weight_copy, down_weight_copy), recompute, need_dx,
        (need_dweight,), need_dbias, need_ddown_weight, need_ddown_bias, in_place,
    )  # fmt: skip


def gated_mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None,
    gate: Tensor | None, up: Tensor | None, h: Tensor | None, weight_copy: Tensor | None,
    up_weight_copy: Tensor | None, down_weight_copy: Tensor | None, activation: int,
    recompute: int, packed: bool, need_dx: bool, need_dweight: bool, need_dup_weight: bool,
    need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, *, in_place: bool = False,
) -> Optionals:  # fmt: skip
    return _gradients(
        _gated_kernels(activation, products_of(x, packed), packed and x.is_cuda), dy, x,
        (weight, up_weight), (bias, up_bias), down_weight, down_bias, (gate, up), h,
        (weight_copy, up_weight_copy, down_weight_copy), recompute, need_dx,
        (need_dweight, need_dup_weight), need_dbias, need_ddown_weight, need_ddown_bias, in_place,
    )  # fmt: skip


mlp_backward_in_place = partial(mlp_backward, in_place=True)
gated_mlp_backward_in_place = partial(gated_mlp_backward, in_place=True)
