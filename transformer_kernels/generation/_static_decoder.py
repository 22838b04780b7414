# SPDX-License-Identifier: MIT
"""Sequences of equal length whose token is a step over tensors that stay, replayed on a GPU."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._library import log_dispatch
from .._torch import any_autocast
from ..decode import Batch
from ..decode._static import CannotRecordError, Rows, StaticSteps, steps_of
from ._paged import paged

_PAGE = 64
_ROOM = 256  # lengths of caches are multiples of it, so that the next text finds one long enough
_KEPT = "_tfk_decoding"
_lock = threading.Lock()


class Kept:
    """The decoder of a model's last text, for the next one. A copy of the model has none."""

    decoder: StaticDecoder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()


class StaticDecoder:
    """Decodes a batch. Its cache has pages of its own for each sequence.

    Args:
        served: the model over packed rows.
        like: a parameter of the model.
        batch: number of sequences.
        capacity: the most tokens of a sequence.
        graphs: as in ``generate``.
    """

    is_ahead = True

    def __init__(
        self, served: Any, like: Tensor, batch: int, capacity: int, graphs: bool | str
    ) -> None:
        self._served, self.batch, self._kind = served, batch, (like.dtype, like.device)
        pages = -(-capacity // _PAGE)
        self.cache = served.new_cache(
            batch * pages, page_size=_PAGE, max_sequences=batch, max_length=pages * _PAGE,
            share_prefixes=False,
        )  # fmt: skip
        every = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages)
        self._pages: Sequence[Sequence[int]] = every.tolist()
        self._tables = every.to(self.cache.keys.device)
        self._steps: StaticSteps | None = steps_of(served, self.cache, graphs)
        self._ready = -1  # the length for which the tensors of the next step are
        self.length = 0

    def fits(self, batch: int, capacity: int, like: Tensor) -> bool:
        """Whether it serves such a batch of a model that has this parameter."""
        is_as_before = self._kind == (like.dtype, like.device)
        return is_as_before and self.batch == batch and self.cache.max_length >= capacity

    def can(self) -> bool:
        """Whether its steps are static."""
        return self._steps is not None and self._steps.can()

    def extend(self, tokens: Tensor, keep: int = 1) -> Tensor:
        if self._steps is not None:
            self._steps.join()
        if tokens.shape[1] == 1 and self._steps is not None and self.can():
            try:
                return self._replayed(self._steps, tokens[:, 0])
            except CannotRecordError:  # a warning has said why
                self._ready = -1
        logits: Tensor = self._served(self._rows(tokens, keep), self.cache)
        self.length += tokens.shape[1]
        return logits.unflatten(0, (self.batch, -1))

    def rewind(self, length: int) -> None:
        self.length = min(length, self.length)

    def _replayed(self, steps: StaticSteps, tokens: Tensor) -> Tensor:
        """The logits of a step, which the next one overwrites."""
        pages = self.cache.pages_of(self.length + 1)
        if self._ready != self.length or steps.step is None or pages > steps.step.shape.pages:
            width = steps.shape(self.batch, pages, None).pages
            tables = [of[:width] for of in self._pages]
            steps.load(Rows([0] * self.batch, [self.length] * self.batch, tables))
        assert steps.step is not None
        steps.step.load_tokens(tokens)
        self._ready = -1
        logits = steps.launch().logits[: self.batch, None]
        self.length += 1
        self._ready = self.length
        return logits

    def _rows(self, tokens: Tensor, keep: int) -> Batch:
        (batch, count), device = tokens.shape, tokens.device
        positions = torch.arange(self.length, self.length + count, device=device)
        tables = self._tables[:, : self.cache.pages_of(self.length + count)].contiguous()
        slots = tables.long()[:, positions // _PAGE] * _PAGE + positions % _PAGE
        firsts = torch.arange(0, (batch + 1) * count, count, device=device)
        last = torch.arange(count - keep, count, device=device)
        return Batch(
            tokens=tokens.flatten().long(), positions=positions.repeat(batch),
            cu_seqlens=firsts.int(), rows=torch.arange(batch, device=device), block_tables=tables,
            lengths=torch.full((batch,), self.length, dtype=torch.int32, device=device),
            slots=slots.flatten(), outputs=(firsts[:-1, None] + last).flatten(),
            counts=[count] * batch,
        )  # fmt: skip

    def try_out(self) -> None:
        """Runs a step, so that a model that cannot run like this says so."""
        tokens = torch.zeros(self.batch, 1, dtype=torch.int64, device=self.cache.keys.device)
        self._served(self._rows(tokens, 1), self.cache)

    def serve(self, model: Any) -> None:
        """Begins a text of the model that has kept the decoder."""
        self._served.model = model
        if hasattr(self._served, "serve"):  # one of transformers
            self._served.serve()

    def rest(self, model: Any) -> None:
        """Ends a text. The model keeps the decoder for the next one, which holds no model: neither
        would be freed before Python looks for cycles."""
        self.length, self._ready = 0, -1
        if hasattr(self._served, "rest"):
            self._served.rest()
        self._served.model = None
        with _lock:
            model.__dict__.setdefault(_KEPT, Kept()).decoder = self


def static_decoder(
    model: Any, batch: int, capacity: int, graphs: bool | str
) -> StaticDecoder | None:
    """The decoder that the model has kept, where it fits, or a new one; None where the model does
    not run like this, which the log says, and a warning where graphs were asked for."""
    if any_autocast():
        return None
    like = next(model.parameters())
    with _lock:
        kept = model.__dict__.get(_KEPT, Kept())
        found, kept.decoder = kept.decoder, None
    if found is not None and found.fits(batch, capacity, like) and found.can():
        found.serve(model)
        return found
    del found, kept  # its memory is free for the new one
    served: Any = None
    serves = False
    try:
        served = paged(model)
        with torch.inference_mode(False):  # the next text may be written outside of it
            made = StaticDecoder(served, like, batch, -(-capacity // _ROOM) * _ROOM, graphs)
        if made.can():
            made.try_out()
            serves = True
            return made
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        text = f"generate: {type(model).__name__} keeps its own cache, without graphs: {first}"
        log_dispatch(text)
        if graphs is True:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    finally:
        if not serves and hasattr(served, "rest"):
            served.rest()
    return None
