# SPDX-License-Identifier: MIT
"""Mixtures of experts as modules: the experts, and the whole layer with its router."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentValueError
from ..ops.moe.dispatch import Dispatch, moe_dispatch
from ..ops.moe.experts import moe_experts
from ..ops.pointwise._ops import PLAIN
from .linear import MLP, GatedMLP
from .moe import LoadBalancer, MoERouter


class Experts(nn.Module):
    """The MLPs of a mixture, and :func:`transformer_kernels.functional.moe_experts`.

    The parameters are those of Hugging Face's Mixtral, Qwen3 and DeepSeek from transformers 5 on:
    ``gate_up_proj`` (E, 2F, hidden) and ``down_proj`` (E, hidden, F); without a gate ``up_proj``
    (E, F, hidden) alone.

    Args:
        hidden_size: columns of the input and of the result.
        intermediate_size: F, the features of each expert.
        num_experts: E, at most 4096.
        activation: as of the function, except functions of one's own.
        packed: whether gate and up are one parameter, or ``gate_proj`` and ``up_proj``.
        bias: whether all of them have a bias: ``gate_up_proj_bias`` and so on.
        device: device of the parameters.
        dtype: dtype of the parameters.
        backend: as of the function.

    >>> experts, router = tfk.nn.Experts(32, 48, 8), tfk.nn.MoERouter(32, 8, top_k=2)
    >>> x = torch.randn(2, 5, 32)
    >>> routing = router(x)
    >>> experts(x, tfk.functional.moe_dispatch(routing.indices, 8), routing.weights).shape
    torch.Size([2, 5, 32])
    """

    down_proj: nn.Parameter
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        activation: str = "swiglu",
        packed: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.activation = activation
        self.backend = backend
        lines = {"up_proj": intermediate_size}
        if activation not in PLAIN:
            lines = {"gate_proj": intermediate_size, **lines}
            if packed:
                lines = {"gate_up_proj": 2 * intermediate_size}
        shapes = {name: (count, hidden_size) for name, count in lines.items()}
        for name, (rows, cols) in {**shapes, "down_proj": (hidden_size, intermediate_size)}.items():
            weight = torch.empty(num_experts, rows, cols, device=device, dtype=dtype)
            setattr(self, name, nn.Parameter(weight))
            offset = torch.empty(num_experts, rows, device=device, dtype=dtype) if bias else None
            parameter = None if offset is None else nn.Parameter(offset)
            self.register_parameter(f"{name}_bias", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights as :class:`torch.nn.Linear` does; biases are zeros."""
        for parameter in self.parameters():
            if parameter.dim() == 3:
                bound = 1 / math.sqrt(max(parameter.shape[2], 1))
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.zeros_(parameter)

    def _first(self) -> dict[str, Any]:
        """The weights and biases of the first layer, as arguments of the function."""
        names = [n for n in ("gate_up_proj", "gate_proj", "up_proj") if hasattr(self, n)]
        arguments = zip(("", "up_"), names, strict=False)
        return {
            f"{prefix}{kind}": getattr(self, name + end)
            for prefix, name in arguments
            for kind, end in (("weight", ""), ("bias", "_bias"))
        }

    def forward(self, x: Tensor, dispatch: Dispatch, weights: Tensor) -> Tensor:
        first = self._first()
        return moe_experts(
            x, dispatch, weights, first.pop("weight"), self.down_proj, self.activation,
            down_bias=self.down_proj_bias, backend=self.backend, **first,
        )  # fmt: skip

    def extra_repr(self) -> str:
        experts, hidden, features = self.down_proj.shape
        return f"{hidden}, {features}, {experts}, activation={self.activation!r}"


