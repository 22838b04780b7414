# SPDX-License-Identifier: MIT
"""Both passes of an attention block, made of products, attention and a norm.

A pass is written once and takes the parts that it is made of: kernels, or formulas that can be
differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._library import direct
from ..attention import _formula as _attention
from ..attention._ops import ATTENTION
from ..linear import _formula as _linear
from ..linear._arguments import empty_like_weight
from ..linear._formula import as_rows, bias_gradient
from ..linear._ops import LINEAR, LINEAR_DWEIGHT
from ..linear._weights import copy_of, gradient_of, multiplied
from ..norm import _formula as _norm
from ..norm.dropout_norm import DROPOUT_LAYER_NORM, DROPOUT_RMS_NORM

Tensors = tuple[Tensor, ...]
Optionals = tuple[Tensor | None, ...]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

NORMS = {"layer_norm": DROPOUT_LAYER_NORM, "rms_norm": DROPOUT_RMS_NORM}
_OF_NORM = tuple(NORMS.values())
_LAYER_NORM = [*NORMS].index("layer_norm")
_NO_MORE_SCORES = (None,) * 6  # bias, mask, slopes, sinks and two offsets of sequences


class Operands(NamedTuple):
    """The arguments of both passes besides x and the residual, in the order of the schemas."""

    qkv_weight: Tensor
    qkv_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    attention_seed: Tensor | None
    seed: Tensor | None
    num_heads: int
    num_kv_heads: int
    causal: bool
    scale: float
    attention_p: float
    p: float
    eps: float
    norm: int  # the number of one of NORMS
    recompute: int
    packed: bool

    def heads_of(self, qkv: Tensor) -> Tensors:
        """Views of the product: q (B, T, H, D), k and v (B, T, Hk, D)."""
        parts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        return qkv.unflatten(-1, (sum(parts), -1)).split(parts, -2)

    def options_of_scores(self) -> tuple[Any, ...]:
        """The arguments of attention after q, k and v, without the last flag."""
        right = 0 if self.causal else -1
        seed = self.attention_seed
        return (*_NO_MORE_SCORES, seed, self.scale, -1, right, False, 0.0, self.attention_p)


class Saved(NamedTuple):
    """The results that the backward pass reads, in the order of the schemas."""

    sum: Tensor
    qkv: Tensor  # without elements where it is computed again
    heads: Tensor  # of attention, (B, T, H, D)
    lse: Tensor
    lse_rest: Tensor
    mean: Tensor  # without elements for rms_norm
    rstd: Tensor
    qkv_weight_copy: Tensor | None  # None for a weight that is no master
    out_weight_copy: Tensor | None

    def statistics(self, norm: int) -> Tensors:
        return (self.mean, self.rstd) if norm == _LAYER_NORM else (self.rstd,)


class Needs(NamedTuple):
    """The gradients that are asked for, in the order of the schema."""

    x: bool
    qkv_weight: bool
    qkv_bias: bool
    out_weight: bool
    out_bias: bool
    norm_weight: bool
    norm_bias: bool

    @property
    def of_qkv(self) -> bool:
        return self.x or self.qkv_weight or self.qkv_bias


class Parts(NamedTuple):
    """The ops that the passes are made of; norms are listed by their number."""

    linear: Linear
    # (dy, x, weight, copy of the weight, bias, need_dx, need_dweight, need_dbias) -> gradients
    linear_backward: Callable[..., Optionals]
    attention: Callable[..., Tensors]
    attention_backward: Callable[..., Tensors]
    norms: tuple[Callable[..., Tensors], ...]
    norms_backward: tuple[Callable[..., Tensors], ...]


# ---- parts --------------------------------------------------------------------------------------


def _none(x: Tensor) -> Tensors:
    """Three gradients that are not asked for; results of an op may not share memory."""
    return x.new_empty(0), x.new_empty(0), x.new_empty(0)


def _in_one_call(
    dy: Tensor, x: Tensor, weight: Tensor, copy: Tensor | None, bias: Tensor | None, need_dx: bool,
    need_dweight: bool, need_dbias: bool,
) -> Optionals:  # fmt: skip
    """The gradients of a layer, by our product on the CPU."""
    factor = multiplied(weight, copy, x)
    dx, dweight, dbias = _packed_backward(dy, x, factor, bias, need_dx, False, need_dbias)
    if need_dweight:
        dweight = empty_like_weight(weight)
        _write_dweight(dweight, dy, x, False)
    return dx, dweight, dbias


def _by_products(
    linear: Linear, in_place: bool, dy: Tensor, x: Tensor, weight: Tensor, copy: Tensor | None,
    bias: Tensor | None, need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> Optionals:  # fmt: skip
    """The gradients of a layer. That of the weight is None if it was added to ``.grad``."""
    dx, dweight, dbias = _none(x)
    if need_dx:
        dx = linear(dy, multiplied(weight, copy, x).t(), None)
    if need_dbias and bias is not None:
        dbias = bias_gradient(dy, bias.dtype)
    if not need_dweight:
        return dx, dweight, dbias
    gradient = gradient_of(weight, in_place)
    gradient.product(as_rows(dy), as_rows(x))
    return dx, gradient.result, dbias


def _formula_of_linear_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, copy: Tensor, bias: Tensor | None,  # noqa: ARG001
    *needs: bool,
) -> Optionals:  # fmt: skip
    dx, dweight, dbias = _linear.linear_gradient(dy, x, weight.to(x.dtype), bias, *needs)
    return dx, dweight.to(weight.dtype), dbias


def _formula_of_attention(*arguments: Any) -> Tensors:
    out, lse = _attention.forward(*arguments)
    return out, lse, torch.zeros_like(lse)


def _formula_of_norm(number: int, *arguments: Any) -> Tensors:
    y, s = _OF_NORM[number].formula(*arguments)
    return y, s, *_statistics(s, arguments[7], number)


def _statistics(s: Tensor, eps: float, norm: int) -> Tensors:
    return _norm.statistics(s, eps, center=norm == _LAYER_NORM)


_packed, _packed_backward = direct(LINEAR.raw.forward), direct(LINEAR.raw.backward)
_write_dweight = direct(LINEAR_DWEIGHT)
_ATTENTION = direct(ATTENTION.raw.forward), direct(ATTENTION.raw.backward)
_NORM_KERNELS = (
    tuple(direct(op.raw.forward) for op in _OF_NORM),
    tuple(direct(op.raw.backward) for op in _OF_NORM),
)


def _kernels(x: Tensor, packed: bool, in_place: bool = False) -> Parts:
    linear: Linear = _packed if packed else _linear.linear
    gradients: Callable[..., Optionals] = partial(_by_products, linear, in_place)
    if packed and x.is_cpu:
        gradients = _in_one_call
    return Parts(linear, gradients, *_ATTENTION, *_NORM_KERNELS)


FORMULAS = Parts(
    _linear.linear,
    _formula_of_linear_gradients,
    _formula_of_attention,
    _attention.backward,
    tuple(partial(_formula_of_norm, number) for number in range(len(NORMS))),
    tuple(op.gradient for op in _OF_NORM if op.gradient is not None),
)


# ---- the forward pass ---------------------------------------------------------------------------


def _attend(parts: Parts, x: Tensor, operands: Operands, copy: Tensor | None) -> Tensors:
    """Returns qkv, attention's heads, and its log-sum-exp with the rounding error of that."""
    weight = multiplied(operands.qkv_weight, copy, x)
    qkv = parts.linear(x, weight, operands.qkv_bias)
    scores = operands.options_of_scores()
    return qkv, *parts.attention(*operands.heads_of(qkv), *scores, False)


