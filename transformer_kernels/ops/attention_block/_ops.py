# SPDX-License-Identifier: MIT
"""Declares the attention block, which is one autograd node.

    q, k, v = x qkv_weight^T + qkv_bias,   heads = attention(q, k, v)
    sum = residual + dropout(heads out_weight^T + out_bias),   y = norm(sum)

``recompute`` of 0 saves q, k and v, 1 computes them again. ``packed`` runs our product. Float32
weights beside a 16-bit x are copied to its dtype, and the copies are saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ... import _torch
from ..._errors import ArgumentValueError
from .._declare import Op, Ways
from .._declare_arguments import (
    Flag,
    Given,
    Integer,
    Like,
    Number,
    Param,
    Result,
    Rows,
    Seed,
    Table,
)
from .._dtype import accumulate_dtype
from .._parallel import rows
from .._register import declare
from .._work import PRODUCT, products_with
from ..attention._arguments import MOST_DIM
from ..attention._stock import in_torch
from ..linear._arguments import Bias, empty_like_weight
from ..linear._weights import copy_memory
from ..norm import _stock as _norm_stock
from . import _passes
from ._passes import NORMS, Needs, Operands, Saved

# ---- sizes and checks ---------------------------------------------------------------------------


def _packed_heads(given: Given) -> int:
    """The heads of q, k and v together."""
    heads: int = given["num_heads"] + 2 * given["num_kv_heads"]
    return heads


def _head_dim(given: Given) -> int:
    rows: int = given["qkv_weight"].shape[0]
    return rows // _packed_heads(given)


def _check_heads(op: str, given: Given) -> None:
    heads, kv_heads = given["num_heads"], given["num_kv_heads"]
    if heads < 1:
        raise ArgumentValueError(f"{op}: num_heads is {heads}, expected 1 or more")
    if kv_heads < 1 or heads % kv_heads:
        raise ArgumentValueError(
            f"{op}: num_kv_heads is {kv_heads}, expected a divisor of num_heads ({heads})"
        )


@dataclass(frozen=True)
class _QkvWeight(Table):
    """A weight whose rows are the heads of q, then of k, then of v."""

    def check(self, op: str, value: Tensor, given: Given) -> None:
        super().check(op, value, given)
        _check_heads(op, given)
        rows, heads = value.shape[0], _packed_heads(given)
        if rows % heads or rows > heads * MOST_DIM:
            raise ArgumentValueError(
                f"{op}: {self.name} has {rows} rows, expected a multiple of {heads}, at most"
                f" {heads * MOST_DIM} (the heads of q, k and v, of up to {MOST_DIM} channels)"
            )


@dataclass(frozen=True)
class _OutWeight(Table):
    """A weight whose columns are the channels of the heads of q."""

    def columns(self, given: Given) -> tuple[int, str]:
        return given["num_heads"] * _head_dim(given), "the channels of all heads of q"


def _check(op: str, given: Given) -> None:
    x, out_rows = given["x"], given["out_weight"].shape[0]
    if x.dim() != 3:
        raise ArgumentValueError(
            f"{op}: x has {x.dim()} dimensions, expected 3 (batch, time, channels)"
        )
    if out_rows != x.shape[-1]:
        raise ArgumentValueError(
            f"{op}: out_weight has {out_rows} rows, expected {x.shape[-1]} (the last dimension of"
            " x)"
        )
    for name in ("norm", "recompute"):
        if given[name] not in (0, 1):
            raise ArgumentValueError(f"{op}: {name} is {given[name]}, expected 0 or 1")


# ---- memory of results --------------------------------------------------------------------------


def _empty_qkv(given: Given) -> Tensor:
    x: Tensor = given["x"]
    if given["recompute"]:
        return x.new_empty(0)
    return x.new_empty((*x.shape[:-1], given["qkv_weight"].shape[0]))


def _empty_heads(given: Given) -> Tensor:
    x: Tensor = given["x"]
    return x.new_empty((*x.shape[:-1], given["num_heads"], _head_dim(given)))


def _empty_lse(given: Given) -> Tensor:
    x: Tensor = given["x"]
    batch, time, _ = x.shape
    return x.new_empty((batch, given["num_heads"], time), dtype=accumulate_dtype(x))


def _empty_rows(given: Given) -> Tensor:
    total: Tensor = given["sum" if "sum" in given else "residual"]
    return total.new_empty(total.shape[:-1], dtype=accumulate_dtype(total))


def _empty_mean(given: Given) -> Tensor:
    found = _empty_rows(given)
    return found if [*NORMS][given["norm"]] == "layer_norm" else found.new_empty(0)


# ---- PyTorch's own calls ------------------------------------------------------------------------


def _stock(x: Tensor, residual: Tensor, *operands: object) -> tuple[Tensor, Tensor]:
    given = Operands(*operands)  # type: ignore[arg-type]
    bias = None if given.qkv_bias is None else given.qkv_bias.to(x.dtype)
    qkv = _torch.linear(x, given.qkv_weight.to(x.dtype), bias)
    heads = in_torch(
        *given.heads_of(qkv), dropout_p=given.attention_p, is_causal=given.causal,
        scale=given.scale,
    )  # fmt: skip
    out = _torch.linear(heads.flatten(-2), given.out_weight.to(x.dtype))
    norm = _norm_stock.layer_norm if [*NORMS][given.norm] == "layer_norm" else _norm_stock.rms_norm
    y, s = _norm_stock.behind_dropout(norm)(
        out, given.out_bias, residual, given.norm_weight, given.norm_bias, None, given.p, given.eps,
        False,
    )  # fmt: skip
    return y, s


# ---- cost and splits ----------------------------------------------------------------------------


_PRODUCTS = products_with("qkv_weight", "out_weight")


def _flops(pass_: str, given: Given) -> float:
    """The products with both weights, and those of attention: two of T x T numbers for each
    dimension of a head, and five in the backward pass."""
    batch, time, _ = given["x"].shape
    scores: float = 4.0 * batch * time * time * given["num_heads"] * _head_dim(given)
    scores *= (0.5 if given["causal"] else 1.0) * (2.5 if pass_ == "backward" else 1.0)
    products = _PRODUCTS(pass_, given)
    return scores if products is None else scores + products


def _parallel(op: Op, given: Given) -> Ways:
    """By batch."""
    return rows(op, given, 2)


# ---- the declaration ----------------------------------------------------------------------------

_OPTIONS = (
    Integer("num_heads"), Integer("num_kv_heads"), Flag("causal"), Number("scale"),
    Number("attention_p", least=0.0, most=1.0), Number("p", least=0.0, most=1.0), Number("eps"),
    Integer("norm"), Integer("recompute"), Flag("packed"),
)  # fmt: skip
_GRADIENTS = ("x", "residual", *Needs._fields[1:])

ATTENTION_BLOCK = declare(
    "attention_block",
    function="functional.attention_block",
    stock=_stock,
    kind=PRODUCT,
    parallel=_parallel,
    last_dims=lambda _: 2,
    flops=_flops,
    unread=("qkv_bias", "out_bias", "norm_bias"),
    arguments=(
        Rows("x"), Like("residual", or_float32=True),
        _QkvWeight("qkv_weight", of="x", or_float32=True), Bias("qkv_bias", table="qkv_weight"),
        _OutWeight("out_weight", of="x", or_float32=True),
        Param("out_bias", own_dtype=True, wide="residual"), Param("norm_weight", wide="residual"),
        Param("norm_bias", wide="residual"), Seed("attention_seed", draws="attention_p"),
        Seed("seed"), *_OPTIONS,
    ),
    results=(
        Result("y"), Result("sum", "residual"),
        *(Result(name, saved=True) for name in Saved._fields[1:]),
    ),
    backward=(
        f"(dy, dsum?, x, {', '.join((*Operands._fields, *Saved._fields))},"
        f" {', '.join(f'need_d{name}' for name in Needs._fields)})"
        f" -> {', '.join(f'd{name}' for name in _GRADIENTS)}"
    ),
    formula=_passes.block_formula,
    statistics=_passes.saved_again,
    gradient=_passes.block_gradient,
    check=_check,
    memory={
        "qkv": _empty_qkv,
        "heads": _empty_heads,
        "lse": _empty_lse,
        "lse_rest": _empty_lse,
        "mean": _empty_mean,
        "rstd": _empty_rows,
        "qkv_weight_copy": copy_memory("qkv_weight"),
        "out_weight_copy": copy_memory("out_weight"),
        "dresidual": lambda given: given["sum"].new_empty(given["sum"].shape),
        "dqkv_weight": lambda given: empty_like_weight(given["qkv_weight"]),
        "dout_weight": lambda given: empty_like_weight(given["out_weight"]),
    },
    has_inference=False,
    composed=(_passes.block_forward, _passes.block_backward),
    eager_backward=_passes.block_backward_in_place,
    text="norm(s), s = residual + dropout(attention(x @ qkv_weight.T) @ out_weight.T)",
)  # fmt: skip
