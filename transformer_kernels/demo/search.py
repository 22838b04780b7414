# SPDX-License-Identifier: MIT
"""Searches Python's documentation by meaning, with a trained encoder before and after `tfk.fuse`.

Stock's encoder and its fused copy take turns, batch by batch and question by question, so that a
drift of the machine affects both.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from transformer_kernels.fuse import Plan, fuse
from transformer_kernels.measure.statistics import quantile
from transformer_kernels.testing import pretrained
from transformer_kernels.testing.pretrained import Entry, Pretrained, embed

T = TypeVar("T")
QUESTIONS = (
    "How do I loop over the items of a dictionary?",
    "What happens when no except clause matches the exception?",
    "Which characters may a variable's name have?",
    "How does a class decide what len() returns?",
)
CHUNK, RANKED, ROUNDS = 64, 10, 5


@dataclass
class Found:
    """The results of one encoder, and its times."""

    paragraphs: Tensor  # their embeddings, (paragraphs, width)
    seconds: float  # for all paragraphs
    query_seconds: list[float] = field(default_factory=list)
    rankings: list[list[int]] = field(default_factory=list)  # of each question, the nearest first


def paragraphs(most: int | None) -> list[Entry]:
    """The first paragraphs of the documentation, each once."""
    return list(dict.fromkeys(pretrained.documentation()))[:most]


def with_fused(stock: Pretrained, entries: Sequence[Entry]) -> tuple[dict[str, Pretrained], Plan]:
    """The encoder and a fused copy of it, by name."""
    fused = Pretrained(stock.tokenizer, copy.deepcopy(stock.model))
    sample = stock.tokenizer(
        [entry.text for entry in entries[:8]], padding=True, truncation=True, max_length=256,
        return_tensors="pt",
    )  # fmt: skip
    plan = fuse(fused.model, dict(sample.to(stock.model.device)))
    return {"stock": stock, "fused": fused}, plan


def search(
    encoders: dict[str, Pretrained], entries: Sequence[Entry], questions: Sequence[str]
) -> dict[str, Found]:
    """Embeds the paragraphs and answers the questions with each encoder."""
    texts = [entry.text for entry in entries]
    _embed_in_turn(encoders, texts[:CHUNK])  # warms up
    found = _embed_in_turn(encoders, texts)
    for turn in range(1 + ROUNDS):  # the first warms up
        for question in questions:
            for name, encoder in encoders.items():
                places, seconds = _timed(_ranking, encoder, question, found[name].paragraphs)
                if turn == 0:
                    found[name].rankings.append(places)
                else:
                    found[name].query_seconds.append(seconds)
    return found


def queries_per_second(found: Found) -> float:
    return 1 / quantile(sorted(found.query_seconds), 0.5)


def same_rankings(found: dict[str, Found]) -> int:
    """For how many questions all encoders rank the same paragraphs first, in the same order."""
    by_question = zip(*(one.rankings for one in found.values()), strict=True)
    return sum(all(places == first for places in others) for first, *others in by_question)


def _embed_in_turn(encoders: dict[str, Pretrained], texts: Sequence[str]) -> dict[str, Found]:
    rows: dict[str, list[Tensor]] = {name: [] for name in encoders}
    total = dict.fromkeys(encoders, 0.0)
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), CHUNK):
        for name, encoder in encoders.items():
            chunk, seconds = _timed(embed, encoder, ordered[start : start + CHUNK])
            rows[name].append(chunk)
            total[name] += seconds
    places = {text: place for place, text in enumerate(ordered)}
    order = torch.tensor([places[text] for text in texts])
    return {name: Found(torch.cat(rows[name])[order], total[name]) for name in encoders}


def _ranking(encoder: Pretrained, question: str, embedded: Tensor) -> list[int]:
    """The places of the paragraphs nearest to the question, the nearest first."""
    likeness = embed(encoder, [question]) @ embedded.t()
    return likeness[0].topk(min(RANKED, len(embedded))).indices.tolist()


def _timed(call: Callable[..., T], encoder: Pretrained, *arguments: Any) -> tuple[T, float]:
    """Calls it; returns the result, and the seconds until the encoder's device has finished."""
    begin = time.perf_counter()
    result = call(encoder, *arguments)
    if encoder.model.device.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - begin
