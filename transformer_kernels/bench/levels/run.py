# SPDX-License-Identifier: MIT
"""Verifies the block in every level, times all levels in rotation, and observes each once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from transformer_kernels.bench.console import Progress
from transformer_kernels.bench.levels.calls import BackwardWatch, Calls
from transformer_kernels.levels import LEVELS, Block
from transformer_kernels.measure import machine, watch
from transformer_kernels.measure.case import dtype_name
from transformer_kernels.measure.schema import (
    LevelCount,
    LevelPass,
    LevelRow,
    Result,
    SchemaError,
    Skip,
    load,
)
from transformer_kernels.measure.sweeps import Shape, shape_text
from transformer_kernels.measure.timing import EventTimer, Stopwatch, Timer, WallTimer, interleave
from transformer_kernels.testing import levels as held

PASSES = ("forward", "backward", "step")
_SEED = 0
_INTERPRETED_TIME = 9  # tokens; an interpreter runs few, because only results are wanted
# About 15 ms, which the host takes to enqueue a step of every level.
_HEAD_START_CYCLES = 30_000_000


@dataclass(frozen=True)
class Settings:
    device: torch.device
    dtype: torch.dtype
    shape: Shape  # batch, time, channels
    heads: int
    causal: bool = True
    levels: Sequence[str] = tuple(LEVELS)
    seconds: float = 0.5  # of timing per pass

    def __str__(self) -> str:
        causal = ", causal" if self.causal else ""
        return f"{shape_text(self.shape)}, {self.heads} heads{causal}"


def run(settings: Settings, quiet: bool = False) -> Result:
    """Rows of the levels that run here, and the reasons why others do not."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when the profiler first starts
    torch._dynamo.reset()  # earlier sizes would make these dynamic, and kernels slower
    with watch.named_kernels(settings.device):
        return _Run(settings, quiet).result()


