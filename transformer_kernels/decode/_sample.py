# SPDX-License-Identifier: MIT
"""Draws the tokens of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import ArgumentValueError
from ..functional import sample_logits
from ..ops.decode._arguments import parameters_of
from ._parameters import LogProbs, Parameters

# Arguments of sample_logits, and the number that turns each off.
_OFF = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
_PENALTIES = [name for name in _OFF if name.endswith("penalty")]
_NO_TOKEN = -1


class Draw(NamedTuple):
    """A token to be drawn behind ``tokens``, the first ``prompt_length`` of which are the prompt;
    ``number`` of them were drawn before."""

    parameters: Parameters
    number: int
    tokens: Sequence[int]
    prompt_length: int


class Drawn(NamedTuple):
    """A token that was drawn."""

    token: int
    log_probs: LogProbs | None = None


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Draws a token a row, (M, V) -> (M,). A draw depends on its row of logits, its parameters, its
    number and, with penalties, the tokens before it; on nothing else."""
    tokens: Any = sample_logits(logits, **_options(logits, draws))
    drawn: Tensor = tokens  # where no probabilities are asked for
    return drawn


def sample_and_tell(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Draws as :func:`sample` does, with the log-probabilities that are asked for."""
    counts = [draw.parameters.log_probs for draw in draws]
    most = min(logits.shape[1], max(count for count in counts if count is not None))
    found: Any = sample_logits(logits, **_options(logits, draws), log_probs=most)
    told = []
    for count, token, number, tokens, numbers in zip(
        counts, *(each.tolist() for each in found[:4]), strict=True
    ):
        likeliest = [one for one in zip(tokens, numbers, strict=True) if one[0] != _NO_TOKEN]
        log_probs = None if count is None else LogProbs(number, likeliest[:count])
        told.append(Drawn(token, log_probs))
    return told


def tells(draws: Sequence[Draw]) -> bool:
    """Whether log-probabilities are asked for."""
    return any(draw.parameters.log_probs is not None for draw in draws)


def numbers_of(draws: Sequence[Draw]) -> tuple[Tensor | None, int | None]:
    """The parameters of draws as the raw op takes them, (M, 8) or one row of all, and the stages
    that change something; None where draws depend on the tokens before, have a bias, or tell
    log-probabilities."""
    asked = [draw.parameters for draw in draws]
    if _has_penalties(asked) or _has_bias(asked) or tells(draws):
        return None, None
    device = torch.device("cpu")
    given = {name: _values(name, asked, device) for name in _OFF}
    return parameters_of("engine", given, len(draws), device)


def _options(logits: Tensor, draws: Sequence[Draw]) -> dict[str, Any]:
    """The arguments of ``sample_logits``."""
    asked = [draw.parameters for draw in draws]
    options: dict[str, Any] = {name: _values(name, asked, logits.device) for name in _OFF}
    options["seed"] = _integers([each.seed for each in asked], logits.device)
    options["position"] = _integers([draw.number for draw in draws], logits.device)
    if _has_penalties(asked):
        options["previous"] = _previous(draws).to(logits.device)
        options["prompt_lengths"] = _integers([d.prompt_length for d in draws], logits.device)
    if _has_bias(asked):
        options["bias"] = _bias(asked, logits)
    return options


def _has_penalties(asked: Sequence[Parameters]) -> bool:
    return any(getattr(each, name) != _OFF[name] for name in _PENALTIES for each in asked)


def _has_bias(asked: Sequence[Parameters]) -> bool:
    return any(each.bias for each in asked)


def _values(name: str, asked: Sequence[Parameters], device: torch.device) -> Any:
    """One number, or one of each row where they differ."""
    found = [getattr(each, name) for each in asked]
    if all(value == found[0] for value in found):
        return found[0]
    numbers = [_OFF[name] if value is None else value for value in found]
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def _integers(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _previous(draws: Sequence[Draw]) -> Tensor:
    """(M, the most tokens) int64: the tokens before each draw."""
    rows = [torch.tensor(draw.tokens, dtype=torch.int64) for draw in draws]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_NO_TOKEN)


def _bias(asked: Sequence[Parameters], logits: Tensor) -> Tensor:
    """(M, V) float32: what is added to the logits."""
    counts = torch.tensor([len(each.bias) for each in asked])
    rows = torch.arange(len(asked)).repeat_interleave(counts)
    pairs = zip(*(each.bias_tensors for each in asked), strict=True)
    tokens, numbers = (torch.cat(one) for one in pairs)
    vocabulary = logits.shape[1]
    if (most := int(tokens.max())) >= vocabulary:
        raise ArgumentValueError(f"engine: bias has token {most}, expected less than {vocabulary}")
    bias = torch.zeros(logits.shape, device=logits.device)
    bias[rows.to(bias.device), tokens.to(bias.device)] = numbers.to(bias.device)
    return bias
