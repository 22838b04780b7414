# SPDX-License-Identifier: MIT
"""Speculative sampling: what a target keeps of a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    check_tensors,
    dtype_name,
    translate,
)
from ..._library import require_backend
from .._public import overridable
from . import _formula
from ._arguments import integers_of, seeds_of
from ._ops import SPECULATIVE_ACCEPT

_OP = "speculative_accept"


@overridable
def speculative_accept(
    draft_tokens: Tensor,
    draft: Tensor | None,
    target: Tensor,
    *,
    logits: bool = False,
    lengths: Tensor | None = None,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Decides how many drafted tokens of each sequence are kept, and draws the token that follows
    (Leviathan et al. 2022, arXiv:2211.17192).

    The kept tokens and the one behind them have the target's distribution exactly, whatever the
    draft's is. Draws do not depend on those that :func:`sample_logits` makes of the same seeds and
    positions.

    Args:
        draft_tokens: (B, N), int64, the tokens that a draft model proposes. A number that is no
            token is never kept.
        draft: (B, N, V), the probabilities with which they were drawn (``probabilities`` of
            :func:`sample_logits`), float64, float32, float16 or bfloat16. None for a draft without
            chance, as of a look-up in the prompt or of greedy choices.
        target: (B, N + 1, V), the target's probabilities at each drafted token and behind the
            last, of the same dtype.
        logits: ``draft`` and ``target`` are logits, of which the softmax is taken.
        lengths: (B), int64: the drafted tokens of each sequence; by default N.
        seed: (B), int64; or an int, which gives sequence b the seed ``seed + b``. By default drawn
            from the device's generator.
        position: that of the first drafted token in its sequence, an int or (B), int64.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"reference"``, with the same results;
            ``"auto"`` as in :func:`sample_logits`.

    Returns:
        ``accepted`` (B), int64, the number of tokens that are kept, and ``token`` (B), int64, which
        follows ``draft_tokens[b, :accepted[b]]``.

    Raises:
        ValueError: a shape or number is none of these; a target has no probability.
        TypeError: a dtype is none of these.

    >>> target = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    >>> tfk.functional.speculative_accept(torch.tensor([[1]]), None, target)
    (tensor([1]), tensor([2]))
    """
    tensors = {"draft_tokens": draft_tokens, "draft": draft, "target": target, "lengths": lengths}
    check_tensors(_OP, tensors, "draft", "lengths")
    if draft_tokens.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(
            f"{_OP}: draft_tokens is {dtype_name(draft_tokens.dtype)}, expected int64"
        )
    require_backend(_OP, backend, target)
    if target.dim() != 3:
        raise ArgumentValueError(f"{_OP}: target has {target.dim()} dimensions, expected 3")
    batch, device = len(target), target.device
    if lengths is not None:
        lengths = integers_of(_OP, "lengths", lengths, batch, device)
    run = _formula.speculative_accept if backend == "reference" else SPECULATIVE_ACCEPT
    try:
        accepted, token = run(
            draft_tokens.long(), None if draft is None else draft.detach(), target.detach(),
            lengths, seeds_of(_OP, seed, batch, device),
            integers_of(_OP, "position", position, batch, device),
            as_flag(_OP, "logits", logits),
        )  # fmt: skip
    except RuntimeError as error:
        raise translate(_OP, error) from None
    return accepted, token
