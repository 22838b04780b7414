# SPDX-License-Identifier: MIT
"""Every combination of features, on the kernels and on the formula."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn

pytestmark = pytest.mark.usefixtures("default_device", "one_thread")

QUERIES, KEYS, HEADS, KV_HEADS = 40, 72, 4, 2  # rows of a mask that TMA can load
OFFSETS = ([0, 9, 9, 40], [0, 16, 20, 70])
LARGEST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the largest number
BIAS = ("no bias", "a bias", "a bias and its gradient")
SWITCHES: dict[str, Callable[[], dict[str, Any]]] = {
    "causal": lambda: {"causal": True},
    "window": lambda: {"window": (30, 9)},
    "softcap": lambda: {"softcap": 2.0},
    "alibi": lambda: {"alibi_slopes": torch.rand(HEADS)},
    "sinks": lambda: {"sinks": torch.randn(HEADS).requires_grad_()},
    "dropout": lambda: {"dropout": 0.2, "seed": torch.tensor([3, 4])},
}


@pytest.fixture(params=[16, 64, 128, 192])
def dim(request: pytest.FixtureRequest, default_device: None) -> int:
    """One head dim for each form of the kernels on CUDA; a CPU has one form."""
    if request.param != 16 and torch.get_default_device().type == "cpu":
        pytest.skip("for plans of CUDA")
    return int(request.param)


def _switched() -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The names and the options of every subset."""
    for bits in itertools.product((False, True), repeat=len(SWITCHES)):
        names = [name for name, on in zip(SWITCHES, bits, strict=True) if on]
        options: dict[str, Any] = {}
        for name in names:
            options |= SWITCHES[name]()
        yield names, options


def _outcome(run: Callable[..., Any], leaves: list[Tensor], backend: str) -> list[Tensor]:
    """Results and gradients; the loss depends on both results."""
    out, lse = run(backend)
    seen = lse.masked_fill(lse == -torch.inf, 0.0)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    loss = (out * weight).sum() + seen.sin().sum()
    return [out, seen, *torch.autograd.grad(loss, leaves)]


def _check(
    run: Callable[..., Any], leaves: list[Tensor], sinks: Tensor | None, most: float, names: Any
) -> None:
    """The largest error of each result and gradient, in units of its largest number. The gradient
    of sinks is a sum of rounded numbers of either sign over all rows."""
    ours, expected = (_outcome(run, leaves, backend) for backend in ("auto", "reference"))
    of = ("out", "lse", *leaves)
    for x, a, b in zip(of, ours, expected, strict=True):
        error = ((a - b).abs().max() / b.abs().max().clamp(min=1e-2)).item()
        assert error < (3 * most if x is sinks else most), names


@pytest.mark.parametrize("bias", BIAS)
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("low", LARGEST_ERROR, ids=str)
def test_every_combination(low: torch.dtype, masked: bool, bias: str, dim: int) -> None:
    q, k, v = (
        x.requires_grad_()
        for x in tensors(QUERIES, KEYS, HEADS, KV_HEADS, dim=dim, batch=1, dtype=low)
    )
    added: dict[str, Any] = {"mask": torch.rand(QUERIES, KEYS) > 0.2} if masked else {}
    if bias != BIAS[0]:
        added["bias"] = randn((HEADS, QUERIES, KEYS), low).requires_grad_(bias == BIAS[2])
    for names, options in _switched():
        options |= added
        wanted = [x for x in options.values() if isinstance(x, Tensor) and x.requires_grad]

        def run(backend: str, options: dict[str, Any] = options) -> Any:
            return attention(q, k, v, return_lse=True, backend=backend, **options)

        _check(run, [q, k, v, *wanted], options.get("sinks"), LARGEST_ERROR[low], names)


@pytest.mark.parametrize("low", LARGEST_ERROR, ids=str)
def test_every_combination_of_varlen(low: torch.dtype, dim: int) -> None:
    q = randn((QUERIES, HEADS, dim), low).requires_grad_()
    k, v = (randn((KEYS, KV_HEADS, dim), low).requires_grad_() for _ in range(2))
    offsets = [torch.tensor(at, dtype=torch.int32) for at in OFFSETS]
    for names, options in _switched():
        wanted = [x for x in options.values() if isinstance(x, Tensor) and x.requires_grad]

        def run(backend: str, options: dict[str, Any] = options) -> Any:
            return attention_varlen(q, k, v, *offsets, return_lse=True, backend=backend, **options)

        _check(run, [q, k, v, *wanted], options.get("sinks"), LARGEST_ERROR[low], names)


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_what_varlen_does_not_take_is_named(name: str) -> None:
    x = torch.zeros(5, 2, 8)
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(TypeError, match=f"{name} is not an argument"):
        attention_varlen(x, x, x, offsets, **{name: torch.zeros(5, 5)})
