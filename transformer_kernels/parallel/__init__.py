# SPDX-License-Identifier: MIT
"""Several devices on one model: attention split by time, experts split between ranks, and plans for
whole models. Process groups, meshes and checkpoints are :mod:`torch.distributed`'s.

>>> q, k, v = torch.randn(3, 2, 16, 4, 32)  # without a process group there is one rank, with all
>>> tfk.parallel.ring_attention(q, k, v, causal=True).shape
torch.Size([2, 16, 4, 32])
"""

from .._lazy import attributes

_HOMES: dict[str, tuple[str, ...]] = {
    "experts": ("ExpertParallel", "expert_parallel"),
    "communication": ("all_reduce_residual_norm", "reduce_scatter_norm"),
    "tensor_parallel": ("parallelize", "whole_state_dict"),
    "ring": ("ring_attention",),
    "ulysses": ("ulysses_attention",),
    "scaling": ("scaling",),
    "traffic": ("Traffic",),
    "sequence": ("shard_sequence", "unshard_sequence"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)

__getattr__, __dir__ = attributes(__name__, _HOMES)
