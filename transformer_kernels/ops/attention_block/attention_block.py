# SPDX-License-Identifier: MIT
"""An attention layer from its input to the norm behind it, as one op and one autograd node."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import ArgumentTypeError, as_choice, as_integer, as_number
from ..._torch import any_autocast
from .._declare_arguments import Number
from .._public import overridable
from ..linear._choice import refusal
from ..linear._weights import as_multiplied
from ..pointwise.dropout import drawn
from ._ops import ATTENTION_BLOCK
from ._passes import NORMS

_OP = "attention_block"
_NUMBERS = {name: number for number, name in enumerate(NORMS)}
_P = Number("dropout_p", least=0.0, most=1.0)
_ATTENTION_P = Number("attention_dropout_p", least=0.0, most=1.0)


def _scale(qkv_weight: Any, heads: int) -> float:
    """The default scale; any number for a weight that the op refuses by name."""
    rows = qkv_weight.shape[0] if isinstance(qkv_weight, Tensor) and qkv_weight.dim() == 2 else 0
    dim = rows // heads if heads > 0 else 0
    return float(dim**-0.5) if dim else 1.0


def _multiplied(x: Any, *parameters: Tensor | None, backend: str) -> tuple[bool, tuple[Any, ...]]:
    """Whether our product runs, and the tensors as autocast has them in products."""
    weights = [t for t in parameters if isinstance(t, Tensor) and t.dim() == 2]
    if not isinstance(x, Tensor) or len(weights) != 2:
        return False, (x, *parameters)
    packed = backend != "auto" or refusal(_OP, x, *weights) is None
    if any_autocast():
        wide = packed and x.is_cuda
        return packed, as_multiplied(x, *parameters, masters=True, wide_biases=wide)
    return packed, (x, *parameters)


@overridable
def attention_block(
    input: Tensor,  # noqa: A002
    residual: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    norm: str = "layer_norm",
    eps: float = 1e-5,
    attention_dropout_p: float = 0.0,
    dropout_p: float = 0.0,
    training: bool = True,
    attention_seed: Tensor | None = None,
    seed: Tensor | None = None,
    recompute: int = 0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Computes ``(norm(s), s)`` with ``s = residual + dropout(heads @ out_weight.T + out_bias)``,
    where ``heads`` is the attention of ``q, k, v = input @ qkv_weight.T + qkv_bias``.

    In a pre-norm model such as GPT-2, ``input`` is the normed residual, the first result goes to
    the MLP, and the second is the next residual. A post-norm layer such as BERT's passes its input
    as both, and uses the first result alone.

    Args:
        input: (B, T, C), floating-point.
        residual: (B, T, C), of ``input``'s dtype or, beside a 16-bit ``input``, float32.
        qkv_weight: ((H + 2 * Hk) * D, C): the rows of all heads of q, then of k, then of v, of any
            strides; Hugging Face's ``Conv1D`` passes ``weight.t()``, which is read without a copy.
        qkv_bias: one number for each row of ``qkv_weight``; or None.
        out_weight: (C, H * D), of any strides.
        out_bias, norm_weight, norm_bias: (C) each, float32 beside a residual wider than ``input``;
            or None.
        num_heads: H, the number of heads of q.
        num_kv_heads: Hk, the number of heads of k and v, which divides H; default H.
        causal: hide later tokens.
        scale: factor of the scores; default ``D ** -0.5``.
        norm: ``"layer_norm"`` or ``"rms_norm"``.
        eps: added to the variance.
        attention_dropout_p: the probability that a weight of attention is dropped.
        dropout_p: the probability that an element of the projection is dropped.
        training: ``False`` drops nothing.
        attention_seed, seed: int64 seed and offset, (2,), of attention's dropout as in
            :func:`attention`, and of the other as in :func:`dropout`; by default drawn from the
            device's generator.
        recompute: 1 computes q, k and v again in the backward pass instead of saving them.
        backend: ``"auto"`` chooses the products as :func:`linear` does; ``"cpu"`` and ``"cuda"``
            run ours, ``"reference"`` PyTorch's formulas.

    Returns:
        Two tensors (B, T, C): the normed sum in ``input``'s dtype, and the sum in ``residual``'s.

    Raises:
        ArgumentValueError, ArgumentTypeError: the op cannot take an argument; the message names it.

    The op is one autograd node. For each token it saves, besides parameters, ``input``, q, k and v,
    the heads, the sum, and a few numbers of attention and norm: C + (2 * H + 2 * Hk) * D + C
    elements, with ``recompute=1`` C + H * D + C. PyTorch's calls save dropout's mask as well, and
    with attention's dropout on a CPU all scores. On CUDA with a gradient the forward pass is four
    kernels: the first product with its bias, attention, the second product, and one for all that
    follows.

    >>> x, qkv, out = torch.randn(2, 5, 32), torch.randn(96, 32), torch.randn(32, 32)
    >>> y, total = tfk.functional.attention_block(
    ...     x, x, qkv, None, out, None, torch.ones(32), torch.zeros(32), 4, causal=True)
    >>> y.shape
    torch.Size([2, 5, 32])
    """
    heads = as_integer(_OP, "num_heads", num_heads)
    kv_heads = heads if num_kv_heads is None else as_integer(_OP, "num_kv_heads", num_kv_heads)
    number = as_choice(_OP, "norm", norm, _NUMBERS, ArgumentTypeError)
    attention_seed, attention_p = drawn(
        _OP, input, attention_dropout_p, training, attention_seed, _ATTENTION_P
    )
    seed, p = drawn(_OP, input, dropout_p, training, seed, _P)
    factor = _scale(qkv_weight, heads + 2 * kv_heads)
    factor = factor if scale is None else as_number(_OP, "scale", scale)
    packed, (x, qkv_weight, qkv_bias, out_weight) = _multiplied(
        input, qkv_weight, qkv_bias, out_weight, backend=backend
    )
    results: tuple[Tensor, Tensor] = ATTENTION_BLOCK.call(
        x, residual, qkv_weight, qkv_bias, out_weight, out_bias, norm_weight, norm_bias,
        attention_seed, seed, heads, kv_heads, causal, factor, attention_p, p, eps, number,
        recompute, packed, backend,
    )  # fmt: skip
    return results
