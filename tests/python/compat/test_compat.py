# SPDX-License-Identifier: MIT
"""Each name of ``compat``, called as scripts call it, against PyTorch in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.compat import (
    CPUKernelBenchmark,
    FlashAttention,
    FlashAttentionTriton,
    KernelOptimizedGraphNeuralNetwork,
    KernelOptimizedLanguageModel,
    KernelOptimizedVisionTransformer,
    KernelProfiler,
    OptimizedTransformerBlock,
    TritonLayerNorm,
    compare_functions,
    cpu_fused_attention,
    flash_attention,
    optimized_cpu_attention,
    quick_benchmark,
)


def _qkv(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, *(shape or (2, 4, 32, 16)))
    return q, k, v


def _expected(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options).float()


def _of_stock(model: Any, *inputs: Any) -> Tensor:
    """The results of the same model on PyTorch's operations in float64."""
    stock = copy.deepcopy(model).double()
    stock.kernels = "torch"
    doubled = (x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)
    result: Tensor = stock(*doubled)
    return result.float()


def test_every_name_is_tested_here() -> None:
    assert {*tfk.compat.__all__} <= {*globals()}


def test_cpu_fused_attention() -> None:
    q, k, v = _qkv(2, 8, 64, 16)  # [batch, heads, seq_len, d_head]
    torch.testing.assert_close(cpu_fused_attention(q, k, v), _expected(q, k, v))


def test_optimized_cpu_attention() -> None:
    q, k, v = _qkv()
    found = optimized_cpu_attention(q, k, v, chunk_size=8)
    torch.testing.assert_close(found, _expected(q, k, v))


def test_cpu_kernel_benchmark() -> None:
    q, k, v = _qkv()
    implementations = {
        "torch": F.scaled_dot_product_attention,
        "fused": cpu_fused_attention,
        "wrong": lambda q, k, v: q + k + v,
    }
    found = CPUKernelBenchmark().compare_implementations(implementations, q, k, v, seconds=0.01)
    assert [*found.refused] == ["wrong"]
    assert found["fused"].timing is not None


def test_flash_attention() -> None:
    q, k, v = _qkv()
    found = flash_attention(q, k, v, scale=0.3)
    torch.testing.assert_close(found, _expected(q, k, v, scale=0.3))
    causal = flash_attention(q, k, v, causal=True)
    torch.testing.assert_close(causal, _expected(q, k, v, is_causal=True))


@pytest.mark.parametrize("module", [FlashAttention, FlashAttentionTriton])
def test_flash_attention_modules(module: Any) -> None:
    q, k, v = _qkv()
    torch.testing.assert_close(module()(q, k, v), _expected(q, k, v))
    causal = module(causal=True)
    torch.testing.assert_close(causal(q, k, v), _expected(q, k, v, is_causal=True))
    mask = torch.rand(2, 1, 32, 32) > 0.3
    torch.testing.assert_close(module()(q, k, v, mask), _expected(q, k, v, attn_mask=mask))


@pytest.mark.parametrize("module", [FlashAttention, FlashAttentionTriton])
def test_block_size_is_accepted_with_a_warning(module: Any) -> None:
    words = rf"^{module.__name__}: block_size is 16, expected None: it has no effect"
    with pytest.warns(UserWarning, match=words) as said:
        attend = module(block_size=16)
    assert said[0].filename == __file__  # the caller's line
    q, k, v = _qkv()
    assert torch.equal(attend(q, k, v), module()(q, k, v))
    with pytest.raises(ValueError, match=r": block_size is 0, expected at least 1$"):
        module(block_size=0)


def test_dropout_of_flash_attention_is_of_training_alone() -> None:
    q, k, v = _qkv()
    attend = FlashAttention(dropout=0.5)
    assert not torch.equal(attend(q, k, v), attend(q, k, v))
    torch.testing.assert_close(attend.eval()(q, k, v), _expected(q, k, v))


def test_triton_layer_norm() -> None:
    norm, x = TritonLayerNorm(64), torch.randn(3, 5, 64)
    nn.init.normal_(norm.weight)
    expected = F.layer_norm(x.double(), (64,), norm.weight.double(), norm.bias.double())
    torch.testing.assert_close(norm(x), expected.float())
    assert [*norm.state_dict()] == [*nn.LayerNorm(64).state_dict()]


