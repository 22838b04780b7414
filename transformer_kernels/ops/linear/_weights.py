# SPDX-License-Identifier: MIT
"""Master weights, which are kept in float32 and multiplied in 16 bits, and where the gradient of a
weight is written.

Under autocast PyTorch rounds the gradient of a master weight to 16 bits, casts it to float32, and
adds that to ``.grad``. Here the product behind it writes float32, or adds to ``.grad`` itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._torch import is_eager
from .._dtype import under_autocast
from .._kinds import PLAIN_CLASSES
from ._arguments import empty_like_weight

# ---- master weights -----------------------------------------------------------------------------


def is_master(x: Tensor, weight: Any) -> bool:
    """Whether the layer casts the weight, and not autocast: on CUDA, for a gradient of float32."""
    return (
        type(weight) in PLAIN_CLASSES
        and weight.dtype is torch.float32
        and weight.is_cuda
        and weight.requires_grad
        and torch.is_grad_enabled()
        and torch.is_autocast_enabled("cuda")
        and x.dtype is not torch.float64
        and is_eager()
    )


def under_autocast_but_masters(
    x: Tensor, *parameters: Tensor | None, wide_biases: bool
) -> tuple[Any, ...]:
    """What autocast makes of them, but for master weights, and with ``wide_biases`` vectors of
    float32: our products add them as they are."""

    def stays(t: Tensor | None) -> bool:
        if t is None or (t.dim() == 1 and wide_biases and t.dtype is torch.float32):
            return True
        return t.dim() == 2 and is_master(x, t)

    lower = partial(under_autocast, x.device.type)
    return *lower(x), *(t if stays(t) else lower(t)[0] for t in parameters)


def copy_of(weight: Tensor | None, x: Tensor) -> Tensor:
    """A master weight in the dtype of ``x``; without elements where there is none."""
    if weight is None or weight.dtype is x.dtype:
        return x.new_empty(0)
    return weight.to(x.dtype)


def empty_copy(weight: Tensor | None, x: Tensor) -> Tensor:
    """Memory of :func:`copy_of`."""
    if weight is None or weight.dtype is x.dtype:
        return x.new_empty(0)
    return empty_like_weight(weight).to(x.dtype)


def multiplied(weight: Tensor, copy: Tensor, x: Tensor) -> Tensor:
    """The weight or its copy, whichever has the dtype of ``x``."""
    return copy if copy.numel() else weight.to(x.dtype)


# ---- gradients of weights -----------------------------------------------------------------------


class Gradient(NamedTuple):
    """Memory that a product writes the gradient of a weight to, or adds it to."""

    memory: Tensor
    adds: bool = False

    def part(self, *index: slice) -> Gradient:
        return self._replace(memory=self.memory[index])

    def product(self, dy: Tensor, x: Tensor) -> None:
        """``dy.t() @ x``, of matrices; on CUDA not rounded to the dtype of ``x``."""
        operands, out = (dy.t(), x), self.memory
        is_wide = out.dtype is not x.dtype
        if is_wide and not out.is_cuda:
            return self.take(torch.mm(*operands))
        wide: dict[str, Any] = {"out_dtype": out.dtype} if is_wide else {}
        if self.adds:
            torch.addmm(out, *operands, out=out, **wide)
        else:
            torch.mm(*operands, out=out, **wide)
        return None

    def take(self, dweight: Tensor) -> None:
        if self.adds:
            self.memory.add_(dweight)
        else:
            self.memory.copy_(dweight)

    @property
    def result(self) -> Tensor | None:
        """What autograd is given: nothing, where ``.grad`` has it."""
        return None if self.adds else self.memory


def gradient_of(weight: Tensor, in_place: bool) -> Gradient:
    """Args:
    in_place: whether it may be added to ``.grad``, where that is what autograd would do.
    """
    total = _sum_so_far(weight) if in_place else None
    return Gradient(empty_like_weight(weight)) if total is None else Gradient(total, adds=True)


def _sum_so_far(weight: Tensor) -> Tensor | None:
    """``.grad`` in the order of ``weight``, which is a leaf or the transpose of one, if adding to
    it is all that autograd would do with the gradient: not where a hook would see it, where
    :func:`torch.autograd.grad` returns it, or where another stream or thread may be adding."""
    leaf = weight if weight.is_leaf else weight._base
    if leaf is None or type(leaf) not in PLAIN_CLASSES or not leaf.is_leaf:
        return None
    total = leaf.grad
    if total is None or type(total) not in PLAIN_CLASSES or total.dtype is not weight.dtype:
        return None
    hooks = (leaf._backward_hooks, leaf._post_accumulate_grad_hooks, weight._backward_hooks)
    if any(hooks) or total.requires_grad or not _is_only_added(leaf, weight):
        return None
    total = total if leaf is weight else total.t()
    return total if total.stride() == weight.stride() else None


def _is_only_added(leaf: Tensor, weight: Tensor) -> bool:
    if torch.is_anomaly_enabled() or not _has_one_writer(leaf):
        return False
    sink = torch.autograd.graph.get_gradient_edge(leaf).node
    between = weight.grad_fn
    if between is not None and (
        between.name() != "TBackward0" or between.next_functions != ((sink, 0),)
    ):
        return False
    try:
        return bool(torch._C._will_engine_execute_node(sink))
    except RuntimeError:  # torch.autograd.grad returns it, or there is no backward pass
        return False


def _has_one_writer(leaf: Tensor) -> bool:
    """A card's backward passes run in one thread, a CPU's in those that ask for them."""
    if not leaf.is_cuda:
        return False
    stream: torch.cuda.Stream = torch.cuda.current_stream(leaf.device)
    return stream == torch.cuda.default_stream(leaf.device)
