# SPDX-License-Identifier: MIT
"""Continues tokens with a language model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Protocol

import torch
from torch import Tensor

from .._cuda_graph import Told
from .._errors import ArgumentValueError, as_count, as_number, check_call, check_kind
from .._torch import evaluating
from ..models import LanguageModel, Llama, Sampling
from ..models._checks import check_range, check_shape
from ._decoders import Decoder, check_model, decoding, device_of, vocabulary_of
from ._lookup import Lookup
from ._stops import Stops, stops_of

_OP = "generate"


class Draw(Protocol):
    """Chooses tokens, as :class:`transformer_kernels.models.Sampling` does."""

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Returns a token per row, (B, V) -> (B,)."""


@torch.no_grad()
def generate(
    model: Any,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    sampling: Draw | None = None,
    stop: int | Sequence[int] = (),
    stop_strings: str | Sequence[str] = (),
    tokenizer: Any = None,
    stream: Callable[[Tensor], Any] | None = None,
    generator: torch.Generator | None = None,
    chunk: int = 512,
    speculate: int = 0,
    graphs: bool | str = "auto",
) -> Tensor:
    """Continues each row of ``tokens``, by default with the likeliest token at each step.

    Args:
        model: a :class:`transformer_kernels.models.Llama` or
            :class:`transformer_kernels.models.LanguageModel`, or a causal language model of Hugging
            Face, fused or not.
        tokens: (B, T), int32 or int64, T at least 1, on the model's device; all rows are full.
        max_new_tokens: number of new tokens at most, within the context of a model of this package.
        temperature: divides the logits; 0 chooses the likeliest token without drawing.
        top_k: draws among this many of the likeliest tokens.
        top_p: draws among the fewest likeliest tokens that together have this probability.
        sampling: chooses tokens in place of the three; any object with ``draw(logits, generator)``.
        stop: the tokens that end a sequence, which is then filled with the one that ended it.
        stop_strings: the strings that end a sequence likewise, when one stands in its new text.
        tokenizer: anything with ``decode(tokens)``, which gives their text; for ``stop_strings``.
        stream: called with the new tokens (B,) of each step.
        generator: source of the draws, on the model's device; by default PyTorch's.
        chunk: the most tokens of a prompt that the model takes at once.
        speculate: the most tokens that are guessed from what stands earlier in the text, and read
            at once with the next one (prompt lookup). The tokens stay those of one at a time; texts
            that repeat themselves come faster. For one sequence, at temperature 0.
        graphs: whether the step of a token is recorded as a CUDA graph, which the model keeps with
            its cache for the next call. ``"auto"`` does so on CUDA; True runs the same step
            elsewhere too, without a gain, and False nowhere.

    Returns:
        (B, T + new), int64: the tokens and their continuations.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument does not fit; the message names it.

    >>> model = tfk.models.LanguageModel(tfk.models.LanguageModelConfig(
    ...     vocab_size=256, context=32, dim=32, num_layers=2, num_heads=2))
    >>> tfk.generate(model, torch.tensor([[3, 5]]), 4, temperature=0.8, top_k=40).shape
    torch.Size([1, 6])
    """
    check_shape(_OP, "tokens", tokens, "batch", "time")
    count = as_count(_OP, "max_new_tokens", max_new_tokens, least=0)
    batch, length = tokens.shape
    if not length:
        raise ArgumentValueError(f"{_OP}: tokens has no token, expected at least 1")
    check_model(model)
    _check(model, tokens)
    _check_helpers(sampling, stream, generator)
    _check_room(model, length, count)
    found = [tokens.long()]
    if count and batch:
        chosen = chooser(temperature, top_k, top_p, sampling)
        stops = stops_of(stop, stop_strings, tokenizer, batch)
        guesses = _guesses(speculate, batch, temperature, sampling)
        with decoding(model, batch, length + count, graphs) as decoder:
            if guesses:
                steps = speculation(model, decoder, tokens, count, stops, chunk, speculate)
            else:
                steps = continuation(model, decoder, tokens, count, chosen, stops, generator, chunk)
            with closing(steps):  # also where stream raises: modules train again at once
                for step in steps:
                    found.append(step[:, None])
                    if stream is not None:
                        stream(step)
    return torch.cat(found, 1)


def _check(model: Any, tokens: Tensor) -> None:
    device = device_of(model)
    if tokens.device != device:
        raise ArgumentValueError(
            f"{_OP}: tokens is on {tokens.device}, expected {device} (as the model)"
        )
    check_range(_OP, "tokens", tokens, vocabulary_of(model), "the vocabulary")


