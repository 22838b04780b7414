# SPDX-License-Identifier: MIT
"""The experts of a mixture, whose weights are in parameters of three dimensions: a module that is
called with tokens, the experts that a router chose for each, and their weights. The router stays
as it is, whatever its conventions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import functional
from ..._torch import is_plain_parameter, is_transformed
from ..cost import recorded_bytes
from ..derive import meets, original, stands
from ..floors import usual
from ..mixin import Mixin, leave
from ..prove import agree, fused_twin, twin
from ..record import Call, Trace
from ..site import Calls, RefusedError, Site
from ._pattern import Pattern
from .activation import activation_of

_GATES = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}
_TOKENS, _CHOSEN, _SIZES = 11, 2, (1.0, 12.0)  # of the proof: large numbers reach a clamp
_MOST_CHOSEN, _MOST_EXPERTS = 16, 4096


class Layout(NamedTuple):
    """The parameters by name, in the order of their use, and how they lie."""

    weights: tuple[str, str]
    biases: tuple[str, ...]
    by_columns: tuple[bool, bool]  # whether weights are (E, inputs, outputs)
    interleaved: bool
    activation: str
    children: tuple[tuple[str, type], ...]  # the modules that the call leaves out


class Experts(Mixin):
    """The class of a module that holds the MLPs of a mixture."""

    _tfk_keeps_signature = True
    _tfk_layout: Layout

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        opens = _is_choice(given) and self._tfk_gates["experts"].opens(given[0])
        # Where each sample of torch.func.vmap chooses other experts, the formula multiplies every
        # row with the weights of all of them.
        if not opens or is_transformed():
            return super().forward(*args, **kwargs)
        reason = _why_not(self)
        if reason is not None:
            leave(self, "experts", reason)
            return super().forward(*args, **kwargs)
        return run(self._parameters, self._tfk_layout, *given)


def _is_choice(given: tuple[Any, ...]) -> bool:
    """Whether the arguments are tokens (T, D), experts (T, K) and weights (T, K)."""
    if len(given) != 3 or not all(isinstance(x, Tensor) and x.dim() == 2 for x in given):
        return False
    x, chosen, weights = given
    integers = chosen.dtype in (torch.int32, torch.int64)
    floats = x.is_floating_point() and weights.is_floating_point()
    few = 1 <= chosen.shape[1] <= _MOST_CHOSEN
    return integers and floats and few and chosen.shape == weights.shape and len(x) == len(chosen)


def _why_not(module: nn.Module) -> str | None:
    layout: Layout = module._tfk_layout  # type: ignore[assignment]
    for name in (*layout.weights, *layout.biases):
        if not is_plain_parameter(module._parameters.get(name)):
            return f"{name} is no plain parameter any more"
    for name, kind in layout.children:
        if not stands(module._modules.get(name), kind):
            return f"{name} is no longer as it was when it was fused"
    return None


def run(
    parameters: Mapping[str, Any], layout: Layout, x: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The experts of a module with these parameters, or of so many of its experts."""
    first, last = (
        parameters[name].transpose(1, 2) if turned else parameters[name]
        for name, turned in zip(layout.weights, layout.by_columns, strict=True)
    )
    bias, down_bias = [parameters[name] for name in layout.biases] or (None, None)
    dispatch = functional.moe_dispatch(chosen, len(first))
    return functional.moe_experts(
        x, dispatch, weights, first, last, layout.activation, bias=bias, down_bias=down_bias,
        interleaved=layout.interleaved,
    )  # fmt: skip


# ---- matching -----------------------------------------------------------------------------------


class ExpertsPattern(Pattern):
    name = "experts"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module = call.module
        weights = [n for n, p in module._parameters.items() if p is not None and p.dim() == 3]
        if len(weights) != 2 or len(call.ins) != 3 or len(call.outs) != 1:
            return None
        x, chosen = (trace.values[v] for v in call.ins[:2])
        layout = next(_layouts(module, weights, x.shape[-1], chosen.shape[-1]), None)
        if layout is None:
            raise RefusedError("no layout and activation of ours give its values")
        state, nodes = {"_tfk_layout": layout}, trace.computed(call)
        moved = sum(p.numel() * p.itemsize for p in module.parameters())
        return Site(
            self.name, call.path, module, Experts, state, function="functional.moe_experts",
            covers=tuple(f"{call.path}.{name}".lstrip(".") for name, _ in layout.children),
            key=(layout, x.shape[-1], chosen.shape[-1], x.dtype), shape=x.shape,
            launches=(len(nodes), 7), bytes=(recorded_bytes(trace, nodes) + moved, moved),
            gate=usual(self.name, x.device), has_products=True, features=x.shape[-1],
            trial=_trial(module, state, x, chosen.shape[-1]),
        )  # fmt: skip


