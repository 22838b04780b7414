# SPDX-License-Identifier: MIT
"""Profilers: they show where a model or a kernel spends time and memory.

>>> model, x = tfk.nn.MLP(64, 256), torch.randn(8, 64)
>>> with tfk.profile.KernelProfiler() as profiler:
...     y = model(x)
>>> print(profiler.report)
╔...

A kernel's time is measured as ``transformer-kernels bench`` measures it, with the same timers and
statistics, and its bytes are those of its tensors. Modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import attributes

if TYPE_CHECKING:
    from .compare import Comparison, Implementation, compare_implementations, plot_comparison
    from .gpu import GPUProfiler, GPUReport, Section
    from .kernels import Gap, KernelProfiler, KernelReport, KernelRow, OpRow
    from .memory import Leak, MemoryProfiler, MemoryReport
    from .model import ModelReport, ModuleRow, profile_model_inference
    from .timing import Timing, benchmark_kernel, quick_benchmark

_HOMES = {
    "compare": ("Comparison", "Implementation", "compare_implementations", "plot_comparison"),
    "gpu": ("GPUProfiler", "GPUReport", "Section"),
    "kernels": ("Gap", "KernelProfiler", "KernelReport", "KernelRow", "OpRow"),
    "memory": ("Leak", "MemoryProfiler", "MemoryReport"),
    "model": ("ModelReport", "ModuleRow", "profile_model_inference"),
    "timing": ("Timing", "benchmark_kernel", "quick_benchmark"),
}

__all__ = [
    "Comparison",
    "GPUProfiler",
    "GPUReport",
    "Gap",
    "Implementation",
    "KernelProfiler",
    "KernelReport",
    "KernelRow",
    "Leak",
    "MemoryProfiler",
    "MemoryReport",
    "ModelReport",
    "ModuleRow",
    "OpRow",
    "Section",
    "Timing",
    "benchmark_kernel",
    "compare_implementations",
    "plot_comparison",
    "profile_model_inference",
    "quick_benchmark",
]


__getattr__, __dir__ = attributes(__name__, _HOMES)