@pytest.mark.cuda
def test_triton_runs_on_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 64, device="cuda")
    norm = TritonLayerNorm(64, device="cuda")
    assert torch.equal(norm(x), tfk.nn.LayerNorm(64, device="cuda", backend="triton")(x))
    q, k, v = (x.cuda() for x in _qkv())
    found = FlashAttentionTriton(causal=True)(q, k, v)
    expected = tfk.functional.attention(q, k, v, causal=True, heads_first=True, backend="triton")
    assert torch.equal(found, expected)


def test_optimized_transformer_block() -> None:
    block, x = OptimizedTransformerBlock(64, 4), torch.randn(2, 16, 64)
    stock = tfk.levels.Block("torch", 64, 4, dtype=torch.float64)
    stock.load_state_dict(block.state_dict())
    torch.testing.assert_close(block(x), stock(x.double()).float())


def test_language_model() -> None:
    model = KernelOptimizedLanguageModel(vocab_size=100, dim=64, num_layers=2)
    tokens = torch.randint(100, (2, 16))
    assert model(tokens).shape == (2, 16, 100)
    torch.testing.assert_close(model(tokens), _of_stock(model, tokens))
    assert model.generate(tokens[:, :4], 3).shape == (2, 7)


def test_vision_transformer() -> None:
    model = KernelOptimizedVisionTransformer(image_size=32, num_classes=10, num_layers=2, dim=64)
    images = torch.randn(2, 3, 32, 32)
    assert model(images).shape == (2, 10)
    torch.testing.assert_close(model(images), _of_stock(model, images))


def test_graph_network() -> None:
    model = KernelOptimizedGraphNeuralNetwork(node_features=8, num_classes=3)
    x, edges = torch.randn(20, 8), torch.randint(20, (2, 60))
    assert model(x, edges).shape == (20, 3)
    graph = tfk.functional.Graph.from_edges(edges, 20)
    torch.testing.assert_close(model(x, edges), _of_stock(model, x, graph))


@pytest.mark.parametrize(("dim", "heads"), [(64, 1), (192, 3), (96, 1)])
def test_heads_of_a_model(dim: int, heads: int) -> None:
    model = KernelOptimizedLanguageModel(vocab_size=10, dim=dim, num_layers=1)
    assert model.config.num_heads == heads


def test_kernel_profiler_compares(tmp_path: Path) -> None:
    profiler, x = KernelProfiler(), torch.randn(8, 64)
    with pytest.raises(ValueError, match=r"^KernelProfiler: nothing was recorded"):
        profiler.plot_comparison(path=tmp_path / "none.png")
    implementations = {
        "torch": lambda x: torch.softmax(x, -1),
        "ours": lambda x: tfk.functional.softmax(x, -1),
        "wrong": lambda x: torch.softmax(x, 0),
    }
    found = profiler.compare_implementations(implementations, args=(x,), seconds=0.01)
    assert [*found.refused] == ["wrong"]
    pytest.importorskip("matplotlib")
    assert profiler.plot_comparison(found, tmp_path / "given.svg").stat().st_size
    assert profiler.plot_comparison(path=tmp_path / "last.svg").stat().st_size


def test_kernel_profiler_profiles() -> None:
    with KernelProfiler("cpu") as profiler:
        tfk.functional.softmax(torch.randn(8, 64), -1)
    assert any("softmax" in row.name for row in profiler.report.ops)


def test_compare_functions() -> None:
    q, k, v = _qkv()
    functions = {"torch": F.scaled_dot_product_attention, "ours": flash_attention}
    found = compare_functions(functions, q, k, v, seconds=0.01)
    assert not found.refused
    timing = found["ours"].timing
    assert timing is not None
    assert timing["mean_time"] == timing.mean_time > 0


def test_quick_benchmark() -> None:
    found = quick_benchmark(torch.softmax, torch.randn(8, 64), -1, seconds=0.01)
    assert found["mean_time"] == found.mean_time > 0
    with pytest.raises(KeyError):
        found["mean"]
