# SPDX-License-Identifier: MIT
"""The matrix products of an MLP one by one: T rows, H features, F hidden ones.

The four products are bare, without bias: those of both layers, and of the first layer's backward
pass. There `ours` is what the layer chooses by itself, `packed` our product whatever the choice is.
The others have an activation in the product and give what the backward pass reads; of these, `ours`
is the kernel itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as in_torch

from transformer_kernels import functional as F
from transformer_kernels.bench.cases.linear import MLP_GRID, packed, sizes_by
from transformer_kernels.bench.rivals import cublaslt, quack
from transformer_kernels.measure.case import (
    Arguments,
    Build,
    Case,
    Function,
    bind,
    differentiate,
)
from transformer_kernels.measure.derive import no_compiled_backward, whole
from transformer_kernels.measure.timing import Call
from transformer_kernels.ops.linear.linear import GATED_NUMBERS, NUMBERS

_aten, _raw = torch.ops.aten, torch.ops.transformer_kernels
_GELU, _SWIGLU = NUMBERS["gelu_tanh"], GATED_NUMBERS["swiglu"]
_PASSES = {"forward": 1, "backward": 2, "both": 3}  # products of each
Sizes = Mapping[str, str]  # of each tensor, inputs first; "TH" is T x H


def _op(
    name: str,
    sizes: Sizes,
    inputs: int,
    formula: Function,
    forward: Mapping[str, Build],
    products: int = 1,
    key: str = "linear/linear",
) -> Case:
    names = tuple(sizes)

    return Case(
        name=name,
        key=key,
        inputs=names[:inputs],
        parameters=(),
        outputs=names[inputs:],
        reference=formula,
        functions={"torch": formula},
        backward={},
        compiled_backward=no_compiled_backward(name),
        forward=forward,
        gradients=inputs,
        grid=MLP_GRID,
        sizes=sizes_by(sizes, ""),
        flops=lambda pass_, shape: 2.0 * math.prod(shape) * products * _PASSES[pass_],
        verified=whole,
        feature=True,
    )


# ---- bare products ------------------------------------------------------------------------------


class _Product(NamedTuple):
    name: str
    sizes: Sizes  # of two inputs and the result
    factors: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # of the inputs: (M, K) and (K, N)
    in_layer: Callable[[Function, Tensor, Tensor], Call]  # by a function of (x, weight)


def _by_forward(linear: Function, x: Tensor, weight: Tensor) -> Call:
    return partial(linear, x, weight)


def _by_dx(linear: Function, dy: Tensor, weight: Tensor) -> Call:
    x = dy.new_zeros(len(dy), weight.shape[1])
    return differentiate(lambda x: linear(x, weight), ("x",), ("dy",))({"x": x, "dy": dy})


def _by_dweight(linear: Function, dy: Tensor, x: Tensor) -> Call:
    given = {"weight": dy.new_zeros(dy.shape[1], x.shape[1]), "dy": dy}
    return differentiate(lambda weight: linear(x, weight), ("weight",), ("dy",))(given)


_BARE = (
    _Product(
        "fc1_product", {"x": "TH", "weight": "FH", "y": "TF"},
        lambda x, weight: (x, weight.t()), _by_forward,
    ),
    _Product(
        "fc2_product", {"x": "TF", "weight": "HF", "y": "TH"},
        lambda x, weight: (x, weight.t()), _by_forward,
    ),
    _Product(
        "dgrad_product", {"dy": "TF", "weight": "FH", "dx": "TH"},
        lambda dy, weight: (dy, weight), _by_dx,
    ),
    _Product(
        "wgrad_product", {"dy": "TF", "x": "TH", "dweight": "FH"},
        lambda dy, x: (dy.t(), x), _by_dweight,
    ),
)  # fmt: skip


def _bare(row: _Product) -> Case:
    first, second, _ = row.sizes

    def formula(left: Tensor, right: Tensor) -> Tensor:
        return torch.mm(*row.factors(left, right))

    def of_factors(make: Callable[[Tensor, Tensor], Call]) -> Build:
        return lambda arguments: make(*row.factors(arguments[first], arguments[second]))

    def in_layer(linear: Function) -> Build:
        return lambda arguments: row.in_layer(linear, arguments[first], arguments[second])

    def by_quack(*, tuned: bool) -> Build:
        return of_factors(lambda x, y: partial(quack.product, x, y, tuned=tuned))

    forward = {
        "cublaslt": of_factors(cublaslt.fastest_product),
        **{name: make() for name, make in quack.providers(by_quack).items()},
        "packed": in_layer(packed(F.linear)),
        "ours": in_layer(F.linear),
    }
    return _op(row.name, row.sizes, 2, formula, forward)


# ---- products with an activation ----------------------------------------------------------------


def _gelu(z: Tensor) -> Tensor:
    return in_torch.gelu(z, approximate="tanh")


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    z = in_torch.linear(x, weight, bias)
    return _gelu(z), z


def _linear_dgelu(dy: Tensor, weight: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return _aten.gelu_backward(torch.mm(dy, weight), z, approximate="tanh"), _gelu(z)


def _linear_swiglu(x: Tensor, weight: Tensor, up_weight: Tensor) -> tuple[Tensor, ...]:
    gate, up = in_torch.linear(x, weight), in_torch.linear(x, up_weight)
    return in_torch.silu(gate) * up, gate, up


def _linear_dswiglu(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    dh, share = torch.mm(dy, weight), torch.sigmoid(gate)
    value = gate * share
    return dh * up * (share + value * (1 - share)), dh * value, value * up


def _torch_dswiglu(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """By the fewest of PyTorch's kernels, which know no derivative."""
    dh, value = torch.mm(dy, weight), in_torch.silu(gate)
    return _aten.silu_backward(dh * up, gate), dh * value, value * up


