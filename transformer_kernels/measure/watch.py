# SPDX-License-Identifier: MIT
"""Observes one call: its operators or kernels by name, the bytes that they move, and its memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer_kernels.measure.machine import peak_bytes as peak_bytes_on_device
from transformer_kernels.measure.timing import Call

_ALLOCATIONS = ("empty", "new_empty", "_unsafe_view")  # and their variants: they touch no element
GRAPH = "## Call CompiledFxGraph"  # PyTorch's name of the event around a compiled graph
_MEMORY = "[memory]"
_NO_KERNELS = ("Memcpy", "Memset", "## ")  # other events on a GPU's timeline


class Operators(TorchDispatchMode):
    """Records every operator below autograd while it is entered, except views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0  # read and written, over all tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if is_operator(func):
            self.names.append(func._schema.name.partition("::")[2])
            self.bytes += bytes_of((args, kwargs)) + bytes_of(results)
        return results


def is_operator(func: Any) -> bool:
    """Whether an overload is neither a view nor an allocation."""
    return not func.is_view and not func._schema.name.partition("::")[2].startswith(_ALLOCATIONS)


def bytes_of(values: Any) -> int:
    """Bytes of all tensors among the values; an expanded tensor counts only its memory."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)


def operators(call: Call) -> Operators:
    with Operators() as seen:
        call()
    return seen


def kernels(call: Call, device: torch.device) -> list[str]:
    """The names of what ran, in order: a GPU's kernels, or on a CPU the parts of compiled
    graphs."""
    if device.type != "cuda":
        events = _profiled(call).events() or []
        graphs = [event for event in events if event.name.startswith(GRAPH)]
        parts = [part for graph in graphs for part in graph.cpu_children]
        return [name for part in parts if (name := part_of_graph(part.name)) is not None]
    torch.cuda.synchronize(device)
    events = _profiled(call, ProfilerActivity.CUDA).events() or []
    return [
        event.name
        for event in events
        if event.device_type.name == "CUDA"
        and not event.name.startswith(_NO_KERNELS)
        and not getattr(event, "is_user_annotation", False)
    ]


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most memory that a call takes beyond what was allocated before it, results included."""
    if (counted := peak_bytes_on_device(call, device)) is not None:
        return counted
    traced: Any = _profiled(call, profile_memory=True).profiler
    changes = [event for event in traced.kineto_results.events() if event.name() == _MEMORY]
    held = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most


def short_name(kernel: str) -> str:
    """A C++ kernel's name without its result type, namespaces, template arguments and
    parameters."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    return head.rpartition("::")[2] or plain


def by_name(names: Iterable[str]) -> dict[str, int]:
    """How often each short name ran, ordered by first run."""
    counts: dict[str, int] = {}
    for name in map(short_name, names):
        counts[name] = counts.get(name, 0) + 1
    return counts


def named_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """Makes torch.compile name its CPU kernels for the profiler; a GPU's kernels always have
    names."""
    if device.type == "cuda":
        return nullcontext()
    import torch._inductor.config as config

    patched: AbstractContextManager[Any] = config.patch({"cpp.enable_kernel_profile": True})
    return patched


def part_of_graph(name: str) -> str | None:
    """The short name of a part of a compiled graph; None for a part that touches no element."""
    namespace, _, short = name.rpartition("::")
    if namespace == "aten" and short.startswith(("as_strided", "view", "t", "empty")):
        return None
    return None if name == _MEMORY else short


def _profiled(call: Call, *more: ProfilerActivity, profile_memory: bool = False) -> Any:
    with profile(
        activities=[ProfilerActivity.CPU, *more], profile_memory=profile_memory, acc_events=True
    ) as traced:
        call()
        if ProfilerActivity.CUDA in more:
            torch.cuda.synchronize()
    return traced