class MoE(nn.Module):
    """A mixture of experts, in the place of an MLP: a router, the experts that it chooses for each
    token, experts that see every token, and the loss that balances the load.

    After a call in training, ``loss`` is the balance's loss of that call, which the training loop
    adds to its own, and ``balancer.metrics()`` and ``drop_rate`` tell how even the load is. In
    evaluation ``loss`` is 0.

    Args:
        hidden_size: columns of the input and of the result.
        intermediate_size: the features of each expert.
        num_experts: E, at most 4096.
        top_k: K, the experts of a token, at most 16.
        activation: as of :class:`Experts`.
        bias: whether the experts have biases.
        packed: whether gate and up are one parameter.
        shared_size: the features of an MLP that sees every token; 0 for none.
        shared_gate: whether a sigmoid of a linear layer scales that MLP's result, as in Qwen2.
        balancer: the loss, by default :class:`LoadBalancer` of one batch. ``balancer.update_bias``
            balances without a loss, where the router has an ``expert_bias``.
        capacity_factor: each expert takes so many times its even share of the assignments. The
            others go to ``spare`` experts, or are dropped; by default none is.
        spare: experts of a token beyond K that take its assignments where those of the best scores
            are full: :func:`transformer_kernels.functional.moe_reroute`.
        router_bias: whether the router's logits have a bias, as in gpt-oss.
        device: device of the parameters.
        dtype: dtype of the parameters.
        backend: as of :func:`transformer_kernels.functional.moe_experts`.
        router: other arguments of :class:`MoERouter`, by keyword: ``score``, ``renormalize``,
            ``expert_bias``, ``groups`` and so on.

    >>> moe = tfk.nn.MoE(32, 48, num_experts=8, top_k=2)
    >>> y = moe(torch.randn(2, 5, 32))
    >>> (y.square().mean() + moe.loss).backward()
    """

    loss: Tensor
    drop_rate: Tensor

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        top_k: int,
        *,
        activation: str = "swiglu",
        bias: bool = False,
        packed: bool = True,
        shared_size: int = 0,
        shared_gate: bool = False,
        balancer: LoadBalancer | None = None,
        capacity_factor: float | None = None,
        spare: int = 0,
        router_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
        **router: Any,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        if shared_gate and shared_size == 0:
            raise ArgumentValueError("MoE: shared_gate is True, expected False (shared_size is 0)")
        self.gate = MoERouter(
            hidden_size, num_experts, top_k, bias=router_bias, spare=spare, **made, **router
        )
        self.experts = Experts(
            hidden_size, intermediate_size, num_experts, activation=activation, packed=packed,
            bias=bias, backend=backend, **made,
        )  # fmt: skip
        self.balancer = LoadBalancer(num_experts) if balancer is None else balancer
        self.capacity_factor = capacity_factor
        self.shared_experts = (
            _shared(hidden_size, shared_size, activation, bias, made) if shared_size else None
        )
        self.shared_expert_gate = nn.Linear(hidden_size, 1, False, **made) if shared_gate else None
        self._forget()

    def _forget(self) -> None:
        self.loss = self.gate.weight.new_zeros(())
        self.drop_rate = self.loss

    def __getstate__(self) -> dict[str, Any]:
        """The loss is that of a call, and no part of a copy."""
        zero = self.loss.detach().new_zeros(())
        return {**self.__dict__, "loss": zero, "drop_rate": zero}

    def forward(self, x: Tensor) -> Tensor:
        routing = self.gate(x, self.capacity_factor)
        dispatch = moe_dispatch(
            routing.indices, self.gate.num_experts, capacity_factor=self.capacity_factor
        )
        y: Tensor = self.experts(x, dispatch, routing.weights)
        self.loss = self.balancer(routing)
        self.drop_rate = dispatch.drop_rate()
        if self.shared_experts is None:
            return y
        shared: Tensor = self.shared_experts(x)
        if self.shared_expert_gate is not None:
            shared = torch.sigmoid(self.shared_expert_gate(x)) * shared
        return y + shared

    def extra_repr(self) -> str:
        return f"capacity_factor={self.capacity_factor}"


def _shared(hidden: int, features: int, activation: str, bias: bool, made: dict[str, Any]) -> Any:
    if activation in PLAIN:
        return MLP(hidden, features, activation=activation, bias=bias, **made)
    return GatedMLP(hidden, features, activation=activation, bias=bias, **made)
