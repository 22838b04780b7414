# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, as_number, shown
from ..ops.optimizer._ops import lion_
from ._lists import ListOptimizer, loss_of
from ._states import Options


class Lion(ListOptimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675): a step of ``lr`` for each weight, by the sign of a
    mean of its gradients. It keeps one moment, and wants a learning rate 3 to 10 times below
    AdamW's and a weight decay as many times above.

    Args:
        params: an iterable of parameters, or of dicts of groups.
        lr: the learning rate.
        betas: what the moment weighs in the step, and in the moment that follows.
        weight_decay: times ``lr``, what the weights lose in each step.
        maximize: ascends.
        master_weights, state_dtype, stochastic_weights, max_norm, skip_nonfinite, seed: as those
            of :class:`AdamW`.

    Example:
        >>> layer = torch.nn.Linear(64, 64)
        >>> optimizer = tfk.optim.Lion(layer.parameters(), lr=1e-4, weight_decay=0.1)
        >>> layer(torch.randn(2, 64)).sum().backward()
        >>> optimizer.step()
    """

    _raw = staticmethod(lion_)
    _moments = ("exp_avg",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_weights: bool = False,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
        seed: int = 0,
    ) -> None:
        self.options = Options(
            master_weights, state_dtype, stochastic_weights, max_norm, skip_nonfinite, seed
        )
        self.options.check("Lion")
        _check(lr, betas, weight_decay)
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (group["lr"], *group["betas"], 0.0, group["weight_decay"], group["maximize"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step, and returns what ``closure`` returned, which computes the loss anew."""
        loss = loss_of(closure)
        entries = self._entries()
        if entries:
            self._step_lists(entries, self._scaling())
        return loss


def _check(lr: float | Tensor, betas: tuple[float, float], weight_decay: float) -> None:
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        number = as_number("Lion", name, value)
        if not number >= 0:
            raise ArgumentValueError(f"Lion: {name} is {number}, expected at least 0")
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ArgumentTypeError(f"Lion: betas is {shown(betas)}, expected two numbers")
    if not all(0 <= as_number("Lion", "betas", beta) < 1 for beta in betas):
        raise ArgumentValueError(f"Lion: betas are {betas}, expected from 0 to below 1")
