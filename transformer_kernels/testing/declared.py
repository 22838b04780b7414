# SPDX-License-Identifier: MIT
"""Values of declared arguments: good ones in every combination, and bad ones of each kind."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..ops._declare import Op
from ..ops._declare_arguments import (
    Argument,
    Flag,
    Indices,
    Integer,
    Like,
    Mask,
    Number,
    Param,
    Rows,
    Seed,
    Table,
    as_tuple,
)
from . import attention, attention_block, graph, linear, linear_loss, moe, rope
from .inputs import randn

SHAPE = (3, 8)

Values = dict[str, Any]


def _good(argument: Argument, device: str) -> Any:
    if isinstance(argument, (Rows, Like, Mask, Table)):
        return randn(SHAPE, torch.float32, device)
    if isinstance(argument, Param):
        return randn(SHAPE[-1:], torch.float32, device)
    if isinstance(argument, Seed):
        return torch.tensor([7, 3], device=device)
    if isinstance(argument, Indices):  # below both sizes of SHAPE
        return torch.tensor((2, 0, 2), device=device)
    if isinstance(argument, Integer):
        return 0
    return False if isinstance(argument, Flag) else 0.5


# Ops whose arguments are of kinds that do not say which values fit.
_OWN: dict[str, dict[str, Any]] = {
    "attention": {
        "combinations": attention.combinations,
        "good": attention.GOOD,
        "bad": attention.BAD,
    },
    "attention_block": {"combinations": attention_block.combinations, "bad": attention_block.BAD},
    **graph.OWN,
    "grouped_layer": {"combinations": linear.grouped_combinations, "good": linear.GROUPED_GOOD},
    "linear": {"combinations": linear.combinations},
    "routed_linear": {"combinations": linear.routed_combinations, "bad": linear.BAD},
    "linear_act": {"combinations": linear.act_combinations, "bad": linear.BAD},
    "mlp": {"combinations": linear.mlp_combinations, "bad": linear.BAD},
    "gated_mlp": {"combinations": linear.gated_mlp_combinations, "bad": linear.BAD},
    "linear_cross_entropy": {"combinations": linear_loss.combinations, "bad": linear_loss.BAD},
    "quantized_linear": {
        "combinations": linear.quantized_combinations,
        "good": linear.QUANTIZED_GOOD,
    },
    "moe_experts": {
        "combinations": moe.experts_combinations,
        "good": moe.EXPERTS_GOOD,
        "bad": moe.EXPERTS_BAD,
    },
    "moe_permute": {"combinations": moe.permute_combinations, "good": moe.DISPATCH_GOOD},
    "moe_router": {"combinations": moe.router_combinations, "bad": moe.ROUTER_BAD},
    "moe_unpermute": {"combinations": moe.unpermute_combinations, "good": moe.DISPATCH_GOOD},
    "rope": {"combinations": rope.combinations, "good": rope.GOOD, "bad": rope.BAD},
    "qk_norm": {"combinations": rope.norm_combinations, "good": rope.GOOD, "bad": rope.BAD},
}


def _own(op: Op) -> dict[str, Any]:
    return _OWN.get(op.name, {})


def combinations(op: Op, device: str = "cpu") -> Iterator[Values]:
    """Good values with every choice of the op's optional arguments, those with most of them
    first."""
    if op.name in _OWN:
        yield from _OWN[op.name]["combinations"](device)
        return
    optional = [argument for argument in op.arguments if argument.optional]
    for chosen in itertools.product((True, False), repeat=len(optional)):
        present = dict(zip((argument.name for argument in optional), chosen, strict=True))
        lonely = any(
            present.get(argument.name) and not present.get(getattr(argument, "beside", ""), True)
            for argument in optional
        )
        if not lonely and sum(present[name] for name in op.one_of) == len(op.one_of) // 2:
            values = {
                argument.name: _good(argument, device) if present.get(argument.name, True) else None
                for argument in op.arguments
            }
            seeds = [argument for argument in op.arguments if isinstance(argument, Seed)]
            yield values | {seed.draws: 0.0 for seed in seeds if values[seed.name] is None}


def good(op: Op, name: str) -> Values:
    """Good values that fit together, in which the argument ``name`` is not None."""
    return next(values for values in combinations(op) if values[name] is not None)


def bad(op: Op, argument: Argument) -> Values:
    """Bad values of one argument, which the op refuses beside good ones, by what is wrong with
    them."""
    if not argument.is_tensor:
        return {"text": "1", "None": None} | _bad_number(op, argument)
    x = good(op, argument.name)[argument.name]
    if isinstance(argument, Indices):
        return _bad_indices(argument, x)
    values = {
        "text": "x",
        "number": 3,
        "complex": x.to(torch.complex64),
        "integers": torch.ones(x.shape, dtype=torch.int64),
        "booleans": torch.ones(x.shape, dtype=torch.bool),
    }
    if not argument.optional:
        values["None"] = None
    if isinstance(argument, Mask):
        del values["booleans"]
    if isinstance(argument, Seed):
        del values["integers"]
    if argument is not op.arguments[0]:
        values |= {
            "half": x.half(),
            "double": x.double(),
            "short": x[..., 1:],
            "one more dimension": x.expand(2, *x.shape),
            "more dimensions": x.expand(2, 2, 2, *x.shape),
            "elsewhere": x.to("meta"),
        }
    for what in _own(op).get("good", {}).get(argument.name, ()):
        del values[what]
    return values


def _bad_indices(argument: Indices, indices: torch.Tensor) -> Values:
    values = {
        "text": "x",
        "number": 3,
        "booleans": indices > 0,
        "bytes": indices.byte(),
        "short integers": indices.short(),
        "floats": indices.float(),
        "complex": indices.to(torch.complex64),
        "elsewhere": indices.to("meta"),
    }
    if not argument.optional:
        values["None"] = None
    if argument.per_row:
        values |= {"short": indices[..., 1:], "one more dimension": indices.expand(2, 3)}
    return values


def _bad_number(op: Op, argument: Argument) -> Values:
    if isinstance(argument, Flag):
        return {"number": 1, "list": []}
    if isinstance(argument, Integer):
        return {"fraction": 0.5, **_own(op).get("bad", {}).get(argument.name, {})}
    assert isinstance(argument, Number)
    below = {} if argument.least is None else {"below": argument.least - 1.0, "nan": math.nan}
    below |= {} if argument.most is None else {"above": argument.most + 1.0}
    beyond = {"infinite": math.inf, "nan": math.nan} if argument.finite else {}
    return {**below, **beyond, **_own(op).get("bad", {}).get(argument.name, {})}


def _error(op: Op, arguments: Values, backend: str) -> Exception | None:
    try:
        op.call(*arguments.values(), backend)
    except (ValueError, TypeError) as error:
        return error
    return None


def refusal(op: Op, argument: Argument, value: Any, backend: str) -> Exception:
    """The error of a call that is right but for one argument, which it has to name."""
    arguments = good(op, argument.name) | {argument.name: value}
    error = _error(op, arguments, backend)
    assert error is not None, f"{op.name} takes {value} as {argument.name} on {backend}"
    form = rf"{op.title_of(arguments)}: {argument.name} .+, expected .+"
    assert re.fullmatch(form, str(error)), f"{backend}: {error}"
    return error


def check_refusals(op: Op, argument: Argument) -> None:
    """Holds every backend to one error for each bad value of an argument."""
    for what, value in bad(op, argument).items():
        errors = [refusal(op, argument, value, name) for name in ("auto", "cpu", "reference")]
        said = {(type(error), str(error)) for error in errors}
        assert len(said) == 1, f"{argument.name}, {what}: {said}"


def without_dropout(op: Op, values: Values) -> Values:
    """The arguments with dropout off: two libraries draw different elements."""
    seeds = {a.name: a.draws for a in op.arguments if isinstance(a, Seed)}
    return values | dict.fromkeys(seeds) | dict.fromkeys(seeds.values(), 0.0)


def passes(op: Op, values: Values) -> list[Tensor]:
    """The results of an op, and the gradients of the sum of their squares."""
    leaves = {
        name: x.detach().requires_grad_()
        for name, x in values.items()
        if name in op.differentiable and isinstance(x, Tensor) and x.is_floating_point()
    }
    results = [r for r in as_tuple(op.call(*{**values, **leaves}.values())) if r.numel()]
    loss = sum(r.double().square().sum() for r in results)
    found = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
    return [t for t in (*results, *found) if t is not None]
