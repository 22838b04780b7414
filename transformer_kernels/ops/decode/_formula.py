# SPDX-License-Identifier: MIT
"""The choice of tokens in PyTorch operations, which gives the tokens of the kernels. Nothing waits
for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import ArgumentValueError
from ._weights import (
    COLDEST,
    UNIT,
    draw,
    exponents,
    uniform,
    unrounded,
    weights_of,
    whole,
)

# Stages that a call may leave out: bits of ``stages``. Formulas skip the others' sorts.
TOP_K, TOP_P, MIN_P, TYPICAL_P, PENALTIES, DRAW = (1 << bit for bit in range(6))
_KEEP_STREAM, _NEXT_STREAM = 1, 2


# ---- logits -------------------------------------------------------------------------------------


def _counts(tokens: Tensor, taken: Tensor, vocabulary: int) -> Tensor:
    """How often each token is among the taken ones, (B, V)."""
    is_token = (tokens >= 0) & (tokens < vocabulary) & taken
    counts = torch.zeros(len(tokens), vocabulary + 1, dtype=torch.int32, device=tokens.device)
    counts.scatter_add_(1, torch.where(is_token, tokens, vocabulary), is_token.int())
    return counts[:, :vocabulary]


def _penalised(
    z: Tensor, previous: Tensor, prompt_lengths: Tensor | None, repetition: Tensor,
    presence: Tensor, frequency: Tensor,
) -> Tensor:  # fmt: skip
    seen = _counts(previous, torch.ones_like(previous, dtype=torch.bool), z.shape[1]) > 0
    z = torch.where(seen, torch.where(z < 0, z * repetition, z / repetition), z)
    place = torch.arange(previous.shape[1], device=z.device)
    first = 0 if prompt_lengths is None else prompt_lengths.unsqueeze(1)
    times = _counts(previous, (place >= first).expand_as(previous), z.shape[1])
    counted = z - frequency * times.float()
    return torch.where(seen, counted - torch.where(times > 0, presence, 0.0), z)


def unpacked(allowed: Tensor, vocabulary: int) -> Tensor:
    """A mask of bool (., V) from one of bool or of bits."""
    if allowed.dtype is torch.bool:
        return allowed
    token = torch.arange(vocabulary, device=allowed.device)
    return (allowed[:, token // 32] >> (token % 32)) & 1 == 1


# ---- filters ------------------------------------------------------------------------------------


def _first(found: Tensor) -> Tensor:
    """The first place of each row (B, V) that is True."""
    return (found.cumsum(1) == 0).sum(1)


def _mass(share: Tensor, w: Tensor) -> Tensor:
    total = w.sum(1, keepdim=True).double()
    return (share.double() * total).ceil().long().clamp(min=1)


def _reached(order: Tensor, w: Tensor, mass: Tensor, descending: bool) -> Tensor:
    """The last number of the order that is kept: those before it have less than ``mass``."""
    ordered, places = order.sort(dim=1, descending=descending)
    taken = w.gather(1, places)
    before = taken.cumsum(1) - taken
    return ordered.gather(1, (before < mass).sum(1, keepdim=True) - 1)


def _kept(z: Tensor, x: Tensor, of: dict[str, Tensor], stages: int) -> Tensor:
    """Weights of tokens, 0 of those that a filter takes out."""
    fine = unrounded(x)
    w = whole(fine)
    if stages & TOP_K:
        k = of["top_k"].long()
        place = (k - 1).clamp(0, z.shape[1] - 1)
        least = z.sort(dim=1, descending=True).values.gather(1, place)
        w = torch.where((k < 1) | (z >= least), w, 0)
    if stages & TOP_P:
        least = _reached(z, w, _mass(of["top_p"], w), True)
        w = torch.where((of["top_p"] >= 1) | (z >= least), w, 0)
    if stages & MIN_P:
        w = torch.where((of["min_p"] <= 0) | (fine >= of["min_p"] * UNIT), w, 0)
    if stages & TYPICAL_P:
        products = torch.where(w > 0, fine * (1 / UNIT) * x, 0.0)
        moment = -whole(products * -(2.0**32)).sum(1, keepdim=True).double()
        distance = (x - (moment * 256 / w.sum(1, keepdim=True).double()).float()).abs()
        reach = _reached(distance, w, _mass(of["typical_p"], w), False)
        w = torch.where((of["typical_p"] >= 1) | (distance <= reach), w, 0)
    return w


# ---- the model's own distribution ---------------------------------------------------------------


def _log_probs(x: Tensor) -> Tensor:
    top = x.amax(1, keepdim=True)
    below = torch.where(x == top, 0.0, x.double() - top.double())
    total = whole(unrounded(exponents(x))).sum(1, keepdim=True).double() / UNIT
    found = (below - total.log()).float()
    return torch.where(x.isnan().any(1, keepdim=True) | (top == -torch.inf), torch.nan, found)


def _top(x: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    order = x.sort(dim=1, descending=True, stable=True).indices[:, :count]
    found = log_probs.gather(1, order)
    return torch.where(found.isnan(), -1, order), found


# ---- ops ----------------------------------------------------------------------------------------

_COLUMNS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition", "presence", "frequency",
)  # fmt: skip


def refuse_nothing(op: str, rows: str, tokens: Tensor) -> None:
    """Refuses rows without a token, where the host has their numbers."""
    if tokens.is_cpu and bool((tokens < 0).any()):
        raise ArgumentValueError(
            f"{op}: {rows} {_first((tokens < 0).unsqueeze(0)).item()} has no token that may be"
            " drawn, expected"
            + (
                " a logit above -inf that is allowed"
                if rows == "row"
                else " a target with some probability"
            )
        )


def sample_logits(
    logits: Tensor, parameters: Tensor, seed: Tensor, position: Tensor, previous: Tensor | None,
    prompt_lengths: Tensor | None, bias: Tensor | None, allowed: Tensor | None, top: int,
    need_probabilities: bool, stages: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    raw = logits.float()
    each = parameters.expand(len(raw), -1).unsqueeze(2).unbind(1)
    of = dict(zip(_COLUMNS, each, strict=True))
    z = raw if bias is None else raw + bias
    if previous is not None and stages & PENALTIES:
        penalties = (of[name] for name in ("repetition", "presence", "frequency"))
        z = _penalised(z, previous, prompt_lengths, *penalties)
    if allowed is not None:
        z = torch.where(unpacked(allowed, z.shape[1]), z, -torch.inf)
    largest, likeliest = z.max(1)  # of equal ones the first, and NaN before all
    is_greedy = (of["temperature"].squeeze(1) < COLDEST) | largest.isnan() | (largest == -torch.inf)
    tokens = torch.where(largest == -torch.inf, -1, likeliest)
    w = None
    if stages & DRAW:
        w = _kept(z, exponents(z, of["temperature"]), of, stages)
        tokens = torch.where(is_greedy, tokens, draw(w, uniform(seed, position, 0)))
    refuse_nothing("sample_logits", "row", tokens)
    log_probs, none = raw.new_empty(0), tokens.new_empty(0)
    top_tokens, top_log_probs, probabilities = none, raw.new_empty(0), raw.new_empty(0)
    if top >= 0:
        of_all = _log_probs(raw)
        chosen = of_all.gather(1, tokens.clamp(min=0).unsqueeze(1)).squeeze(1)
        log_probs = torch.where(tokens < 0, torch.nan, chosen)
        if top > 0:
            top_tokens, top_log_probs = _top(raw, of_all, top)
    if need_probabilities:
        place = torch.arange(z.shape[1], device=z.device)
        probabilities = (place == tokens.unsqueeze(1)).float()
        if w is not None:
            share = (w.double() / w.sum(1, keepdim=True).double()).float()
            probabilities = torch.where(is_greedy.unsqueeze(1), probabilities, share)
        probabilities = torch.where(largest.isnan().unsqueeze(1), torch.nan, probabilities)
    return tokens, log_probs, top_tokens, top_log_probs, probabilities


def _excess(p: Tensor, q: Tensor) -> Tensor:
    """The weights by which p (B, V) exceeds q, both divided by their sums; p itself without any."""
    p_sum, q_sum = (x.sum(1, keepdim=True).double() for x in (p, q))
    p_unit, q_unit = (UNIT / torch.where(x > 0, x, UNIT) for x in (p_sum, q_sum))
    left = whole((p.double() * p_unit - q.double() * q_unit).clamp(min=0.0))
    return torch.where(left.sum(1, keepdim=True) > 0, left, p)


def speculative_accept(
    draft_tokens: Tensor, draft: Tensor | None, target: Tensor, lengths: Tensor | None,
    seed: Tensor, position: Tensor, logits: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, drafted = draft_tokens.shape
    vocabulary = target.shape[2]
    rows = torch.arange(batch, device=target.device)
    place = torch.arange(drafted, device=target.device)
    p = weights_of(target, logits)
    is_token = (draft_tokens >= 0) & (draft_tokens < vocabulary)
    token = torch.where(is_token, draft_tokens, 0).unsqueeze(2)
    p_of = p[:, :drafted].gather(2, token).squeeze(2).double()
    q_of = q_sum = torch.ones_like(p_of)
    q = None if draft is None else weights_of(draft, logits)
    if q is not None:
        q_of, q_sum = q.gather(2, token).squeeze(2).double(), q.sum(2).double()
    at = position.unsqueeze(1) + place
    u = uniform(seed.unsqueeze(1), at, _KEEP_STREAM)
    is_kept = is_token & (u * (q_of * p[:, :drafted].sum(2).double()) < p_of * q_sum)
    length = torch.full_like(seed, drafted) if lengths is None else lengths
    is_kept &= place < length.unsqueeze(1)
    accepted = is_kept.long().cumprod(1).sum(1)
    w = p[rows, accepted]
    if drafted > 0:
        last = accepted.clamp(max=drafted - 1)
        if q is None:
            refused = draft_tokens[rows, last].unsqueeze(1)
            of_draft = whole((torch.arange(vocabulary, device=w.device) == refused) * UNIT)
        else:
            of_draft = q[rows, last]
        w = torch.where((accepted < length).unsqueeze(1), _excess(w, of_draft), w)
    tokens = draw(w, uniform(seed, position + accepted, _NEXT_STREAM))
    refuse_nothing("speculative_accept", "sequence", tokens)
    return accepted, tokens