def _our_linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return _raw.linear_act_forward.default(x, weight, bias, _GELU)


def _our_linear_dgelu(dy: Tensor, weight: Tensor, z: Tensor) -> Any:
    run = _raw.linear_dact.default
    dz, _, h = run(dy, weight, None, z, _GELU, need_dbias=False, need_h=True)
    return dz, h


def _our_linear_swiglu(x: Tensor, weight: Tensor, up_weight: Tensor) -> Any:
    run = _raw.gated_linear_forward.default
    return run(x, weight, up_weight, None, None, _SWIGLU, keep=True)


def _our_linear_dswiglu(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> Any:
    run = _raw.linear_dgated.default
    return run(dy, weight, gate, up, None, None, _SWIGLU, need_h=True)


def _quack_swiglu(arguments: Arguments, *, tuned: bool) -> Call:
    both = quack.in_turn(arguments["weight"], arguments["up_weight"], 0)
    return partial(quack.linear_swiglu, arguments["x"], both, keep=True, tuned=tuned)


def _quack_dswiglu(arguments: Arguments, *, tuned: bool) -> Call:
    pairs = quack.in_turn(arguments["gate"], arguments["up"], 1)
    dy, weight = arguments["dy"], arguments["weight"]
    return partial(quack.linear_dswiglu, dy, weight, pairs, tuned=tuned)


def _bound(functions: Mapping[str, Function], *names: str) -> dict[str, Build]:
    return {provider: bind(function, *names) for provider, function in functions.items()}


_KEPT_LINEAR_ACT = _op(
    "kept_linear_act",
    {"x": "TH", "weight": "FH", "bias": "F", "y": "TF", "z": "TF"},
    3,
    _linear_gelu,
    _bound(
        {**quack.providers(partial(quack.linear_gelu, keep=True)), "ours": _our_linear_gelu},
        "x", "weight", "bias",
    ),
)  # fmt: skip
_LINEAR_DACT = _op(
    "linear_dact",
    {"dy": "TH", "weight": "HF", "z": "TF", "dz": "TF", "h": "TF"},
    3,
    _linear_dgelu,
    _bound({**quack.providers(quack.linear_dgelu), "ours": _our_linear_dgelu}, "dy", "weight", "z"),
)
_KEPT_GATED_LINEAR = _op(
    "kept_gated_linear",
    {"x": "TH", "weight": "FH", "up_weight": "FH", "y": "TF", "gate": "TF", "up": "TF"},
    3,
    _linear_swiglu,
    {
        **quack.providers(_quack_swiglu),
        "ours": bind(_our_linear_swiglu, "x", "weight", "up_weight"),
    },
    products=2,
    key="linear/gated_linear",
)
_LINEAR_DGATED = _op(
    "linear_dgated",
    {"dy": "TH", "weight": "HF", "gate": "TF", "up": "TF", "dgate": "TF", "dup": "TF", "h": "TF"},
    4,
    _linear_dswiglu,
    {
        **_bound(
            {"torch": _torch_dswiglu, "ours": _our_linear_dswiglu}, "dy", "weight", "gate", "up"
        ),
        **quack.providers(_quack_dswiglu),
    },
    key="linear/gated_linear",
)

OPS = (
    *(_bare(row) for row in _BARE),
    _KEPT_LINEAR_ACT, _LINEAR_DACT, _KEPT_GATED_LINEAR, _LINEAR_DGATED,
)  # fmt: skip
