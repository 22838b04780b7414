# SPDX-License-Identifier: MIT
"""Steps of decoding over tensors that stay where they are, which CUDA graphs replay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .._cuda_graph import Tape, to_device
from .._errors import ArgumentValueError
from .._torch import any_autocast
from ..ops.decode._ops import SAMPLE_LOGITS
from ._batch import Batch
from ._page_table import NO_PAGE
from ._paged_cache import PagedCache
from ._recorded import recorded_kernels

_LEAST_TOKENS = 1024  # of a table's row: longer sequences double it, and are recorded again
_READ_IN_PAGES = (torch.float32, torch.float16, torch.bfloat16)
_TOKEN, _SEED, _POSITION, _NUMBER, _MOVES = range(5)  # the integers of a row


class Recordable(Protocol):
    """A model whose step may be recorded: it keeps nothing on the host from one step to the next,
    and finds the places of rows by ``block_tables`` and ``lengths``.

    >>> class Counting:
    ...     def read(self, cache):
    ...         return []
    ...     def __call__(self, batch, cache):
    ...         return torch.nn.functional.one_hot(batch.tokens[batch.outputs] + 1, 100).float()
    >>> cache = tfk.decode.PagedCache(num_layers=1, num_pages=8, num_heads=1, head_dim=8)
    >>> engine = tfk.decode.Engine(Counting(), cache, graphs=True)
    >>> engine.generate([[5, 6, 7]], tfk.decode.Parameters(max_new_tokens=4))[0].tokens
    [8, 9, 10, 11]
    """

    def __call__(self, batch: Batch, cache: Any) -> Tensor: ...

    def read(self, cache: Any) -> Sequence[nn.Module | Tensor]:
        """Lists what a step reads: a record holds only while that stays where it is.

        Args:
            cache: the cache of the steps.
        """


class Rows(NamedTuple):
    """The sequences of a step, as the host knows them.

    ``parameters`` are those of :func:`transformer_kernels.functional.sample_logits`, (B, 8) or one
    row of all; ``stages`` is None where the step chooses no tokens.
    """

    tokens: Sequence[int]
    lengths: Sequence[int]
    tables: Sequence[Sequence[int]]
    seeds: Sequence[int] = ()
    numbers: Sequence[int] = ()
    parameters: Tensor | None = None
    stages: int | None = None


class Shape(NamedTuple):
    """The sizes of a recorded step, and what of the choice of tokens is part of it."""

    rows: int
    pages: int
    stages: int | None


class CannotRecordError(Exception):
    """A step cannot run over tensors that stay; nothing is lost by running it another way."""


class Rerun:
    """Stands for a graph where there are none: it runs the function again."""

    def record(self, run: Callable[[], None]) -> None:
        self._run = run

    def replay(self) -> None:
        self._run()


class StaticStep:
    """A step of one shape. Its tensors hold tokens, positions, seeds and tables; a run moves them
    to the next step, so that one can follow another without the host."""

    def __init__(self, shape: Shape, model: Recordable, cache: PagedCache) -> None:
        self.shape, self._model, self._cache = shape, model, cache
        rows, device = shape.rows, cache.keys.device
        self._integers = torch.zeros(5, rows, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros(rows, shape.pages, dtype=torch.int32, device=device)
        self._parameters = torch.zeros(rows, 8, device=device)
        ends = torch.arange(rows + 1, device=device)
        none = ends[:0]
        self._batch = Batch(
            tokens=self._integers[_TOKEN], positions=self._integers[_POSITION],
            cu_seqlens=ends.int(), rows=none, block_tables=self._tables, lengths=self._lengths,
            slots=none, outputs=ends[:-1], counts=[1] * rows,
        )  # fmt: skip
        self._tape: Any = None
        self._is_warm = False
        self.logits = self.drawn = none  # of the last run

    # ---- from the host ---------------------------------------------------------------------------

    def load(self, rows: Rows) -> None:
        """Takes the sequences of the next run. Rows without one have no page, and stay."""
        count = len(rows.tokens)
        integers = torch.zeros(self._integers.shape, dtype=torch.int64)
        integers[_TOKEN, :count] = torch.tensor(rows.tokens)
        integers[_POSITION, :count] = torch.tensor(rows.lengths)
        integers[_MOVES, :count] = 1
        for row, given in ((_SEED, rows.seeds), (_NUMBER, rows.numbers)):
            if given:
                integers[row, :count] = torch.tensor(given)
        to_device(integers, self._integers)
        self._lengths.copy_(self._integers[_POSITION])
        if rows.parameters is not None:
            parameters = rows.parameters[:1].repeat(len(self._parameters), 1)
            parameters[:count] = rows.parameters
            to_device(parameters, self._parameters)
        self.load_tables(rows.tables)

    def load_tables(self, pages: Sequence[Sequence[int]]) -> None:
        tables = torch.full(self._tables.shape, NO_PAGE, dtype=torch.int32)
        for row, of in zip(tables, pages, strict=False):
            row[: len(of)] = torch.tensor(of, dtype=torch.int32)
        to_device(tables, self._tables)

    def load_tokens(self, tokens: Tensor) -> None:
        """Takes the next tokens (B,) from a device."""
        self._integers[_TOKEN, : len(tokens)].copy_(tokens)

    # ---- runs ------------------------------------------------------------------------------------

    def run(self, new_tape: Callable[[], Any]) -> None:
        """Runs a step: the first time as any function, which loads what is loaded lazily. The
        second time it is recorded."""
        if not self._is_warm:
            self._step()
            self._is_warm = True
            return
        if self._tape is None:
            tape = new_tape()
            tape.record(self._step)
            self._tape = tape
        self._tape.replay()

    @torch.no_grad()
    def _step(self) -> None:
        is_on_cuda = self._cache.keys.is_cuda
        with recorded_kernels() if is_on_cuda else nullcontext():
            self.logits = self._model(self._batch, self._cache)
        integers = self._integers
        if self.shape.stages is not None:
            self.drawn = SAMPLE_LOGITS(
                self.logits, self._parameters, integers[_SEED], integers[_NUMBER], None, None, None,
                None, -1, False, self.shape.stages,
            )[0]  # fmt: skip
            torch.clamp(self.drawn, min=0, out=integers[_TOKEN])  # -1 is no row of the embedding
        integers[_POSITION : _NUMBER + 1].add_(integers[_MOVES])
        self._lengths.copy_(integers[_POSITION])


class StaticSteps:
    """The steps of a model over a cache, by shape.

    On a GPU, numbers of sequences are rounded up to powers of two, and the rows that are added
    write nowhere (kernels of the CPU refuse them). Tables have as many pages as the longest
    sequence needs, rounded up likewise.

    Args:
        model: the model.
        cache: its cache.
    """

    padded_on = ("cuda",)

    def __init__(self, model: Recordable, cache: PagedCache) -> None:
        self._model, self._cache = model, cache
        self._device = cache.keys.device
        self._steps: dict[Shape, StaticStep] = {}
        self._state: Any = None
        self._held: list[Tensor] = []
        self._pool: Any = None
        self._side: Any = None
        self._stream: Any = None
        self.step: StaticStep | None = None
        self._is_refused = False

    def can(self) -> bool:
        """Whether steps can run: none was refused, and weights are not cast on the way, whose casts
        autocast would free."""
        return not self._is_refused and not any_autocast()

    def shape(self, rows: int, pages: int, stages: int | None) -> Shape:
        """The shape of a step of so many sequences, the longest with so many pages."""
        cache = self._cache
        least = cache.pages_of(_LEAST_TOKENS)
        padded = _power_of_two(rows) if self._device.type in self.padded_on else rows
        return Shape(
            min(padded, max(rows, cache.max_sequences)),
            min(max(_power_of_two(pages), least), max(pages, cache.pages_of(cache.max_length))),
            stages,
        )

    def load(self, rows: Rows) -> None:
        """Takes the sequences of the next step, and the step of their shape.

        Raises:
            CannotRecordError: the model cannot run like this; a warning has said why.
        """
        self.join()
        with self._refusing():
            self._check_state()
        shape = self.shape(len(rows.tokens), max(map(len, rows.tables)), rows.stages)
        if shape not in self._steps:
            with torch.inference_mode(False):  # later steps may run outside of it
                self._steps[shape] = StaticStep(shape, self._model, self._cache)
        self.step = self._steps[shape]
        self.step.load(rows)

    def launch(self) -> StaticStep:
        """Starts a step.

        Raises:
            CannotRecordError: it cannot run like this; a warning has said why.
        """
        step = self.step
        assert step is not None
        self.join()
        with self._refusing():
            step.run(self._new_tape)
        return step

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Ends that steps are recorded where something raises."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._is_refused, self.step, self._pool = True, None, None
            self._steps.clear()
            first = str(error).partition("\n")[0]
            warnings.warn(
                f"decode: steps are not replayed as graphs: {type(error).__name__}: {first}",
                RuntimeWarning, stacklevel=5,
            )  # fmt: skip
            raise CannotRecordError from error

    def join(self) -> None:
        """Lets the current stream wait for the steps that ran on another one."""
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _check_state(self) -> None:
        """Forgets what was recorded where the model has moved, or consists of other modules."""
        held, state = _state_of(self._model.read(self._cache))
        places = {x.device for x in held} - {self._device}
        if places:
            raise ArgumentValueError(f"the model is on {self._device} and {places.pop()}")
        if state != self._state:
            self._steps.clear()
            self._pool = None  # somebody may hold results in its memory
            self._held, self._state = held, state

    def _new_tape(self) -> Any:
        if self._device.type != "cuda":
            return Rerun()
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return Tape(self._device, self._pool, self._side)


def _state_of(parts: Sequence[nn.Module | Tensor]) -> tuple[list[Tensor], Any]:
    """The tensors of modules, to be held, and what tells whether they are still these."""
    held: list[Tensor] = []
    kinds: list[type] = []
    for part in parts:
        if isinstance(part, Tensor):
            held.append(part)
        else:
            held += [*part.parameters(), *part.buffers()]
            kinds += map(type, part.modules())
    held = [x.detach() for x in held]
    return held, (kinds, [(x.data_ptr(), x.shape, x.dtype) for x in held])


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def check_graphs(op: str, graphs: Any) -> None:
    if graphs is not True and graphs is not False and graphs != "auto":
        raise ArgumentValueError(f"{op}: graphs is {graphs!r}, expected True, False or 'auto'")


def wants_graphs(graphs: bool | str, device: torch.device) -> bool:
    """Whether ``graphs`` asks for steps that are recorded, on this device."""
    return graphs is True or (graphs == "auto" and device.type == "cuda")


def steps_of(model: Any, cache: Any, graphs: bool | str) -> StaticSteps | None:
    """The static steps of a model, where ``graphs`` asks for them and they can be."""
    fits = isinstance(cache, PagedCache) and cache.keys.dtype in _READ_IN_PAGES
    if not fits or not hasattr(model, "read") or not wants_graphs(graphs, cache.keys.device):
        return None
    return StaticSteps(model, cache)
