# SPDX-License-Identifier: MIT
"""Runs problems: verifies every provider, then times all of them and the copy in rotation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from transformer_kernels.bench import kernels, providers
from transformer_kernels.bench.console import Progress
from transformer_kernels.measure import ceilings, cold, heap, machine
from transformer_kernels.measure.case import Arguments, Case, Problem, UnsupportedError, dtype_name
from transformer_kernels.measure.schema import Result, Row, Skip
from transformer_kernels.measure.statistics import Summary
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.measure.timing import Call, Stopwatch, Timer, interleave, make_timer
from transformer_kernels.measure.verify import Reference

# A rival that rounds more often than ours is still timed; its row states its error.
_RIVALS = [name for name in providers.PROVIDERS if name not in ("triton", "packed", "ours")]
_ALLOWANCE = dict.fromkeys(_RIVALS, 4)


@dataclass(frozen=True)
class Settings:
    ops: Sequence[Case]
    passes: Sequence[str]
    dtypes: Sequence[torch.dtype]
    shapes: Callable[[Case, torch.dtype], Sequence[Shape]]
    device: torch.device
    providers: Sequence[str] = providers.PROVIDERS
    outputs: Sequence[str] = heap.OUTPUTS[:1]  # only on a CPU: a GPU's allocator keeps its memory
    weight_dtypes: Sequence[torch.dtype | None] = (None,)  # None for the input's dtype
    timer: str = "graph"
    seconds: float = 0.5  # per problem
    compile_mode: str = "default"
    find_kernels: bool = True
    # One problem of each op comes first, from the smallest up; what takes longer is left out.
    budget_seconds: float | None = None
    left_out: Collection[tuple[str, str]] = ()  # ops and their passes

    def problems(self) -> list[Problem]:
        """The problems, each once: without parameters, weight dtypes make no difference."""
        return list(
            dict.fromkeys(
                Problem(op.name, pass_, dtype, weight_dtype or dtype, tuple(shape))
                for op in self.ops
                for pass_ in self.passes
                for dtype in self.dtypes
                for weight_dtype in (self.weight_dtypes if op.parameters else (None,))
                for shape in self.shapes(op, dtype)
                if pass_ in op.passes and (op.name, pass_) not in self.left_out
            )
        )


def run(settings: Settings, quiet: bool = False) -> Result:
    with torch.no_grad():
        return _Run(settings).result(quiet)


@dataclass(frozen=True)
class _Candidate:
    provider: str
    calls: Sequence[Call]
    error: float | None
    peak_bytes: int | None = None


class _Run:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._device = settings.device
        self._ops = {op.name: op for op in settings.ops}
        self._timer: Timer = make_timer(settings.device, settings.timer)
        self._heap = heap.Heap()
        self._compiled = providers.Compiled(settings.compile_mode)
        self._rows: dict[Problem, list[Row]] = {}
        self._skipped: list[Skip] = []
        self._kernels: dict[Problem, str] = {}

    def result(self, quiet: bool) -> Result:
        problems = self._settings.problems()
        computed = {p.dtype for p in problems if self._ops[p.op].flops is not None}
        measured = ceilings.measure_ceilings(self._timer, self._device, computed)
        present = self._present_providers()
        if "ours" in present and self._settings.find_kernels:
            self._kernels = kernels.chosen_kernels(problems, self._device)
        self._measure_all(self._in_rounds(problems), present, quiet)
        return machine.new_result(
            self._device,
            settings=self._describe_settings(),
            ceilings=measured,
            rows=[row for problem in problems for row in self._rows.get(problem, [])],
            skipped=self._skipped,
        )

    def _measure_all(
        self, problems: Sequence[Problem], present: Sequence[str], quiet: bool
    ) -> None:
        """Measures all problems. Rows from before the end of the budget, or an interrupt, are
        kept."""
        deadline = time.monotonic() + (self._settings.budget_seconds or math.inf)
        ended = None
        with Progress("measuring", len(problems), quiet) as progress:
            for problem in problems:
                if time.monotonic() >= deadline:
                    ended = ended or "the time was used up"
                if ended is None:
                    try:
                        self._measure(problem, present)
                    except KeyboardInterrupt:
                        ended = "interrupted"
                if ended is not None:
                    self._skipped.append(Skip(str(problem), "all", ended))
                progress.advance(str(problem))

    def _in_rounds(self, problems: Sequence[Problem]) -> list[Problem]:
        """Orders the problems so that each op has had one before any op has another, of each op
        the smallest first."""
        of_op: dict[str, list[Problem]] = {}
        for problem in sorted(problems, key=self._size):
            of_op.setdefault(problem.op, []).append(problem)
        rounds = zip_longest(*(of_op[name] for name in self._ops if name in of_op))
        return [problem for each in rounds for problem in each if problem is not None]

    def _size(self, problem: Problem) -> int:
        return self._ops[problem.op].elements(problem.shape)

    def _describe_settings(self) -> dict[str, str]:
        return {
            "timer": self._timer.name,
            "compile_mode": self._settings.compile_mode,
            "seconds_per_problem": str(self._settings.seconds),
            "threads": str(torch.get_num_threads()),
        }

    def _present_providers(self) -> list[str]:
        present = []
        for provider in self._settings.providers:
            reason = providers.why_absent(provider, self._device)
            if reason is None:
                present.append(provider)
            else:
                self._skipped.append(Skip("all", provider, reason))
        return present

    def _measure(self, problem: Problem, present: Sequence[str]) -> None:
        op = self._ops[problem.op]
        self._compiled.reset()
        self._timer = make_timer(self._device, self._settings.timer)
        _release_memory(self._device)
        if self._device.type == "cpu":
            self._heap.keep_apart()
        if not self._fits(op, problem):
            self._skipped.append(Skip(str(problem), "all", "does not fit into the memory"))
            return
        first = op.make(problem, self._device)
        moved = op.bytes_moved(problem.pass_, first)
        extra = cold.sets_of(moved, self._device) - 1
        sets = [first, *(op.make(problem, self._device) for _ in range(extra))]
        candidates = self._candidates(op, problem, present, sets)
        is_cold = cold.is_cold(moved, len(sets), self._device)
        copies = {
            f"copy {name}": cold.cycle(calls, moved, 0, self._device)
            for name, calls in ceilings.copy_calls(moved, len(sets), self._device).items()
        }
        for outputs in self._settings.outputs:
            if self._device.type == "cpu":
                self._heap.choose(outputs)
            started = [(c, self._start_watch(problem, c)) for c in candidates]
            watches = {c.provider: watch for c, watch in started if watch is not None}
            kept = {c.provider: c for c in candidates if c.provider in watches}
            watches |= {name: self._timer.stopwatch(calls) for name, calls in copies.items()}
            summaries = interleave(watches, self._timer, self._settings.seconds)
            self._add_rows(problem, moved, is_cold, kept, summaries, outputs)

    def _start_watch(self, problem: Problem, candidate: _Candidate) -> Stopwatch | None:
        try:
            return self._timer.stopwatch(candidate.calls)
        except Exception as error:  # it cannot be captured, or memory is full, ...
            self._skip(problem, candidate.provider, error)
            return None

    def _candidates(
        self, op: Case, problem: Problem, present: Sequence[str], sets: Sequence[Arguments]
    ) -> list[_Candidate]:
        reference = Reference(op, problem.pass_, sets[0])
        moved = op.bytes_moved(problem.pass_, sets[0])
        flops = self._flops(problem)
        found = [self._candidate(op, problem, name, sets, reference) for name in present]
        return [
            replace(c, calls=cold.cycle(c.calls, moved, flops, self._device))
            for c in found
            if c is not None
        ]

    def _candidate(
        self,
        op: Case,
        problem: Problem,
        provider: str,
        sets: Sequence[Arguments],
        reference: Reference,
    ) -> _Candidate | None:
        try:
            build = op.build(provider, problem.pass_, self._compiled)
            calls = [build(arguments) for arguments in sets]
            error = reference.check(calls[0], _ALLOWANCE.get(provider, 1))
            peak = machine.peak_bytes(calls[0], self._device)
        except Exception as reason:  # a rival may fail in any way, and the others go on
            self._skip(problem, provider, reason)
            return None
        return _Candidate(provider, calls, error, peak)

    def _skip(self, problem: Problem, provider: str, error: Exception) -> None:
        lines = str(error).splitlines() or [""]
        name = "" if isinstance(error, UnsupportedError) else f"{type(error).__name__}: "
        self._skipped.append(Skip(str(problem), provider, f"{name}{lines[0]}"[:300]))

    def _fits(self, op: Case, problem: Problem) -> bool:
        """Whether arguments, results and the copy that they are compared with fit into memory."""
        needed = 4 * op.elements(problem.shape) * problem.dtype.itemsize
        return needed < 2 * cold.MEMORY_SHARE * machine.free_memory_bytes(self._device)

    def _add_rows(
        self,
        problem: Problem,
        moved: int,
        is_cold: bool,
        candidates: Mapping[str, _Candidate],
        summaries: Mapping[str, Summary],
        outputs: str,
    ) -> None:
        copies = {n: s for n, s in summaries.items() if n not in candidates}
        best_copy = min(copies, key=lambda name: copies[name].median)
        copy = self._row(problem, copies[best_copy], moved, is_cold)
        rows = self._rows.setdefault(problem, [])
        if not rows:
            rows.append(replace(copy, kernel=best_copy.removeprefix("copy ")))
        for name, candidate in candidates.items():
            row = self._row(problem, summaries[name], moved, is_cold)
            rows.append(
                replace(
                    row,
                    provider=name,
                    outputs=outputs,
                    pct_copy=100 * copy.median_us / row.median_us,
                    tflops=self._tflops(problem, row.median_us),
                    error=candidate.error,
                    peak_bytes=candidate.peak_bytes,
                    kernel=self._kernels.get(problem) if name == "ours" else None,
                )
            )

    def _flops(self, problem: Problem) -> float:
        """The operations of a problem; 0 where arithmetic is not the bound."""
        flops = self._ops[problem.op].flops
        return flops(problem.pass_, problem.shape) if flops else 0.0

    def _tflops(self, problem: Problem, microseconds: float) -> float | None:
        return self._flops(problem) / microseconds / 1e6 or None

    def _row(self, problem: Problem, summary: Summary, moved: int, is_cold: bool) -> Row:
        """A row with the figures of the copy, which a provider's row then replaces."""
        has_parameters = bool(self._ops[problem.op].parameters)
        return Row(
            op=problem.op,
            pass_=problem.pass_,
            dtype=dtype_name(problem.dtype),
            weight_dtype=dtype_name(problem.weight_dtype) if has_parameters else None,
            shape=list(problem.shape),
            provider="copy",
            outputs="reused",
            median_us=summary.median,
            p10_us=summary.p10,
            p90_us=summary.p90,
            samples=summary.samples,
            bytes=moved,
            gbps=moved / summary.median / 1e3,
            pct_copy=None,
            error=None,
            kernel=None,
            timer=self._timer.name,
            cold=is_cold,
        )


def _release_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
