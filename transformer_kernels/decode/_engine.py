# SPDX-License-Identifier: MIT
"""Continuous batching: requests join and leave the batch at every step."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Condition
from typing import Any

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_count,
    as_integer,
    check_call,
    check_kind,
    is_integer,
    renamed,
    shape_text,
)
from ._ahead import Ahead
from ._batch import Model, Turn, make_batch
from ._page_table import CachedSequence, PageTable
from ._parameters import Parameters, Piece, Result, Status
from ._pool import CacheFullError
from ._request import Request
from ._sample import Draw, Drawn, sample, sample_and_tell, tells
from ._static import check_graphs, steps_of
from ._text import Detokenize


class EngineFullError(RuntimeError):
    """As many requests wait as may; another can be submitted when one was admitted."""


class Engine:
    """Generates for many requests at once, whose sequences share a paged cache.

    A step runs one token of every sequence that decodes, and fills up to ``max_tokens`` rows with
    parts of prompts, in order of submission. Where pages run out, the request that was submitted
    last gives its pages back and waits; it is computed again later, and what others hold or nobody
    overwrote meanwhile is found in the cache. No token depends on this, on neighbours or on the
    order of submission, where the model's result of a row does not depend on the other rows.

    All methods may be called from any thread; one step runs at a time.

    Args:
        model: ``model(batch, cache)`` writes the keys and values of a :class:`Batch` to the cache
            and returns the logits (M, V) of the rows ``batch.outputs``.
        cache: the memory, which belongs to the engine alone: a :class:`PagedCache`, or another
            table whose memory the model knows. It decides how many sequences run.
        max_tokens: the most rows of a step, at least the cache's ``max_sequences``.
        chunk: the most rows of a prompt in a step; by default ``max_tokens``.
        detokenize: gives the text of a list of tokens; without it, pieces have none.
        draw: ``draw(logits, draws)`` gives the tokens (M,) of a step; by default those of
            :class:`Parameters`. Only the default tells log-probabilities.
        max_waiting: the most requests that wait; by default there is no limit.
        vocab_size: the number of tokens, above which those of prompts and biases are refused.
            Without it, a request with an unknown token makes every step fail, until it is
            cancelled.
        graphs: whether steps in which all sequences decode are recorded as CUDA graphs and
            replayed, for models that may be (:class:`Recordable`). ``"auto"`` does so on CUDA; True
            runs the same steps elsewhere too, without a gain, and False nowhere.

    >>> def count_up(batch, cache):  # a model that keeps nothing, and always says the next number
    ...     return torch.nn.functional.one_hot(batch.tokens[batch.outputs] + 1, 100).float()
    >>> cache = tfk.decode.PagedCache(num_layers=1, num_pages=8, num_heads=1, head_dim=8)
    >>> engine = tfk.decode.Engine(count_up, cache)
    >>> number = engine.submit([5, 6, 7], tfk.decode.Parameters(max_new_tokens=4))
    >>> [piece.token for piece in engine.stream(number)]
    [8, 9, 10, 11]
    """

    def __init__(
        self, model: Model, cache: PageTable, *, max_tokens: int = 512, chunk: int | None = None,
        detokenize: Detokenize | None = None,
        draw: Callable[[Tensor, Sequence[Draw]], Tensor] = sample, max_waiting: int | None = None,
        vocab_size: int | None = None, graphs: bool | str = "auto",
    ) -> None:  # fmt: skip
        check_call("Engine", "model", model)
        check_kind("Engine", "cache", cache, PageTable, "a PagedCache")
        check_call("Engine", "draw", draw)
        if detokenize is not None:
            check_call("Engine", "detokenize", detokenize)
        self.model = model
        self.cache = cache
        self.max_tokens = as_count("Engine", "max_tokens", max_tokens, cache.max_sequences)
        self.chunk = max_tokens if chunk is None else as_count("Engine", "chunk", chunk)
        for name, count in (("max_waiting", max_waiting), ("vocab_size", vocab_size)):
            if count is not None:
                as_count("Engine", name, count, least=0)
        self.max_waiting = max_waiting
        self.vocab_size = vocab_size
        self._detokenize = detokenize
        self._draw = draw
        check_graphs("Engine", graphs)
        steps = steps_of(model, cache, graphs)
        self._ahead = None if steps is None else Ahead(steps, cache, draw is sample)
        self._changed = Condition()  # guards all that follows, and the cache's accounting
        self._is_stepping = False
        self._numbers = itertools.count()
        self._requests: dict[int, Request] = {}
        self._waiting: list[Request] = []  # in order of submission
        self._running: dict[Request, CachedSequence] = {}
        self._rows = self._found = self._given_up = 0

    # ---- requests --------------------------------------------------------------------------------

    def submit(
        self, prompt_tokens: Sequence[int] | Tensor, parameters: Parameters | None = None
    ) -> int:
        """Adds a request, which the next steps work on.

        Args:
            prompt_tokens: the tokens to continue, at least one.
            parameters: how, and how far; by default ``Parameters()``.

        Returns:
            The request's number, which is known until the end of its stream was read, or until
            :meth:`result` or :meth:`cancel` gave what it has.

        Raises:
            ArgumentValueError: the prompt is empty, it or the bias has unknown tokens, or the
                request would not fit into the cache if it were alone.
            EngineFullError: ``max_waiting`` requests wait.
        """
        parameters = Parameters() if parameters is None else parameters
        _check(parameters)
        if parameters.stop and self._detokenize is None:
            raise ArgumentValueError(
                "submit: stop has strings, expected none, because the engine has no detokenize"
            )
        if parameters.log_probs is not None and self._draw is not sample:
            raise ArgumentValueError(
                f"submit: log_probs is {parameters.log_probs}, expected None, because the engine "
                "has a draw of its own"
            )
        request = Request(
            next(self._numbers), _as_tokens(prompt_tokens), parameters, self._detokenize
        )
        self._check_size(request)
        with self._changed:
            if self.max_waiting is not None and len(self._waiting) >= self.max_waiting:
                raise EngineFullError(
                    f"submit: {len(self._waiting)} requests wait, "
                    f"expected less than {self.max_waiting}"
                )
            self._requests[request.number] = request
            self._wait(request)
            self._changed.notify_all()
        return request.number

    def _check_size(self, request: Request) -> None:
        biased = [token for token, _ in request.parameters.bias]
        for name, tokens in (("prompt_tokens", request.tokens), ("bias", biased)):
            last = max(tokens, default=-1)
            if self.vocab_size is not None and last >= self.vocab_size:
                raise ArgumentValueError(
                    f"submit: {name} has token {last}, expected less than {self.vocab_size}"
                )
        cache, most = self.cache, request.most_tokens
        room = min(cache.max_length, cache.num_pages * cache.page_size)
        if most > room:
            raise ArgumentValueError(
                f"submit: prompt and new tokens take {most} places in the cache, "
                f"expected at most {room}"
            )

    def stream(self, number: int) -> Iterator[Piece]:
        """Yields a request's tokens as they come. While no other thread runs :meth:`step`, this
        does. Closing the iterator before its end cancels the request.

        Args:
            number: as :meth:`submit` gave it.

        Raises:
            Exception: what ``detokenize`` raised for this request, which it ends.
            ArgumentValueError: no such request is known.
            CacheFullError: nothing can run, because others hold the cache.
        """
        with self._changed:
            request = self._known("stream", number)
        return self._pieces(request)

    def _pieces(self, request: Request) -> Iterator[Piece]:
        given = 0
        try:
            while True:
                new, is_finished = self._news(request, given)
                yield from new
                given += len(new)
                if is_finished:
                    if request.error is not None:
                        raise request.error
                    return
                if not new:
                    self._step_for(request)
        finally:
            self.cancel(request.number)

    def _news(self, request: Request, given: int) -> tuple[list[Piece], bool]:
        """The pieces behind those that were given, and whether they are the last. Waits for them
        while a step runs."""

        def is_new() -> bool:
            return len(request.pieces) > given or request.reason is not None

        with self._changed:
            self._changed.wait_for(lambda: is_new() or not self._is_stepping)
            return request.pieces[given:], request.reason is not None

    def _step_for(self, request: Request) -> None:
        if not self.step() and request.reason is None:
            raise CacheFullError(
                f"engine: request {request.number} cannot run, expected a cache that nobody else "
                f"uses: {self.cache}"
            )

    def result(self, number: int) -> Result:
        """Runs a request to its end, and forgets it.

        Args:
            number: as :meth:`submit` gave it.

        Raises:
            ArgumentValueError: no such request is known.
        """
        with self._changed:
            request = self._known("result", number)
        for _ in self._pieces(request):
            pass
        return request.result

    def take(self, number: int) -> list[Piece]:
        """Returns the tokens that came since the last call, without waiting for more: for a server
        whose own thread runs :meth:`step`. With the last piece the request is forgotten.

        Args:
            number: as :meth:`submit` gave it.

        Raises:
            Exception: what ``detokenize`` raised for this request, which it ends.
            ArgumentValueError: no such request is known.
        """
        with self._changed:
            request = self._known("take", number)
            new = request.pieces[request.taken :]
            request.taken = len(request.pieces)
            if request.reason is not None:
                del self._requests[number]
        if request.error is not None:
            raise request.error
        return new

    def cancel(self, number: int) -> Result | None:
        """Ends a request, and forgets it; its pages are free at once, or after the step that is
        running.

        Args:
            number: as :meth:`submit` gave it.

        Returns:
            What was generated, or None where no such request is known any more.
        """
        with self._changed:
            request = self._requests.pop(as_integer("cancel", "number", number), None)
            if request is None:
                return None
            if request.reason is None:
                request.reason = "cancelled"
                if not request.is_in_step:
                    self._leave(request)
            self._changed.notify_all()
            return request.result

    def generate(
        self, prompts: Sequence[Sequence[int]], parameters: Parameters | None = None
    ) -> list[Result]:
        """Continues several prompts, and returns their results in the same order.

        Args:
            prompts: the tokens of each.
            parameters: how, and how far; by default ``Parameters()``.
        """
        numbers: list[int] = []
        try:
            for prompt in prompts:
                number = self.submit(prompt, parameters)
                numbers.append(number)
            return [self.result(number) for number in numbers]
        finally:  # nobody else knows the requests that a failure leaves
            for number in numbers:
                self.cancel(number)

    @property
    def status(self) -> Status:
        """The engine's load, and what it did so far."""
        with self._changed:
            return Status(
                len(self._waiting),
                len(self._running),
                self.cache.available_pages,
                self._rows,
                self._found,
                self._given_up,
            )

    def _known(self, op: str, number: int) -> Request:
        if as_integer(op, "number", number) not in self._requests:
            raise ArgumentValueError(f"{op}: request {number} is unknown, or its end was read")
        return self._requests[number]

    # ---- steps -----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs the model once, and returns whether there was something to run.

        Where the model raises, so does this: no token and no page is lost, and the next step runs
        the same again.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_stepping)
            if self._ahead is not None:
                self._ahead.join()
            requests, turns = self._plan()
            if not turns:
                return False
            goes_on = self._goes_on(requests, turns)
            draws = [r.draw for r, turn in zip(requests, turns, strict=True) if turn.draws]
            self._is_stepping = True
            for request in requests:
                request.is_in_step = True
        drawn: list[Drawn] | None = None
        try:
            drawn = self._run(turns, draws, goes_on)
        finally:
            with self._changed:
                self._is_stepping = False
                self._finish(requests, turns, drawn)
                self._changed.notify_all()
        return True

    def _plan(self) -> tuple[list[Request], list[Turn]]:
        """Chooses what runs next, and reserves its pages: first sequences that decode, then parts
        of prompts, then requests that wait."""
        chosen: dict[Request, Turn] = {}
        budget = self.max_tokens
        waiting = len(self._waiting)
        for request in sorted(self._running, key=lambda r: (self._missing(r) > 1, r.number)):
            if budget and request in self._running and self._make_room(request):
                chosen[request] = self._turn(request, budget)
                budget -= len(chosen[request].tokens)
        if len(self._waiting) == waiting:  # else pages that were just given up would be given away
            while budget and (admitted := self._admit()) is not None:
                chosen[admitted] = self._turn(admitted, budget)
                budget -= len(chosen[admitted].tokens)
        return list(chosen), list(chosen.values())

    def _goes_on(self, requests: Sequence[Request], turns: Sequence[Turn]) -> bool:
        """Whether a step of the same sequences is to follow, as far as is known before their
        tokens are; its pages are reserved then."""
        if self._ahead is None or not self._ahead.takes(turns):
            return False
        if self._waiting or len(turns) < len(self._running):
            return False
        if any(request.is_next_last for request in requests):
            return False
        try:
            for turn in turns:
                self.cache.reserve(turn.sequence, 2)
        except CacheFullError:
            return False
        return True

    def _turn(self, request: Request, budget: int) -> Turn:
        sequence, missing = self._running[request], self._missing(request)
        count = min(missing, budget, self.chunk)
        tokens = request.tokens[sequence.length : sequence.length + count]
        return Turn(sequence, tokens, draws=count == missing)

    def _missing(self, request: Request) -> int:
        """The number of a running request's tokens that are not in the cache."""
        return len(request.tokens) - self._running[request].length

    def _make_room(self, request: Request) -> bool:
        """Reserves pages for the rest of a request, which all but those that decode have. Requests
        that were submitted later give theirs up; False where this one has to."""
        while not self._reserve(request):
            last = max(self._running, key=lambda r: r.number)
            self._leave(last)
            self._wait(last)
            self._given_up += 1
            if last is request:
                return False
        return True

    def _reserve(self, request: Request) -> bool:
        try:
            self.cache.reserve(self._running[request], self._missing(request))
        except CacheFullError:
            return False
        return True

    def _admit(self) -> Request | None:
        """Lets the first request that waits run, where there are pages for all its tokens, and one
        more for each that runs."""
        if not self._waiting or not self.cache.available_rows:
            return None
        request = self._waiting[0]
        sequence = self.cache.open(request.tokens, request.parameters.salt)
        wanted = self.cache.pages_of(len(request.tokens)) - len(sequence.pages)
        if wanted + len(self._running) > self.cache.available_pages:
            self.cache.close(sequence)
            return None
        self.cache.reserve(sequence, len(request.tokens) - sequence.length)
        self._running[request] = sequence
        self._found += sequence.length
        return self._waiting.pop(0)

    def _run(self, turns: Sequence[Turn], draws: Sequence[Draw], goes_on: bool) -> list[Drawn]:
        found: Any = None
        if self._ahead is not None and self._ahead.takes(turns):
            found = self._ahead.run(turns, draws, goes_on)
        if isinstance(found, list):
            return [Drawn(token) for token in found]
        logits = self._logits(turns) if found is None else found
        if logits.dim() != 2 or len(logits) != len(draws):
            raise ArgumentValueError(
                f"engine: the model returned logits {tuple(logits.shape)}, "
                f"expected ({len(draws)}, V)"
            )
        if tells(draws):
            return sample_and_tell(logits, draws)
        return [Drawn(token) for token in self._draw(logits, draws).tolist()] if draws else []

    def _logits(self, turns: Sequence[Turn]) -> Tensor:
        with self._changed:  # the tables are not changed meanwhile
            batch = make_batch(self.cache, turns)
        return self.model(batch, self.cache)

    def _finish(
        self, requests: Sequence[Request], turns: Sequence[Turn], drawn: list[Drawn] | None
    ) -> None:
        """Counts what a step stored, and adds the tokens that it drew; None where it failed."""
        left = iter(drawn or ())
        for request, turn in zip(requests, turns, strict=True):
            request.is_in_step = False
            if drawn is not None:
                self._rows += len(turn.tokens)
                self.cache.commit(turn.sequence, turn.tokens)
                chosen = next(left) if turn.draws else None
                if chosen is not None and request.reason is None:
                    request.accept(chosen)
            if request.reason is not None:
                self._leave(request)

    def _leave(self, request: Request) -> None:
        """Ends that a request runs or waits, and gives its pages back."""
        if request in self._running:
            self.cache.close(self._running.pop(request))
        else:
            self._waiting.remove(request)

    def _wait(self, request: Request) -> None:
        bisect.insort(self._waiting, request, key=lambda r: r.number)


