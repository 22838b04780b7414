# SPDX-License-Identifier: MIT
"""Master weights, which are stored in float32 and multiplied in 16 bits, and the memory that a
weight's gradient is written to.

Under autocast PyTorch rounds the gradient of a master weight to 16 bits, casts it to float32, and
adds it to ``.grad``. Here the product writes float32, or adds to ``.grad`` directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._torch import has_dispatch_mode, is_eager, is_fake
from .._declare_arguments import Given
from .._dtype import LOWERED, accumulate_dtype
from .._kinds import PLAIN_CLASSES
from ._arguments import empty_like_weight, is_by_columns

# ---- master weights -----------------------------------------------------------------------------

_DEVICES = ("cuda",)  # devices whose 16-bit products give float32


def is_master(x: Tensor, weight: Any, *, fakes: bool = False) -> bool:
    """Whether the layer itself casts the weight, instead of autocast, for a gradient in float32.
    With ``fakes``, fake tensors count as the real ones that they stand for."""
    return (
        (type(weight) in PLAIN_CLASSES or (fakes and is_fake(weight)))
        and weight.dtype is torch.float32
        and weight.requires_grad
        and weight.device.type in _DEVICES
        and torch.is_grad_enabled()
        and torch.is_autocast_enabled(weight.device.type)
        and x.dtype is not torch.float64
        and is_eager()
    )


def as_multiplied(
    x: Tensor, *parameters: Tensor | None, masters: bool, wide_biases: bool
) -> tuple[Any, ...]:
    """Casts tensors as autocast does. Exceptions: with ``masters``, master weights; with
    ``wide_biases``, biases (which have one dimension) if all are float32, because our products add
    them as they are."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *parameters
    dtype = torch.get_autocast_dtype(device)
    stay = wide_biases and all(
        t.dtype is torch.float32 for t in parameters if isinstance(t, Tensor) and t.dim() == 1
    )

    def lowered(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dtype is dtype or t.dtype not in LOWERED:
            return t
        stays = stay if t.dim() == 1 else masters and is_master(x, t)
        return t if stays else t.to(dtype)

    return x.to(dtype) if x.dtype in LOWERED else x, *map(lowered, parameters)


def fits(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether every matrix has the dtype of ``x``, or is a master weight."""
    dtype = x.dtype
    for t in parameters:
        if t is not None and t.dtype is not dtype and t.dim() == 2 and not is_master(x, t):
            return False
    return True


def _is_wide(weight: Tensor, x: Tensor) -> bool:
    return weight.dtype is not x.dtype and weight.dtype is accumulate_dtype(x)


def copy_of(weight: Tensor | None, x: Tensor) -> Tensor | None:
    """A master weight cast to the dtype of ``x``; None for other weights."""
    return weight.to(x.dtype) if weight is not None and _is_wide(weight, x) else None


def copy_memory(name: str) -> Callable[[Given], Tensor]:
    """How to allocate :func:`copy_of` for the argument of that name."""

    def make(given: Given) -> Tensor:
        weight, x = given[name], given["x"]
        if weight is None or not _is_wide(weight, x):
            return x.new_empty(0)
        return empty_like_weight(weight).to(x.dtype)

    return make


def multiplied(weight: Tensor, copy: Tensor | None, x: Tensor) -> Tensor:
    """The weight or its copy, whichever has the dtype of ``x``. A copy without elements is none."""
    if not _is_wide(weight, x):
        return weight
    return copy if copy is not None and copy.numel() else weight.to(x.dtype)


# ---- gradients of weights -----------------------------------------------------------------------


def write_product(out: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """Writes ``a @ b`` to ``out``, or adds it; on CUDA, 16-bit operands may give float32."""
    wide: dict[str, Any] = {} if out.dtype is a.dtype else {"out_dtype": out.dtype}
    if not add:
        torch.mm(a, b, out=out, **wide)
    elif wide and has_dispatch_mode():
        out.add_(torch.mm(a, b, **wide))  # FlopCounterMode only counts addmm of one dtype
    else:
        torch.addmm(out, a, b, out=out, **wide)


class Gradient:
    """The gradient of a weight, or of a part of one: a product allocates it, writes it to memory
    that is there, or adds to it."""

    __slots__ = ("adds", "like", "memory")

    def __init__(self, like: Tensor, memory: Tensor | None = None, adds: bool = False) -> None:
        self.like, self.memory, self.adds = like, memory, adds

    def allocated(self) -> Tensor:
        """The memory that a product writes, which it has to fill."""
        if self.memory is None:
            self.memory = empty_like_weight(self.like)
        return self.memory

    def part(self, *index: slice) -> Gradient:
        memory = self.allocated()[index]
        return Gradient(memory, memory, self.adds)

    def chunk(self, count: int, dim: int) -> list[Gradient]:
        parts = self.allocated().chunk(count, dim)
        return [Gradient(memory, memory, self.adds) for memory in parts]

    def product(self, dy: Tensor, x: Tensor) -> None:
        """Computes ``dy.t() @ x`` of matrices; on CUDA it is not rounded to the dtype of ``x``."""
        dtype = self.like.dtype
        if dtype is not x.dtype and not x.is_cuda:
            self.take(product_like(self.like, dy, x))
        elif self.memory is None:
            wide: dict[str, Any] = {} if dtype is x.dtype else {"out_dtype": dtype}
            self.memory = product_like(self.like, dy, x, **wide)
        else:
            write_product(self.memory, dy.t(), x, self.adds)

    def take(self, dweight: Tensor) -> None:
        """Takes a product in the layout of the weight."""
        if self.memory is None:
            self.memory = dweight.to(self.like.dtype)
        elif self.adds:
            self.memory.add_(dweight)
        else:
            self.memory.copy_(dweight)

    @property
    def result(self) -> Tensor | None:
        """The gradient to return to autograd; None if it was already added to ``.grad``."""
        return None if self.adds else self.memory


def product_like(weight: Tensor, dy: Tensor, x: Tensor, **wide: Any) -> Tensor:
    """``dy.t() @ x`` in the layout of the weight."""
    if is_by_columns(weight):
        return torch.mm(x.t(), dy, **wide).t()
    return torch.mm(dy.t(), x, **wide)


def gradient_of(weight: Tensor, in_place: bool) -> Gradient:
    """The gradient of a weight; with ``in_place``, ``.grad`` itself if autograd would only add to
    it."""
    total = _sum_so_far(weight) if in_place else None
    return Gradient(weight) if total is None else Gradient(weight, total, adds=True)


def _sum_so_far(weight: Tensor) -> Tensor | None:
    """``.grad`` in the layout of ``weight``, which is a leaf or the transpose of one, if autograd
    would do nothing with the gradient but add to it. That is not so if a hook would see it, if
    :func:`torch.autograd.grad` returns it, or if another stream or thread may be adding."""
    leaf = weight if weight.is_leaf else weight._base
    if leaf is None or type(leaf) not in PLAIN_CLASSES or leaf.dim() != 2:
        return None
    if not (leaf.is_leaf and leaf.requires_grad):
        return None
    total = leaf.grad
    if total is None or type(total) not in PLAIN_CLASSES or total.dtype is not weight.dtype:
        return None
    total = total if leaf is weight else total.t()
    if total.requires_grad or total.stride() != weight.stride() or _is_watched(leaf, weight):
        return None
    sink = torch.autograd.graph.get_gradient_edge(leaf).node
    if not (_has_one_writer(leaf) and _is_only_added(weight, sink)):
        return None
    if leaf.is_cuda:
        _keep_in_order(sink, torch.cuda.current_stream(leaf.device))
    return total


def _is_watched(leaf: Tensor, weight: Tensor) -> bool:
    hooks = (leaf._backward_hooks, leaf._post_accumulate_grad_hooks, weight._backward_hooks)
    kept = weight is not leaf and weight.retains_grad
    return any(hooks) or kept or torch.is_anomaly_enabled() or has_dispatch_mode()


def _is_only_added(weight: Tensor, sink: Any) -> bool:
    """Whether the gradient of ``weight`` would only go to a leaf's node, which will run."""
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
    """Whether one thread adds to the leaf: true on a GPU, whose backward passes share a thread."""
    if not leaf.is_cuda:
        return False
    stream: torch.cuda.Stream = torch.cuda.current_stream(leaf.device)
    return stream == torch.cuda.default_stream(leaf.device)


def _keep_in_order(sink: Any, stream: torch.cuda.Stream) -> None:
    """Makes the node of a leaf, and its hooks, wait for ``stream`` once: the node may run on
    another stream, and by itself waits only for gradients that it receives."""

    def wait(_gradients: Any) -> None:
        handle.remove()
        own = torch.cuda.current_stream(stream.device)
        if own != stream:
            own.wait_stream(stream)

    handle = sink.register_prehook(wait)
