# SPDX-License-Identifier: MIT
"""GPT-2's block as a module of three ops, with the parameters of Hugging Face's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError, ArgumentValueError
from .._torch import are_bare, forwards_of
from ..ops.attention_block.attention_block import attention_block
from ..ops.linear.linear import linear
from ..ops.linear.mlp import mlp
from ..ops.pointwise._ops import PLAIN
from ..ops.pointwise.dropout import bias_dropout_add
from .attention_block import attend
from .norm import LayerNorm

# The names of activations in configurations of Transformers.
_ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu",
    "relu2": "relu_squared", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu",
}  # fmt: skip


class _Projection(nn.Module):
    """A linear layer that stores its weight as (inputs, outputs), as Transformers' ``Conv1D``."""

    def __init__(self, inputs: int, outputs: int, **where: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, **where))
        self.bias = nn.Parameter(torch.zeros(outputs, **where))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.weight.shape))


class _Pair(nn.Module):
    """Two projections under their names, which the block reads."""

    def __init__(self, **projections: _Projection) -> None:
        super().__init__()
        for name, projection in projections.items():
            self.add_module(name, projection)


_PROJECTION, _NORM, _PAIR = forwards_of(_Projection), forwards_of(LayerNorm), forwards_of(_Pair)
_OF_BLOCK = {"ln_1": _NORM, "attn": _PAIR, "ln_2": _NORM, "mlp": _PAIR}
_OF_ATTENTION = {"c_attn": _PROJECTION, "c_proj": _PROJECTION}
_OF_MLP = {"c_fc": _PROJECTION, "c_proj": _PROJECTION}


