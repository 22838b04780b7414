# SPDX-License-Identifier: MIT
"""Calls of the names of ``transformer_kernels.compat``."""

from __future__ import annotations

from .expected import COMPARED, STOCK, sdpa
from .row import Library, Row

COMPAT = Library(
    "compat",
    "`q`, `k`, `v` are (batch, heads, time, dim), as in the projects that these names are from.",
    "BHTD",
    (
        Row(
            "flash_attention(q, k, v, scale=0.1)",
            "tfk.compat.flash_attention(q, k, v, scale=0.1)",
            sdpa("scale=0.1", "BHTD"),
            "`tfk.functional.attention`, which has more features",
        ),
        Row(
            "FlashAttention(block_size=64, causal=True)(q, k, v)",
            "tfk.compat.FlashAttention(causal=True)(q, k, v)",
            sdpa("is_causal=True", "BHTD"),
            "`block_size` has no effect and gives a warning; kernels have tiles of their own",
        ),
        Row(
            "FlashAttentionTriton(block_size=64)(q, k, v)",
            "tfk.compat.FlashAttentionTriton()(q, k, v)",
            sdpa("", "BHTD"),
            'on a GPU `attention(backend="triton")`',
        ),
        Row(
            "cpu_fused_attention(q, k, v)",
            "tfk.compat.cpu_fused_attention(q, k, v)",
            sdpa("", "BHTD"),
            "tensors of other devices are refused",
        ),
        Row(
            "optimized_cpu_attention(q, k, v, chunk_size=2)",
            "tfk.compat.optimized_cpu_attention(q, k, v, chunk_size=2)",
            sdpa("", "BHTD"),
            "the result is that of one call",
        ),
        Row(
            "TritonLayerNorm(64)",
            "tfk.compat.TritonLayerNorm(64)",
            "nn.LayerNorm(64)",
            'on a GPU `tfk.nn.LayerNorm(64, backend="triton")`',
            "x",
        ),
        Row(
            "OptimizedTransformerBlock(64, 4)",
            "tfk.compat.OptimizedTransformerBlock(64, 4)",
            'tfk.levels.Block("torch", 64, 4)',
            '`tfk.levels.Block("ours", 64, 4)`, causal by default',
            "x",
        ),
        Row(
            "KernelOptimizedLanguageModel(vocab_size=11, dim=64)",
            "tfk.compat.KernelOptimizedLanguageModel(vocab_size=11, dim=64, num_layers=1)",
            STOCK,
            "`tfk.models.LanguageModel`, with a configuration",
            "tokens",
        ),
        Row(
            "KernelOptimizedVisionTransformer(image_size=32, num_classes=11)",
            "tfk.compat.KernelOptimizedVisionTransformer(image_size=32, num_classes=11,"
            " num_layers=1)",
            STOCK,
            "`tfk.models.VisionTransformer`, with a configuration",
            "images",
        ),
        Row(
            "KernelOptimizedGraphNeuralNetwork(node_features=64, num_classes=11)",
            "tfk.compat.KernelOptimizedGraphNeuralNetwork(node_features=64, num_classes=11)",
            STOCK,
            "`tfk.models.GraphNetwork`, which takes a `Graph` instead of edges",
            "rows, edges",
        ),
        Row(
            "CPUKernelBenchmark().compare_implementations(implementations, q, k, v)",
            "tfk.compat.CPUKernelBenchmark().compare_implementations(implementations, q, k, v,"
            " seconds=0.01)",
            COMPARED,
            "an implementation with other results is refused, not timed",
        ),
        Row(
            "KernelProfiler().compare_implementations(implementations, args=(q, k, v))",
            "tfk.compat.KernelProfiler().compare_implementations(implementations, args=(q, k, v),"
            " seconds=0.01)",
            COMPARED,
            "`tfk.profile.compare_implementations`; `.plot_comparison(found, path)`",
        ),
        Row(
            "compare_functions(implementations, q, k, v)",
            "tfk.compat.compare_functions(implementations, q, k, v, seconds=0.01)",
            COMPARED,
            "`tfk.profile.compare_implementations`",
        ),
        Row(
            'quick_benchmark(torch.softmax, x, -1)["mean_time"]',
            'tfk.compat.quick_benchmark(torch.softmax, x, -1, seconds=0.01)["mean_time"]',
            "lambda found: found > 0",
            "microseconds",
        ),
    ),
)
