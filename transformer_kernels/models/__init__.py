# SPDX-License-Identifier: MIT
"""Models of PyTorch's modules, whose layers a switch fuses by :func:`transformer_kernels.fuse`.

>>> config = tfk.models.LanguageModelConfig(
...     vocab_size=256, context=16, dim=32, num_layers=2, num_heads=2)
>>> ours = tfk.models.LanguageModel(config)
>>> stock = tfk.models.LanguageModel(config, kernels="torch")
>>> stock.load_state_dict(ours.state_dict())
<All keys matched successfully>

Each call asks the layers again: one that was replaced (LoRA), hooked into, pruned, parametrised or
quantised is called as in stock PyTorch, and so are the operations that would have been fused with
it.
"""

from ._cache import KeyValueCache
from ._config import TransformerConfig
from ._sampling import Sampling
from .graph_network import GraphNetwork, GraphNetworkConfig
from .language_model import LanguageModel, LanguageModelConfig
from .llama.config import LlamaConfig
from .llama.model import Llama
from .llama.packed import OffsetLinear, PackedEmbedding
from .vision_transformer import VisionTransformer, VisionTransformerConfig

__all__ = [
    "GraphNetwork",
    "GraphNetworkConfig",
    "KeyValueCache",
    "LanguageModel",
    "LanguageModelConfig",
    "Llama",
    "LlamaConfig",
    "OffsetLinear",
    "PackedEmbedding",
    "Sampling",
    "TransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
]
