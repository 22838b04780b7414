# SPDX-License-Identifier: MIT
"""attention of rows whose largest score is far from 0: masks of large negative numbers, and large
activations.

Scores are exact in float32: the level of a row, and steps below it that are no smaller than its
last bit. So float64 is the answer in every dtype, and a row has the sum 1 however large its scores.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import eager, exact
from transformer_kernels.testing.inputs import randn

pytestmark = pytest.mark.usefixtures("default_device", "one_thread")

LARGEST = torch.finfo(torch.float32).max
LEVELS = [2.0**n for n in (9, 10, 11, 14, 17, 20, 24, 27, 28, 30, 33, 60, 100, 126)] + [LARGEST]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FEATURES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (20, 9)},
    "top left": {"causal": True, "top_left": True},
    "softcap": {"softcap": 2.0**12},
    "alibi": {"alibi_slopes": "slopes"},
    "mask": {"mask": "mask"},
    "sinks": {"sinks": "sinks"},
}
SCALE = 0.5


class Problem(NamedTuple):
    leaves: dict[str, Tensor]
    options: dict[str, Any]


def _step(level: float) -> float:
    """The unit of differences between scores; 0 where float16 cannot hold it."""
    step = max(1.0, 4 * 2.0 ** (math.frexp(level)[1] - 24))
    return step if step <= 2.0**14 else 0.0


def _inputs(dtype: torch.dtype, step: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs whose scores are 0, -step and -2 step."""
    queries, keys = (150, 300) if torch.get_default_device().type == "cuda" else (37, 70)
    q, k = torch.zeros(2, queries, 4, dim, dtype=dtype), torch.zeros(2, keys, 2, dim, dtype=dtype)
    q[..., 0] = step / SCALE
    k[..., 0] = -torch.randint(0, 3, k.shape[:-1], device="cpu").to(q)
    return q, k, randn(k.shape, dtype)


def _problem(dtype: torch.dtype, level: float, feature: str, dim: int = 64) -> Problem:
    """A bias puts every third row at the level; one row sees nothing, and one sees few keys."""
    q, k, v = _inputs(dtype, _step(level), dim)
    shape = (2, 1, q.shape[1], k.shape[1])
    bias = torch.zeros(shape, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    bias[:, :, ::3] = level
    bias[:, :, 9, 5:] = -torch.inf
    bias[:, :, 12] = -torch.inf
    # The gradient of a sink on CUDA knows only what lse in units of log2 tells.
    sink = level if torch.get_default_device().type == "cpu" else 1.0
    made = {
        "slopes": torch.full((4,), _step(level), dtype=bias.dtype),
        "mask": torch.arange(shape[-1]).expand(shape) % 5 != 1,
        "sinks": torch.tensor([sink, 0.0, -sink, -torch.inf], dtype=bias.dtype),
    }
    options = {
        name: made[value] if isinstance(value, str) else value
        for name, value in FEATURES[feature].items()
    }
    leaves = {"q": q, "k": k, "v": v, "bias": bias}
    if "sinks" in options:
        leaves["sinks"] = options.pop("sinks")
    return Problem(leaves, {**options, "scale": SCALE})


def _loss(out: Tensor, lse: Tensor, gradient: Tensor) -> Tensor:
    of_lse = lse.masked_fill(lse == -torch.inf, 0.0).sum() / 64
    return (out * gradient.to(out.dtype)).sum(dtype=lse.dtype) + of_lse


def _outcome(
    function: Any, problem: Problem, gradient: Tensor, dtype: torch.dtype | None = None, **more: Any
) -> dict[str, Tensor]:
    leaves = {
        name: (x if dtype is None else x.to(dtype)).detach().requires_grad_()
        for name, x in problem.leaves.items()
    }
    out, lse = function(**leaves, **problem.options, **more)
    found = torch.autograd.grad(_loss(out, lse, gradient), [*leaves.values()])
    gradients = {f"d{name}": x for name, x in zip(leaves, found, strict=True)}
    return {"out": out.detach(), "lse": lse.detach(), **gradients}


def _magnitudes(problem: Problem, gradient: Tensor) -> dict[str, float]:
    """The size of the terms that results sum up: those of a row of equal scores cancel."""
    q, k, v = (problem.leaves[name].double() for name in "qkv")
    scale = problem.options.get("scale", q.shape[-1] ** -0.5)
    dz = gradient.double().norm(dim=-1).max().item() * v.norm(dim=-1).max().item() + 1 / 64
    return {
        "dq": dz * scale * k.abs().max().item(),
        "dk": dz * scale * q.abs().max().item() * q.shape[1] ** 0.5,
        "dbias": dz,
        "dsinks": dz * q.shape[1],
    }


def _hold_to_the_rule(
    ours: dict[str, Tensor], problem: Problem, gradient: Tensor, level: float
) -> None:
    dtype = problem.leaves["q"].dtype
    expected = _outcome(exact, problem, gradient, torch.float64)
    stock = _outcome(eager, problem, gradient)
    magnitudes = _magnitudes(problem, gradient)
    for name, x in ours.items():
        want = expected[name]
        fine = torch.isfinite(want)
        assert torch.equal(torch.isfinite(x), fine), name
        largest = magnitudes.get(name, want[fine].abs().max().item())
        wrong = (x.double() - want)[fine].abs().max().item()
        # Its scores are of the dtype: those of float16 may be infinite.
        wrong_stock = (stock[name].double() - want)[fine].abs().nan_to_num(0.0).max().item()
        # Rows that are not far have an lse of one number, which is rounded.
        units = 8 * max(1.0, min(abs(level), 2048.0) if dtype.itemsize > 2 else 1.0)
        room = units * torch.finfo(dtype).eps * max(largest, 1e-3)
        assert wrong <= 2 * wrong_stock + room, f"{name}: {wrong:.3g}, PyTorch {wrong_stock:.3g}"


def _check(problem: Problem, level: float, **more: Any) -> None:
    q, v = problem.leaves["q"], problem.leaves["v"]
    # Small, so that float16 holds that of k.
    gradient = randn((*q.shape[:-1], v.shape[-1]), q.dtype) / 64
    ours = _outcome(attention, problem, gradient, return_lse=True, **more)
    _hold_to_the_rule(ours, problem, gradient, level)


@pytest.mark.parametrize("sign", [-1, 1], ids=["below", "above"])
@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_every_level(low: torch.dtype, sign: int) -> None:
    for level in LEVELS:
        _check(_problem(low, sign * level, "full"), level)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_every_feature(low: torch.dtype, feature: str) -> None:
    for level in (-(2.0**17), -(2.0**30), 2.0**30):
        _check(_problem(low, level, feature), level)


@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_rows_of_the_most_negative_number_of_a_dtype(low: torch.dtype) -> None:
    """Models add this number to scores as a mask; in the sum nothing remains of the score."""
    q, k, v = (randn((2, 40, 2, 32), low) for _ in range(3))
    bias = torch.zeros(2, 1, 40, 40, dtype=low)
    bias[:, :, ::2] = torch.finfo(low).min
    bias[:, :, 1::4, 10:] = torch.finfo(low).min
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, bias=bias)
    if low is torch.float16:  # its most negative number is too small for that
        assert torch.isfinite(out).all()
        return
    near = {"rtol": 0.02, "atol": 0.02} if low is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    mean = v.mean(1, keepdim=True).expand(2, 20, 2, 32)
    torch.testing.assert_close(out[:, ::2], mean, **near)
    gradient = torch.zeros_like(out)
    gradient[:, ::2] = 1
    dv = torch.autograd.grad(out, v, gradient)[0]
    torch.testing.assert_close(dv, torch.full_like(dv, 0.5), **near)


