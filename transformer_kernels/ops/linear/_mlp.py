# SPDX-License-Identifier: MIT
"""Both passes of an MLP, made of matrix products and pointwise kernels.

The backward pass runs over the hidden features in parts, so that its temporaries are never as large
as the hidden layer. Each part computes its own rows or columns of the weights' gradients; the
gradient of x is summed over the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..._library import direct
from ..pointwise._ops import GATED, PLAIN
from . import _formula
from ._formula import as_rows, bias_gradient
from ._ops import GATED_LINEAR, LINEAR, LINEAR_ACT, LINEAR_DACT, LINEAR_DGATED
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
    add: Callable[[Tensor, Tensor, Tensor], Any]  # to a sum x weight^T
    dweight: Callable[[Gradient, Tensor, Tensor], None]  # (its memory, dz, x)


_packed = direct(LINEAR.raw.forward)
_packed_backward = direct(LINEAR.raw.backward)


def _add_packed(total: Tensor, x: Tensor, weight: Tensor) -> None:
    total += _packed(x, weight, None)


def _packed_dweight(gradient: Gradient, dz: Tensor, x: Tensor) -> None:
    like = gradient.memory.to(x.dtype)  # only shape, order and dtype of the weight are read
    gradient.take(_packed_backward(dz, x, like, None, False, True, False)[1])


_OURS = Products(_packed, _add_packed, _packed_dweight)
_TORCHS = Products(
    _formula.linear,
    lambda total, x, weight: torch.addmm(total, x, weight.t(), out=total),
    Gradient.product,
)
_ON_CUDA = _TORCHS._replace(linear=_packed)


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
    # (rows, weights, biases, keep) -> h and both weights' products, in one kernel
    gated: Callable[..., Tensors] | None = None
    # (dy, down_weight, gate, up, bias, up_bias, need_h) -> dgate, dup, h, in one kernel
    dgated: Callable[..., Tensors] | None = None


_PLAIN = [(direct(op.raw.forward), direct(op.raw.backward)) for op in PLAIN.values()]
_GATED = [(direct(op.raw.forward), direct(op.raw.backward)) for op in GATED.values()]


def _plain_kernels(x: Tensor, down_weight: Tensor | None, activation: int, packed: bool) -> Kernels:
    kernels = _kernels(x, _PLAIN, activation, packed)
    fuses = packed and x.is_cuda and down_weight is not None
    return kernels._replace(fused=Fused(activation)) if fuses else kernels


def _gated_kernels(x: Tensor, activation: int, packed: bool) -> Kernels:
    kernels = _kernels(x, _GATED, activation, packed)
    if not (packed and x.is_cuda):
        return kernels

    def gated(x: Tensor, weights: Optionals, biases: Optionals, keep: bool) -> Tensors:
        return cast(Tensors, _gated_forward(x, *weights, *biases, activation, keep))

    def dgated(dy: Tensor, down_weight: Tensor, *of_gate: Tensor | None, need_h: bool) -> Tensors:
        return cast(Tensors, _dgated(dy, down_weight, *of_gate, activation, need_h))

    return kernels._replace(gated=gated, dgated=dgated)


def _kernels(x: Tensor, table: list[tuple[Any, Any]], activation: int, packed: bool) -> Kernels:
    return Kernels(*table[activation], products_of(x, packed))


# ---- the forward pass ---------------------------------------------------------------------------


def _forward(
    kernels: Kernels, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, recompute: int,
) -> Tensors:  # fmt: skip
    """Returns y, the product of each of ``weights`` before its bias, the activation's result, and
    copies of master weights; those that are not saved have no elements."""
    linear = kernels.products.linear
    rows = as_rows(x)
    copies = [copy_of(weight, x) for weight in (*weights, down_weight)]
    *weights, down_weight = _multiplied((*weights, down_weight), copies, x)
    z: list[Tensor | None]
    if kernels.gated is not None:
        h, gate, up = kernels.gated(rows, weights, biases, recompute < 2)
        z = [gate, None if weights[1] is None else up]
    elif kernels.fused is not None:
        weight = cast(Tensor, weights[0])
        h, *z = kernels.fused.forward(rows, weight, biases[0], keep=recompute < 2)
    else:
        z = [None if weight is None else linear(rows, weight, None) for weight in weights]
        h = kernels.forward(*z, *biases)
    if recompute > 1:
        z = [None for _ in z]
    y = h if down_weight is None else linear(h, down_weight, down_bias)
    kept = h if recompute == 0 and down_weight is not None else None
    leading = x.shape[:-1]
    results = [
        x.new_empty(0) if t is None else t.view(*leading, t.shape[-1]) for t in (y, *z, kept)
    ]
    return (*results, *copies)


def _multiplied(weights: Optionals, copies: Sequence[Tensor], x: Tensor) -> list[Tensor | None]:
    return [
        None if weight is None else multiplied(weight, copy, x)
        for weight, copy in zip(weights, copies, strict=True)
    ]


def mlp_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, activation: int, recompute: int, packed: bool,
) -> Tensors:  # fmt: skip
    kernels = _plain_kernels(x, down_weight, activation, packed)
    return _forward(kernels, x, (weight,), (bias,), down_weight, down_bias, recompute)


def gated_mlp_forward(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    recompute: int, packed: bool,
) -> Tensors:  # fmt: skip
    kernels = _gated_kernels(x, activation, packed)
    weights, biases = (weight, up_weight), (bias, up_bias)
    return _forward(kernels, x, weights, biases, down_weight, down_bias, recompute)


# ---- the backward pass --------------------------------------------------------------------------


class _Call(NamedTuple):
    """The inputs of the backward pass, and where it writes; None for gradients that are not asked
    for."""

    kernels: Kernels
    dy: Tensor  # dy and x as rows
    x: Tensor
    weights: Sequence[Tensor]
    biases: Optionals
    down_weight: Tensor | None
    z: Sequence[Tensor] | None  # None if it was not saved
    h: Tensor | None
    need_dx: bool
    dweights: Sequence[Gradient | None]
    dbiases: Optionals
    ddown_weight: Gradient | None

    @property
    def needs_dz(self) -> bool:
        return self.need_dx or any(t is not None for t in (*self.dweights, *self.dbiases))

    def parts(self) -> list[slice]:
        if not self.needs_dz and self.ddown_weight is None:
            return []
        hidden, device = len(self.weights[0]), self.x.device.type
        count, fewest = _PARTS.get(device, 1), _FEWEST_BYTES.get(device, 0)
        whole = len(self.x) * hidden * self.x.itemsize < fewest or (
            self.x.is_cuda and hidden < count * _FEWEST_FEATURES_ON_CUDA
        )
        step = hidden if whole else -(-hidden // (count * _STEP)) * _STEP
        return [slice(at, min(at + step, hidden)) for at in range(0, hidden, step or 1)]


def _operands(call: _Call, part: slice) -> tuple[Tensor | None, ...]:
    """The activation's operands: columns of z, and biases that z does not include."""
    linear = call.kernels.products.linear
    biases = [None if bias is None else bias[part] for bias in call.biases]
    none = [None for _ in biases]
    added, left = (none, biases) if call.kernels.fused is None else (biases, none)
    if call.z is None:
        pairs = zip(call.weights, added, strict=False)
        z = [linear(call.x, weight[part], bias) for weight, bias in pairs]
    else:
        z = [t[:, part] for t in call.z]
    return (*z, *left)


