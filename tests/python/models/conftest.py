# SPDX-License-Identifier: MIT
"""Models in both switches, and their results."""

from __future__ import annotations

import copy
from typing import Any

import torch

from transformer_kernels import models

TINY = {"dim": 24, "num_layers": 2, "num_heads": 3}
LANGUAGE = {"vocab_size": 37, "context": 19, **TINY}
STYLES = {
    "gpt2": {},
    "llama": {
        "norm": "rms_norm", "activation": "swiglu", "positions": "rope", "num_kv_heads": 1,
        "inner_dim": 20, "bias": False,
    },
    "tied": {"tie_weights": True, "activation": "gelu_tanh", "norm": "rms_norm"},
}  # fmt: skip
GRAPH = {"in_features": 5, "num_classes": 3, **TINY}
VISION = {"image_size": (6, 15), "patch_size": (3, 5), "channels": 2, "num_classes": 7, **TINY}


def language_model(kernels: str = "ours", style: str = "gpt2", **options: Any):
    config = models.LanguageModelConfig(**{**LANGUAGE, **STYLES[style], **options})
    return models.LanguageModel(config, kernels)


def vision_transformer(kernels: str = "ours", **options: Any):
    config = models.VisionTransformerConfig(**{**VISION, **options})
    return models.VisionTransformer(config, kernels)


def graph_network(kernels: str = "ours", **options: Any):
    config = models.GraphNetworkConfig(**{**GRAPH, **options})
    return models.GraphNetwork(config, kernels)


def graph_batch(nodes: int = 11, edges: int = 40) -> tuple[torch.Tensor, ...]:
    """Features, edges that leave some nodes without any, and the edges' weights."""
    pairs = torch.randperm(nodes * nodes)[:edges]
    ends = torch.stack((pairs // nodes, pairs % nodes))
    return torch.randn(nodes, GRAPH["in_features"]), ends, torch.rand(ends.shape[1])


def in_both(model):
    """Copies with the same weights that run on PyTorch, and on PyTorch in float64."""
    stock = copy.deepcopy(model)
    stock.kernels = "torch"
    return stock, copy.deepcopy(stock).double()


def results(model, *inputs: Any) -> dict[str, torch.Tensor]:
    """Logits, loss, and the gradient of every parameter; the last input holds the targets."""
    y = model(*inputs[:-1])
    loss = model(*inputs)
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    found = dict(zip((f"d{name}" for name in names), gradients, strict=True))
    return {"y": y.detach(), "loss": loss.detach(), **found}
