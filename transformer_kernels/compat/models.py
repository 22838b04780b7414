# SPDX-License-Identifier: MIT
"""Models that a few keywords describe: each makes its configuration."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..functional import Graph
from ..models import (
    GraphNetwork,
    GraphNetworkConfig,
    LanguageModel,
    LanguageModelConfig,
    VisionTransformer,
    VisionTransformerConfig,
)

_HEAD_DIM = 64  # channels of a head, where the number of heads is not given


def _heads(dim: int) -> int:
    """The number of heads of 64 channels, or 1 for a width that these do not divide."""
    return 1 if dim % _HEAD_DIM else dim // _HEAD_DIM


class KernelOptimizedLanguageModel(LanguageModel):
    """:class:`transformer_kernels.models.LanguageModel` with defaults.

    Args:
        vocab_size: V, the number of tokens in the vocabulary.
        dim: C, the channels between layers.
        num_layers: number of layers.
        num_heads: number of heads; default ``dim / 64``.
        context: the most tokens that the model sees at once.
        kernels: ``"ours"`` or ``"torch"``.
        options: other fields of :class:`~transformer_kernels.models.LanguageModelConfig`.

    >>> model = tfk.compat.KernelOptimizedLanguageModel(vocab_size=1000, dim=64, num_layers=1)
    >>> model(torch.randint(1000, (2, 8))).shape
    torch.Size([2, 8, 1000])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int = 512,
        num_layers: int = 6,
        num_heads: int | None = None,
        context: int = 1024,
        *,
        kernels: str = "ours",
        **options: Any,
    ) -> None:
        config = LanguageModelConfig(
            vocab_size=vocab_size, dim=dim, num_layers=num_layers, context=context,
            num_heads=_heads(dim) if num_heads is None else num_heads, **options,
        )  # fmt: skip
        super().__init__(config, kernels)


class KernelOptimizedVisionTransformer(VisionTransformer):
    """:class:`transformer_kernels.models.VisionTransformer` with the defaults of ViT-Tiny.

    Args:
        image_size: size of the images, (height, width) or one int for both.
        num_classes: number of classes.
        patch_size: size of a patch, given likewise.
        dim: C, the channels between layers.
        num_layers: number of layers.
        num_heads: number of heads; default ``dim / 64``.
        kernels: ``"ours"`` or ``"torch"``.
        options: other fields of :class:`~transformer_kernels.models.VisionTransformerConfig`.

    >>> model = tfk.compat.KernelOptimizedVisionTransformer(image_size=32, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        image_size: int | tuple[int, int] = 224,
        num_classes: int = 1000,
        patch_size: int | tuple[int, int] = 16,
        dim: int = 192,
        num_layers: int = 12,
        num_heads: int | None = None,
        *,
        kernels: str = "ours",
        **options: Any,
    ) -> None:
        config = VisionTransformerConfig(
            image_size=image_size, num_classes=num_classes, patch_size=patch_size, dim=dim,
            num_layers=num_layers, num_heads=_heads(dim) if num_heads is None else num_heads,
            **options,
        )  # fmt: skip
        super().__init__(config, kernels)


class KernelOptimizedGraphNeuralNetwork(GraphNetwork):
    """:class:`transformer_kernels.models.GraphNetwork` with defaults, which also takes edges as
    PyTorch Geometric's layers do.

    Args:
        node_features: the number of values that come with a node.
        num_classes: number of classes.
        dim: C, the channels between layers.
        num_layers: number of layers.
        kernels: ``"ours"`` or ``"torch"``.
        options: other fields of :class:`~transformer_kernels.models.GraphNetworkConfig`.

    >>> model = tfk.compat.KernelOptimizedGraphNeuralNetwork(node_features=16, num_classes=7)
    >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> model(torch.randn(3, 16), edge_index).shape
    torch.Size([3, 7])
    """

    def __init__(
        self,
        node_features: int,
        num_classes: int,
        dim: int = 64,
        num_layers: int = 2,
        *,
        kernels: str = "ours",
        **options: Any,
    ) -> None:
        config = GraphNetworkConfig(
            in_features=node_features, num_classes=num_classes, dim=dim, num_layers=num_layers,
            **options,
        )  # fmt: skip
        super().__init__(config, kernels)

    def forward(
        self, x: Tensor, graph: Graph | Tensor, targets: Tensor | None = None, **options: Any
    ) -> Tensor:
        """As :meth:`transformer_kernels.models.GraphNetwork.forward`; ``graph`` may be the edges,
        (2, E), which are sorted in each call: make a ``Graph`` once where they stay the same."""
        if isinstance(graph, Tensor):
            graph = Graph.from_edges(graph, x.shape[0])
        return super().forward(x, graph, targets, **options)