def _bias_sums(call: _Call, part: slice, dz: Sequence[Tensor]) -> Optionals:
    """Computes the biases' gradients that are asked for, by our kernel of sums alone."""
    return [
        None
        if memory is None
        else _packed_backward(own, call.x, weight[part], memory[part], False, False, True)[2]
        for own, weight, memory in zip(dz, call.weights, call.dbiases, strict=True)
    ]


def _through_activation(call: _Call, part: slice) -> Sequence[Any]:
    """Returns dz of each weight, the gradients of their biases, and h if it was not saved."""
    need_dbias = any(t is not None for t in call.dbiases)
    need_h = call.ddown_weight is not None and call.h is None
    dz: Sequence[Tensor]
    if call.down_weight is None:
        dh = call.dy[:, part]
    elif call.kernels.fused is not None:
        z = cast(Tensor, _operands(call, part)[0])
        bias = None if call.biases[0] is None else call.biases[0][part]
        down_weight = call.down_weight[:, part]
        return call.kernels.fused.backward(call.dy, down_weight, bias, z, need_dbias, need_h)
    elif call.kernels.dgated is not None:
        down_weight = call.down_weight[:, part]
        *dz, h = call.kernels.dgated(call.dy, down_weight, *_operands(call, part), need_h=need_h)
        return *dz, *_bias_sums(call, part, dz), h
    else:
        dh = call.kernels.products.linear(call.dy, call.down_weight[:, part].t(), None)
    return call.kernels.backward(dh, *_operands(call, part), need_dbias, need_h)


def _through_hidden(call: _Call, part: slice) -> Sequence[Tensor]:
    """Returns dz of each weight; writes the gradients of the biases and of the second weight."""
    count = len(call.weights)
    found: Sequence[Any] = _through_activation(call, part) if call.needs_dz else ()
    for dbias, memory in zip(found[count:], call.dbiases, strict=False):
        if memory is not None:
            memory[part] = dbias
    if call.ddown_weight is not None:
        if call.h is not None:
            h = call.h[:, part]
        else:
            h = found[-1] if found else call.kernels.forward(*_operands(call, part))
        call.kernels.products.dweight(call.ddown_weight.part(slice(None), part), call.dy, h)
    return found[:count]


