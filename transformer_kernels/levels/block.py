# SPDX-License-Identifier: MIT
"""The block: its weights, its checks, and the level that runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import (
    FLOATING,
    ArgumentTypeError,
    ArgumentValueError,
    as_count,
    as_flag,
    as_number,
    check_tensors,
    dtype_name,
    is_integer,
    not_floating,
)
from .._names import explain_names
from .._torch import forwards_of, is_bare
from ..ops.attention._arguments import MOST_DIM
from ._level import Affine, Level, Weights
from .compiled import Compiled
from .native import Native
from .ours import Ours
from .scripted import Scripted
from .triton import Triton

# The order in which one would try them.
LEVELS: dict[str, Level] = {
    level.name: level for level in (Native(), Scripted(), Compiled(), Triton(), Ours())
}


_PARTS = forwards_of(nn.LayerNorm, nn.Linear)


def find_level(level: int | str) -> Level:
    """Finds a level.

    Args:
        level: its name, or its number from 1.

    Raises:
        ArgumentValueError, ArgumentTypeError: there is no such level; the message lists them.

    >>> tfk.levels.find_level(5).name
    'ours'
    """
    names = list(LEVELS)
    if isinstance(level, str) and level in LEVELS:
        return LEVELS[level]
    if is_integer(level) and 1 <= int(level) <= len(names):
        return LEVELS[names[int(level) - 1]]
    expected = f"1 to {len(names)} or one of {', '.join(map(repr, names))}"
    kind = ArgumentValueError if isinstance(level, str) or is_integer(level) else ArgumentTypeError
    raise kind(f"Block: level is {level!r}, expected {expected}")


@explain_names
class Block(nn.Module):
    """A pre-norm transformer block, as in GPT-2, run by one of five levels.

    ``h = x + out(attention(qkv(norm_1(x))))``, ``y = h + down(gelu(up(norm_2(h))))``. All levels
    compute this, have the same parameters, and load each other's ``state_dict``. A level reads the
    parameters and calls no module; if one of the six modules is an adapter or has a hook, all are
    called instead.

    Args:
        level: 1 to 5, or ``"torch"``, ``"torchscript"``, ``"compile"``, ``"triton"``, ``"ours"``.
        dim: C, the channels of input and output.
        num_heads: H; divides C; a head has at most 256 channels.
        mlp_ratio: inner channels of the MLP, as a multiple of C.
        causal: whether a token sees only itself and earlier tokens.
        eps: added to the variance of both norms.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        ArgumentValueError, ArgumentTypeError: the block cannot take an argument; the message names
            it. A level that cannot run on the device of ``x`` raises when it is called.

    >>> block = tfk.levels.Block("ours", dim=64, num_heads=4)
    >>> block(torch.randn(2, 16, 64)).shape
    torch.Size([2, 16, 64])
    """

    def __init__(
        self,
        level: int | str,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: int = 4,
        causal: bool = True,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._level = find_level(level).name  # a name, which can be saved
        self.dim = as_count("Block", "dim", dim)
        self.num_heads = as_count("Block", "num_heads", num_heads)
        self.mlp_ratio = as_count("Block", "mlp_ratio", mlp_ratio)
        self.causal = as_flag("Block", "causal", causal)
        self.eps = float(as_number("Block", "eps", eps))
        if self.dim % self.num_heads:
            raise ArgumentValueError(
                f"Block: dim is {dim}, expected a multiple of num_heads ({num_heads})"
            )
        if self.dim > MOST_DIM * self.num_heads:
            raise ArgumentValueError(
                f"Block: num_heads is {num_heads}, expected at least {-(-dim // MOST_DIM)}"
                f" (a head has at most {MOST_DIM} of the {dim} channels)"
            )
        if dtype is not None and dtype not in FLOATING:
            raise not_floating("Block", "dtype", dtype)
        inner = self.mlp_ratio * self.dim
        self.norm_1 = nn.LayerNorm(dim, eps, device=device, dtype=dtype)
        self.qkv = nn.Linear(dim, 3 * dim, device=device, dtype=dtype)
        self.out = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.norm_2 = nn.LayerNorm(dim, eps, device=device, dtype=dtype)
        self.up = nn.Linear(dim, inner, device=device, dtype=dtype)
        self.down = nn.Linear(inner, dim, device=device, dtype=dtype)

    @property
    def level(self) -> Level:
        return LEVELS[self._level]

    def forward(self, x: Tensor) -> Tensor:
        """Maps x (B, T, C) to (B, T, C)."""
        self._check(x)
        parts = (self.norm_1, self.qkv, self.out, self.norm_2, self.up, self.down)
        if not all(is_bare(part, _PARTS) for part in parts):
            return self._run_modules(x)
        weights = Weights(*(Affine(part.weight, part.bias) for part in parts))
        return self.level.run(x, weights, self.num_heads, self.causal, self.eps)

    def _run_modules(self, x: Tensor) -> Tensor:
        """Computes ``native.block`` by calling the modules."""
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        h = x + self.out(seen.transpose(1, 2).flatten(2))
        y: Tensor = h + self.down(F.gelu(self.up(self.norm_2(h))))
        return y

    def _check(self, x: Tensor) -> None:
        check_tensors("Block", {"x": x})
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ArgumentValueError(
                f"Block: x has shape {tuple(x.shape)}, expected (batch, time, {self.dim})"
            )
        weight = self.qkv.weight
        if x.device != weight.device:
            raise ArgumentValueError(
                f"Block: x is on {x.device}, expected {weight.device} (as the weights)"
            )
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ArgumentTypeError(
                f"Block: x is {dtype_name(x.dtype)}, expected {dtype_name(weight.dtype)}"
                " (as the weights)"
            )

    def extra_repr(self) -> str:
        return f"{self._level!r}, {self.dim}, {self.num_heads}, causal={self.causal}"