def _check(parameters: Any) -> None:
    """Refuses parameters with which a step would fail."""
    if not isinstance(parameters, Parameters):
        kind = type(parameters).__name__
        raise ArgumentTypeError(f"submit: parameters is {kind}, expected Parameters")
    parameters.check("submit")
    try:
        sample(torch.zeros(1, 2), [Draw(replace(parameters, bias=()), 0, [], 0)])
    except (ArgumentValueError, ArgumentTypeError) as error:
        raise renamed("submit", error) from None


def _as_tokens(prompt: Sequence[int] | Tensor) -> list[int]:
    check_kind("submit", "prompt_tokens", prompt, (Tensor, Iterable), "integers from 0 on")
    if isinstance(prompt, Tensor) and prompt.dim() != 1:
        raise ArgumentValueError(
            f"submit: prompt_tokens has shape {shape_text(prompt)}, expected 1 dimension"
        )
    tokens = prompt.tolist() if isinstance(prompt, Tensor) else list(prompt)
    if not tokens:
        raise ArgumentValueError("submit: prompt_tokens is empty, expected at least 1 token")
    if not all(is_integer(token) and 0 <= token < 1 << 63 for token in tokens):
        raise ArgumentTypeError(
            "submit: prompt_tokens has something else than integers from 0 on, below 2^63"
        )
    return [int(token) for token in tokens]