def _forward(parts: Parts, x: Tensor, residual: Tensor, operands: Operands) -> Optionals:
    """Returns y, and all of :class:`Saved`."""
    weights = operands.qkv_weight, operands.out_weight
    qkv_copy, out_copy = (copy_of(weight, x) for weight in weights)
    qkv, heads, lse, lse_rest = _attend(parts, x, operands, qkv_copy)
    out = parts.linear(heads.flatten(-2), multiplied(operands.out_weight, out_copy, x), None)
    norm = parts.norms[operands.norm]
    y, s, *mean, rstd = norm(
        out, operands.out_bias, residual, operands.norm_weight, operands.norm_bias, operands.seed,
        operands.p, operands.eps, False,
    )  # fmt: skip
    none = x.new_empty(0)
    kept = none if operands.recompute else qkv
    means = mean[0] if mean else torch.empty_like(none, dtype=rstd.dtype)
    return y, *Saved(s, kept, heads, lse, lse_rest, means, rstd, qkv_copy, out_copy)


def block_forward(x: Tensor, residual: Tensor, *operands: Any) -> Optionals:
    given = Operands(*operands)
    return _forward(_kernels(x, given.packed), x, residual, given)


def block_formula(x: Tensor, residual: Tensor, *operands: Any) -> Optionals:
    return _forward(FORMULAS, x, residual, Operands(*operands))[:2]


