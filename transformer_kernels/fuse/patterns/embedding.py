# SPDX-License-Identifier: MIT
"""A large table of embeddings, whose gradient takes PyTorch longer than the rows that it has: the
system maps the memory of so large a tensor anew, page by page, at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ... import functional
from ..._torch import is_plain_parameter
from ..cost import meta_bytes
from ..derive import Gate, original
from ..mixin import Mixin, only
from ..prove import agree, fused_twin, twin
from ..record import Call, Trace, value_of
from ..site import Calls, RefusedError, Site
from ._pattern import Pattern, unary

_LEAST_BYTES = 1 << 25  # of a gradient that glibc's malloc takes from the system each time


class Embedding(Mixin):
    """The class of a table of embeddings."""

    weight: nn.Parameter
    padding_idx: int | None
    scale_grad_by_freq: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None or not self._tfk_gates["embedding"].opens(x) or not self._serves():
            return super().forward(*args, **kwargs)
        return functional.embedding(
            x, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )

    def _serves(self) -> bool:
        own: Any = self
        is_dense = own.max_norm is None and not own.sparse
        return is_dense and is_plain_parameter(own.weight)


class EmbeddingPattern(Pattern):
    name = "embedding"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module: Any = call.module
        if original(type(module)) is not nn.Embedding or not unary(call):
            return None
        weight = value_of(module.weight)
        if weight.device.type != "cpu" or meta_bytes(weight) < _LEAST_BYTES:
            return None
        if module.max_norm is not None or module.sparse:
            raise RefusedError("it changes its weight, or has sparse gradients")
        if not _agrees(module):
            raise RefusedError("it does not do what functional.embedding does")
        x, y = (trace.values[v] for v in (call.ins[0], call.outs[0]))
        moved = meta_bytes(x, y, y)
        return Site(
            self.name, call.path, module, Embedding, function="functional.embedding",
            key=(*weight.shape, weight.dtype), shape=y.shape, launches=(1, 1), trial=_trial(module),
            bytes=(moved, moved), gate=Gate(inference=False),
        )  # fmt: skip


def _agrees(module: nn.Embedding) -> bool:
    """Whether both codes look up the same rows: the first ones and the last."""
    stock = twin(module)
    few = torch.arange(-4, 4, device=module.weight.device) % module.num_embeddings
    with torch.no_grad():
        return agree(fused_twin(stock, Embedding, {}).forward(few), stock.forward(few))


def _trial(module: Any) -> Callable[[int], Calls]:
    """Times the lookup of random rows, and the gradient of the table."""

    def trial(rows: int) -> Calls:
        stock = twin(module, Tensor.detach)
        ours = fused_twin(stock, Embedding, {})
        ids = torch.randint(module.num_embeddings, (1, rows), device=module.weight.device)
        return Calls(stock.forward, ours.forward, (ids,), tuple(stock.parameters()))

    return trial
