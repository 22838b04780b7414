# SPDX-License-Identifier: MIT
"""The router of a mixture of experts as modules: logits, choice, balance and places."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from .._errors import ArgumentValueError, as_choice
from ..ops.moe._formula import EPSILON
from ..ops.moe.balance import expert_counts, load_balancing_loss, router_z_loss
from ..ops.moe.dispatch import Dispatch, moe_dispatch
from ..ops.moe.reroute import moe_reroute
from ..ops.moe.router import moe_router

_KINDS = dict.fromkeys(("batch", "sequence", "global"))


class Routing(NamedTuple):
    """The choice of a router. ``importance`` and ``lse`` are what :class:`LoadBalancer` reads, and
    None in evaluation. ``wanted`` are the experts with the best scores, where ``indices`` are
    others because those are full."""

    weights: Tensor
    indices: Tensor
    importance: Tensor | None
    lse: Tensor | None
    wanted: Tensor | None = None


class Gating(NamedTuple):
    """The decisions of :class:`ExpertGating`: weights (..., K), experts (..., K), the places of the
    tokens, and the loss that balances the load, 0 in evaluation."""

    weights: Tensor
    indices: Tensor
    dispatch: Dispatch
    loss: Tensor


class MoERouter(nn.Module):
    """A linear layer to the logits of the experts, and :func:`transformer_kernels.functional.\
moe_router`.

    Its parameter is ``weight`` (E, hidden), as in the gates of Hugging Face's Mixtral, Qwen and
    DeepSeek; DeepSeek's ``e_score_correction_bias`` is the buffer ``expert_bias``.

    Args:
        hidden_size: columns of the input.
        num_experts: E, at most 4096.
        top_k: K, the experts of a token, at most 16.
        score: ``"softmax"``, ``"sigmoid"`` or ``"sqrt_softplus"``.
        bias: whether the logits have a bias, as in gpt-oss.
        expert_bias: whether there is a buffer that is added to the scores for the choice alone.
        spare: experts of a token beyond K that take its assignments where those of the best scores
            are full: :func:`transformer_kernels.functional.moe_reroute`. It acts in calls with a
            ``capacity_factor``.
        options: other arguments of the function, by keyword: ``groups``, ``top_groups``,
            ``renormalize``, ``scale``, ``jitter``, ``noise``, ``backend``.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> router = tfk.nn.MoERouter(32, 8, top_k=2)
    >>> routing = router(torch.randn(2, 5, 32))
    >>> routing.weights.shape, routing.importance.shape  # two sequences
    (torch.Size([2, 5, 2]), torch.Size([2, 8]))
    """

    bias: nn.Parameter | None
    expert_bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        *,
        score: str = "softmax",
        bias: bool = False,
        expert_bias: bool = False,
        spare: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ArgumentValueError(
                f"MoERouter: top_k is {top_k}, expected 1 to {num_experts} (num_experts)"
            )
        if not 0 <= spare <= num_experts - top_k:
            raise ArgumentValueError(
                f"MoERouter: spare is {spare}, expected 0 to {num_experts - top_k}"
            )
        self.num_experts = num_experts
        self.top_k = top_k
        self.spare = spare
        self.options = {"score": score, **options}
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size, **made))
        offset = nn.Parameter(torch.zeros(num_experts, **made)) if bias else None
        self.register_parameter("bias", offset)
        buffer = torch.zeros(num_experts, device=device) if expert_bias else None
        self.register_buffer("expert_bias", buffer)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[1]))

    def forward(self, x: Tensor, capacity_factor: float | None = None) -> Routing:
        logits = nn.functional.linear(x, self.weight, self.bias)
        sequences = x.shape[0] if self.training and x.dim() > 2 else int(self.training)
        spare = self.spare if capacity_factor is not None else 0
        found = moe_router(
            logits, self.top_k + spare, expert_bias=self.expert_bias, training=self.training,
            sequences=sequences, **self.options,
        )  # fmt: skip
        importance, lse = found[2:] if sequences else (None, None)
        routing = Routing(found[0], found[1], importance, lse)
        if not spare or capacity_factor is None:
            return routing
        return self._rerouted(routing, capacity_factor)

    def _rerouted(self, routing: Routing, capacity_factor: float) -> Routing:
        """Takes K of the candidates."""
        slots = moe_reroute(
            routing.indices, self.top_k, self.num_experts, capacity_factor=capacity_factor
        )
        weights = routing.weights.gather(-1, slots)
        if self.options.get("renormalize", True):
            weights = weights / (weights.sum(-1, keepdim=True) + EPSILON)
            weights = weights * self.options.get("scale", 1.0)
        return routing._replace(
            weights=weights, indices=routing.indices.gather(-1, slots),
            wanted=routing.indices[..., : self.top_k],
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.num_experts}, top_k={self.top_k}"


class LoadBalancer(nn.Module):
    """Losses and metrics of the load of experts, and the rule of a bias that balances without a
    loss.

    Calling it in training returns ``aux_loss * balance + z_loss * z`` and keeps the counts of the
    call, which :meth:`metrics` and :meth:`update_bias` read.

    Args:
        num_experts: E.
        kind: ``"batch"`` balances all tokens of a call together, ``"sequence"`` those of each
            sequence, ``"global"`` those of all processes: their counts are summed where
            ``torch.distributed`` is initialised.
        aux_loss: factor of :func:`transformer_kernels.functional.load_balancing_loss`.
        z_loss: factor of :func:`transformer_kernels.functional.router_z_loss`.
        bias_rate: step of the bias (Wang et al. 2024, arXiv:2408.15664).
        process_group: the processes of ``"global"`` and of the bias; by default all.

    >>> router, balancer = tfk.nn.MoERouter(32, 8, top_k=2), tfk.nn.LoadBalancer(8)
    >>> balancer(router(torch.randn(2, 5, 32))).backward()
    >>> sorted(balancer.metrics())
    ['counts', 'entropy', 'load', 'max_load']
    """

    counts: Tensor

    def __init__(
        self,
        num_experts: int,
        *,
        kind: str = "batch",
        aux_loss: float = 0.01,
        z_loss: float = 0.0,
        bias_rate: float = 0.001,
        process_group: Any = None,
    ) -> None:
        super().__init__()
        as_choice("LoadBalancer", "kind", kind, _KINDS)
        self.num_experts = num_experts
        self.kind = kind
        self.aux_loss = aux_loss
        self.z_loss = z_loss
        self.bias_rate = bias_rate
        self.process_group = process_group
        zeros = torch.zeros(num_experts, dtype=torch.int64)
        self.register_buffer("counts", zeros, persistent=False)

    def forward(self, routing: Routing) -> Tensor:
        importance, lse = routing.importance, routing.lse
        if importance is None or lse is None:
            return routing.weights.new_zeros(())
        if importance.shape[1] != self.num_experts:
            raise ArgumentValueError(
                f"LoadBalancer: importance has {importance.shape[1]} columns, expected"
                f" {self.num_experts} (num_experts)"
            )
        wanted = routing.indices if routing.wanted is None else routing.wanted
        counts = expert_counts(wanted, self.num_experts, importance.shape[0])
        total = counts.sum(0)
        self.counts = total
        if self.kind != "sequence":
            counts = self._of_all(total).unsqueeze(0) if self.kind == "global" else total[None]
            importance = importance.sum(0, keepdim=True)
        loss = self.aux_loss * load_balancing_loss(importance, counts)
        return loss if self.z_loss == 0 else loss + self.z_loss * router_z_loss(lse)

    def _of_all(self, counts: Tensor) -> Tensor:
        """The counts of all processes."""
        if not (dist.is_available() and dist.is_initialized()):
            return counts
        counts = counts.clone()
        dist.all_reduce(counts, group=self.process_group)
        return counts

    @torch.no_grad()
    def update_bias(self, expert_bias: Tensor) -> None:
        """Raises the bias of experts below the mean load of the last call by ``bias_rate``, and
        lowers that of those above it; to be called after each step of the optimizer."""
        counts = self._of_all(self.counts).double()
        expert_bias += self.bias_rate * torch.sign(counts.mean() - counts).to(expert_bias)

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Numbers of the last call, on its device, for a log.

        Returns:
            ``counts`` (E), ``load`` (E), each expert's share times E, ``max_load``, the largest of
            them, and ``entropy``, that of the shares divided by its largest value, 1 where the load
            is even.
        """
        share = self.counts / self.counts.sum().clamp(min=1)
        entropy = -torch.special.xlogy(share, share).sum() / math.log(max(self.num_experts, 2))
        load = share * self.num_experts
        return {"counts": self.counts, "load": load, "max_load": load.max(), "entropy": entropy}

    def extra_repr(self) -> str:
        return f"{self.num_experts}, kind={self.kind!r}, aux_loss={self.aux_loss}"


