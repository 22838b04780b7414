# SPDX-License-Identifier: MIT
"""Records the gradients that arrive at a leaf in a backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Arrivals(list[Any]):
    """The gradients that autograd hands to a leaf, in order; None where a product added it to
    ``.grad``."""

    def __init__(self, leaf: Tensor) -> None:
        self._node = torch.autograd.graph.get_gradient_edge(leaf).node  # lives while it is held
        self._node.register_prehook(lambda gradients: self.extend(gradients))
