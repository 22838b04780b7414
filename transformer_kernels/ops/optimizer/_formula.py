# SPDX-License-Identifier: MIT
"""Steps of optimizers over lists of tensors in PyTorch operations, which wait for no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _states

CLIP_EPSILON = 1e-6


class Group(NamedTuple):
    """The settings of a group; Lion has no eps."""

    lr: Any  # a number, or a tensor of one
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    maximize: float


class Moments(NamedTuple):
    first: Tensor
    second: Tensor | None
    largest: Tensor | None


def _entry(tensors: Sequence[Tensor], i: int, like: Tensor | None = None) -> Tensor | None:
    """An entry of a list that is empty where no tensor has one; one without elements is none."""
    if not tensors or (like is not None and tensors[i].numel() == 0):
        return None
    return tensors[i]


def norm_of(grads: Sequence[Tensor], grad_scale: Tensor | None) -> Tensor:
    """The norm of all gradients, divided by ``grad_scale``, in float64."""
    device = grads[0].device if grads else None
    total = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        total += grad.double().square().sum()
    norm = total.sqrt()
    return norm if grad_scale is None else norm / grad_scale.abs()


def adamw_step(group: Group, step: Tensor, p: Tensor, g: Tensor, moments: Moments) -> Any:
    """The weights and moments after a step of AdamW."""
    assert moments.second is not None
    m = moments.first.lerp(g, 1 - group.beta1)
    v = moments.second * group.beta2 + (1 - group.beta2) * g * g
    top = None if moments.largest is None else torch.maximum(moments.largest, v)
    step = step.double()
    root = (v if top is None else top).sqrt() / (1 - group.beta2**step).sqrt().to(p.dtype)
    size = (group.lr / (1 - group.beta1**step)).to(p.dtype)
    p = p * (1 - group.lr * group.weight_decay) - size * m / (root + group.eps)
    return p, Moments(m, v, top)


def lion_step(group: Group, _: Tensor, p: Tensor, g: Tensor, moments: Moments) -> Any:
    """The weights and the moment after a step of Lion."""
    update = moments.first.lerp(g, 1 - group.beta1).sign()
    m = moments.first.lerp(g, 1 - group.beta2)
    p = p * (1 - group.lr * group.weight_decay) - group.lr * update
    return p, Moments(m, None, None)


def run_list(
    rule: Callable[..., Any],
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    masters: list[Tensor],
    exp_avg_scales: list[Tensor],
    exp_avg_sq_scales: list[Tensor],
    steps: list[Tensor],
    rates: list[Tensor],
    groups: list[int],
    numbers: list[int],
    settings: list[float],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    max_norm: float,
    skips_nonfinite: bool,
    unscales_gradients: bool,
    rounds_states_randomly: bool,
    rounds_params_randomly: bool,
    seed: int,
    norm: Tensor | None,
) -> None:
    """Updates all lists in place; each is changed where the step is not skipped."""
    if not params:
        return
    skip = torch.zeros((), dtype=torch.bool, device=params[0].device)
    if found_inf is not None:
        skip = skip | (found_inf.reshape(()) != 0)
    clip: Tensor | None = None
    if max_norm > 0 or skips_nonfinite or norm is not None:
        total = norm_of(grads, grad_scale)
        if norm is not None:
            norm.copy_(total.reshape(norm.shape))
        if skips_nonfinite:
            skip = skip | ~total.isfinite()
        if max_norm > 0:
            clip = (max_norm / (total + CLIP_EPSILON)).clamp(max=1)

    def put(to: Tensor | None, value: Tensor) -> None:
        if to is not None:
            to.copy_(torch.where(skip, to, value.to(to.dtype)))

    for i, p in enumerate(params):
        group = Group(*settings[6 * groups[i] : 6 * groups[i] + 6])
        if rates and rates[groups[i]].numel() > 0:
            group = group._replace(lr=rates[groups[i]].reshape(()))
        wide = torch.float64 if p.dtype is torch.float64 else torch.float32
        master = _entry(masters, i, p)
        scales = _entry(exp_avg_scales, i, p), _entry(exp_avg_sq_scales, i, p)
        stored = Moments(exp_avgs[i], _entry(exp_avg_sqs, i), _entry(max_exp_avg_sqs, i))
        put(steps[i], steps[i] + 1)
        g = grads[i].to(wide)
        if grad_scale is not None:
            g = g / grad_scale
            if unscales_gradients:
                put(grads[i], g)
        if clip is not None:
            g = g * clip.to(wide)
        g = -g if group.maximize else g
        moments = _widened(stored, scales, wide)
        weights = p.to(wide) if master is None else master
        weights, moments = rule(group, steps[i], weights, g, moments)
        draw = _states.Draw(seed, numbers[i], steps[i])
        randomly = rounds_params_randomly and master is None and p.dtype is torch.bfloat16
        put(master, weights)
        put(p, _rounded(weights, draw, _states.PARAM) if randomly else weights)
        for use, (to, value, scale) in enumerate(zip(stored[:2], moments[:2], scales, strict=True)):
            if to is None or value is None:
                continue
            if scale is not None:
                bits = draw.bits(use, value.numel())
                codes, of_blocks = _states.encode(_in_memory(value), bits, use == 0)
                put(_in_memory(to), codes)
                put(scale, of_blocks)
            elif rounds_states_randomly and to.dtype is torch.bfloat16:
                put(to, _rounded(value, draw, use))
            else:
                put(to, value)
        if moments.largest is not None:
            put(stored.largest, moments.largest)


def _in_memory(x: Tensor) -> Tensor:
    """A dense tensor as the vector of its elements in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def _widened(stored: Moments, scales: Sequence[Tensor | None], wide: torch.dtype) -> Moments:
    def one(x: Tensor | None, scale: Tensor | None, signed: bool) -> Tensor | None:
        if x is None or scale is None:
            return None if x is None else x.to(wide)
        values = _states.decode(_in_memory(x), scale, signed)
        return values.as_strided(x.shape, x.stride())

    first, second = one(stored[0], scales[0], True), one(stored[1], scales[1], False)
    assert first is not None
    return Moments(first, second, one(stored[2], None, False))


def _rounded(x: Tensor, draw: _states.Draw, use: int) -> Tensor:
    bits = draw.bits(use, x.numel())
    return _states.round_randomly(_in_memory(x), bits).as_strided(x.shape, x.stride())