def _interpreted(settings: Settings) -> Result:
    """Runs the Triton level on a CPU in a child process: Triton reads whether to interpret when it
    is imported, which PyTorch has done by now."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "levels.json"
        command = [
            sys.executable, "-m", "transformer_kernels", "levels", "--levels", "triton",
            "--device", settings.device.type, "--dtype", dtype_name(settings.dtype),
            "--shape", shape_text(settings.shape), "--heads", str(settings.heads),
            *([] if settings.causal else ["--no-causal"]), "--quiet", "--json", str(path),
        ]  # fmt: skip
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if child.returncode:
            raise RuntimeError((child.stderr.splitlines() or ["no word from it"])[-1])
        return load(path)


@dataclass(frozen=True)
class _Problem:
    """The inputs that a level is verified on, and the results of PyTorch and of float64."""

    x: Tensor
    dy: Tensor
    native: held.Results
    expected: held.Results


class _Run:
    def __init__(self, settings: Settings, quiet: bool) -> None:
        self._settings = settings
        self._quiet = quiet
        self._skipped: list[Skip] = []
        self._problems: dict[bool, _Problem] = {}
        torch.manual_seed(_SEED)
        _, _, dim = settings.shape
        self._native = Block(
            "torch", dim, settings.heads, causal=settings.causal, device=settings.device,
            dtype=settings.dtype,
        )  # fmt: skip
        self._x, self._dy = self._normal(settings.shape), self._normal(settings.shape)

    def result(self) -> Result:
        settings, steps = self._settings, len(self._settings.levels)
        with Progress("levels", 2 * steps + len(PASSES), self._quiet) as progress:
            blocks, rows = {}, []
            for name, block in held.twins(self._native, settings.levels).items():
                row = self._verified(name, block)
                progress.advance(f"{name}: verified" if row else f"{name}: left out")
                if row is not None:
                    rows.append(row)
                    blocks[name] = block
            timed = [row.level for row in rows if row.note is None]
            calls = {name: Calls(blocks[name], self._x, self._dy) for name in timed}
            times = {pass_: self._timed(pass_, calls, progress) for pass_ in PASSES}
            for i, row in enumerate(rows):
                progress.advance(f"{row.level}: counted")
                if row.level in timed:
                    passes = [times[pass_][row.level] for pass_ in PASSES]
                    rows[i] = replace(self._counted(row, calls[row.level]), passes=passes)
        return machine.new_result(
            settings.device,
            settings={"timer": _timer(settings.device).name},
            skipped=self._skipped,
            levels=rows,
        )

    def _verified(self, name: str, block: Block) -> LevelRow | None:
        """The level's row with only its error; None where it cannot run or is wrong."""
        device = self._settings.device
        interprets = os.environ.get("TRITON_INTERPRET") == "1"
        if name == "triton" and device.type == "cpu" and not interprets:
            return self._verified_by_child(name)
        if (reason := block.level.why_absent(device)) is not None:
            self._leave_out(name, reason)
            return None
        untimed = block.level.why_untimed(device)
        problem = self._problem(untimed is not None)
        try:
            found = held.results(block, problem.x, problem.dy)
        except Exception as error:  # whatever a compiler or a full memory raises
            lines = str(error).splitlines() or [""]
            self._leave_out(name, f"{type(error).__name__}: {lines[0]}")
            return None
        if broken := held.violations(found, problem.native, problem.expected):
            self._leave_out(name, f"wrong: {broken[0]}")
            return None
        settings = self._settings
        return LevelRow(
            level=name,
            dtype=dtype_name(settings.dtype),
            shape=list(settings.shape),
            heads=settings.heads,
            causal=settings.causal,
            error=max(_relative_error(found[key], x) for key, x in problem.expected.items()),
            note=None if untimed is None else f"{untimed}, of {shape_text(problem.x.shape)}",
        )

    def _verified_by_child(self, name: str) -> LevelRow | None:
        try:
            found = _interpreted(self._settings)
        except (RuntimeError, SchemaError) as error:
            self._leave_out(name, f"Triton's interpreter: {error}")
            return None
        self._skipped += found.skipped
        return found.levels[0] if found.levels else None

    def _problem(self, interpreted: bool) -> _Problem:
        if interpreted not in self._problems:
            x, dy = self._x, self._dy
            if interpreted:
                x, dy = (tensor[:1, :_INTERPRETED_TIME].contiguous() for tensor in (x, dy))
            native, expected = (of(self._native, x, dy) for of in (held.results, held.exact))
            self._problems[interpreted] = _Problem(x, dy, native, expected)
        return self._problems[interpreted]

    def _leave_out(self, name: str, reason: str) -> None:
        self._skipped.append(Skip(str(self._settings), name, reason))

    def _timed(
        self, pass_: str, calls: dict[str, Calls], progress: Progress
    ) -> dict[str, LevelPass]:
        timer = _timer(self._settings.device)
        watches: dict[str, Stopwatch] = {}
        for name, of in calls.items():
            if pass_ == "backward":
                watches[name] = BackwardWatch(of.graph, self._settings.device)
            else:
                watches[name] = timer.stopwatch([getattr(of, pass_)])
        found = interleave(watches, timer, self._settings.seconds) if watches else {}
        progress.advance(f"{pass_}: timed")
        return {
            name: LevelPass(pass_, taken.median, taken.p10, taken.p90, taken.samples)
            for name, taken in found.items()
        }

    def _counted(self, row: LevelRow, calls: Calls) -> LevelRow:
        device, hides = self._settings.device, LEVELS[row.level].hides
        counts = []
        for pass_ in ("forward", "both"):
            call = getattr(calls, pass_)
            seen = watch.operators(call) if hides is None else None
            ran = watch.kernels(call, device) if device.type == "cuda" or not seen else seen.names
            moved = seen.bytes if seen else None
            counts.append(LevelCount(pass_, ran or None, moved, watch.peak_bytes(call, device)))
        return replace(row, counts=counts, note=f"bytes not counted: {hides}" if hides else None)

    def _normal(self, shape: Shape) -> Tensor:
        return torch.randn(*shape, device=self._settings.device, dtype=self._settings.dtype)


def _timer(device: torch.device) -> Timer:
    return EventTimer(_HEAD_START_CYCLES) if device.type == "cuda" else WallTimer()


def _relative_error(found: Tensor, expected: Tensor) -> float:
    size = float(expected.norm())
    return float((found.double() - expected).norm()) / size if size else 0.0
