# SPDX-License-Identifier: MIT
"""Timing both products of a linear layer, ours and PyTorch's, as it is called.

>>> with tfk.tuning():
...     model(x).sum().backward()

From then on each product of these sizes is the one that was faster, here and in every later process
of the user on this machine. The file that keeps the times is :func:`tune_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .ops.linear import _tuned
from .ops.linear._tuned import Product, Times

ACTIVATION = "gelu_tanh"  # of products with one: what it is matters little for the choice
PROVIDERS = ("torch", "ours")
_SECONDS = 0.1


@contextmanager
def tuning() -> Iterator[None]:
    """Inside, each product of a linear layer that was not timed yet is timed when it is called.

    Both products run some tens of times, with gradients where the call has some; no tensor of the
    caller is changed, and no random number drawn. Not timed are calls in graphs, under transforms
    and while a CUDA graph is captured, and products that only PyTorch has here.
    """
    before = _tuned.measure()
    _tuned.measure_with(measure)
    try:
        yield
    finally:
        _tuned.measure_with(before)


def start() -> None:
    """The same for as long as the process lives; what ``TFK_TUNE=1`` asks for."""
    _tuned.measure_with(measure)


def tune_file() -> Path:
    """The file that keeps times: ``TFK_TUNE_FILE``, or ``tune.json`` in the user's cache."""
    return _tuned.file_path()


def measure(x: Tensor, weight: Tensor, product: Product, seconds: float = _SECONDS) -> Times:
    """The times of ``linear``, or of ``linear_act``, with a bias, of operands that lie as these.

    They are the 10th percentiles: what other programs take of the machine is not the product's.
    """
    from .profile.timing import measure as timings  # and with it the benchmark

    wanted = product.gradients.split()
    inputs = tuple(
        tensor.detach().requires_grad_(name in wanted)
        for name, tensor in (("x", x), ("weight", weight), ("bias", x.new_zeros(len(weight))))
    )
    calls = {who: _call(who, product.activated, wanted) for who in PROVIDERS}
    # The identity keeps hooks of the caller, such as those of checkpoints, from what is timed; the
    # benchmark fills tensors with random numbers.
    with (
        torch.random.fork_rng([x.device] if x.is_cuda else []),
        torch.autocast(x.device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(_itself, _itself),
    ):
        found = timings(
            "tune", calls, (inputs, {}), x.device, None, None, seconds, "graph", as_bench=True
        )
    return Times(**{who: round(found[who].p10, 2) for who in PROVIDERS})


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _call(who: str, activated: bool, wanted: list[str]) -> Callable[..., Any]:
    from .functional import linear, linear_act

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        with _tuned.forcing(who):
            y = linear_act(x, weight, bias, ACTIVATION) if activated else linear(x, weight, bias)
            named = {"x": x, "weight": weight}
            leaves = [named[name] for name in wanted]
            return torch.autograd.grad(y, leaves, y.detach()) if leaves else y

    return run
