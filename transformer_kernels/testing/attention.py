# SPDX-License-Identifier: MIT
"""Attention computed three ways: by us, by PyTorch's operations in the same dtype, and in
float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..functional import attention
from ..ops.attention._ops import ATTENTION
from ..ops.attention._stock import written_out
from . import reference
from .inputs import poisoned, randn
from .tolerance import assert_close_to_reference, floor_unit

Outcome = tuple[dict[str, Tensor], dict[str, Tensor]]  # results and gradients, by name

_DEVIATIONS = 4.0  # allowed deviations of a sum of rounding errors: exceeded once in 16,000


@dataclass
class Call:
    """The tensors of one call, and its options by our names."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    sinks: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def differentiable(self) -> dict[str, Tensor]:
        named = {"q": self.q, "k": self.k, "v": self.v, "bias": self.bias, "sinks": self.sinks}
        return {name: x for name, x in named.items() if x is not None}

    def to(self, device: str) -> Call:
        """The call on another device, except for the seed of dropout, which stays."""
        options = {
            name: x.to(device) if isinstance(x, Tensor) and name != "seed" else x
            for name, x in self.options.items()
        }
        moved = {name: x.to(device) for name, x in self.differentiable.items()}
        return Call(**moved, options=options)


def tensors(
    queries: int,
    keys: int,
    heads: int = 2,
    kv_heads: int = 2,
    dim: int = 64,
    value_dim: int | None = None,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn((batch, queries, heads, dim), dtype),
        randn((batch, keys, kv_heads, dim), dtype),
        randn((batch, keys, kv_heads, value_dim or dim), dtype),
    )