@pytest.mark.parametrize("size", [3e4, 1e9, 1e17])
@pytest.mark.parametrize("dim", [32, 64, 128, 192, 256])
@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_large_activations(low: torch.dtype, dim: int, size: float) -> None:
    """Activations have either sign, and every other key is half as large."""
    if torch.get_default_device().type == "cpu" and dim > 64:
        pytest.skip("for plans of CUDA")
    if size > torch.finfo(low).max:
        pytest.skip("is infinite")
    for sign in (1, -1):
        q, k = torch.full((1, 70, 2, dim), size), torch.full((1, 90, 1, dim), sign * size)
        k[:, ::2] /= 2
        leaves = {"q": q.to(low), "k": k.to(low), "v": randn((1, 90, 1, dim), low)}
        for options in ({"scale": SCALE}, {}, {"causal": True, "top_left": True}):
            _check(Problem(leaves, options), size)


@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_packed_sequences(low: torch.dtype) -> None:
    size = 3e4
    lengths = [0, 70, 70, 163, 170]
    k = torch.full((170, 1, 64), size)
    k[::2] = -size
    leaves = {"q": torch.full((170, 2, 64), size), "k": k, "v": randn((170, 1, 64), torch.float32)}
    leaves = {name: x.to(low).requires_grad_() for name, x in leaves.items()}
    offsets = torch.tensor(lengths, dtype=torch.int32)
    gradient = randn((170, 2, 64), low) / 64
    out, lse = attention_varlen(*leaves.values(), offsets, causal=True, return_lse=True)
    found = torch.autograd.grad(_loss(out, lse, gradient), [*leaves.values()])
    for begin, end in pairwise(lengths):
        if begin == end:
            continue
        at = slice(begin, end)
        problem = Problem(
            {name: x.detach()[at].unsqueeze(0) for name, x in leaves.items()}, {"causal": True}
        )
        ours = {f"d{name}": x[at].unsqueeze(0) for name, x in zip(leaves, found, strict=True)}
        ours |= {"out": out.detach()[at].unsqueeze(0), "lse": lse.detach()[:, at].unsqueeze(0)}
        _hold_to_the_rule(ours, problem, gradient[at].unsqueeze(0), size)


@pytest.mark.parametrize("level", [2.0**17, -(2.0**30), -LARGEST])
def test_the_formula(level: float) -> None:
    for feature in ("causal", "sinks"):
        _check(_problem(torch.float32, level, feature), level, backend="reference")


@pytest.mark.parametrize("level", [-(2.0**30), -LARGEST])
def test_vmap(level: float) -> None:
    """vmap gives the results and the gradients of separate calls."""
    problem = _problem(torch.float32, level, "full")
    q, k, v, bias = problem.leaves.values()

    def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        rows = (x.unsqueeze(0) for x in (q, k, v))
        out, lse = attention(*rows, bias=bias, scale=SCALE, return_lse=True)
        return _loss(out, lse, torch.ones_like(out))

    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v, bias)
    ours = {f"d{name}": x for name, x in zip("qkv", found, strict=True)}
    _hold_to_the_rule(ours, problem, torch.ones_like(q), level)