class ExpertGating(nn.Module):
    """A router, the balance of its load, and the places of the tokens: all of a mixture of experts
    before the experts.

    Args:
        router: chooses the experts.
        balancer: its loss, by default :class:`LoadBalancer` of one batch.
        capacity_factor: each expert takes so many times its even share of the assignments. The
            others go to the router's ``spare`` experts, or are dropped; by default none is.

    >>> gating = tfk.nn.ExpertGating(tfk.nn.MoERouter(32, 8, top_k=2), capacity_factor=1.25)
    >>> x = torch.randn(10, 32)
    >>> weights, indices, dispatch, loss = gating(x)
    >>> rows = tfk.functional.moe_permute(x, dispatch)  # of the experts, one after the other
    >>> y = tfk.functional.moe_unpermute(rows, dispatch, weights)
    >>> y.shape
    torch.Size([10, 32])
    """

    def __init__(
        self,
        router: MoERouter,
        balancer: LoadBalancer | None = None,
        *,
        capacity_factor: float | None = None,
    ) -> None:
        super().__init__()
        self.router = router
        self.balancer = LoadBalancer(router.num_experts) if balancer is None else balancer
        self.capacity_factor = capacity_factor

    def forward(self, x: Tensor) -> Gating:
        routing = self.router(x, self.capacity_factor)
        dispatch = moe_dispatch(
            routing.indices, self.router.num_experts, capacity_factor=self.capacity_factor
        )
        return Gating(routing.weights, routing.indices, dispatch, self.balancer(routing))
