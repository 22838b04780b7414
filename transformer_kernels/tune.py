# SPDX-License-Identifier: MIT
"""Times the products of linear layers (ours, PyTorch's and cuBLASLt's) as a program calls them.

After a call inside ``tfk.tuning()`` each product of these sizes runs on the implementation that was
fastest, in this process and in the user's later ones on this machine. :func:`tune_file` names the
file of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _times
from .ops.linear import _routed
from .ops.linear._formula import as_rows
from .ops.linear._tuned import OURS, TORCH, Asked, Routes, Times
from .ops.linear.linear import by_torch, linear, linear_act

ACTIVATION = "gelu_tanh"  # for products with an activation: which one matters little for the choice
PROVIDERS = ("torch", "ours")
_SECONDS = 0.1
_ROUTES = (OURS, TORCH, *range(16))  # for one product; cuBLASLt is asked for 16 algorithms
_ROUTE_SAMPLES = 5


@contextmanager
def tuning() -> Iterator[None]:
    """Times each product of a linear layer that has no time yet, when it is called inside.

    Our product and PyTorch's run some tens of times, with gradients where the call has some. On
    CUDA so do up to 16 of cuBLASLt's algorithms for each product of a plain layer, which takes
    seconds. The caller's tensors and random numbers stay as they are. Calls are not timed in
    graphs, under transforms, while a CUDA graph is captured, or where only PyTorch has the product.

    >>> layer, x = tfk.nn.Linear(64, 64), torch.randn(8, 64)
    >>> with tfk.tuning(), torch.no_grad():
    ...     y = layer(x)
    """
    before, Asked.measure = Asked.measure, measure
    try:
        yield
    finally:
        Asked.measure = before


def start() -> None:
    """Turns tuning on until the process ends; ``TFK_TUNE=1`` does this."""
    Asked.measure = measure


def tune_file() -> Path:
    """The path of the file of times: ``TFK_TUNE_FILE``, or ``tune.txt`` in the user's cache.

    >>> tfk.tune_file().suffix
    '.txt'
    """
    return _times.file_path()


def measure(x: Tensor, weight: Tensor, timed: str, seconds: float = _SECONDS) -> Times:
    """Times ``linear`` or ``linear_act`` with a bias, on operands with the layout of these. The
    text ``timed`` says which, and names the gradients.

    Returns 10th percentiles: time that other programs take from the machine is not the product's.
    """
    activated, wanted, inputs = _asked(x, weight, timed)
    with _alone(x):
        may_route = x.is_cuda and not activated
        routes = _fastest_routes(inputs, wanted, seconds) if may_route else None
        calls = {who: _call(who, activated, wanted) for who in PROVIDERS}
        if routes is not None:
            calls["routed"] = _call(routes, activated, wanted)
        found = _timed(calls, inputs, seconds)
    routed = (found["routed"], routes) if routes is not None else (None, "")
    return Times(found["ours"], found["torch"], *routed)


def in_turn(
    x: Tensor, weight: Tensor, timed: str, choices: tuple[str | Routes, str | Routes],
    seconds: float = _SECONDS,
) -> tuple[float, float]:  # fmt: skip
    """Times two choices for the call that :func:`measure` times, in turn."""
    activated, wanted, inputs = _asked(x, weight, timed)
    calls = {str(i): _call(who, activated, wanted) for i, who in enumerate(choices)}
    with _alone(x):
        first, second = _timed(calls, inputs, seconds).values()
    return first, second


def _asked(x: Tensor, weight: Tensor, timed: str) -> tuple[bool, list[str], tuple[Tensor, ...]]:
    """Whether there is an activation, whose gradients are wanted, and operands without the caller's
    graph, with a bias."""
    op, *words = timed.split()
    wanted = [name for name in ("x", "weight") if f"d{name}" in words]
    inputs = tuple(
        tensor.detach().requires_grad_(name in wanted)
        for name, tensor in (("x", x), ("weight", weight), ("bias", x.new_zeros(len(weight))))
    )
    return op == "linear_act", wanted, inputs


@contextmanager
def _alone(x: Tensor) -> Iterator[None]:
    """Keeps hooks of the caller, such as those of checkpoints, out of the timed call by the
    identity, and the random numbers with which the benchmark fills tensors out of the caller's."""
    with (
        torch.random.fork_rng([x.device] if x.is_cuda else []),
        torch.autocast(x.device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(_itself, _itself),
    ):
        yield


def _timed(
    calls: Mapping[str, Callable[..., Any]], inputs: tuple[Tensor, ...], seconds: float,
    samples: int | None = None,
) -> dict[str, float]:  # fmt: skip
    from .profile.timing import measure as timings  # which loads the benchmark

    device = inputs[0].device
    found = timings(
        "tune", calls, (inputs, {}), device, None, samples, seconds, "graph", as_bench=True
    )
    return {name: round(timing.p10, 2) for name, timing in found.items()}


def _fastest_routes(
    inputs: tuple[Tensor, ...], wanted: list[str], seconds: float
) -> Routes | None:  # fmt: skip
    """The fastest route of each product by itself; None where timing them adds nothing."""
    x, weight, bias = (tensor.detach() for tensor in inputs)
    x = as_rows(x)
    dy = x.new_empty(len(x), len(weight)).normal_()
    products: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]
    products = {"y": (_routed.y_by, (x, weight, bias))}
    if "x" in wanted:
        products["dx"] = (_routed.dx_by, (dy, x, weight))
    if "weight" in wanted:
        products["dweight"] = (_routed.dweight_by, (dy, x, weight))
    with torch.no_grad():
        found = {name: _fastest_route(*of, seconds) for name, of in products.items()}
    return None if set(found.values()) in ({OURS}, {TORCH}) else Routes(**found)


def _fastest_route(
    run: Callable[..., Tensor], inputs: tuple[Tensor, ...], seconds: float
) -> int:  # fmt: skip
    calls = {str(route): partial(run, route) for route in _ROUTES if _runs(run, route, inputs)}
    found = _timed(calls, inputs, seconds, _ROUTE_SAMPLES)
    return int(min(found, key=lambda route: found[route]))


def _runs(run: Callable[..., Tensor], route: int, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the route exists: cuBLASLt may offer fewer algorithms, or one that refuses the
    call."""
    try:
        run(route, *inputs)
    except RuntimeError:
        if route < 0:
            raise
        return False
    return True


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _call(who: str | Routes, activated: bool, wanted: list[str]) -> Callable[..., Any]:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        y = _layer(who, activated, x, weight, bias)
        named = {"x": x, "weight": weight}
        leaves = [named[name] for name in wanted]
        return torch.autograd.grad(y, leaves, y.detach()) if leaves else y

    return run


def _layer(who: str | Routes, activated: bool, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer as a call of its function runs it after that choice."""
    if isinstance(who, Routes):
        y: Tensor = _routed.call(x, weight, bias, *who)
        return y
    if who == "torch":
        return by_torch(x, weight, bias, ACTIVATION if activated else None)
    if activated:
        return linear_act(x, weight, bias, ACTIVATION, backend=x.device.type)
    return linear(x, weight, bias, backend=x.device.type)
