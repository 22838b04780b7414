# SPDX-License-Identifier: MIT
"""The next token of each sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_count,
    as_flag,
    check_floating,
    check_tensors,
    dtype_name,
    shape_text,
    translate,
)
from ..._library import require_backend
from .._public import overridable
from . import _formula
from ._arguments import integers_of, parameters_of, seeds_of
from ._ops import SAMPLE_LOGITS

_OP = "sample_logits"


class SampledTokens(NamedTuple):
    """Tokens with their log-probabilities, from :func:`sample_logits`.

    Attributes:
        tokens: (B), int64.
        log_probs: (B), float32: the tokens' log-probabilities in the model's own distribution.
        top_tokens: (B, n), int64: the likeliest tokens of that distribution, the likeliest first.
        top_log_probs: (B, n), float32.
        probabilities: (B, V), float32, what the tokens were drawn with; None if not asked for.
    """

    tokens: Tensor
    log_probs: Tensor
    top_tokens: Tensor
    top_log_probs: Tensor
    probabilities: Tensor | None


def _rows(name: str, x: Tensor | None, dtypes: tuple[torch.dtype, ...]) -> Tensor | None:
    """An optional row of each sequence, or one of all, as a matrix."""
    if x is None:
        return None
    check_tensors(_OP, {name: x})
    if x.dtype not in dtypes:
        expected = " or ".join(map(dtype_name, dtypes))
        raise ArgumentTypeError(f"{_OP}: {name} is {dtype_name(x.dtype)}, expected {expected}")
    return x.unsqueeze(0) if x.dim() == 1 else x


def _previous(previous: Any) -> Tensor | None:
    found = _rows("previous", previous, (torch.int64, torch.int32))
    if found is not None and previous.dim() != 2:
        raise ArgumentValueError(
            f"{_OP}: previous has {previous.dim()} dimensions, expected 2 (batch, tokens)"
        )
    return None if found is None else found.long()


@overridable
def sample_logits(
    logits: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    typical_p: float | Tensor | None = None,
    repetition_penalty: float | Tensor = 1.0,
    presence_penalty: float | Tensor = 0.0,
    frequency_penalty: float | Tensor = 0.0,
    previous: Tensor | None = None,
    prompt_lengths: int | Tensor = 0,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    log_probs: int | None = None,
    probabilities: bool = False,
    backend: str = "auto",
) -> Tensor | SampledTokens:
    """Draws the next token of each sequence, without sorting its logits.

    The stages apply in the order of the arguments ``bias``, penalties, ``allowed``,
    ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical_p``, which is that of the logits
    processors of Hugging Face's transformers, and keep the same tokens. Tokens of equal logits are
    kept together or not at all. Every parameter is a number, or a tensor (B) with one for each
    sequence, whose values are checked on the CPU alone.

    A token depends on its own logits, parameters, seed and position: not on the other sequences,
    the number of threads or the device. So a sequence's tokens can be drawn again one by one.

    Args:
        logits: (B, V), float64, float32, float16 or bfloat16, computed in float32; V is at most
            2^20.
        temperature: divides the logits; 0, and anything below 2^-126, chooses the likeliest token,
            the first of equal ones.
        top_k: draws among this many of the likeliest tokens; None or 0 for all.
        top_p: draws among the fewest likeliest tokens that have this probability together
            (Holtzman et al. 2019, arXiv:1904.09751); 0 leaves the likeliest.
        min_p: draws among tokens with this share of the likeliest token's probability at least
            (Nguyen et al. 2024, arXiv:2407.01082).
        typical_p: draws among the fewest tokens that have this probability together and whose
            information is nearest to the entropy (Meister et al. 2022, arXiv:2202.00666).
        repetition_penalty: divides positive logits of previous tokens, and multiplies negative
            ones (Keskar et al. 2019, arXiv:1909.05858).
        presence_penalty: is subtracted from logits of tokens that were generated.
        frequency_penalty: is subtracted from a logit for each time that its token was generated.
        previous: (B, L), int64 or int32, the tokens so far, of which the penalties speak. Numbers
            that are no token are ignored, such as -1 for padding. (Tokens, not a matrix of counts:
            they are some thousand times fewer numbers to read.)
        prompt_lengths: the first of ``previous`` that were not generated.
        bias: (V) or (B, V), float32, added to the logits.
        allowed: (V) or (B, V), bool; or int32 with a bit for each token, bit i % 32 of word
            i // 32, as grammar engines make them. Other tokens are never drawn.
        seed: (B), int64; or an int, which gives sequence b the seed ``seed + b``. By default drawn
            from the device's generator.
        position: the position of the token in its sequence: the same seed draws another number at
            each.
        log_probs: with this number n, 0 or more, also returns log-probabilities: of the chosen
            token and the n likeliest, in the model's own distribution, before all parameters.
        probabilities: also return the distribution that the tokens were drawn from.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"reference"``, which sorts. All draw the
            same tokens. ``"auto"`` is the formula on CUDA, whose kernels run where they are named.

    Returns:
        Tokens (B), int64; a :class:`SampledTokens` with ``log_probs`` or ``probabilities``. Where a
        logit that is allowed is NaN, the token is the first of these. Where none is above
        -infinity, it is -1, and on the CPU an error.

    Raises:
        ValueError: a shape or number is none of these; a row allows no token.
        TypeError: a dtype is none of these.

    >>> logits = torch.tensor([[0.1, 2.0, 0.3], [3.0, 1.0, 2.9]])
    >>> tfk.functional.sample_logits(logits, temperature=0.0)
    tensor([1, 0])
    >>> found = tfk.functional.sample_logits(logits, top_k=1, seed=7, log_probs=2)
    >>> found.tokens.tolist(), found.top_tokens.tolist()
    ([1, 0], [[1, 2], [0, 2]])
    """
    check_tensors(_OP, {"logits": logits})
    check_floating(_OP, "logits", logits)
    if logits.dim() != 2:
        raise ArgumentValueError(
            f"{_OP}: logits has shape {shape_text(logits)}, expected (batch, vocabulary)"
        )
    require_backend(_OP, backend, logits)
    batch, device = len(logits), logits.device
    given = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "typical_p": typical_p, "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
    }  # fmt: skip
    parameters, stages = parameters_of(_OP, given, batch, device)
    seeds = seeds_of(_OP, seed, batch, device)
    positions = integers_of(_OP, "position", position, batch, device)
    tokens = _previous(previous)
    prompt = None
    if tokens is not None:
        prompt = integers_of(_OP, "prompt_lengths", prompt_lengths, batch, device)
    top = -1 if log_probs is None else as_count(_OP, "log_probs", log_probs, 0)
    wants_probabilities = as_flag(_OP, "probabilities", probabilities)
    run = _formula.sample_logits if backend == "reference" else SAMPLE_LOGITS
    try:
        found = run(
            logits.detach(), parameters, seeds, positions, tokens, prompt,
            _rows("bias", bias, (torch.float32,)),
            _rows("allowed", allowed, (torch.bool, torch.int32)), top, wants_probabilities, stages,
        )  # fmt: skip
    except RuntimeError as error:
        raise translate(_OP, error) from None
    if log_probs is None and not wants_probabilities:
        return found[0]
    return SampledTokens(
        found[0], found[1], found[2].reshape(batch, max(top, 0)),
        found[3].reshape(batch, max(top, 0)), found[4] if wants_probabilities else None,
    )  # fmt: skip
