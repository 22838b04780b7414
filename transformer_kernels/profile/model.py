# SPDX-License-Identifier: MIT
"""``profile_model_inference`` reports what a model's forward pass costs, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from .._errors import ArgumentTypeError
from .._torch import evaluating
from . import work
from ._arguments import Inputs, as_inputs, at_least, device_of
from ._recording import Window
from ._report import Report, flat, mega, microseconds, number, percent, table
from .kernels import KernelProfiler, KernelReport
from .memory import MemoryProfiler
from .timing import Timing, measure
from .trace import Event, Trace

_WHO = "profile_model_inference"
_MODULE = "tfk: module "
_TRACED_CALLS = 3


@dataclass(frozen=True)
class ModuleRow:
    """A module of the model, including all modules inside it."""

    path: str
    kind: str
    calls: float  # per forward pass
    host_us: float  # per forward pass
    kernel_us: float | None  # of the GPU kernels that it launched; None on a CPU
    share: float  # of the forward pass


@dataclass(frozen=True)
class ModelReport(Report):
    """A model's forward pass in inference."""

    model: str
    device: str
    parameters: int
    parameter_bytes: int
    timing: Timing
    items: int | None  # size of the first dimension of the first tensor
    bytes: int | None  # read and written by all operators; None where a compiled model hides them
    flops: float | None
    peak_bytes: int  # beyond parameters and inputs
    kernels: KernelReport
    modules: list[ModuleRow]
    note: str | None = None  # what the report leaves out, and why

    @property
    def items_per_second(self) -> float | None:
        return None if self.items is None else self.items / self.timing.median * 1e6

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "items_per_second": self.items_per_second}

    def records(self) -> list[dict[str, Any]]:
        """One row per module."""
        return flat(self.modules)

    def scalars(self) -> dict[str, float]:
        return {
            "inference/median_us": self.timing.median,
            "inference/peak_bytes": self.peak_bytes,
            **self.kernels.scalars(),
        }

    def text(self, rows: int = 12) -> str:
        shown = at_least("ModelReport.text", "rows", rows, 0)
        parts = [self._summary()]
        if self.modules:
            parts.append(self._module_table(shown))
        parts.append(self.kernels.text(shown))
        if self.note is not None:
            parts.append(self.note)
        return "\n".join(parts)

    def _summary(self) -> str:
        timing, tflops = self.timing, None
        if self.flops:
            tflops = self.flops / timing.median / 1e6
        rows = {
            "time": f"{microseconds(timing.median)} us ±{percent(timing.spread)}",
            "throughput": f"{number(self.items_per_second)} items/s",
            "parameters": f"{self.parameters} of {mega(self.parameter_bytes)} MB",
            "memory": f"{mega(self.peak_bytes)} MB at the peak",
            "operations": f"{mega(self.flops)} MFLOP, {number(tflops, '.3f')} TFLOP/s",
            "moved": f"{mega(self.bytes)} MB by operators",
            "launches": f"{self.kernels.launches / self.kernels.steps:g}",
            "our ops": f"{percent(self.kernels.share_of_ours)} of the time",
        }
        headings = [("Inference", 16), (self.kernels.device_name, 24)]
        body = [[name, value] for name, value in rows.items()]
        return table(f"INFERENCE: {self.model}", f"timed by {timing.timer}", headings, body)

    def _module_table(self, rows: int) -> str:
        headings = [("Module", 24), ("kind", 12), ("calls", 5), ("host us", 9),
                    ("kernels us", 10), ("share", 7)]  # fmt: skip
        body = [
            [
                row.path, row.kind, f"{row.calls:g}", microseconds(row.host_us),
                microseconds(row.kernel_us), percent(row.share),
            ]
            for row in self.modules[:rows]
        ]  # fmt: skip
        return table("MODULES", "each with those in it, the longest first", headings, body)