class FusedGPT2Block(nn.Module):
    """GPT-2's block, ``h = x + attn(ln_1(x))`` and ``h + mlp(ln_2(h))``, as three ops: a norm,
    :func:`attention_block <transformer_kernels.functional.attention_block>`, and
    :func:`mlp <transformer_kernels.functional.mlp>` with dropout and the residual.

    Args:
        embed_dim: C, the channels of input and output.
        num_heads: H; divides C.
        inner_dim: channels inside the MLP; default ``4 * embed_dim``.
        activation: an activation of :func:`transformer_kernels.functional.linear_act`.
        eps: eps of the norms.
        dropout: the probability that an element of a branch is dropped, in training.
        attention_dropout: the probability that a weight of attention is dropped, in training.
        scale: factor of the scores; default ``(C / H) ** -0.5``.
        recompute: 1 computes q, k and v and the MLP's activations again in the backward pass
            instead of saving them.
        device, dtype: device and dtype of the parameters.
        backend: as for :func:`transformer_kernels.functional.attention_block`.

    The ``state_dict`` is that of Hugging Face's ``GPT2Block``: ``ln_1``, ``attn.c_attn``,
    ``attn.c_proj``, ``ln_2``, ``mlp.c_fc`` and ``mlp.c_proj``, with weights stored as (inputs,
    outputs), which are read without a copy. Attention is causal, without a mask and a cache; for
    those, and for whole models, see :func:`transformer_kernels.fuse`.

    The call maps (B, T, C) to (B, T, C). If a part is replaced (an adapter) or has a hook, the
    parts are called as modules, without fusion.

    >>> block = tfk.nn.FusedGPT2Block(64, 4)
    >>> block(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        inner_dim: int | None = None,
        *,
        activation: str = "gelu_tanh",
        eps: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        scale: float | None = None,
        recompute: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentValueError(
                f"FusedGPT2Block: embed_dim is {embed_dim}, expected a multiple of num_heads"
                f" ({num_heads})"
            )
        if activation not in PLAIN:
            raise ArgumentValueError(
                f"FusedGPT2Block: activation is {activation!r}, expected one of {', '.join(PLAIN)}"
            )
        inner = 4 * embed_dim if inner_dim is None else inner_dim
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.scale = scale
        self.recompute = recompute
        self.backend = backend
        self.ln_1 = LayerNorm(embed_dim, eps, **where)
        self.attn: Any = _Pair(
            c_attn=_Projection(embed_dim, 3 * embed_dim, **where),
            c_proj=_Projection(embed_dim, embed_dim, **where),
        )
        self.ln_2 = LayerNorm(embed_dim, eps, **where)
        self.mlp: Any = _Pair(
            c_fc=_Projection(embed_dim, inner, **where),
            c_proj=_Projection(inner, embed_dim, **where),
        )

    @classmethod
    def from_hf(cls, block: Any, *, recompute: int = 0, backend: str = "auto") -> FusedGPT2Block:
        """Makes a block with the numbers, parameters and mode of a ``GPT2Block`` of Transformers,
        whose parameters are copied.

        Raises:
            ArgumentTypeError: ``block`` is another module.
            ArgumentValueError: it has cross-attention, or an activation without a kernel.
        """
        op = "FusedGPT2Block.from_hf"
        if type(block).__name__ != "GPT2Block":
            raise ArgumentTypeError(f"{op}: block is {type(block).__name__}, expected a GPT2Block")
        attn, weight = block.attn, block.attn.c_attn.weight
        name = attn.config.activation_function
        if hasattr(block, "crossattention"):
            raise ArgumentValueError(f"{op}: block has cross-attention, expected none")
        if name not in _ACTIVATIONS:
            raise ArgumentValueError(
                f"{op}: activation_function is {name!r}, expected one of {', '.join(_ACTIVATIONS)}"
            )
        made = cls(
            weight.shape[0], attn.num_heads, block.mlp.c_fc.weight.shape[1],
            activation=_ACTIVATIONS[name], eps=block.ln_1.eps, dropout=attn.resid_dropout.p,
            attention_dropout=attn.attn_dropout.p, scale=attn.scaling, recompute=recompute,
            device=weight.device, dtype=weight.dtype, backend=backend,
        )  # fmt: skip
        made.load_state_dict(block.state_dict())
        return made.train(block.training)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.ln_1(hidden_states)
        if not self._is_open():
            return self._part_by_part(x, hidden_states)
        attn, norm, fc, down = self.attn, self.ln_2, self.mlp.c_fc, self.mlp.c_proj
        y, total = attention_block(
            x, hidden_states, attn.c_attn.weight.t(), attn.c_attn.bias, attn.c_proj.weight.t(),
            attn.c_proj.bias, norm.weight, norm.bias, self.num_heads, causal=True, scale=self.scale,
            eps=norm.eps, attention_dropout_p=self.attention_dropout, dropout_p=self.dropout,
            training=self.training, recompute=self.recompute, backend=self.backend,
        )  # fmt: skip
        # On CUDA the activation is computed again inside a product, on a CPU by a pass of its own.
        level = 2 if self.recompute else int(x.is_cuda)
        return mlp(
            y, fc.weight.t(), fc.bias, down.weight.t(), down.bias, self.activation, residual=total,
            dropout_p=self.dropout, training=self.training, recompute=level, backend=self.backend,
        )  # fmt: skip

    def _is_open(self) -> bool:
        """Whether the ops may read the parameters of all parts, and leave out their calls."""
        return (
            are_bare(self, _OF_BLOCK)
            and are_bare(self.attn, _OF_ATTENTION)
            and are_bare(self.mlp, _OF_MLP)
            and not self.ln_2.zero_centered_weight
        )

    def _part_by_part(self, x: Tensor, hidden_states: Tensor) -> Tensor:
        heads, attn = self.num_heads, self.attn
        p = self.attention_dropout if self.training else 0.0
        attended = attend(attn.c_attn(x), heads, heads, True, self.scale, p, self.backend)
        total = self._added(attn.c_proj(attended), hidden_states)
        hidden = PLAIN[self.activation].call(self.mlp.c_fc(self.ln_2(total)), None)
        return self._added(self.mlp.c_proj(hidden), total)

    def _added(self, branch: Tensor, residual: Tensor) -> Tensor:
        branch = branch.to(residual.dtype)
        return bias_dropout_add(branch, None, residual, self.dropout, self.training)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, activation={self.activation!r}, dropout={self.dropout},"
            f" attention_dropout={self.attention_dropout}, recompute={self.recompute}"
        )
