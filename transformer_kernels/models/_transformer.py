# SPDX-License-Identifier: MIT
"""The stack of pre-norm layers that all models share; only how rows see each other differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._errors import ArgumentValueError, as_count, as_flag, as_number
from ..ops.attention._arguments import MOST_DIM
from ..ops.pointwise.table import ACTIVATIONS
from ._checks import one_of
from ._passes import Passes, Tables

if TYPE_CHECKING:
    from ._cache import KeyValueCache

PLAIN = tuple(row.name for row in ACTIVATIONS)
GATED = tuple(row.gated for row in ACTIVATIONS if row.gated)
NORMS = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The configuration of the layers.

    Args:
        dim: C, the channels between layers.
        num_layers: number of layers.
        num_heads: H; a head has ``dim / num_heads`` channels, at most 256.
        num_kv_heads: number of heads of keys and values, which divides ``num_heads``; by default
            equal to it.
        inner_dim: channels inside the MLP; default ``4 * dim``.
        norm: ``"layer_norm"`` or ``"rms_norm"``.
        activation: activation of the MLP, any of :mod:`transformer_kernels.functional`; a gated
            one, such as ``"swiglu"``, has a gate of ``inner_dim`` channels and as many others.
        bias: whether projections and layer norms have a bias.
        dropout: probability of dropout after embeddings and projections and in attention, in
            training.
        eps: eps of the norms.

    >>> tfk.models.TransformerConfig(
    ...     dim=64, num_layers=2, num_heads=4, norm="rms_norm", activation="swiglu").norm
    'rms_norm'
    """

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    inner_dim: int | None = None
    norm: str = "layer_norm"
    activation: str = "gelu"
    bias: bool = True
    dropout: float = 0.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        op = type(self).__name__
        for name in ("dim", "num_layers", "num_heads"):
            as_count(op, name, getattr(self, name))
        for name in ("num_kv_heads", "inner_dim"):
            if getattr(self, name) is not None:
                as_count(op, name, getattr(self, name))
        self._check_multiple("dim", self.dim, "num_heads", self.num_heads)
        self._check_multiple("num_heads", self.num_heads, "num_kv_heads", self.kv_heads)
        if self.head_dim > MOST_DIM:
            raise ArgumentValueError(
                f"{op}: num_heads is {self.num_heads}, expected at least"
                f" {-(-self.dim // MOST_DIM)} (a head has at most {MOST_DIM} of the {self.dim}"
                " channels)"
            )
        one_of(op, "norm", self.norm, NORMS)
        one_of(op, "activation", self.activation, (*PLAIN, *GATED))
        as_flag(op, "bias", self.bias)
        as_number(op, "eps", self.eps)
        if not 0 <= as_number(op, "dropout", self.dropout) < 1:
            raise ArgumentValueError(
                f"{op}: dropout is {self.dropout}, expected 0 or more and less than 1"
            )

    def _check_multiple(self, name: str, value: int, of: str, divisor: int) -> None:
        if value % divisor:
            raise ArgumentValueError(
                f"{type(self).__name__}: {name} is {value}, expected a multiple of {of} ({divisor})"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def mixed(self) -> int:
        """Channels of the first projection, through which rows see each other."""
        return (self.num_heads + 2 * self.kv_heads) * self.head_dim

    @property
    def inner(self) -> int:
        return 4 * self.dim if self.inner_dim is None else self.inner_dim

    def new_norm(self) -> nn.Module:
        options = {"bias": self.bias} if self.norm == "layer_norm" else {}
        return NORMS[self.norm](self.dim, self.eps, **options)


class Layer(nn.Module):
    """The parameters of ``h = x + out(mix(qkv(norm_1(x))))`` and ``h + down(act(up(norm_2(h))))``.
    ``mix`` is attention, or in a graph network a sum, for which ``qkv`` holds only values."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=config.bias)
        self.norm_1 = config.new_norm()
        self.qkv = linear(config.dim, config.mixed)
        self.out = linear(config.dim, config.dim)
        self.norm_2 = config.new_norm()
        self.up = linear(config.dim, config.inner * (2 if config.activation in GATED else 1))
        self.down = linear(config.inner, config.dim)


def heads(config: TransformerConfig, qkv: Tensor) -> tuple[Tensor, ...]:
    """Views of the projection: queries (..., H, D), keys and values (..., Hk, D)."""
    parts = (config.num_heads, config.kv_heads, config.kv_heads)
    return qkv.unflatten(-1, (sum(parts), config.head_dim)).split(parts, -2)


@dataclass(frozen=True)
class SelfAttention:
    """Lets the tokens of a sequence see each other, in each layer."""

    config: TransformerConfig
    passes: Passes
    p: float
    causal: bool = False
    tables: Tables | None = None
    cache: KeyValueCache | None = None

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        q, k, v = heads(self.config, qkv)
        if self.tables is not None:
            first = 0 if self.cache is None else self.cache.length
            q, k = self.passes.rotate(q, k, self.tables, first)
        if self.cache is not None:
            k, v = self.cache.append(layer, k, v)
        return self.passes.attend(q, k, v, self.causal, self.p).flatten(2)


class Transformer(nn.Module):
    """The stack of layers, (..., C) -> (..., C), with a norm after the last layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers: Sequence[Layer] = nn.ModuleList(  # type: ignore[assignment]
            Layer(config) for _ in range(config.num_layers)
        )
        self.norm = config.new_norm()

    @property
    def p(self) -> float:
        """The probability of dropout."""
        return self.config.dropout if self.training else 0.0

    def forward(
        self, x: Tensor, passes: Passes, mix: Callable[[int, Tensor], Tensor], p: float
    ) -> Tensor:
        """Runs the layers. ``mix`` takes a layer's number and its projection, and lets rows see
        each other. ``y`` is ``x`` normalised: each norm belongs to the pass that computes the sum
        before it."""
        norms = [*(layer.norm_1 for layer in self.layers), self.norm]
        y = passes.norm(x, norms[0])
        for index, (layer, following) in enumerate(zip(self.layers, norms[1:], strict=True)):
            seen = mix(index, layer.qkv(y))
            y, x = passes.project_add_norm(seen, layer.out, x, layer.norm_2, p)
            inner = passes.project_activate(y, layer.up, self.config.activation)
            y, x = passes.project_add_norm(inner, layer.down, x, following, p)
        return y


def initialise(model: nn.Module, stack: Transformer) -> None:
    """Draws weights from a normal distribution of deviation (3 inputs)^-1/2, which at 768 channels
    is GPT-2's 0.02. Projections into the residual are smaller the more layers there are."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=(3 * parameter[0].numel()) ** -0.5)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)
    with torch.no_grad():
        for layer in stack.layers:
            for projection in (layer.out, layer.down):
                projection.weight.mul_((2 * len(stack.layers)) ** -0.5)
