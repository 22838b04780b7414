# SPDX-License-Identifier: MIT
"""The configuration of the layers that all models share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .._errors import ArgumentValueError, as_count, as_flag, as_number
from ..ops.attention._arguments import MOST_DIM
from ..ops.pointwise.table import ACTIVATIONS
from ._checks import one_of

PLAIN = {row.name: row.formula for row in ACTIVATIONS}
GATED = {row.gated: row.formula for row in ACTIVATIONS if row.gated}
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
