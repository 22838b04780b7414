# SPDX-License-Identifier: MIT
"""The stack of pre-norm layers that all models share; only how rows see each other differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ._config import GATED, TransformerConfig
from ._parts import Activation, Switched, add


class Layer(Switched):
    """``h = x + out(mix(qkv(norm_1(x))))`` and ``h + down(act(up(norm_2(h))))``.

    ``mix`` lets rows see each other: attention, or in a graph network messages, for whose sums
    ``qkv`` holds only values.
    """

    def __init__(self, config: TransformerConfig, mix: nn.Module) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=config.bias)
        self.norm_1 = config.new_norm()
        self.qkv = linear(config.dim, config.mixed)
        self.mix = mix
        self.out = linear(config.dim, config.dim)
        self.norm_2 = config.new_norm()
        self.up = linear(config.dim, config.inner * (2 if config.activation in GATED else 1))
        self.activation = Activation(config.activation)
        self.down = linear(config.inner, config.dim)

    def forward(self, x: Tensor, p: float, *context: Any) -> Tensor:
        """``p`` is the probability of dropout; ``context`` goes to ``mix``."""
        seen = self.mix(self.qkv(self.norm_1(x)), p, *context)
        x = add(x, self.out(seen), p, self.ours)
        inner = self.activation(self.up(self.norm_2(x)))
        return add(x, self.down(inner), p, self.ours)


class Transformer(nn.Module):
    """The stack of layers, (..., C) -> (..., C), with a norm after the last layer. ``mix`` makes
    the module through which the rows of a layer see each other, from the layer's number."""

    def __init__(self, config: TransformerConfig, mix: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.layers: Sequence[Layer] = nn.ModuleList(  # type: ignore[assignment]
            Layer(config, mix(index)) for index in range(config.num_layers)
        )
        self.norm = config.new_norm()

    @property
    def p(self) -> float:
        """The probability of dropout."""
        return self.config.dropout if self.training else 0.0

    def forward(self, x: Tensor, p: float, *context: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, p, *context)
        y: Tensor = self.norm(x)
        return y


def initialise(model: nn.Module, stack: Transformer) -> None:
    """Draws weights from a normal distribution of deviation (3 inputs)^-1/2, which at 768 channels
    is GPT-2's 0.02. Projections into the residual are smaller the more layers there are."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=(3 * parameter[0].numel()) ** -0.5)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)
    with torch.no_grad():
        for layer in stack.layers:
            for projection in (layer.out, layer.down):
                projection.weight.mul_((2 * len(stack.layers)) ** -0.5)
