# SPDX-License-Identifier: MIT
"""Models written once and run by stock PyTorch or by this project's kernels, by one switch.

>>> config = tfk.models.LanguageModelConfig(
...     vocab_size=256, context=128, dim=192, num_layers=4, num_heads=4)
>>> ours = tfk.models.LanguageModel(config)
>>> stock = tfk.models.LanguageModel(config, kernels="torch")
>>> stock.load_state_dict(ours.state_dict())

A layer that was replaced (LoRA), hooked into, pruned, parametrised or quantised is called as in
stock PyTorch, and so is what would have been fused with it. Every call asks.
"""

from ._cache import KeyValueCache
from ._sampling import Sampling
from ._transformer import TransformerConfig
from .graph_network import GraphNetwork, GraphNetworkConfig
from .language_model import LanguageModel, LanguageModelConfig
from .vision_transformer import VisionTransformer, VisionTransformerConfig

__all__ = [
    "GraphNetwork",
    "GraphNetworkConfig",
    "KeyValueCache",
    "LanguageModel",
    "LanguageModelConfig",
    "Sampling",
    "TransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
]
