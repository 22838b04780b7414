# SPDX-License-Identifier: MIT
"""Master weights, which are stored in float32 and multiplied in 16 bits, and the memory that a
weight's gradient is written to.

Under autocast PyTorch rounds the gradient of a master weight to 16 bits, casts it to float32, and
adds it to ``.grad``. Here the product writes float32, or adds to ``.grad`` directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._torch import has_dispatch_mode, is_eager, is_fake
from .._declare_arguments import Given
from .._dtype import accumulate_dtype, under_autocast
from .._kinds import PLAIN_CLASSES
from ._arguments import empty_like_weight

# ---- master weights -----------------------------------------------------------------------------

_DEVICES = ("cuda",)  # devices whose 16-bit products give float32


def is_master(x: Tensor, weight: Any, *, fakes: bool = False) -> bool:
    """Whether the layer itself casts the weight, instead of autocast, for a gradient in float32.
    With ``fakes``, fake tensors count as the real ones that they stand for."""
    return (
        (type(weight) in PLAIN_CLASSES or (fakes and is_fake(weight)))
        and weight.dtype is torch.float32
        and weight.device.type in _DEVICES
        and weight.requires_grad
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
    biases = [t for t in parameters if isinstance(t, Tensor) and t.dim() == 1]
    stay = wide_biases and all(bias.dtype is torch.float32 for bias in biases)

    def stays(t: Tensor | None) -> bool:
        if not isinstance(t, Tensor):
            return True
        return stay if t.dim() == 1 else masters and is_master(x, t)

    lower = partial(under_autocast, x.device.type)
    return *lower(x), *(t if stays(t) else lower(t)[0] for t in parameters)


def fits(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether every matrix has the dtype of ``x``, or is a master weight."""
    return all(
        t is None or t.dim() != 2 or t.dtype is x.dtype or is_master(x, t) for t in parameters
    )


def _is_wide(weight: Tensor | None, x: Tensor) -> bool:
    return weight is not None and weight.dtype is accumulate_dtype(x) is not x.dtype


def copy_of(weight: Tensor | None, x: Tensor) -> Tensor:
    """A master weight cast to the dtype of ``x``; a tensor without elements for other weights."""
    if weight is None or not _is_wide(weight, x):
        return x.new_empty(0)
    return weight.to(x.dtype)


def copy_memory(name: str) -> Callable[[Given], Tensor]:
    """How to allocate :func:`copy_of` for the argument of that name."""

    def make(given: Given) -> Tensor:
        weight, x = given[name], given["x"]
        if not _is_wide(weight, x):
            return x.new_empty(0)
        return empty_like_weight(weight).to(x.dtype)

    return make


def multiplied(weight: Tensor, copy: Tensor, x: Tensor) -> Tensor:
    """The weight or its copy, whichever has the dtype of ``x``."""
    if not _is_wide(weight, x):
        return weight
    return copy if copy.numel() else weight.to(x.dtype)


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


class Gradient(NamedTuple):
    """Memory that a product writes a weight's gradient to, or adds it to."""

    memory: Tensor
    adds: bool = False

    def part(self, *index: slice) -> Gradient:
        return self._replace(memory=self.memory[index])

    def chunk(self, count: int, dim: int) -> list[Gradient]:
        return [self._replace(memory=memory) for memory in self.memory.chunk(count, dim)]

    def product(self, dy: Tensor, x: Tensor) -> None:
        """Computes ``dy.t() @ x`` of matrices; on CUDA it is not rounded to the dtype of ``x``."""
        if self.memory.dtype is x.dtype or self.memory.is_cuda:
            write_product(self.memory, dy.t(), x, self.adds)
        else:
            self.take(torch.mm(dy.t(), x))

    def take(self, dweight: Tensor) -> None:
        if self.adds:
            self.memory.add_(dweight)
        else:
            self.memory.copy_(dweight)

    @property
    def result(self) -> Tensor | None:
        """The gradient to return to autograd; None if it was already added to ``.grad``."""
        return None if self.adds else self.memory


def gradient_of(weight: Tensor, in_place: bool) -> Gradient:
    """Memory for the gradient; with ``in_place``, ``.grad`` itself if autograd would only add to
    it."""
    total = _sum_so_far(weight) if in_place else None
    return Gradient(empty_like_weight(weight)) if total is None else Gradient(total, adds=True)


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
