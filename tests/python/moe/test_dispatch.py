# SPDX-License-Identifier: MIT
"""The dispatch against a loop over tokens; declared/test_declare.py tests the declarations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference

BACKENDS = ("auto", "reference")
# Tokens, chosen, experts: runs of a warp that are cut, experts without tokens, more than fit a CTA.
SHAPES = ((1, 1, 1), (7, 2, 3), (37, 3, 70), (700, 8, 64), (3000, 4, 5), (90, 16, 4096))


def _indices(tokens: int, chosen: int, experts: int, device: str) -> Tensor:
    return torch.randint(experts, (tokens, chosen), device=device, dtype=torch.int32)


def _sorted(indices: Tensor, experts: int, capacity: int) -> tuple[list[int], list[int], list[int]]:
    """Offsets, tokens and places by a loop."""
    flat = indices.flatten().tolist()
    kept: list[list[int]] = [[] for _ in range(experts)]
    dropped: list[list[int]] = [[] for _ in range(experts + 1)]
    for i, e in enumerate(flat):
        if not 0 <= e < experts:
            dropped[experts].append(i)
        elif len(kept[e]) < capacity:
            kept[e].append(i)
        else:
            dropped[e].append(i)
    places = [0] * len(flat)
    offsets, tokens = [0], []
    for of_expert in kept:
        for i in of_expert:
            places[i] = len(tokens)
            tokens.append(i // indices.shape[1])
        offsets.append(len(tokens))
    for of_expert in dropped:
        for i in of_expert:
            places[i] = -1 - len(tokens)
            tokens.append(-1)
    return offsets, tokens, places


def _check_sort(indices: Tensor, experts: int, factor: float | None = None) -> F.Dispatch:
    with poisoned():
        d = F.moe_dispatch(indices, experts, capacity_factor=factor)
    capacity = indices.numel()
    if factor is not None:
        capacity = max(1, -int(-factor * indices.numel() // experts))
    expected = _sorted(indices, experts, capacity)
    assert (d.offsets.tolist(), d.tokens.tolist(), d.places.flatten().tolist()) == expected
    assert {x.dtype for x in d} == {torch.int32}
    return d


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sort(shape: tuple[int, int, int], device: str) -> None:
    tokens, chosen, experts = shape
    for factor in (None, 1.0, 0.25):
        _check_sort(_indices(tokens, chosen, experts, device), experts, factor)
        _check_sort(_indices(tokens, chosen, 1, device), experts, factor)  # all to one expert


def test_sort_without_some(device: str) -> None:
    """Indices that are no experts are dropped; there may be no token."""
    indices = _indices(300, 2, 9, device) - 2
    assert _check_sort(indices, 5).counts().sum() < 600
    _check_sort(indices.long() + 2**40 * (indices == 0), 5, 0.5)
    d = _check_sort(_indices(0, 2, 4, device), 4)
    assert d.offsets.tolist() == [0] * 5
    assert d.drop_rate() == 0


def test_sort_is_its_formula() -> None:
    from transformer_kernels.ops.moe._dispatch_formula import moe_sort

    indices = _indices(100, 3, 12, "cpu") - 1
    for capacity in (0, 10):
        ours = torch.ops.transformer_kernels.moe_sort(indices, 10, capacity)
        for a, b in zip(ours, moe_sort(indices, 10, capacity), strict=True):
            assert torch.equal(a, b)


def test_bad_dispatch() -> None:
    indices = torch.zeros(4, 2, dtype=torch.int32)
    for arguments, message in (
        ((indices, 0), "moe_dispatch: num_experts is 0, expected 1 to 4096"),
        ((indices, 4097), "moe_dispatch: num_experts is 4097, expected 1 to 4096"),
        (
            (torch.zeros(4, 17, dtype=torch.int32), 2),
            "moe_dispatch: indices has 17 columns",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            F.moe_dispatch(*arguments)
    for factor in (0, -1.0, float("inf")):
        with pytest.raises(ValueError, match=r"capacity_factor is .*, expected a finite number"):
            F.moe_dispatch(indices, 2, capacity_factor=factor)
    with pytest.raises(TypeError, match="indices is float32, expected int32 or int64"):
        F.moe_dispatch(indices.float(), 2)
    d = F.moe_dispatch(indices, 2)
    with pytest.raises(TypeError, match="moe_permute: dispatch is Tensor, expected a Dispatch"):
        F.moe_permute(torch.zeros(4, 8), indices)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"moe_permute: x has shape \(3, 8\), expected \(4, 8\)"):
        F.moe_permute(torch.zeros(3, 8), d)
    with pytest.raises(ValueError, match=r"moe_unpermute: x has shape \(4, 8\), expected \(8, 8\)"):
        F.moe_unpermute(torch.zeros(4, 8), d)
    with pytest.raises(ValueError, match=r"moe_unpermute: weights has shape \(4, 3\)"):
        F.moe_unpermute(torch.zeros(8, 8), d, torch.zeros(4, 3))
    far = F.Dispatch(d.offsets, d.tokens, d.places + 100)
    with pytest.raises(ValueError, match=r"moe_permute: places has 1.., expected one of"):
        F.moe_permute(torch.zeros(4, 8), far)


# ---- rows ---------------------------------------------------------------------------------------


def _check(ours: Any, theirs: Any, tensors: list[Tensor], rows: int, terms: float) -> None:
    dy = randn((rows, tensors[0].shape[1]), tensors[0].dtype, tensors[0].device)
    with poisoned():
        found = both_passes(ours, tensors, dy)
    in_torch = both_passes(theirs, tensors, dy)
    exact = both_passes(theirs, [x.double() for x in tensors], dy.double())
    for name, a, b, c in zip(("y", "dx", "dweights"), found, in_torch, exact, strict=False):
        assert_close_to_reference(a, b, c, name, terms)


def _permuted(x: Tensor, d: F.Dispatch) -> Tensor:
    rows = x[d.tokens.clamp(min=0)]
    return torch.where((d.tokens >= 0).unsqueeze(1), rows, 0)


def _unpermuted(x: Tensor, d: F.Dispatch, weights: Tensor | None = None) -> Tensor:
    kept = (d.places >= 0).unsqueeze(-1)
    rows = torch.where(kept, x[d.places.clamp(min=0)], 0)
    return (rows if weights is None else rows * weights.unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("factor", [None, 0.5])
@pytest.mark.parametrize(("tokens", "cols"), [(5, 1), (33, 24), (70, 1160), (9, 77)])
def test_rows(
    tokens: int, cols: int, factor: float | None, backend: str, device: str, dtype: torch.dtype
) -> None:
    d = F.moe_dispatch(_indices(tokens, 3, 6, device), 6, capacity_factor=factor)
    x, y = randn((tokens, cols), dtype, device), randn((3 * tokens, cols), dtype, device)
    weights = randn((tokens, 3), dtype, device)
    terms = 8.0 * (cols + 3) if dtype is torch.float64 else 4.0
    _check(lambda x: F.moe_permute(x, d, backend=backend), lambda x: _permuted(x, d), [x],
           3 * tokens, terms)  # fmt: skip
    _check(lambda y: F.moe_unpermute(y, d, backend=backend), lambda y: _unpermuted(y, d), [y],
           tokens, terms)  # fmt: skip
    _check(lambda y, w: F.moe_unpermute(y, d, w, backend=backend),
           lambda y, w: _unpermuted(y, d, w), [y, weights], tokens, terms)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, backend: str, device: str) -> None:
    d = F.moe_dispatch(_indices(24, 2, 4, device), 4)
    x = LAYOUTS[layout](randn((24, 40), torch.float32, device))
    assert torch.equal(F.moe_permute(x, d, backend=backend), x[d.tokens])
    y = LAYOUTS[layout](randn((48, 40), torch.float32, device))
    torch.testing.assert_close(F.moe_unpermute(y, d, backend=backend), _unpermuted(y, d))


def test_weights_of_float32_beside_16_bits(device: str) -> None:
    d = F.moe_dispatch(_indices(20, 2, 4, device), 4, capacity_factor=0.75)
    x = randn((40, 48), torch.bfloat16, device)
    weights = randn((20, 2), torch.float32, device).requires_grad_()
    y = F.moe_unpermute(x, d, weights)
    assert y.dtype is torch.bfloat16
    expected = _unpermuted(x.float(), d, weights)
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-2)
    (ours,) = torch.autograd.grad(y.sum(), weights)
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), weights)[0])


def test_gradcheck(device: str) -> None:
    d = F.moe_dispatch(_indices(4, 2, 3, device), 3, capacity_factor=0.8)
    x = randn((8, 3), torch.float64, device).requires_grad_()
    weights = randn((4, 2), torch.float64, device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: F.moe_permute(x, d), x[:4].detach().requires_grad_())
    assert torch.autograd.gradcheck(lambda x, w: F.moe_unpermute(x, d, w), (x, weights))
    assert torch.autograd.gradgradcheck(lambda x, w: F.moe_unpermute(x, d, w), (x, weights))


def test_results_repeat(device: str) -> None:
    indices = _indices(2000, 4, 16, device)
    x = randn((2000, 64), torch.float32, device)
    runs = []
    for _ in range(2):
        d = F.moe_dispatch(indices, 16)
        runs.append([*d, F.moe_unpermute(F.moe_permute(x, d), d)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_no_rows(device: str) -> None:
    d = F.moe_dispatch(_indices(0, 2, 4, device), 4)
    x = torch.empty(0, 8, device=device, requires_grad=True)
    y = F.moe_unpermute(F.moe_permute(x, d), d)
    assert y.shape == (0, 8)
    y.sum().backward()
    assert x.grad is not None


def test_compiled(device: str) -> None:
    x = randn((12, 16), torch.float32, device).requires_grad_()
    logits = randn((12, 6), torch.float32, device).requires_grad_()

    def loss(x: Tensor, logits: Tensor) -> Tensor:
        weights, indices = F.moe_router(logits, 2, renormalize=False)
        d = F.moe_dispatch(indices, 6)
        return F.moe_unpermute(F.moe_permute(x, d).sin(), d, weights).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(x, logits), (x, logits))
    found = torch.autograd.grad(compiled(x, logits), (x, logits))
    torch.testing.assert_close(found, expected)


@pytest.mark.cuda
def test_graph_replay_with_other_indices() -> None:
    """Nothing waits for the host: a captured dispatch sorts what is there at its replay."""
    logits = randn((500, 32), torch.float32, "cuda")
    x = randn((500, 64), torch.float32, "cuda")

    def run() -> tuple[Tensor, ...]:
        weights, indices = F.moe_router(logits, 4)
        d = F.moe_dispatch(indices, 32, capacity_factor=1.0)
        return (*d, F.moe_unpermute(F.moe_permute(x, d), d, weights))

    graph, results = capture(run)
    logits.copy_(randn((500, 32), torch.float32, "cuda"))
    graph.replay()
    for a, b in zip(results, run(), strict=True):
        assert torch.equal(a, b)