def _check_helpers(sampling: Any, stream: Any, generator: Any) -> None:
    if sampling is not None:
        check_call(_OP, "sampling", getattr(sampling, "draw", sampling))
    if stream is not None:
        check_call(_OP, "stream", stream)
    if generator is not None:
        check_kind(_OP, "generator", generator, torch.Generator, "a torch.Generator")


def _check_room(model: Any, length: int, count: int) -> None:
    """Refuses more tokens than a model of this package can see, before it writes any. Models of
    Hugging Face have no such bound, or another. The last token is not read again."""
    if not isinstance(model, (LanguageModel, Llama)) or not count:
        return
    context = model.config.context
    if length + count - 1 > context:
        raise ArgumentValueError(
            f"{_OP}: max_new_tokens is {count}, expected at most {max(context + 1 - length, 0)}"
            f" behind a prompt of {length} (the context is {context})"
        )


def _guesses(speculate: int, batch: int, temperature: float, sampling: Draw | None) -> bool:
    guesses = as_count(_OP, "speculate", speculate, least=0) > 0
    if guesses and (
        batch > 1 or as_number(_OP, "temperature", temperature) or sampling is not None
    ):
        raise ArgumentValueError(
            f"{_OP}: speculate is {speculate}, expected 0 where tokens are drawn or sequences are"
            " several"
        )
    return guesses


def chooser(
    temperature: float, top_k: int | None, top_p: float | None, sampling: Draw | None = None
) -> Draw:
    """The object that chooses tokens: ``sampling``, or one of the three numbers."""
    if sampling is not None:
        return sampling
    made = Sampling(temperature, top_k, top_p)
    made.check(_OP)
    return made


@torch.no_grad()  # which leaves the mode of whoever takes the tokens as it is
def continuation(
    model: Any, decoder: Decoder, tokens: Tensor, count: int, sampling: Draw,
    stops: Stops, generator: torch.Generator | None = None, chunk: int = 512,
) -> Generator[Tensor, None, None]:  # fmt: skip
    """Yields the new tokens (B,) of each step. The decoder's cache holds a part of ``tokens``, or
    nothing; the rest of them is given to the model in chunks."""
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    last: Tensor | None = None  # tokens, of which some have ended their sequences
    with evaluating(model.modules()):
        logits = _read(decoder, tokens, chunk)
        for left in range(count, 0, -1):
            drawn = sampling.draw(logits[:, -1], generator)
            if last is not None:
                drawn = torch.where(ended.to(drawn.device, non_blocking=True), last, drawn)
            told = Told(drawn) if stops else None
            if left > 1 and decoder.is_ahead:
                logits = decoder.extend(drawn[:, None])
            yield drawn
            if told is not None:
                ended = ended | stops.seen(told.read())
                last = drawn if ended.any() else None
                if ended.all():
                    return
            if left > 1 and not decoder.is_ahead:
                logits = decoder.extend(drawn[:, None])


@torch.no_grad()
def speculation(
    model: Any, decoder: Decoder, tokens: Tensor, count: int, stops: Stops, chunk: int,
    most: int,
) -> Generator[Tensor, None, None]:  # fmt: skip
    """As :func:`continuation` of one sequence with the likeliest tokens: the model reads ``most``
    guesses with each token, and keeps those that it would have written."""
    lookup = Lookup(tokens[0].tolist())
    with evaluating(model.modules()):
        written = _read(decoder, tokens, chunk)[0].argmax(-1)
        while True:
            for token in written[:count]:
                yield token[None]
                lookup.append(int(token))
                count -= 1
                if stops.seen(token[None].cpu()):
                    return
            if count <= 0:
                return
            guesses = lookup.guess(min(most, count - 1))
            begin, row = decoder.length, [int(written[-1]), *guesses]
            logits = decoder.extend(torch.tensor([row], device=tokens.device), keep=len(row))
            written = logits[0].argmax(-1)
            right = 0
            while right < len(guesses) and guesses[right] == int(written[right]):
                right += 1
            written = written[: right + 1]
            decoder.rewind(begin + right + 1)


def _read(decoder: Decoder, tokens: Tensor, chunk: int) -> Tensor:
    """Gives the decoder the tokens that it has not seen, in chunks; the logits of the last one."""
    for part in tokens[:, decoder.length :].split(as_count(_OP, "chunk", chunk), 1):
        logits = decoder.extend(part)
    return logits
