# SPDX-License-Identifier: MIT
"""Norms, softmax, cross-entropy and products by QuACK. Products are called as in its own layers: in
the default form, or in the fastest form, which it times when a product is first called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.bench.rivals import EPS
from transformer_kernels.measure.case import Arguments, Build
from transformer_kernels.measure.timing import Call

GELU, SWIGLU = "gelu_tanh_approx", "swiglu"
_TUNED = {"quack": False, "quack_tuned": True}


def providers(make: Callable[..., Any]) -> dict[str, Any]:
    """A provider for each value of `tuned`, which `make` is called with."""
    return {name: partial(make, tuned=tuned) for name, tuned in _TUNED.items()}


def product(x: Tensor, y: Tensor, bias: Tensor | None = None, *, tuned: bool) -> Any:
    from quack.gemm_interface import gemm

    return gemm(x, y, bias=bias, tuned=tuned)


def linear(x: Tensor, weight: Tensor, bias: Tensor, *, tuned: bool) -> Any:
    return product(x, weight.t(), bias, tuned=tuned)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, keep: bool = False, tuned: bool) -> Any:
    """Returns y, or y and z."""
    from quack.gemm_interface import gemm_act

    z, y = gemm_act(x, weight.t(), bias=bias, activation=GELU, store_preact=keep, tuned=tuned)
    return (y, z) if keep else y


def linear_dgelu(dy: Tensor, weight: Tensor, z: Tensor, *, tuned: bool) -> Any:
    """Returns dz and h."""
    from quack.gemm_interface import gemm_dact

    return gemm_dact(dy, weight, z, activation=GELU, tuned=tuned)


def in_turn(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Interleaves rows or columns of two tensors, as QuACK's gates take them."""
    return torch.stack((first, second), dim + 1).flatten(dim, dim + 1)


def _halves(pairs: Tensor) -> tuple[Tensor, Tensor]:
    return pairs[:, ::2], pairs[:, 1::2]


def linear_swiglu(x: Tensor, both: Tensor, *, keep: bool = False, tuned: bool) -> Any:
    """Returns y, or y and the interleaved gate and up; the rows of `both` alternate between two
    weights."""
    from quack.gemm_interface import gemm_gated

    pairs, y = gemm_gated(x, both.t(), activation=SWIGLU, store_preact=keep, tuned=tuned)
    return (y, *_halves(pairs)) if keep else y


def linear_dswiglu(dy: Tensor, weight: Tensor, pairs: Tensor, *, tuned: bool) -> Any:
    """Returns dgate, dup and h; the columns of `pairs` alternate between gate and up."""
    from quack.gemm_interface import gemm_dgated

    gradients, h = gemm_dgated(dy, weight, pairs, activation=SWIGLU, tuned=tuned)
    return *_halves(gradients), h


# ---- rows ---------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from quack.rmsnorm import layernorm_fwd

    return layernorm_fwd(x, weight, bias, eps=EPS)


def layer_norm_backward(x: Tensor, weight: Tensor, dy: Tensor, rstd: Tensor, mean: Tensor) -> Any:
    from quack.rmsnorm import layernorm_bwd

    return layernorm_bwd(x, weight, dy, rstd, mean)


def with_float32_parameters(build: Build) -> Build:
    """Casts parameters: QuACK's layer norm takes only float32, whatever the dtype of x."""

    def run(arguments: Arguments) -> Call:
        parameters = {name: arguments[name].float() for name in ("weight", "bias")}
        return build({**arguments, **parameters})

    return run


def rms_norm(x: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=EPS)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)


def rms_norm_backward(arguments: Arguments) -> Call:
    from quack.rmsnorm import rmsnorm_bwd

    dy, weight, rstd = (arguments[name] for name in ("dy", "weight", "rstd"))
    saved, dsum = arguments.get("sum", arguments["x"]), arguments.get("dsum")
    return lambda: rmsnorm_bwd(saved, weight, dy, rstd, dresidual_out=dsum)[:2]


def softmax(x: Tensor) -> Any:
    from quack.softmax import softmax as run

    return run(x)


def softmax_backward(dy: Tensor, y: Tensor) -> Any:
    from quack.softmax import softmax_bwd

    return softmax_bwd(dy, y)


def cross_entropy(x: Tensor, target: Tensor) -> Any:
    from quack.cross_entropy import cross_entropy as run

    return run(x, target)


def cross_entropy_with_gradient(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    from quack.cross_entropy import cross_entropy_fwd

    losses, dx = cross_entropy_fwd(x, target, return_dx=True)
    return losses.sum(), dx