def profile_model_inference(
    model: nn.Module, inputs: Any, *, warmup: int | None = None, seconds: float = 0.5
) -> ModelReport:
    """Times, counts and traces ``model(*inputs)`` without gradients, in evaluation mode.

    The time is measured first, with nothing attached to the model. Then its operators are counted,
    and its kernels, modules and memory are traced. The model's mode is restored.

    Args:
        model: the model. Its hooks run as usual; a model from torch.compile is reported without
            modules.
        inputs: a tensor, a sequence of arguments, or a dict of them by name.
        warmup: calls before the timing; by default until calls get no faster.
        seconds: duration of the timing.

    >>> model, x = tfk.nn.MLP(64, 256), torch.randn(8, 64)
    >>> report = tfk.profile.profile_model_inference(model, x, warmup=1, seconds=0.01)
    >>> report.parameters
    33088
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"{_WHO}: model is {type(model).__name__}, expected an nn.Module")
    given = as_inputs(_WHO, inputs)
    device = device_of(_WHO, given)
    call = partial(model, *given[0], **given[1])
    hidden = _hidden(model)
    with evaluating(model.modules()), torch.no_grad():
        name = type(model).__name__
        times = measure(_WHO, {name: model}, given, device, warmup, None, seconds, "events")
        counted = None if hidden else _counted(call)
        with MemoryProfiler(device) as memory:
            call()
        with _named_modules(model, hidden is None), KernelProfiler(device) as kernels:
            for _ in range(_TRACED_CALLS):
                call()
                kernels.step()
    return ModelReport(
        model=name,
        device=device.type,
        parameters=sum(p.numel() for p in model.parameters()),
        parameter_bytes=sum(p.nbytes for p in model.parameters()),
        timing=times[name],
        items=_items(given),
        bytes=counted.bytes if counted else None,
        flops=counted.flops if counted else None,
        peak_bytes=memory.report.peak_bytes,
        kernels=kernels.report,
        modules=_module_rows(kernels.trace, dict(model.named_modules()), device),
        note=hidden,
    )


def _hidden(model: nn.Module) -> str | None:
    """The reason why modules and operators cannot be told apart; None where they can."""
    if isinstance(model, torch._dynamo.OptimizedModule):
        return "modules, bytes and operations are hidden by torch.compile"
    if isinstance(model, torch.jit.ScriptModule):
        return "modules, bytes and operations are hidden by TorchScript"
    return None


def _counted(call: Callable[[], Any]) -> work.Counting:
    with work.Counting() as counted:
        call()
    return counted


def _items(inputs: Inputs) -> int | None:
    first = next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), None)
    return None if first is None or first.dim() == 0 else first.shape[0]


@contextmanager
def _named_modules(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Makes each module's forward pass a range of the trace."""
    handles = []
    for path, module in model.named_modules() if wanted else ():
        ranges: list[Any] = []
        handles.append(module.register_forward_pre_hook(partial(_enter, path, ranges)))
        handles.append(module.register_forward_hook(partial(_leave, ranges), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _enter(path: str, ranges: list[Any], *_: Any) -> None:
    opened: Any = record_function(_MODULE + path)
    opened.__enter__()
    ranges.append(opened)


def _leave(ranges: list[Any], *_: Any) -> None:
    if ranges:
        ranges.pop().__exit__(None, None, None)


def _module_rows(
    trace: Trace, modules: dict[str, nn.Module], device: torch.device
) -> list[ModuleRow]:
    window = Window(trace)
    on_gpu = device.type == "cuda"
    ranges: dict[str, list[Event]] = {}
    for event in trace.annotations:
        if event.name.startswith(_MODULE):
            ranges.setdefault(event.name.removeprefix(_MODULE), []).append(event)
    times = trace.times_on_device(iter) if on_gpu else {}
    rows = []
    for path, found in ranges.items():
        host = sum(event.duration for event in found)
        spent = sum(times.get(id(event), 0.0) for event in found) if on_gpu else None
        rows.append(
            ModuleRow(
                path=path or "(the model)",
                kind=type(modules[path]).__name__,
                calls=len(found) / window.steps,
                host_us=host / window.steps,
                kernel_us=None if spent is None else spent / window.steps,
                share=(host if spent is None else spent) / window.duration,
            )
        )
    return sorted(rows, key=lambda row: -row.share)
