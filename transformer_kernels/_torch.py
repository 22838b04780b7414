# SPDX-License-Identifier: MIT
"""What we need of PyTorch beyond its public names, and its functions that others may replace.

A user may put our functions in the place of PyTorch's. Where ours leave a problem to PyTorch they
call what stood there when the package was imported, never what stands there now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

dropout = F.dropout
linear = F.linear
scaled_dot_product_attention = F.scaled_dot_product_attention

any_autocast = torch._C._is_any_autocast_enabled
is_tracing: Callable[[], bool] = torch._C._is_tracing

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_TRANSPARENT = ("FakeTensor", "FunctionalTensor", "DTensor")


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its ``apply`` without the Python half, which serves torch.func alone and costs half of the
    call. torch.compile knows only the whole."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def jagged_offsets(x: Any) -> torch.Tensor:
    """Of a jagged nested tensor: where each sequence begins, and where the last ends."""
    offsets: torch.Tensor = x.offsets()
    return offsets


def has_gaps(x: Any) -> bool:
    """Whether a jagged nested tensor leaves out rows between its sequences."""
    return x.lengths() is not None


def ragged_axis(x: Any) -> int:
    """The dimension of a jagged nested tensor that has a length for each sequence."""
    axis: int = x._ragged_idx
    return axis


def nested_like(x: Any, rows: torch.Tensor) -> torch.Tensor:
    """Rows (total T, ...) as the sequences (B, T, ...) of a jagged nested tensor."""
    shortest, longest = x._maybe_min_seqlen, x._maybe_max_seqlen
    return torch.nested.nested_tensor_from_jagged(
        rows, x.offsets(), jagged_dim=1, min_seqlen=shortest, max_seqlen=longest
    )


def is_distributed(x: Any) -> bool:
    """Whether it is a DTensor; importing its module takes seconds."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def has_memory(kind: Any) -> bool:
    """Whether a kernel may read tensors of this class by their pointers: others decide themselves
    what an op does."""
    return bool(kind.__torch_dispatch__ is _NO_DISPATCH)


def knows_ops_of_others(kind: Any) -> bool:
    """Whether an op that PyTorch did not define reaches its kernels, its fake or its sharding."""
    return has_memory(kind) or kind.__name__ in _TRANSPARENT
