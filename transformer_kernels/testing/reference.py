# SPDX-License-Identifier: MIT
"""The ops in float64, straight from their definitions. No code here is shared with a backend.

Autograd differentiates these definitions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(
    x: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    log: bool = False,
) -> Tensor:
    z = x.double() * scale
    seen = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if mask is not None and mask.dtype is torch.bool:
        seen = seen & mask
    elif mask is not None:
        z = z + mask.double()
        seen = seen & (mask != -torch.inf)
    if causal:
        query = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
        key = torch.arange(x.shape[-1], device=x.device)
        seen = seen & (key <= query + x.shape[-1] - x.shape[-2])
    if x.shape[-1] == 0:
        return z
    z = torch.where(seen, z, -torch.inf)
    empty = ~seen.any(-1, keepdim=True)
    z = torch.where(empty, 0.0, z)
    shifted = z - z.detach().amax(-1, keepdim=True)
    powers = shifted.exp()
    total = powers.sum(-1, keepdim=True)
    if log:
        return torch.where(empty, -torch.inf, shifted - total.log())
    return torch.where(empty, 0.0, powers / total)


def _affine(
    y: Tensor, weight: Tensor | None, bias: Tensor | None, zero_centered_weight: bool
) -> Tensor:
    if weight is not None:
        y = y * (weight.double() + (1.0 if zero_centered_weight else 0.0))
    return y if bias is None else y + bias.double()


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    zero_centered_weight: bool = False,
) -> Tensor:
    x = x.double()
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered * centered).mean(-1, keepdim=True)
    return _affine(centered / (variance + eps).sqrt(), weight, bias, zero_centered_weight)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    zero_centered_weight: bool = False,
) -> Tensor:
    x = x.double()
    mean_square = (x * x).mean(-1, keepdim=True)
    return _affine(x / (mean_square + eps).sqrt(), weight, bias, zero_centered_weight)


def rounded_sum(x: Tensor, residual: Tensor, dtype: torch.dtype) -> Tensor:
    """x + residual rounded as it is stored, with the gradient of the exact sum."""
    exact = x.double() + residual.double()
    return exact + (exact.to(dtype).double() - exact).detach()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    top_left: bool = False,
    softcap: float = 0.0,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the output (B, Tq, H, Dv) and the log-sum-exp (B, H, Tq), computed head by head.

    Causal attention has a ``window`` of 0 on the right; ``keep`` (B, H, Tq, Tk) holds the factors
    of dropout.
    """
    batch, queries, heads, dim = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    scores_shape = (batch, heads, queries, keys)
    scale = dim**-0.5 if scale is None else scale
    query = torch.arange(queries, device=q.device).unsqueeze(-1)
    distance = torch.arange(keys, device=q.device) - query - (0 if top_left else keys - queries)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if window[0] >= 0:
        seen = seen & (distance >= -window[0])
    if window[1] >= 0:
        seen = seen & (distance <= window[1])
    seen = seen.expand(scores_shape)
    if mask is not None:
        seen = seen & mask.expand(scores_shape)
    outs, lses = [], []
    for head in range(heads):
        q1, k1, v1 = (
            x[:, :, index].double()
            for x, index in ((q, head), (k, head // group), (v, head // group))
        )
        z = torch.einsum("bid,bjd->bij", q1, k1) * scale
        if softcap:
            z = softcap * torch.tanh(z / softcap)
        if alibi_slopes is not None:
            slope = alibi_slopes.double().expand(batch, heads)[:, head]
            z = z - slope[:, None, None] * distance.abs()
        if bias is not None:
            z = z + bias.double().expand(scores_shape)[:, head]
        z = torch.where(seen[:, head] & (z.detach() != -torch.inf), z, -torch.inf)
        sink = z.new_full((batch, queries, 1), -torch.inf)
        if sinks is not None:
            sink = sinks.double()[head].expand(batch, queries, 1)
        total = torch.cat([z, sink], -1)
        empty = (total == -torch.inf).all(-1)
        total = torch.where(empty.unsqueeze(-1), 0.0, total)
        # From 1e16 on lse loses the sum, which exp(z - lse) would lack.
        top = total.detach().amax(-1, keepdim=True)
        lse = top.squeeze(-1) + torch.logsumexp(total - top, -1)
        p = torch.where(z == -torch.inf, 0.0, torch.softmax(total, -1)[..., :keys])
        if keep is not None:
            p = p * keep[:, head].double()
        outs.append(p @ v1)
        lses.append(torch.where(empty, -torch.inf, lse))
    return torch.stack(outs, 2), torch.stack(lses, 1)


def gelu(x: Tensor) -> Tensor:
    return x.double() * torch.special.erfc(x.double() * -(0.5**0.5)) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    x = x.double()
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


def silu(x: Tensor) -> Tensor:
    return x.double() * torch.sigmoid(x.double())


def relu(x: Tensor) -> Tensor:
    return torch.where(x <= 0, 0.0, x.double())


def relu_squared(x: Tensor) -> Tensor:
    return relu(x) ** 2


def quick_gelu(x: Tensor) -> Tensor:
    return x.double() * torch.sigmoid(1.702 * x.double())