def _for_reference(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    left, right = options.pop("window", (-1, -1))
    options["window"] = (left, 0 if options.pop("causal", False) else right)
    return options


def exact(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return reference.attention(q, k, v, **_for_reference(options))


def eager(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Attention by PyTorch's operations in q's dtype, with all scores: code that a user would
    write."""
    return written_out(q, k, v, **_for_reference(options))


def differentiate(
    function: Callable[..., Any],
    call: Call,
    gradient: Tensor,
    dtype: torch.dtype | None,
    **more: Any,
) -> Outcome:
    """Results, and the gradients of all tensors that have one, in ``dtype`` or in their own
    dtypes."""
    leaves = {
        name: (x if dtype is None else x.to(dtype)).detach().requires_grad_()
        for name, x in call.differentiable.items()
    }
    out, lse = function(**leaves, **call.options, **more)
    gradients = torch.autograd.grad(out, list(leaves.values()), gradient.to(out.dtype))
    return (
        {"out": out.detach(), "lse": lse.detach()},
        dict(zip(leaves, gradients, strict=True)),
    )


def _rounding_of_out(call: Call, gradient: Tensor, lse: Tensor, out: Tensor) -> float:
    """The error of the gradients of sinks that comes from rounding ``out`` to q's dtype.

    The backward pass starts from the rounded ``out``. Each element is off by up to half a unit, of
    either sign, times dout and the sink's probability; these add up over a head's queries.
    """
    assert call.sinks is not None
    power = (call.sinks.double().view(1, -1, 1) - lse.double()).exp().transpose(1, 2)
    terms = (gradient.double() * out.double()).square().sum(-1) * power.square()
    deviation = terms.sum((0, 1)).max().sqrt().item() if terms.numel() else 0.0
    return _DEVIATIONS * deviation * 0.5 * torch.finfo(call.q.dtype).eps


def _magnitudes(call: Call, gradient: Tensor, lse: Tensor, out: Tensor) -> dict[str, float]:
    """The size of the terms that cancel in each gradient.

    They are the terms of p * dp and p * delta, times k or q. Recomputing p from the log-sum-exp, a
    rounded number, costs an error of that many units. A gradient of bias adds up the rounding of
    ``out`` over the rows that share an element.
    """
    q, k, v = (x.detach().double() for x in (call.q, call.k, call.v))
    keys, group = k.shape[1], q.shape[2] // k.shape[2]
    unit = torch.eye(keys, dtype=torch.float64, device=q.device).view(1, keys, 1, keys)
    options = {"bias": call.bias, "sinks": call.sinks, **call.options}
    options = {n: x for n, x in options.items() if n not in ("dropout", "seed")}
    p, _ = exact(q, k, unit.expand(*k.shape[:3], keys), **options)
    g = gradient.double().abs()
    dp = torch.einsum("bihd,bjhd->bihj", g, v.abs().repeat_interleave(group, 2))
    delta = (out.double().abs() * g).sum(-1).max().item() if out.numel() else 0.0
    largest = max((p * dp).abs().max().item(), delta) if p.numel() else 0.0
    finite = lse[torch.isfinite(lse)]
    units = max(1.0, finite.abs().max().item() / 4 if finite.numel() else 0.0)
    scale = call.options.get("scale")
    factor = largest * units * abs(q.shape[-1] ** -0.5 if scale is None else scale)
    # A key's gradient is a sum over queries: take the root of the sum of the squares of p.
    column = p.square().sum(1).sqrt().max().item() * group**0.5 if p.numel() else 0.0
    size = {
        "q": factor * k.abs().max().item(),
        "k": factor * max(column, 1.0) * q.abs().max().item(),
        "v": units,
    }
    if call.bias is not None:
        rows = math.prod(q.shape[:3]) / max(call.bias.numel() // call.bias.shape[-1], 1)
        size["bias"] = largest * units * max(rows, 1.0) ** 0.5
    if call.sinks is not None:
        dtype = call.sinks.dtype
        unit_of_sinks = floor_unit(dtype)
        size["sinks"] = max(
            largest * units * math.prod(q.shape[:2]) ** 0.5,
            _rounding_of_out(call, gradient, lse, out) / unit_of_sinks,
        )
    return {name: max(number, 1.0) for name, number in size.items()}


def check(
    call: Call,
    keep: Tensor | None = None,
    backend: str = "auto",
    device: str | None = None,
    magnitude: float = 1.0,
) -> None:
    """Holds the results and gradients of a call to the rule; ours run on ``device`` where one is
    named."""
    shape = (*call.q.shape[:-1], call.v.shape[-1])
    gradient = randn(shape, call.q.dtype)
    there = call if device is None else call.to(device)
    with poisoned():
        ours = differentiate(
            attention, there, gradient.to(there.q.device), None, return_lse=True, backend=backend
        )
    check_outcome(call, gradient, ours, keep, magnitude)


def check_outcome(
    call: Call,
    gradient: Tensor,
    ours: Outcome,
    keep: Tensor | None = None,
    magnitude: float = 1.0,
) -> None:
    """Holds a call's results, and the gradients that ``gradient`` led to, to the rule."""
    plain = Call(**{**call.__dict__, "options": dict(call.options)})
    for name in ("dropout", "seed"):
        plain.options.pop(name, None)
    more = {} if keep is None else {"keep": keep}
    theirs = differentiate(eager, plain, gradient, None, **more)
    expected = differentiate(exact, plain, gradient, torch.float64, **more)
    sizes = _magnitudes(plain, gradient, expected[0]["lse"], expected[0]["out"])
    for index, kind in enumerate(("result", "gradient")):
        for name, value in ours[index].items():
            assert_close_to_reference(
                value,
                theirs[index][name],
                expected[index][name],
                f"{kind} {name}",
                magnitude * (sizes.get(name, 1.0) if index else 1.0),
            )


# ---- arguments of the op ------------------------------------------------------------------------

# The optional arguments that a call has: calls of batches, then of packed sequences.
OPTIONAL = {
    "all": ("bias", "mask", "alibi_slopes", "sinks", "seed"),
    "plain": (),
    "bias": ("bias",),
    "wide bias": ("wide bias",),
    "mask": ("mask",),
    "slopes": ("alibi_slopes",),
    "sinks": ("sinks",),
    "dropout": ("seed",),
}
PACKED = {
    "all": ("alibi_slopes", "sinks", "seed"),
    **{name: OPTIONAL[name] for name in ("plain", "slopes", "sinks", "dropout")},
}


def op_arguments(
    names: tuple[str, ...],
    packed: bool,
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
) -> dict[str, Any]:
    """Every argument of the op, by name; optional ones that are not in ``names`` are None."""
    wide = torch.promote_types(dtype, torch.float32)
    given: dict[str, Any] = dict.fromkeys(ATTENTION.names)
    with torch.device(device) if device else nullcontext():
        if packed:
            q, k, v = (randn((9, heads, 8), dtype) for heads in (4, 2, 2))
            offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
            given |= {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets.clone()}
        else:
            q, k, v = tensors(6, 9, 4, 2, dim=8, value_dim=5, dtype=dtype)
        optional = {
            "bias": randn((4, 1, 9), dtype),
            "wide bias": randn((4, 1, 9), wide),
            "mask": torch.rand(6, 9) > 0.3,
            "alibi_slopes": torch.rand(4, dtype=wide),
            "sinks": torch.randn(4, dtype=wide),
            "seed": torch.tensor([1, 2]),
        }
    given |= {name.removeprefix("wide "): optional[name] for name in names}
    return given | {
        "q": q, "k": k, "v": v, "scale": 0.3, "window_left": 20, "window_right": 0,
        "top_left": False, "softcap": 2.0, "dropout": 0.5 if "seed" in names else 0.0,
        "deterministic": False,
    }  # fmt: skip


def combinations(device: str) -> Iterator[dict[str, Any]]:
    """Arguments of batches and of packed sequences, with all optional ones together and each
    alone."""
    for packed, choices in ((False, OPTIONAL), (True, PACKED)):
        for names in choices.values():
            yield op_arguments(names, packed, device=device)


_INFINITE = {"infinite": math.inf, "nan": math.nan}
# Values that the op refuses beyond wrong types.
BAD: dict[str, dict[str, Any]] = {
    "scale": _INFINITE,
    "window_left": {"below": -2},
    "window_right": {"below": -2},
    "softcap": {"below": -1.0, **_INFINITE},
    "dropout": {"below": -0.5, "above": 1.5, "nan": math.nan},
}
# Values that the op takes, or refuses under another argument's name, unlike other ops.
GOOD = {
    "v": ("short",),  # its head dim may differ
    "bias": ("one more dimension",),  # a dimension for heads, and one more for batches
    "alibi_slopes": ("one more dimension",),
    "mask": ("booleans",),
    "cu_seqlens_q": ("short",),
}
