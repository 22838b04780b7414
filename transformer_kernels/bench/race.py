# SPDX-License-Identifier: MIT
"""Times whole training steps of several models in turn, or forward passes, and measures their
memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from transformer_kernels.bench import training
from transformer_kernels.bench.console import Progress
from transformer_kernels.bench.step import WARM_UP, Task
from transformer_kernels.measure import machine, table
from transformer_kernels.measure.schema import Result, StepTime
from transformer_kernels.measure.statistics import summarise
from transformer_kernels.measure.watch import peak_bytes

FORWARD = "forward pass"  # the setting ``pass`` of a result that is none of training


def measure(task: Task, device: torch.device, rounds: int, quiet: bool = False) -> Result:
    """Times each step by the clock, from its batch to its loss on the host. The memory of a step is
    its peak, with what a model keeps from one step to the next, such as CUDA graphs; without
    parameters and the optimizer's state."""
    runs = {n: training.Run.begin(m, task.recipe, device) for n, m in task.models.items()}
    with Progress("racing", (WARM_UP + 1 + rounds) * len(runs), quiet) as progress:

        def step(name: str) -> None:
            runs[name].step(task.loss_of, task.batch, device)
            # No room is taken by one model's gradients while the others run.
            runs[name].optimizer.zero_grad(set_to_none=True)
            progress.advance(name)

        peaks = {}
        for name, run in runs.items():  # one by one, so that compiling is not timed
            before = _allocated(device)
            for _ in range(WARM_UP):
                step(name)
            peak = _peak(run, partial(step, name), device)
            kept = _allocated(device) - before - _bytes_of_state(run.optimizer)
            peaks[name] = peak + max(0, kept)
        for run in runs.values():
            run.seconds.clear()
        for _ in range(rounds):
            for name in runs:
                step(name)
    rows = [_row(name, run, peaks[name]) for name, run in runs.items()]
    return machine.new_result(device, settings={}, step_times=rows)


def peaks(task: Task, device: torch.device) -> dict[str, int]:
    """The most memory that a step of each model takes, in bytes; steps before it leave the
    optimizer's state."""
    found = {}
    for name, model in task.models.items():
        run = training.Run.begin(model, task.recipe, device)
        step = partial(run.step, task.loss_of, task.batch, device)
        step()
        found[name] = _peak(run, step, device)
    return found


def _peak(run: training.Run, step: Callable[[], None], device: torch.device) -> int:
    run.optimizer.zero_grad(set_to_none=True)
    return peak_bytes(step, device)


def _allocated(device: torch.device) -> int:
    """The bytes of all tensors on a GPU; 0 on a CPU, where nothing counts them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _bytes_of_state(optimizer: torch.optim.Optimizer) -> int:
    states = (x for state in optimizer.state.values() for x in state.values())
    return sum(x.nbytes for x in states if isinstance(x, torch.Tensor))


def _row(name: str, run: training.Run, peak: int) -> StepTime:
    found = summarise([1e6 * seconds for seconds in run.seconds])
    return StepTime(name, found.median, found.p10, found.p90, found.samples, peak)


def _memory(row: StepTime, first: StepTime) -> tuple[str, str]:
    """The peak of a step in MiB, and its share of the first model's."""
    if row.peak_bytes is None or first.peak_bytes is None:
        return table.ABSENT, table.ABSENT
    return f"{row.peak_bytes / 2**20:.0f}", f"{100 * row.peak_bytes / first.peak_bytes:.0f} %"


def is_forward(result: Result) -> bool:
    """Whether forward passes were timed, instead of steps of training."""
    return result.settings.get("pass") == FORWARD


def subject(result: Result) -> str:
    """The model, its batch and how it ran; what was timed is left to a title."""
    return ", ".join(value for name, value in result.settings.items() if name != "pass")


def render(result: Result) -> str:
    """A line for each model, compared with the first one."""
    first = result.step_times[0]
    what, unit = (
        ("FORWARD PASSES", "ms a pass")
        if is_forward(result)
        else ("STEPS OF TRAINING", "ms a step")
    )
    headings = [("Model", 12), (unit, 9), ("p10", 7), ("p90", 7), ("speed-up", 8),
                ("MiB at peak", 11), ("share", 6)]  # fmt: skip
    body = [
        [
            row.model,
            *(f"{us / 1e3:.2f}" for us in (row.median_us, row.p10_us, row.p90_us)),
            f"{first.median_us / row.median_us:.2f}x",
            *_memory(row, first),
        ]
        for row in result.step_times
    ]
    title = f"{what} IN TURN ({result.machine.device_name})"
    return table.box(title, subject(result), headings, body)
