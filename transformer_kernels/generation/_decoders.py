# SPDX-License-Identifier: MIT
"""Models with their caches behind one interface: tokens go in, logits of the next one come out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError
from .._torch import evaluating
from ..decode._static import check_graphs, wants_graphs
from ..models import LanguageModel, Llama
from . import _step
from ._static_decoder import StaticDecoder, static_decoder


class Decoder(Protocol):
    """A model with its cache."""

    is_ahead: bool  # a token may be given to it before the host has read it

    @property
    def length(self) -> int:
        """The number of tokens that the cache holds."""

    def extend(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Appends tokens (B, T); returns the logits (B, keep, V) behind the last ones."""

    def rewind(self, length: int) -> None:
        """Forgets the tokens from ``length`` on."""


class OwnDecoder:
    """A model of this package."""

    is_ahead = False

    def __init__(self, model: LanguageModel | Llama, batch: int, capacity: int) -> None:
        self._model = model
        self._cache = model.new_cache(batch, min(capacity, model.config.context))

    @property
    def length(self) -> int:
        return self._cache.length

    def extend(self, tokens: Tensor, keep: int = 1) -> Tensor:
        if isinstance(self._model, Llama):
            return self._model(tokens, cache=self._cache, logits_to_keep=keep)
        logits: Tensor = self._model(tokens, cache=self._cache)
        return logits[:, -keep:]

    def rewind(self, length: int) -> None:
        self._cache.length = min(length, self._cache.length)


class HuggingFaceDecoder:
    """A causal language model of transformers, fused or not, and its own cache."""

    is_ahead = False

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self._model, self._cache = model, DynamicCache(config=model.config)
        takes = inspect.signature(model.forward).parameters
        self._takes_keep = "logits_to_keep" in takes
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def extend(self, tokens: Tensor, keep: int = 1) -> Tensor:
        options = {"logits_to_keep": keep} if self._takes_keep else {}
        if keep > 1 and hasattr(self._cache, "activate_past_recording"):
            self._cache.activate_past_recording()  # else sliding windows cannot be rewound
        out = self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **options)
        self._length += tokens.shape[1]
        logits: Tensor = out.logits[:, -keep:]
        return logits

    def rewind(self, length: int) -> None:
        if length < self.length:
            self._cache.crop(length - self._length)  # so many fewer
            self._length = length


def decoder_of(model: Any, batch: int, capacity: int, graphs: bool | str = False) -> Decoder:
    """A decoder with an empty cache for ``batch`` sequences of ``capacity`` tokens at most."""
    check_graphs("generate", graphs)
    if graphs and wants_graphs(graphs, device_of(model)):
        with evaluating(model.modules()), torch.no_grad():
            found = static_decoder(model, batch, capacity, graphs)
        if found is not None:
            return found
    if _step.runs(model, batch):
        return _step.StepDecoder(model, min(capacity, model.config.context))
    if isinstance(model, (LanguageModel, Llama)):
        return OwnDecoder(model, batch, capacity)
    return HuggingFaceDecoder(model)


@contextmanager
def decoding(model: Any, batch: int, capacity: int, graphs: bool | str) -> Iterator[Decoder]:
    """Lends a decoder for one text. The model keeps one whose steps are replayed."""
    decoder = decoder_of(model, batch, capacity, graphs)
    try:
        yield decoder
    finally:
        if isinstance(decoder, StaticDecoder):
            decoder.rest(model)


def check_model(model: Any) -> None:
    ours = isinstance(model, (LanguageModel, Llama))
    if not (ours or hasattr(model, "prepare_inputs_for_generation")):
        raise ArgumentTypeError(
            f"generate: model is {type(model).__name__}, expected a LanguageModel, a Llama or a"
            " causal language model of transformers"
        )


def vocabulary_of(model: Any) -> int:
    config = model.config
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return int(config.vocab_size)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