def _through_first(call: _Call, part: slice, dx: Tensor | None) -> Tensor | None:
    """Returns dx with this part's share added; writes the gradients of the first weights."""
    products = call.kernels.products
    dz = _through_hidden(call, part)
    for own, weight, gradient in zip(dz, call.weights, call.dweights, strict=False):
        if gradient is not None:
            products.dweight(gradient.part(part), own, call.x)
        if not call.need_dx:
            continue
        if dx is None:
            dx = products.linear(own, weight[part].t(), None)
        else:
            products.add(dx, own, weight[part].t())
    return dx


def _dx(call: _Call, like: Tensor) -> Tensor | None:
    """Returns dx, None where it is not asked for; writes the other gradients on the way."""
    dx: Tensor | None = None
    for part in call.parts():
        dx = _through_first(call, part, dx)
    if call.need_dx and dx is None:  # no hidden features
        dx = call.x.new_zeros(call.x.shape)
    return None if dx is None else dx.view(like.shape)


def _bias_sum(wanted: bool, dy: Tensor, bias: Tensor | None) -> Tensor | None:
    return bias_gradient(dy, bias.dtype) if wanted and bias is not None else None


def _gradients(
    kernels: Kernels, dy: Tensor, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, z: Sequence[Tensor], h: Tensor,
    copies: Sequence[Tensor], recompute: int, need_dx: bool, need_dweights: Sequence[bool],
    need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, in_place: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of x, each weight, each bias, the second weight and its bias. Those that are
    not asked for have no elements; those that were added to ``.grad`` are None."""
    every = (*weights, down_weight)
    *dweights, ddown_weight = [
        gradient_of(weight, in_place) if needed and weight is not None else None
        for weight, needed in zip(every, (*need_dweights, need_ddown_weight), strict=True)
    ]
    dbiases = [b.new_empty(b.shape) if need_dbias and b is not None else None for b in biases]
    is_pair = len(weights) == 2 and weights[1] is None  # gate and up are packed
    *weights, down_weight = _multiplied(every, copies, x)

    def each(whole: Sequence[Any], dim: int = 0) -> Any:
        if not is_pair:
            return whole
        return (None, None) if whole[0] is None else whole[0].chunk(2, dim)

    call = _Call(
        kernels, as_rows(dy), as_rows(x), each(weights), each(biases), down_weight,
        each([as_rows(t) for t in z], 1) if recompute < 2 else None,
        as_rows(h) if recompute == 0 else None,
        need_dx, each(dweights), each(dbiases), ddown_weight,
    )  # fmt: skip
    dx = _dx(call, x)
    ddown_bias = _bias_sum(need_ddown_bias, dy, down_bias)

    def given(found: Tensor | Gradient | None) -> Tensor | None:
        if found is None:
            return x.new_empty(0)
        return found.result if isinstance(found, Gradient) else found

    return tuple(map(given, (dx, *dweights, *dbiases, ddown_weight, ddown_bias)))


def mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, z: Tensor, h: Tensor, weight_copy: Tensor, down_weight_copy: Tensor,
    activation: int, recompute: int, packed: bool, need_dx: bool, need_dweight: bool,
    need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, *, in_place: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    return _gradients(
        _plain_kernels(x, down_weight, activation, packed), dy, x, (weight,), (bias,), down_weight,
        down_bias, (z,), h, (weight_copy, down_weight_copy), recompute, need_dx, (need_dweight,),
        need_dbias, need_ddown_weight, need_ddown_bias, in_place,
    )  # fmt: skip


def gated_mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, gate: Tensor,
    up: Tensor, h: Tensor, weight_copy: Tensor, up_weight_copy: Tensor, down_weight_copy: Tensor,
    activation: int, recompute: int, packed: bool, need_dx: bool, need_dweight: bool,
    need_dup_weight: bool, need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool,
    *, in_place: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    return _gradients(
        _gated_kernels(x, activation, packed), dy, x, (weight, up_weight), (bias, up_bias),
        down_weight, down_bias, (gate, up), h, (weight_copy, up_weight_copy, down_weight_copy),
        recompute, need_dx, (need_dweight, need_dup_weight), need_dbias, need_ddown_weight,
        need_ddown_bias, in_place,
    )  # fmt: skip


mlp_backward_in_place = partial(mlp_backward, in_place=True)
gated_mlp_backward_in_place = partial(gated_mlp_backward, in_place=True)
