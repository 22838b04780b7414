# SPDX-License-Identifier: MIT
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._lists import loss_of

# Products and sums of a matrix with itself from which on two halves of it take less time, on a CPU.
_LEAST_BY_HALVES = 1 << 30


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) in place of
    ``torch.optim.Muon``: the arguments, results and state_dict are PyTorch's. A step moves a matrix
    of weights by its momentum with all singular values made about 1, which five Newton-Schulz
    iterations in bfloat16 do.

    A step takes products of matrices, and little else. On a CPU the product of a wide matrix with
    its own transpose is computed once for each pair of rows, and a tall matrix is transposed once
    for all iterations; neither changes a bit. On other devices each operation is PyTorch's.

    Args:
        params: an iterable of matrices, or of dicts of groups. Embeddings, heads and vectors are
            another optimizer's, such as :class:`AdamW`.
        lr: the learning rate.
        weight_decay: times ``lr``, what the weights lose in each step.
        momentum: what the moment keeps of itself.
        nesterov: looks ahead by one more step of the moment.
        ns_coefficients: of the polynomial ``a x + b x^3 + c x^5`` of the singular values.
        eps: the least norm of a moment that is divided by it.
        ns_steps: the number of iterations.
        adjust_lr_fn: "original" (and None) multiplies ``lr`` by ``sqrt(max(1, rows / columns))``,
            "match_rms_adamw" by ``0.2 sqrt(max(rows, columns))``, so that rates of AdamW fit.

    Example:
        >>> layer = torch.nn.Linear(64, 64, bias=False)
        >>> optimizer = tfk.optim.Muon(layer.parameters(), lr=0.02)
        >>> layer(torch.randn(2, 64)).sum().backward()
        >>> optimizer.step()
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step, and returns what ``closure`` returned, which computes the loss anew."""
        loss = loss_of(closure)
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            moments: list[Tensor] = []
            self._init_group(group, params, grads, moments)
            for param, grad, moment in zip(params, grads, moments, strict=True):
                _step(param, grad, moment, group)
        return loss


def _step(param: Tensor, grad: Tensor, moment: Tensor, group: dict[str, Any]) -> None:
    lr, momentum = float(group["lr"]), group["momentum"]
    moment.lerp_(grad, 1 - momentum)
    ahead = grad.lerp(moment, momentum) if group["nesterov"] else moment
    update = orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
    param.mul_(1 - lr * group["weight_decay"])
    param.add_(update, alpha=-lr * _ratio(param, group["adjust_lr_fn"]))


def _ratio(param: Tensor, adjust: str | None) -> float:
    rows, cols = param.shape
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, cols))
    return math.sqrt(max(1, rows / cols))


def orthogonal(
    x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """A matrix with the singular vectors of ``x``, and singular values of about 1, in bfloat16."""
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    y = x.bfloat16().T.contiguous() if is_tall else x.bfloat16()
    y = y / y.norm().clamp(min=eps)
    for _ in range(steps):
        squares = gram(y)
        y = torch.addmm(y, torch.addmm(squares, squares, squares, beta=b, alpha=c), y, beta=a)
    return y.T.contiguous() if is_tall else y


def gram(x: Tensor) -> Tensor:
    """``x @ x.T``. On a CPU the lower rows' product with the upper ones is also that of the upper
    with the lower, transposed."""
    rows, cols = x.shape
    if not x.is_cpu or rows * rows * cols < _LEAST_BY_HALVES:
        return x @ x.T
    half = rows // 2
    upper, lower = x[:half], x[half:]
    squares = x.new_empty(rows, rows)
    torch.mm(upper, upper.T, out=squares[:half, :half])
    torch.mm(lower, lower.T, out=squares[half:, half:])
    torch.mm(lower, upper.T, out=squares[half:, :half])
    squares[:half, half:] = squares[half:, :half].T
    return squares
