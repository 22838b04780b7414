# SPDX-License-Identifier: MIT
"""Both passes of an MLP: in one call each by our products, or here by PyTorch's products and
pointwise kernels.

Here the backward pass runs over the hidden features in parts, so that its temporaries are never as
large as the hidden layer. Each part computes its own rows or columns of the weights' gradients; the
gradient of x is summed over the parts. z has no bias.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..._library import c_function, direct
from ..._torch import frees_graph
from ..pointwise._ops import GATED, PLAIN
from . import _formula, _packed_mlp
from ._formula import as_rows, bias_gradient
from ._weights import Gradient, copy_of, gradient_of, multiplied

Tensors = tuple[Tensor, ...]
Optionals = Sequence[Tensor | None]


@functools.lru_cache(maxsize=1024)
def features_of_part(device: str, rows: int, hidden: int, itemsize: int) -> int:
    """The hidden features of a part, by C++'s rule (``csrc/mlp/parts.h``)."""
    part = c_function("tfk_mlp_part")
    if part is None or device not in ("cpu", "cuda"):
        return hidden
    numbers = map(ctypes.c_int64, (rows, hidden, itemsize))
    return int(part(device == "cuda", *numbers))


class Kernels(NamedTuple):
    """The kernels of one activation, from the pointwise family."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensors]


_PLAIN = [Kernels(direct(op.raw.forward), direct(op.raw.backward)) for op in PLAIN.values()]
_GATED = [Kernels(direct(op.raw.forward), direct(op.raw.backward)) for op in GATED.values()]


# ---- the forward pass ---------------------------------------------------------------------------


def _forward(
    kernels: Kernels, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, recompute: int,
) -> Optionals:  # fmt: skip
    """Returns y, the product of each of ``weights`` before its bias, the activation's result, and
    copies of master weights; None for each that is not saved."""
    linear, keep = _formula.linear, recompute < 2
    every = (*weights, down_weight)
    copies = [copy_of(weight, x) for weight in every]
    *weights, down_weight = [w if c is None else c for w, c in zip(every, copies, strict=True)]
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
    weights, biases = (weight,), (bias,)
    arguments = (x, weights, biases, down_weight, down_bias, recompute)
    if packed:
        return _packed_mlp.forward(activation, *arguments)
    return _forward(_PLAIN[activation], *arguments)


def gated_mlp_forward(
    x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None, activation: int,
    recompute: int, packed: bool,
) -> Optionals:  # fmt: skip
    weights, biases = (weight, up_weight), (bias, up_bias)
    arguments = (x, weights, biases, down_weight, down_bias, recompute)
    if packed:
        return _packed_mlp.forward(activation, *arguments)
    return _forward(_GATED[activation], *arguments)


# ---- the backward pass --------------------------------------------------------------------------


def _may_overwrite(x: Tensor) -> bool:
    """Whether nobody reads the saved z of ``x`` again: autograd frees it after this pass, which is
    not captured as a CUDA graph, as several replays could follow one forward pass."""
    return frees_graph() and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


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
        hidden = self.weights[0].shape[0]
        step = features_of_part(
            self.x.device.type, self.x.shape[0], hidden, self.x.itemsize
        )  # fmt: skip
        if step >= hidden:
            return [self]
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
    """The activation's operands: z, and biases."""
    z = call.z
    if z is None:
        z = [_formula.linear(call.x, weight, None) for weight in call.weights]
    return (*z, *call.biases)


def _through_activation(call: _Call) -> Sequence[Any]:
    """Returns dz of each weight, the gradients of their biases, and h if it was not saved."""
    need_h = call.ddown_weight is not None and call.h is None
    dh = call.dy if call.down_weight is None else torch.mm(call.dy, call.down_weight)
    return call.kernels.backward(dh, *_operands(call), call.need_dbias, need_h)


