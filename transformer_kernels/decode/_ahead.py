# SPDX-License-Identifier: MIT
"""An engine's steps in which all sequences decode, one of them ahead of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._cuda_graph import Told
from ._batch import Turn
from ._page_table import CachedSequence, PageTable
from ._sample import Draw, numbers_of
from ._static import CannotRecordError, Rows, StaticStep, StaticSteps

_Moment = list[tuple[CachedSequence, int]]  # sequences and their lengths


class Ahead:
    """Runs steps of a :class:`StaticSteps`. While the host reads the tokens of a step and tells
    whether they end a text, the next one runs already. Where another one comes instead, what it
    wrote lies behind the lengths, and is written again.

    Args:
        steps: the steps.
        cache: their cache.
        chooses: whether a step chooses its tokens; else it gives logits.
    """

    def __init__(self, steps: StaticSteps, cache: PageTable, chooses: bool) -> None:
        self._steps, self._cache, self._chooses = steps, cache, chooses
        self._next: _Moment = []  # the step that the tensors are ready for
        self._started: tuple[_Moment, Told] | None = None
        self._tables = -1  # the cache's version that was copied

    def takes(self, turns: Sequence[Turn]) -> bool:
        """Whether such a step can run here."""
        return self._steps.can() and all(len(turn.tokens) == 1 and turn.draws for turn in turns)

    def join(self) -> None:
        self._steps.join()

    def run(self, turns: Sequence[Turn], draws: Sequence[Draw], goes_on: bool) -> Any:
        """Runs a step; returns its tokens, or its logits (M, V) where the engine chooses them; None
        where it cannot run here. ``goes_on`` says that pages for one more are reserved."""
        now = [(turn.sequence, turn.sequence.length) for turn in turns]
        try:
            if self._started is None or self._started[0] != now:
                self._prepare(now, turns, draws)
                step = self._start()
                if step.shape.stages is None:
                    return step.logits[: len(turns)]
                self._started = now, Told(step.drawn)
            told, self._started = self._started[1], None
            if goes_on and self._is_ready():
                self._refresh()
                following = self._next
                self._started = following, Told(self._start().drawn)
        except CannotRecordError:
            self._started, self._next = None, []
            return None
        return told.read()[: len(turns)].tolist()

    def _prepare(self, now: _Moment, turns: Sequence[Turn], draws: Sequence[Draw]) -> None:
        """Brings the tensors to a step."""
        self._started = None
        if self._next == now and self._is_ready():
            self._refresh()
            return
        self._next = []
        parameters, stages = numbers_of(draws) if self._chooses else (None, None)
        self._steps.load(Rows(
            tokens=[turn.tokens[0] for turn in turns],
            lengths=[length for _, length in now],
            tables=[sequence.pages for sequence, _ in now],
            seeds=[draw.parameters.seed for draw in draws],
            numbers=[draw.number for draw in draws],
            parameters=parameters, stages=stages,
        ))  # fmt: skip
        self._next, self._tables = now, self._cache.version

    def _start(self) -> StaticStep:
        before, self._next = self._next, []
        step = self._steps.launch()
        if step.shape.stages is not None:  # else its tensors do not know the next tokens
            self._next = [(sequence, length + 1) for sequence, length in before]
        return step

    def _is_ready(self) -> bool:
        """Whether the pages of the next step fit into the tables."""
        pages = max((len(sequence.pages) for sequence, _ in self._next), default=0)
        step = self._steps.step
        return step is not None and 0 < pages <= step.shape.pages

    def _refresh(self) -> None:
        """Copies tables that have changed."""
        if self._tables != self._cache.version and self._steps.step is not None:
            self._tables = self._cache.version
            self._steps.step.load_tables([sequence.pages for sequence, _ in self._next])