def _layouts(module: nn.Module, weights: list[str], width: int, chosen: int) -> Iterator[Layout]:
    """Yields the layouts that give the module's values."""
    experts = len(module.get_parameter(weights[0]))
    biases = [n for n, p in module._parameters.items() if p is not None and p.dim() == 2]
    others = len(module._parameters) - len(weights) - len(biases)
    if len(biases) not in (0, 2) or others or not _CHOSEN <= experts <= _MOST_EXPERTS:
        return
    if chosen > _MOST_CHOSEN or not all(meets(child) for child in module.children()):
        return
    children = tuple((n, original(type(c))) for n, c in module._modules.items() if c is not None)
    found = [activation_of(c.forward) for c in module.children()]
    activations = [_GATES[a] for a in found if a in _GATES] or ["clamped_swiglu"]
    stock, flags = twin(module, _drawn), (False, True)
    for names in itertools.permutations(weights):
        shapes = [tuple(module.get_parameter(name).shape[1:]) for name in names]
        for turned, down_turned, interleaved, activation in itertools.product(
            flags, flags, flags, activations
        ):
            by_columns = (turned, down_turned)
            (lines, columns), (rows, features) = (
                shape[::-1] if is_turned else shape
                for shape, is_turned in zip(shapes, by_columns, strict=True)
            )
            if (lines, columns, rows) != (2 * features, width, width):
                continue
            ordered = biases if not biases or _fits(module, biases, lines) else biases[::-1]
            layout = Layout(
                (names[0], names[1]), tuple(ordered), by_columns, interleaved, activation, children
            )
            if _agrees(stock, layout, width, experts):
                yield layout


def _fits(module: nn.Module, biases: list[str], lines: int) -> bool:
    return module.get_parameter(biases[0]).shape[1] == lines


# ---- proof and trial ----------------------------------------------------------------------------


def _drawn(p: Tensor) -> Tensor:
    """Random numbers of a parameter's shape; those of a parameter that holds some are its own."""
    wide = torch.float64 if p.dtype is torch.float64 else torch.float32
    if p.numel() > 1 << 16 and bool(p.any()):
        return p.detach().to(wide)
    generator = torch.Generator(p.device).manual_seed(p.numel())
    drawn = torch.randn(p.shape, generator=generator, dtype=wide, device=p.device)
    return drawn * (0.5 if p.dim() < 3 else min(p.shape[1:]) ** -0.5)


def _choice(
    rows: int, width: int, experts: int, chosen: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens with different experts each."""
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(rows, width, generator=generator, dtype=dtype, device=device)
    scores = torch.rand(rows, experts, generator=generator, device=device)
    weights, indices = scores.topk(chosen)
    return x, indices, weights.to(dtype)


def _agrees(stock: nn.Module, layout: Layout, width: int, experts: int) -> bool:
    """Whether both codes give the same for tokens of two sizes."""
    ours = fused_twin(stock, Experts, {"_tfk_layout": layout})
    some = next(stock.parameters())
    x, *choice = _choice(_TOKENS, width, experts, _CHOSEN, some.dtype, some.device)
    with torch.no_grad():
        try:
            return all(
                agree(ours.forward(size * x, *choice), stock.forward(size * x, *choice))
                for size in _SIZES
            )
        except Exception:  # whatever a module of the user's raises
            return False


def _trial(module: nn.Module, state: dict[str, Any], x: Any, chosen: int) -> Callable[[int], Calls]:
    """Times both codes on random tokens that are spread over the experts."""

    def trial(rows: int) -> Calls:
        stock = twin(module, Tensor.detach)
        ours = fused_twin(stock, Experts, state)
        experts = len(next(stock.parameters()))
        tensors = _choice(rows, x.shape[-1], experts, chosen, x.dtype, x.device)
        return Calls(stock.forward, ours.forward, tensors, tuple(stock.parameters()))

    return trial