def _through_hidden(call: _Call) -> Sequence[Any]:
    """Returns dz of each weight and the gradients of their biases, where any of these or dx is
    asked for; writes the gradient of the second weight."""
    needs_dz = call.need_dx or call.need_dbias or any(call.dweights)
    found = _through_activation(call) if needs_dz else ()
    if call.ddown_weight is not None:
        h = call.h
        if h is None:
            h = found[-1] if needs_dz else call.kernels.forward(*_operands(call))
        call.ddown_weight.product(call.dy, h)
    return found[:-1]


def _through_first(call: _Call, dx: Tensor | None) -> tuple[Tensor | None, Optionals]:
    """Returns dx with this call's share added, and the gradients of the biases; writes those of the
    first weights."""
    found = _through_hidden(call)
    for dz, weight, gradient in zip(found, call.weights, call.dweights, strict=False):
        if gradient is not None:
            gradient.product(dz, call.x)
        if not call.need_dx:
            continue
        if dx is None:
            dx = torch.mm(dz, weight)
        else:
            torch.addmm(dx, dz, weight, out=dx)
    return dx, found[len(call.weights) :]


def _gradients(
    kernels: Kernels, dy: Tensor, x: Tensor, weights: Optionals, biases: Optionals,
    down_weight: Tensor | None, down_bias: Tensor | None, z: Optionals, h: Tensor | None,
    copies: Optionals, recompute: int, need_dx: bool, gradients: Sequence[Gradient | None],
    need_dbias: bool, need_ddown_bias: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of x, each weight, each bias, the second weight and its bias. Those that are
    not asked for, or that were added to ``.grad``, are None."""
    every = (*weights, down_weight)
    *dweights, ddown_weight = gradients
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


def _of_weights(
    weights: Optionals, needed: Sequence[bool], in_place: bool
) -> list[Gradient | None]:
    return [
        gradient_of(weight, in_place) if need and weight is not None else None
        for weight, need in zip(weights, needed, strict=True)
    ]


def mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, down_weight: Tensor | None,
    down_bias: Tensor | None, z: Tensor | None, h: Tensor | None, weight_copy: Tensor | None,
    down_weight_copy: Tensor | None, activation: int, recompute: int, packed: bool, need_dx: bool,
    need_dweight: bool, need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, *,
    in_place: bool = False,
) -> Optionals:  # fmt: skip
    needed = (need_dweight, need_ddown_weight)
    arguments = (
        dy, x, (weight,), (bias,), down_weight, down_bias, (z,), h,
        (weight_copy, down_weight_copy), recompute, need_dx,
        _of_weights((weight, down_weight), needed, in_place), need_dbias, need_ddown_bias,
    )  # fmt: skip
    if packed:
        return _packed_mlp.backward(activation, *arguments, in_place and _may_overwrite(x))
    return _gradients(_PLAIN[activation], *arguments)


def gated_mlp_backward(
    dy: Tensor, x: Tensor, weight: Tensor, up_weight: Tensor | None, bias: Tensor | None,
    up_bias: Tensor | None, down_weight: Tensor | None, down_bias: Tensor | None,
    gate: Tensor | None, up: Tensor | None, h: Tensor | None, weight_copy: Tensor | None,
    up_weight_copy: Tensor | None, down_weight_copy: Tensor | None, activation: int,
    recompute: int, packed: bool, need_dx: bool, need_dweight: bool, need_dup_weight: bool,
    need_dbias: bool, need_ddown_weight: bool, need_ddown_bias: bool, *, in_place: bool = False,
) -> Optionals:  # fmt: skip
    needed = (need_dweight, need_dup_weight, need_ddown_weight)
    arguments = (
        dy, x, (weight, up_weight), (bias, up_bias), down_weight, down_bias, (gate, up), h,
        (weight_copy, up_weight_copy, down_weight_copy), recompute, need_dx,
        _of_weights((weight, up_weight, down_weight), needed, in_place), need_dbias,
        need_ddown_bias,
    )  # fmt: skip
    if packed:
        return _packed_mlp.backward(activation, *arguments, in_place and _may_overwrite(x))
    return _gradients(_GATED[activation], *arguments)


mlp_backward_in_place = partial(mlp_backward, in_place=True)
gated_mlp_backward_in_place = partial(gated_mlp_backward, in_place=True)