def saved_again(given: Mapping[str, Any]) -> Tensors:
    """All of :class:`Saved` but the sum, by formulas, from the tensors that a call keeps."""
    x, operands = given["x"], Operands(*(given[name] for name in Operands._fields))
    none = x.new_empty(0)
    qkv, *of_attention = _attend(FORMULAS, x, operands, none)
    *mean, rstd = _statistics(given["sum"], operands.eps, operands.norm)
    return qkv, *of_attention, mean[0] if mean else none, rstd, *_none(x)[:2]


# ---- the backward pass --------------------------------------------------------------------------


def _backward(
    parts: Parts, dy: Tensor, dsum: Tensor | None, x: Tensor, operands: Operands, saved: Saved,
    needs: Needs,
) -> Optionals:  # fmt: skip
    """The gradients of x, the residual, and the parameters in the order of the arguments. Those
    that are not asked for have no elements."""
    norm_backward = parts.norms_backward[operands.norm]
    dout, dout_bias, dresidual, dnorm_weight, dnorm_bias = norm_backward(
        dy, dsum, saved.sum, *saved.statistics(operands.norm), operands.out_bias,
        operands.norm_weight, operands.norm_bias, operands.seed, operands.p, False, needs.out_bias,
        needs.norm_weight, needs.norm_bias,
    )  # fmt: skip
    dheads, dout_weight, _ = parts.linear_backward(
        dout, saved.heads.flatten(-2), operands.out_weight, saved.out_weight_copy, None,
        needs.of_qkv, needs.out_weight, False,
    )  # fmt: skip
    of_qkv: Optionals = _none(x)
    if needs.of_qkv and dheads is not None:
        dqkv = _through_attention(parts, dheads.view_as(saved.heads), x, operands, saved)
        of_qkv = parts.linear_backward(
            dqkv, x, operands.qkv_weight, saved.qkv_weight_copy, operands.qkv_bias, needs.x,
            needs.qkv_weight, needs.qkv_bias,
        )  # fmt: skip
    dx, dqkv_weight, dqkv_bias = of_qkv
    return (
        dx, dresidual, dqkv_weight, dqkv_bias, dout_weight, dout_bias, dnorm_weight, dnorm_bias,
    )  # fmt: skip


def _through_attention(
    parts: Parts, dheads: Tensor, x: Tensor, operands: Operands, saved: Saved
) -> Tensor:
    """The gradient of qkv."""
    qkv = saved.qkv
    if operands.recompute:
        weight = multiplied(operands.qkv_weight, saved.qkv_weight_copy, x)
        qkv = parts.linear(x, weight, operands.qkv_bias)
    dq, dk, dv, *_ = parts.attention_backward(
        dheads, None, saved.heads, saved.lse, saved.lse_rest, *operands.heads_of(qkv),
        *operands.options_of_scores(), torch.are_deterministic_algorithms_enabled(), False, False,
    )  # fmt: skip
    # The older vmap of PyTorch, which batches gradients, knows no flatten().
    return torch.cat((dq, dk, dv), -2).reshape(qkv.shape)


def _split(inputs: tuple[Any, ...]) -> tuple[Operands, Saved, Needs]:
    first, last = len(Operands._fields), len(Operands._fields) + len(Saved._fields)
    return Operands(*inputs[:first]), Saved(*inputs[first:last]), Needs(*inputs[last:])


def block_backward(
    dy: Tensor, dsum: Tensor | None, x: Tensor, *inputs: Any, in_place: bool = False
) -> Optionals:
    operands, saved, needs = _split(inputs)
    kernels = _kernels(x, operands.packed, in_place)
    return _backward(kernels, dy, dsum, x, operands, saved, needs)


def block_gradient(dy: Tensor, dsum: Tensor | None, x: Tensor, *inputs: Any) -> Optionals:
    return _backward(FORMULAS, dy, dsum, x, *_split(inputs))


block_backward_in_place = partial(block_backward, in_place=True)
