# SPDX-License-Identifier: MIT
"""Runs a window of the program under PyTorch's profiler, and marks where it and its steps begin."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from typing_extensions import Self

from .._errors import ArgumentValueError
from ._arguments import as_call, as_device
from .trace import Event, Trace

_BEGIN, _STEP, _END = "tfk: begin", "tfk: step", "tfk: end"

P = ParamSpec("P")
R = TypeVar("R")


class Profiler:
    """The base of the profilers: a context manager, and a decorator that makes each call a window.

    A profiler can run any number of windows; its report describes the last one.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = as_device(self.title, device)
        self._running = False

    @property
    def title(self) -> str:
        return type(self).__name__

    def _start(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._running:
            raise ArgumentValueError(f"{self.title}: it is running, expected one that is not")
        self._start()
        self._running = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running = False
        self._stop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        as_call(self.title, "function", function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return run

    def _recorded(self, found: R | None) -> R:
        """Returns what the last window recorded; raises where there is none."""
        if found is None or self._running:
            raise ArgumentValueError(
                f"{self.title}: nothing was recorded, expected a window that has ended"
            )
        return found

    def _require_running(self, what: str) -> None:
        if not self._running:
            raise ArgumentValueError(
                f"{self.title}: {what} is called outside its window, expected it inside"
            )


class TraceProfiler(Profiler):
    """The base of profilers that trace their window with PyTorch's profiler."""

    _memory = False

    def __init__(self, device: Any = None) -> None:
        super().__init__(device)
        self._profile: Any = None
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The trace of the last window."""
        return self._recorded(self._trace)

    def step(self) -> None:
        """Marks the end of a step, such as a training step; figures are given per step."""
        self._require_running("step")
        _mark(_STEP)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trace for chrome://tracing or https://ui.perfetto.dev."""
        return _write(Path(path), self.trace.text)

    def export_tensorboard_trace(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the trace where TensorBoard's profiler plugin finds it; no package is needed for
        that."""
        name = f"{self.title}.{time.time_ns()}.pt.trace.json"
        return _write(Path(folder) / name, self.trace.text)

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise ArgumentValueError(
                f"{self.title}: PyTorch's profiler is running, expected one at a time"
            )
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when the profiler first starts
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities, record_shapes=True, profile_memory=self._memory,
        )  # fmt: skip
        self._synchronize()
        self._profile.__enter__()
        _mark(_BEGIN)

    def _stop(self) -> None:
        self._synchronize()
        _mark(_END)
        self._profile.__exit__(None, None, None)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            self._trace = Trace(path.read_bytes())
        self._profile = None

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Window:
    """The part of a trace that is the window, and the ends of its steps."""

    def __init__(self, trace: Trace) -> None:
        begins, ends = _marks(trace, _BEGIN), _marks(trace, _END)
        self.begin = begins[0].end if begins else min(_starts(trace), default=0.0)
        self.end = ends[-1].start if ends else max(_ends(trace), default=self.begin)
        self.step_ends = [mark.start for mark in _marks(trace, _STEP)]

    @property
    def duration(self) -> float:
        return self.end - self.begin

    @property
    def steps(self) -> int:
        """The number of steps; 1 where none was marked."""
        return max(1, len(self.step_ends))


def _mark(name: str) -> None:
    with record_function(name):
        pass


def _marks(trace: Trace, name: str) -> list[Event]:
    return [event for event in trace.annotations if event.name == name]


def _starts(trace: Trace) -> list[float]:
    return [event.start for event in [*trace.roots, *trace.on_device]]


def _ends(trace: Trace) -> list[float]:
    return [event.end for event in [*trace.roots, *trace.on_device]]


def _write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
