# SPDX-License-Identifier: MIT
"""The vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError, ArgumentValueError, as_count
from .._names import explain_names
from ._checks import check_config, check_like, check_shape, one_of
from ._config import TransformerConfig
from ._parts import SelfAttention
from ._switch import Model
from ._transformer import Transformer, initialise

_POOLS = ("class", "mean")


def _pair(op: str, name: str, value: Any) -> tuple[int, int]:
    """Reads one size for both sides, or (height, width)."""
    sides = value if isinstance(value, (tuple, list)) else (value, value)
    if len(sides) != 2:
        raise ArgumentTypeError(f"{op}: {name} is {value!r}, expected an int or (height, width)")
    height, width = (as_count(op, name, side) for side in sides)
    return height, width


@explain_names
@dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(TransformerConfig):
    """The configuration of a vision transformer: :class:`TransformerConfig` and, around the layers:

    Args:
        image_size: size of the images, (height, width) or one int for both.
        patch_size: size of a patch, given likewise; divides the image's.
        num_classes: number of classes.
        channels: number of channels of the images.
        pool: the features to classify by: ``"class"``, a learned token, or ``"mean"`` over all
            patches.

    >>> tfk.models.VisionTransformerConfig(
    ...     image_size=(8, 16), patch_size=4, num_classes=10, dim=32, num_layers=2,
    ...     num_heads=2).pool
    'class'
    """

    image_size: int | tuple[int, int]
    patch_size: int | tuple[int, int]
    num_classes: int
    channels: int = 3
    pool: str = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        op = type(self).__name__
        as_count(op, "num_classes", self.num_classes)
        as_count(op, "channels", self.channels)
        one_of(op, "pool", self.pool, _POOLS)
        for image, patch in zip(self.image, self.patch, strict=True):
            if image % patch:
                raise ArgumentValueError(
                    f"{op}: image_size is {self.image}, expected a multiple of patch_size"
                    f" {self.patch} in both sides"
                )

    @property
    def image(self) -> tuple[int, int]:
        return _pair(type(self).__name__, "image_size", self.image_size)

    @property
    def patch(self) -> tuple[int, int]:
        return _pair(type(self).__name__, "patch_size", self.patch_size)

    @property
    def num_patches(self) -> int:
        (height, width), (patch_height, patch_width) = self.image, self.patch
        return (height // patch_height) * (width // patch_width)


class VisionTransformer(Model):
    """Computes logits of the classes of images.

    Args:
        config: its configuration.
        kernels: ``"ours"`` for this package's kernels: the layers are fused by
            :func:`transformer_kernels.fuse`, without timing, when the model is made and when this
            is set. Or ``"torch"`` for stock PyTorch. Both have the same parameters, ``state_dict``
            and results; ``model.kernels`` may be set at any time.

    Initial parameters depend on PyTorch's seed alone.

    >>> model = tfk.models.VisionTransformer(tfk.models.VisionTransformerConfig(
    ...     image_size=8, patch_size=4, num_classes=10, dim=32, num_layers=2, num_heads=2))
    >>> loss = model(torch.randn(2, 3, 8, 8), torch.tensor([3, 7]))
    """

    config: VisionTransformerConfig

    def __init__(self, config: VisionTransformerConfig, kernels: str = "ours") -> None:
        super().__init__(kernels)
        check_config("VisionTransformer", config, VisionTransformerConfig)
        self.config = config
        self.patches = nn.Conv2d(config.channels, config.dim, config.patch, config.patch)
        has_token = config.pool == "class"
        self.class_token = nn.Parameter(torch.zeros(config.dim)) if has_token else None
        places = config.num_patches + has_token
        self.positions = nn.Parameter(torch.empty(places, config.dim))
        self.transformer = Transformer(config, partial(SelfAttention, config, causal=False))
        self.head = nn.Linear(config.dim, config.num_classes)
        initialise(self, self.transformer)
        self.kernels = kernels

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
        """Returns logits (B, classes), or with ``targets`` the mean cross-entropy.

        Args:
            images: (B, channels, height, width), of the weights' dtype and the sizes of ``config``.
            targets: int64, (B,), the classes; -100 is ignored.

        Raises:
            ArgumentValueError, ArgumentTypeError: the model cannot take an argument; the message
                names it.
        """
        return self._logits_or_loss(self.features(images), targets)

    def features(self, images: Tensor) -> Tensor:
        """The features that the head classifies, (B, C)."""
        config, p = self.config, self.transformer.p
        self._check_kernels()
        check_shape("VisionTransformer", "images", images, "batch", config.channels, *config.image)
        check_like("VisionTransformer", "images", images, self.patches.weight)
        x: Tensor = self.patches(images).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(x.shape[0], 1, -1).to(x.dtype), x), 1)
        y: Tensor = self.transformer(self._dropout(x + self.positions, p), p)
        return y.mean(1) if self.class_token is None else y[:, 0]

    def _example(self) -> tuple[Any, ...]:
        return self._rows(2, 8), 0.0
