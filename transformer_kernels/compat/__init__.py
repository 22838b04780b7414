# SPDX-License-Identifier: MIT
"""The names and shapes of teaching projects, on this project's kernels.

Courses on kernels write attention as (batch, heads, time, dim), models with a few keywords, and a
profiler that compares. Their scripts run with these names:

>>> from transformer_kernels.compat import flash_attention
>>> q, k, v = torch.randn(3, 1, 4, 16, 32)  # (batch, heads, time, dim)
>>> flash_attention(q, k, v, scale=32**-0.5).shape
torch.Size([1, 4, 16, 32])

Each name is a few lines over the function, module or model that its docstring names, and that has
more to offer. **Attention here takes (batch, heads, time, dim)**, as
:func:`torch.nn.functional.scaled_dot_product_attention` does;
:func:`transformer_kernels.functional.attention` takes (batch, time, heads, dim).
"""

from .attention import FlashAttention, FlashAttentionTriton, flash_attention
from .cpu import CPUKernelBenchmark, cpu_fused_attention, optimized_cpu_attention
from .models import (
    KernelOptimizedGraphNeuralNetwork,
    KernelOptimizedLanguageModel,
    KernelOptimizedVisionTransformer,
)
from .modules import OptimizedTransformerBlock, TritonLayerNorm
from .profile import KernelProfiler, compare_functions, quick_benchmark

__all__ = [
    "CPUKernelBenchmark",
    "FlashAttention",
    "FlashAttentionTriton",
    "KernelOptimizedGraphNeuralNetwork",
    "KernelOptimizedLanguageModel",
    "KernelOptimizedVisionTransformer",
    "KernelProfiler",
    "OptimizedTransformerBlock",
    "TritonLayerNorm",
    "compare_functions",
    "cpu_fused_attention",
    "flash_attention",
    "optimized_cpu_attention",
    "quick_benchmark",
]
