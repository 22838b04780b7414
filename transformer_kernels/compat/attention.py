# SPDX-License-Identifier: MIT
"""Flash attention as a function and as modules, of tensors (batch, heads, time, dim)."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from .._errors import as_count, as_flag
from .._names import explain_names
from ..functional import attention
from ._triton import backend_for


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    causal: bool = False,
    **options: Any,
) -> Any:
    """:func:`transformer_kernels.functional.attention` of ``q`` (B, H, Tq, D), ``k`` (B, Hk, Tk, D)
    and ``v`` (B, Hk, Tk, Dv).

    Args:
        q, k, v: tensors of one floating-point dtype.
        scale: factor of the products; default ``D ** -0.5``.
        causal: hide later keys; the last query is aligned with the last key.
        options: other arguments of ``attention``.

    Returns:
        (B, H, Tq, Dv).

    Raises:
        ArgumentValueError, ArgumentTypeError: ``attention`` refuses an argument.

    >>> q, k, v = torch.randn(3, 1, 4, 16, 32)
    >>> tfk.compat.flash_attention(q, k, v, causal=True).shape
    torch.Size([1, 4, 16, 32])
    """
    return attention(q, k, v, scale=scale, causal=causal, heads_first=True, **options)


@explain_names
class FlashAttention(nn.Module):
    """:func:`flash_attention` as a module without parameters.

    Args:
        block_size: has no effect, and a ``UserWarning`` says so. Results never depend on the
            queries of a tile, and kernels have tiles of their own, for each processor and shape;
            ``TFK_LOG=dispatch`` says which. ``optimized_cpu_attention(chunk_size=)`` bounds the
            memory of scores where PyTorch's operations run.
        causal: hide later keys.
        scale: factor of the products; default ``D ** -0.5``.
        dropout: the probability that a weight is dropped, in training.

    >>> attend = tfk.compat.FlashAttention(causal=True)
    >>> q, k, v = torch.randn(3, 1, 4, 16, 32)  # (batch, heads, time, dim)
    >>> attend(q, k, v).shape
    torch.Size([1, 4, 16, 32])
    """

    def __init__(
        self,
        block_size: int | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if block_size is not None:
            _warn_of_block_size(name, as_count(name, "block_size", block_size))
        self.causal = as_flag(name, "causal", causal)
        self.scale = scale
        self.dropout = dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attends from ``q`` to ``k`` and ``v``.

        Args:
            mask: boolean, true where a key is seen; broadcasts to (B, H, Tq, Tk).
            causal: hide later keys in this call, also if the module does not.
        """
        result: Tensor = flash_attention(
            q, k, v, self.scale, self.causal or causal, mask=mask, backend=self._backend(q),
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return result

    def _backend(self, q: Tensor) -> str:  # noqa: ARG002
        return "auto"

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


def _warn_of_block_size(name: str, size: int) -> None:
    warnings.warn(
        f"{name}: block_size is {size}, expected None: it has no effect (kernels have tiles of"
        " their own)",
        UserWarning,
        stacklevel=4,
    )


class FlashAttentionTriton(FlashAttention):
    """:class:`FlashAttention` on Triton's kernels, which have no dropout: on a GPU, and on a CPU
    with ``TRITON_INTERPRET=1``. Without it, a CPU runs its own kernels.

    >>> q, k, v = torch.randn(3, 1, 4, 16, 32)
    >>> tfk.compat.FlashAttentionTriton()(q, k, v).shape
    torch.Size([1, 4, 16, 32])
    """

    def _backend(self, q: Tensor) -> str:
        return backend_for("FlashAttentionTriton", q)
