# SPDX-License-Identifier: MIT
"""Linear layers of groups of rows, each group with a weight of its own."""

from __future__ import annotations

from torch import Tensor

from ..._torch import any_autocast
from .._public import overridable
from ._grouped import GROUPED_LAYER
from ._weights import as_multiplied

_call = GROUPED_LAYER.call


@overridable
def grouped_linear(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Computes ``input[i] @ weight[g].T + bias[g]`` for each row ``i`` of each group ``g``: rows
    ``offsets[g]`` to ``offsets[g + 1] - 1``, as :func:`moe_dispatch` sorts them by expert.

    On CUDA the offsets stay on the device, and a graph that was captured follows them. Offsets that
    differ between the samples of ``torch.func.vmap`` cost a product of every row with every weight.

    Args:
        input: (M, K), floating-point.
        weight: (G, N, K) of any strides, in the dtype of ``input``. Weights of (G, K, N) are passed
            as ``weight.transpose(1, 2)``, which copies nothing.
        offsets: (G + 1,), int32: ascending numbers from 0 to at most M.
        bias: (G, N), in the dtype of ``input`` or float32.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"`` or ``"reference"``.

    Returns:
        (M, N). Rows behind ``offsets[G]`` belong to no group and hold nothing in particular, and
        their gradients neither. A group may have no rows: its gradients are zeros.

    Raises:
        ValueError: a shape is none of these, or offsets on the CPU are not ascending.
        TypeError: a dtype is none of these.

    >>> x, weight = torch.randn(5, 4), torch.randn(3, 2, 4)
    >>> offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    >>> y = tfk.functional.grouped_linear(x, weight, offsets)
    >>> torch.allclose(y[2:], x[2:] @ weight[2].T, atol=1e-6)
    True
    """
    if any_autocast() and isinstance(input, Tensor):
        input, weight, bias = as_multiplied(  # noqa: A001
            input, weight, bias, masters=False, wide_biases=False
        )
    y: Tensor = _call(input, weight, bias, offsets, backend)
    return y
