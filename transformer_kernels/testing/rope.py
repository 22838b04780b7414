# SPDX-License-Identifier: MIT
"""The rotation three ways: ours, as models write it, and by complex numbers in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import functional
from ..ops.rope._ops import QK_NORM, ROPE
from ..ops.rope._stock import turned
from .inputs import poisoned, randn
from .tolerance import assert_close_to_reference


def exact(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """``x`` (B, T, H, D) by cosines and sines (B, T, R / 2), each pair a complex number."""
    half = cos.shape[-1]
    x = x.double()
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    if not interleaved:
        pairs = pairs.transpose(-1, -2)
    numbers = torch.view_as_complex(pairs.contiguous())
    numbers = numbers * torch.complex(cos.double(), sin.double()).unsqueeze(-2)
    pairs = torch.view_as_real(numbers)
    if not interleaved:
        pairs = pairs.transpose(-1, -2)
    return torch.cat([pairs.flatten(-2), rest], -1)


def check(
    q: Tensor,
    k: Tensor | None,
    tables: tuple[Tensor, Tensor],
    at: Tensor,
    backend: str = "auto",
    magnitude: float = 1.0,
    **options: Any,
) -> None:
    """Holds results and gradients to the rule; the options stand for the positions ``at`` (B,
    T)."""
    interleaved = options.get("interleaved", False)
    heads_first = options.get("heads_first", False)
    rows = tuple(table[at] for table in tables)

    def gradients(function: Any, *tensors: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        results = function(*leaves)
        seeds = [s.to(r.dtype) for s, r in zip(cotangents, results, strict=True)]
        return [*(r.detach() for r in results), *torch.autograd.grad(results, leaves, seeds)]

    def each(rotate: Any) -> Any:
        def run(*tensors: Tensor) -> list[Tensor]:
            last = [x.transpose(-3, -2) if heads_first else x for x in tensors]
            results = [rotate(x, *rows, interleaved) for x in last]
            return [x.transpose(-3, -2) if heads_first else x for x in results]

        return run

    def ours(q: Tensor, k: Tensor | None = None) -> Any:
        results = functional.rope(q, k, *tables, backend=backend, **options)
        return results if isinstance(results, tuple) else (results,)

    tensors = (q,) if k is None else (q, k)
    cotangents = [randn(x.shape, torch.float64, x.device) for x in tensors]
    cotangents = [g.to(x.dtype) for g, x in zip(cotangents, tensors, strict=True)]
    with poisoned():
        found = gradients(ours, *tensors)
    theirs = gradients(each(turned), *tensors)
    expected = gradients(each(exact), *(x.double() for x in tensors))
    for index, group in enumerate(zip(found, theirs, expected, strict=True)):
        assert_close_to_reference(*group, f"tensor {index}", magnitude)


# ---- arguments of the op ------------------------------------------------------------------------

KINDS = ("offsets", "plain", "ids", "axes", "packed", "without k")


def op_arguments(kind: str, device: str = "cpu") -> dict[str, Any]:
    """Every argument of the op, by name."""
    given: dict[str, Any] = dict.fromkeys(ROPE.names)
    batch = () if kind == "packed" else (2,)
    q, k = (randn((*batch, 9, heads, 8), torch.float32, device) for heads in (4, 2))
    cos, sin = (randn((16, 3), torch.float32, device) for _ in range(2))
    given |= {
        "q": q, "k": None if kind == "without k" else k, "cos": cos, "sin": sin, "offset": 0,
        "section_time": 0, "section_height": 0, "interleaved": kind in ("axes", "packed"),
    }  # fmt: skip
    if kind == "offsets":
        given |= {"offsets": torch.tensor([3, 1], device=device), "offset": 2}
    if kind == "ids":
        given["position_ids"] = torch.randint(16, (2, 9), device=device)
    if kind == "axes":
        ids = torch.randint(16, (3, 2, 9), dtype=torch.int32, device=device)
        given |= {"position_ids": ids, "section_time": 1, "section_height": 1}
    if kind == "packed":
        given["cu_seqlens"] = torch.tensor([0, 4, 8], dtype=torch.int32, device=device)
        given["offsets"] = torch.tensor([5, 0], dtype=torch.int32, device=device)
    return given


def combinations(device: str) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        yield op_arguments(kind, device)


def norm_arguments(kind: str, device: str = "cpu") -> dict[str, Any]:
    """Every argument of qk_norm, by name; ``plain`` has no tables, and ``ids`` has no weights."""
    given = op_arguments(kind, device) | {"eps": 1e-3, "q_weight": None, "k_weight": None}
    if kind == "plain":
        given |= {"cos": None, "sin": None}
    if kind != "ids":
        given["q_weight"] = randn((8,), torch.float32, device)
    if kind not in ("ids", "axes", "without k"):
        given["k_weight"] = randn((8,), torch.float32, device)
    return {name: given[name] for name in QK_NORM.names}


def norm_combinations(device: str) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        yield norm_arguments(kind, device)


# Values that the ops refuse beyond wrong types.
BAD: dict[str, dict[str, Any]] = {
    "offset": {"below": -1},
    "section_time": {"below": -1, "above": 1},
    "section_height": {"below": -1, "above": 1},
}
# Values that the ops refuse under another argument's name.
GOOD = {"cos": ("short",)}
