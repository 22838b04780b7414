# SPDX-License-Identifier: MIT
"""Proves a rewriting: the operations of the graph and ours on the same random numbers, both
passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from ..prove import agree
from .nodes import example, is_tensor, shape_of, size
from .region import Candidate, Region, run

_SIZES = (1.0, 1e-3)  # of inputs; small ones tell one epsilon from another
_GRADIENTS = 4.0  # they are sums of many terms
_SMALL = 1e-3  # of the largest gradient: what is less may be the rest of a sum that cancels
_FEW = 2  # rows of the first dimension, where the operations take as few

_proofs: dict[Any, str | None] = {}


def why_not(
    candidate: Candidate, region: Region, ours: Sequence[Node], results: Sequence[Node],
    trains: bool,
) -> str | None:  # fmt: skip
    """The reason why our calls do not replace the region; None where they give the same.

    Regions of the same operations, shapes and dtypes are proven once in a process.
    """
    key = (
        _meaning(region.nodes, region.inputs, candidate.outputs),
        _meaning(ours, region.inputs, results), trains, *_modes(region),
    )  # fmt: skip
    if key not in _proofs:
        _proofs[key] = _proof(candidate, region, ours, results, trains)
    return _proofs[key]


def _modes(region: Region) -> tuple[Any, ...]:
    """The state that decides about results besides the operations: autocast."""
    kinds = {example(node).device.type for node in region.inputs if is_tensor(node)}
    return tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in sorted(kinds & {"cpu", "cuda"})
    )


def _meaning(
    nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> tuple[Any, ...]:
    """Equal for operations that compute the same function of inputs alike. It has the functions
    themselves: a later one may have the name and the address of one that is gone."""
    names = {node: f"x{i}" for i, node in enumerate(inputs)}
    names |= {node: f"y{i}" for i, node in enumerate(nodes)}

    lines = []
    for node in inputs:
        value = node.meta.get("example_value")
        if isinstance(value, Tensor):
            what = f"{shape_of(node)} {value.dtype} {value.device}"
            lines.append(f"{what} {value.requires_grad}")
        else:
            lines.append(repr(_plain(value)))
    for node in nodes:
        arguments = torch.utils._pytree.tree_map_only(
            Node, lambda n: names[n], (node.args, dict(node.kwargs))
        )
        lines.append(f"{node.op} {arguments}")
    text = "\n".join([*lines, *(names[node] for node in outputs)])
    return text, *(node.target for node in nodes)


def _proof(
    candidate: Candidate, region: Region, ours: Sequence[Node], results: Sequence[Node],
    trains: bool,
) -> str | None:  # fmt: skip
    devices = {example(n).device for n in region.inputs if is_tensor(n) and example(n).is_cuda}
    with _disable_current_modes(), torch.random.fork_rng(list(devices)):
        torch.manual_seed(1)
        for scale in _SIZES:
            try:
                reason = _compare(candidate, region, ours, results, scale, trains)
            except Exception as error:  # whatever an operation of the graph or ours refuses
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            if reason is not None:
                return reason
    return None


def _compare(
    candidate: Candidate, region: Region, ours: Sequence[Node], results: Sequence[Node],
    scale: float, trains: bool,
) -> str | None:  # fmt: skip
    def stock_of(values: dict[Node, Any]) -> list[Tensor]:
        mine = dict(values)
        run(region.nodes, mine)
        return [mine[node] for node in candidate.outputs]

    def ours_of(values: dict[Node, Any]) -> list[Tensor]:
        mine = dict(values)
        run(ours, mine)
        return [mine[node] for node in results]

    with torch.no_grad():
        values, stock = _drawn(candidate, region, scale, stock_of)
        made = ours_of(values)
    if not agree(made, stock):
        return "it gives other values"
    if any(a.is_contiguous() and not b.is_contiguous() for a, b in zip(stock, made, strict=True)):
        return "its result lies otherwise in memory"
    leaves = [
        node for node, x in values.items()
        if isinstance(x, Tensor) and x.is_floating_point() and example(node).requires_grad
    ]  # fmt: skip
    if not trains or not leaves or scale != 1.0:
        return None
    with torch.enable_grad():
        for node in leaves:
            values[node] = values[node].detach().requires_grad_()
        wanted = _gradients(stock_of(values), [values[node] for node in leaves])
        found = _gradients(ours_of(values), [values[node] for node in leaves])
    return None if _alike(found, wanted) else "it gives other gradients"


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(2)
    weights = [torch.randn(y.shape, generator=generator, device="cpu").to(y) for y in results]
    found = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    return [torch.zeros_like(x) if d is None else d for d, x in zip(found, leaves, strict=True)]


def _alike(ours: Sequence[Tensor], stock: Sequence[Tensor]) -> bool:
    largest = max(float(d.abs().max()) for d in stock)
    floor = [torch.full((1,), largest * _SMALL, device="cpu").to(d) for d in stock]
    return all(
        agree(torch.cat((a.flatten(), c)), torch.cat((b.flatten(), c)), _GRADIENTS)
        for a, b, c in zip(ours, stock, floor, strict=True)
    )


def _drawn(
    candidate: Candidate, region: Region, scale: float, stock_of: Any
) -> tuple[dict[Node, Any], list[Tensor]]:
    """Random values of the inputs, and what the graph's operations make of them. They have few rows
    where the operations have no sizes in them."""
    rows, draws = shape_of(candidate.outputs[0])[:1], candidate.draws
    for most in (_FEW, None):
        values = {
            node: draws[node]() if node in draws else _value(node, scale, most, rows)
            for node in region.inputs
        }
        try:
            return values, stock_of(values)
        except Exception:  # sizes that do not fit
            if most is None:
                raise
    raise AssertionError("unreachable")


def _plain(value: Any) -> Any:
    """A symbol's number; another value itself."""
    return size(value) if isinstance(value, torch.SymInt) else value


def _value(node: Node, scale: float, most: int | None, rows: tuple[int, ...]) -> Any:
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor):
        return _plain(value)
    shape = list(shape_of(node))
    is_data = not isinstance(value, torch.nn.Parameter)
    if most is not None and is_data and len(shape) > 1 and tuple(shape[:1]) == rows:
        shape[0] = min(shape[0], most)
    if value.dtype is torch.bool:
        drawn = torch.rand(shape, device=value.device) < 0.7
        if shape and shape[-1] > 1:  # whichever of the two means hidden, something is seen
            drawn[..., 0], drawn[..., 1] = True, False
        return drawn
    if not value.is_floating_point():
        raise ValueError("integers of unknown meaning")
    if not is_data:
        scale = 0.5 if len(shape) < 2 else shape[-1] ** -0.5
    return (torch.randn(shape, device=value.device) * scale).to(value.dtype)


def forget() -> None:
    """Forgets all proofs."""
    _proofs.clear()
