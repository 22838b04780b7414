# SPDX-License-Identifier: MIT
"""The block of :mod:`transformer_kernels.levels` in float64, and the rule that its levels meet."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..levels import LEVELS, Block
from . import reference
from .tolerance import violation

# Tensors that are stored, and so rounded, on the way through the block: two norms, the projections
# and attention, the sum and GELU. The rule's floor allows the rounding of one; each of these adds
# it.
_STORED = 8

Results = dict[str, Tensor]  # y, dx, and the gradient of every parameter by name


def twins(block: Block, names: Iterable[str] = LEVELS) -> dict[str, Block]:
    """Copies of the block in each level, by name, with the same weights."""
    return {name: _like(block, name) for name in names}


def _like(block: Block, level: str) -> Block:
    weight = block.qkv.weight
    twin = Block(
        level, block.dim, block.num_heads, mlp_ratio=block.mlp_ratio, causal=block.causal,
        eps=block.eps, device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    twin.load_state_dict(block.state_dict())
    return twin


def results(block: Block, x: Tensor, dy: Tensor) -> Results:
    """The results and gradients of a forward and a backward pass."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        y = block(leaf)
    return _gradients(y, leaf, dict(block.named_parameters()), dy)


def exact(block: Block, x: Tensor, dy: Tensor) -> Results:
    """Results in float64, computed from the definitions; only weights are taken from ``block``.

    Sequences are computed one by one, because the scores of all heads are kept in float64.
    """
    w = {name: p.detach().double().requires_grad_() for name, p in block.named_parameters()}
    found = []
    for sequence, gradient in zip(x.detach().double().split(1), dy.double().split(1), strict=True):
        leaf = sequence.requires_grad_()
        with torch.enable_grad():
            y = _block(leaf, w, block)
        found.append(_gradients(y, leaf, w, gradient))
    return {
        name: torch.cat([one[name] for one in found])
        if name in ("y", "dx")
        else torch.stack([one[name] for one in found]).sum(0)
        for name in found[0]
    }


def violations(
    found: Results, native: Results, expected: Results, stored: int = _STORED
) -> list[str]:
    """Describes where results break the tolerance rule, beside PyTorch's own; ``stored`` is the
    number of tensors that are stored, and so rounded, on the way."""
    broken = []
    for name, exact_result in expected.items():
        size = stored * exact_result.abs().max().item() if exact_result.numel() else 0.0
        fault = violation(found[name], native[name], exact_result, size)
        if fault is not None:
            broken.append(f"{name}: {fault}")
    return broken


def _block(x: Tensor, w: Results, block: Block) -> Tensor:
    def project(name: str, of: Tensor) -> Tensor:
        return of @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, of: Tensor) -> Tensor:
        return reference.layer_norm(of, w[f"{name}.weight"], w[f"{name}.bias"], block.eps)

    batch, time, dim = x.shape
    heads = (batch, time, block.num_heads, dim // block.num_heads)
    q, k, v = (part.reshape(heads) for part in project("qkv", norm("norm_1", x)).split(dim, -1))
    seen, _ = reference.attention(q, k, v, window=(-1, 0 if block.causal else -1))
    h = x + project("out", seen.reshape(x.shape))
    return h + project("down", reference.gelu(project("up", norm("norm_2", h))))


def _gradients(y: Tensor, x: Tensor, parameters: Results, dy: Tensor) -> Results:
    gradients = torch.autograd.grad(y, [x, *parameters.values()], dy)
    names = ["dx", *(f"d{name}" for name in parameters)]
    return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}
