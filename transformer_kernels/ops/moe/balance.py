# SPDX-License-Identifier: MIT
"""Losses that balance the load of experts, from the statistics of :func:`moe_router`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import (
    ArgumentValueError,
    as_count,
    as_integer,
    check_indices,
    check_tensors,
    shape_text,
)
from .._public import overridable


@overridable
def expert_counts(indices: Tensor, num_experts: int, sequences: int = 1) -> Tensor:
    """Counts the assignments of each expert, in integers, so that the order does not matter.

    Args:
        indices: (..., K), int32 or int64: the experts of each token, all of [0, E).
        num_experts: E.
        sequences: the tokens, in their order, are this many sequences of one length.

    Returns:
        (sequences, E), int64.

    >>> tfk.functional.expert_counts(torch.tensor([[0, 2], [0, 1]]), 4)
    tensor([[2, 1, 1, 0]])
    """
    op = "expert_counts"
    check_tensors(op, {"indices": indices})
    check_indices(op, "indices", indices)
    experts = as_count(op, "num_experts", num_experts)
    count = as_integer(op, "sequences", sequences)
    if count < 1 or indices.numel() % count:
        raise ArgumentValueError(
            f"{op}: sequences is {count}, expected a divisor of {indices.numel()} (the elements"
            " of indices)"
        )
    flat = indices.reshape(count, -1).long()
    counts = torch.zeros(count, experts, dtype=torch.int64, device=indices.device)
    # In place torch.func.vmap could not add the samples' numbers to a tensor that they share.
    return counts.scatter_add(1, flat, torch.ones_like(flat))


@overridable
def load_balancing_loss(importance: Tensor, counts: Tensor) -> Tensor:
    """The loss of Switch transformers (Fedus et al. 2021, arXiv:2101.03961), for each sequence and
    then on average: ``E * sum(f * P)``, 1 where the load is even.

    f is the share of the assignments that an expert has, without a gradient; P is its mean score.
    With one sequence this is the loss of the batch, with more the sequence-wise loss of DeepSeek-V3
    (arXiv:2412.19437).

    Args:
        importance: (sequences, E), from :func:`moe_router`.
        counts: (sequences, E) or (1, E), from :func:`expert_counts`; those of several devices are
            summed first.

    Raises:
        ValueError: ``counts`` has neither shape.

    >>> logits = torch.randn(64, 8, requires_grad=True)
    >>> _, indices, importance, lse = tfk.functional.moe_router(logits, 2, sequences=1)
    >>> counts = tfk.functional.expert_counts(indices, 8)
    >>> tfk.functional.load_balancing_loss(importance, counts).backward()
    """
    op = "load_balancing_loss"
    check_tensors(op, {"importance": importance, "counts": counts})
    if counts.dim() != 2 or counts.shape not in (importance.shape, (1, *importance.shape[1:])):
        raise ArgumentValueError(
            f"{op}: counts has shape {shape_text(counts)}, expected {shape_text(importance)} (the"
            " shape of importance)"
        )
    share = counts.to(importance.dtype)
    share = share / share.sum(1, keepdim=True).clamp(min=1)
    mean = importance / importance.detach().sum(1, keepdim=True).clamp(min=1)
    return importance.shape[1] * (share * mean).sum(1).mean()


@overridable
def router_z_loss(lse: Tensor) -> Tensor:
    """The mean of the squared log-sum-exp of the logits, which keeps them small (Zoph et al. 2022,
    arXiv:2202.08906).

    Args:
        lse: the log-sum-exp of each token, from :func:`moe_router`.

    >>> tfk.functional.router_z_loss(torch.tensor([1.0, 3.0]))
    tensor(5.)
    """
    check_tensors("router_z_loss", {"lse": lse})
    return lse.square().sum() / max(lse.numel(), 1)
