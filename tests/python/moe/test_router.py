# SPDX-License-Identifier: MIT
"""The router against a loop over tokens in float64; declared/test_declare.py tests the
declaration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

BACKENDS = ("auto", "reference")
SCORES = ("softmax", "sigmoid", "sqrt_softplus")
# Tokens, experts, chosen: one piece and several of a warp, and no multiples of what fills one.
SHAPES = ((5, 1, 1), (7, 3, 2), (19, 8, 2), (33, 60, 6), (12, 128, 8), (9, 130, 16), (5, 384, 8),
          (4, 1000, 5), (3, 4096, 16), (3, 2499, 9))  # fmt: skip
SEED = torch.tensor([17, 4])


def _score(z: Tensor, score: str) -> Tensor:
    if score == "softmax":
        return torch.softmax(z, -1)
    return (
        torch.sigmoid(z) if score == "sigmoid" else torch.logaddexp(z, torch.zeros_like(z)).sqrt()
    )


def _token(
    z: Tensor, top_k: int, score: str, bias: Tensor | None, groups: int, top_groups: int
) -> list[int]:
    """The experts of one token, by a plain sort."""
    experts = range(len(z))
    c = z if bias is None and groups == 1 else _score(z, score)
    number = (c if bias is None else c + bias).tolist()
    if groups > 1:
        size = len(z) // groups
        best = [sum(sorted(number[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
        is_open = sorted(range(groups), key=lambda g: (-best[g], g))[:top_groups]
        experts = [j for j in experts if j // size in is_open]
    return sorted(experts, key=lambda j: (-number[j], j))[:top_k]


def _reference(
    x: Tensor, indices: Tensor, sequences: int, score: str, renormalize: bool, scale: float
) -> tuple[Tensor, ...]:
    """Weights and statistics of chosen experts, as a model writes them."""
    s = _score(x, score)
    weights = s.gather(1, indices.long())
    if renormalize:
        weights = weights / weights.sum(1, keepdim=True)
    shares = s / s.sum(1, keepdim=True)
    importance = shares.unflatten(0, (sequences, -1)).sum(1)
    return weights * scale, importance, torch.logsumexp(x, 1)


def _drawn(tokens: int, experts: int, dtype: torch.dtype, device: str) -> Tensor:
    """Distinct logits, so that rounding decides no choice: multiples of 1/256 in bfloat16 too."""
    order = torch.stack([torch.randperm(experts) for _ in range(tokens)]).double()
    if experts > 256 and dtype.itemsize == 2:
        order = order % 256  # ties are compared as well
    return (order / 64 - 2).to(device, dtype)


def _check(
    x: Tensor, top_k: int, score: str, renormalize: bool, backend: str, sequences: int = 1,
    scale: float = 1.0, **options: Any,
) -> None:  # fmt: skip
    """Holds the choice, the results and the gradient to the loop."""
    leaf = x.detach().requires_grad_()
    with poisoned():
        weights, indices, importance, lse = F.moe_router(
            leaf, top_k, score=score, renormalize=renormalize, sequences=sequences, scale=scale,
            backend=backend, **options,
        )  # fmt: skip
    bias = options.get("expert_bias")
    bias = None if bias is None else bias.double()
    for z, chosen in zip(x.double(), indices.tolist(), strict=True):
        groups = options.get("groups", 1), options.get("top_groups", 1)
        assert chosen == _token(z, top_k, score, bias, *groups)
    results = (weights, importance, lse)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    assert {y.dtype for y in results} == {wide}
    assert indices.dtype is torch.int32
    seeds = [randn(y.shape, y.dtype, y.device) for y in results]
    with poisoned():
        (dx,) = torch.autograd.grad(results, leaf, seeds)
    assert dx.dtype is x.dtype

    def stock(dtype: torch.dtype) -> list[Tensor]:
        again = x.detach().to(dtype).requires_grad_()
        found = _reference(again, indices, sequences, score, renormalize, scale)
        gradient = torch.autograd.grad(found, again, [g.to(dtype) for g in seeds])[0]
        return [*(y.detach() for y in found), gradient]

    theirs, exact = stock(wide), stock(torch.float64)
    theirs[-1] = theirs[-1].to(x.dtype)
    names = ("weights", "importance", "lse", "dx")
    terms = 8.0 * x.shape[0] if x.dtype is torch.float64 else 4.0
    for name, a, b, c in zip(names, (*results, dx), theirs, exact, strict=True):
        assert_close_to_reference(a.detach(), b, c, name, terms)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_router(
    shape: tuple[int, int, int], score: str, backend: str, device: str, dtype: torch.dtype
) -> None:
    tokens, experts, top_k = shape
    if backend == "reference" and experts > 256:
        pytest.skip("the formula knows no pieces")
    x = _drawn(tokens, experts, dtype, device)
    for renormalize in (False, True):
        _check(x, top_k, score, renormalize, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (8, 4), (2, 1)])
def test_bias_and_groups(
    groups: int, top_groups: int, backend: str, device: str, dtype: torch.dtype
) -> None:
    """DeepSeek-V3's choice; scores and biases are far apart."""
    for experts in (64, 256):
        x = _drawn(11, experts, dtype, device)
        bias = (torch.randperm(experts).double() / 8).to(device, x.dtype)
        _check(x, 6, "sigmoid", True, backend, scale=2.5, expert_bias=bias, groups=groups,
               top_groups=top_groups)  # fmt: skip
        wide = bias.double() if dtype is torch.float64 else bias.float()
        _check(x, 6, "softmax", False, backend, expert_bias=wide, groups=groups,
               top_groups=top_groups)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, backend: str, device: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](_drawn(24, 33, dtype, device))
    _check(x, 4, "softmax", True, backend, sequences=3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_tokens_of_several_sequences(backend: str, device: str) -> None:
    x = _drawn(1800, 24, torch.float32, device)
    _check(x, 2, "sigmoid", False, backend, sequences=3)
    _check(x, 2, "softmax", False, backend, sequences=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_logits_the_first_is_chosen(backend: str, device: str, dtype: torch.dtype) -> None:
    for experts in (7, 128, 129, 600, 2000):
        x = torch.zeros(2, experts, dtype=dtype, device=device)
        x[1, ::2] = -0.0
        _, indices = F.moe_router(x, 5, backend=backend)
        assert indices.tolist() == [[0, 1, 2, 3, 4]] * 2
        x[:, experts - 3 :] = 1
        _, indices = F.moe_router(x, 5, backend=backend)
        assert indices.tolist() == [[experts - 3, experts - 2, experts - 1, 0, 1]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_edges_of_the_format(backend: str, device: str, dtype: torch.dtype) -> None:
    """NaN is the largest; masked experts come last, and have no weight."""
    inf, nan = math.inf, math.nan
    rows = [[0.0, nan, 1, 2], [-inf, -inf, -inf, 3], [-inf] * 4, [1e4, -1e4, 1e4, 0]]
    x = torch.tensor(rows, dtype=dtype, device=device, requires_grad=True)
    weights, indices = F.moe_router(x, 2, backend=backend)
    assert indices.tolist() == [[1, 3], [3, 0], [0, 1], [0, 2]]
    assert weights[0].isnan().all()
    assert weights[2].isnan().all()
    assert weights[1::2].tolist() == [[1, 0], [0.5, 0.5]]
    (dx,) = torch.autograd.grad(weights[1::2].square().sum(), x)
    assert dx[1::2].isfinite().all()
    for score in ("sigmoid", "sqrt_softplus"):
        weights, _ = F.moe_router(x, 2, score=score, renormalize=False, backend=backend)
        assert weights[0, 0].isnan()
        assert weights[2].tolist() == [0, 0]
        (dx,) = torch.autograd.grad(weights[1:].sum(), x)
        assert dx[1:].isfinite().all()


NOISES = ({"jitter": 0.5}, {"noise": 0.3}, {"jitter": 0.1, "noise": 1.0})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", NOISES, ids=str)
def test_noise(options: dict[str, float], backend: str, device: str) -> None:
    """A seed repeats the noise, on every backend; its mean and deviation are those asked for."""
    x = torch.ones(4000, 10, dtype=torch.float64, device=device, requires_grad=True)
    run = dict(options, score="sigmoid", renormalize=False, sequences=1)
    found = F.moe_router(x, 10, seed=SEED, backend=backend, **run)
    exact = F.moe_router(x, 10, seed=SEED, backend="reference", **run)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    gradients = [
        torch.autograd.grad(y[0].square().sum() + y[3].sum(), x)[0] for y in (found, exact)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
    z = torch.logit(found[0])
    jitter, noise = options.get("jitter", 0), options.get("noise", 0)
    deviation = math.sqrt(jitter**2 / 3 + noise**2)
    assert abs(z.mean().item() - 1) < 4 * deviation / 200
    assert abs(z.std().item() / deviation - 1) < 0.02
    other = F.moe_router(x, 10, seed=SEED + 1, backend=backend, **run)
    assert not torch.equal(other[1], found[1])
    plain = F.moe_router(x, 10, training=False, backend=backend, **run)
    assert torch.equal(plain[1], torch.arange(10, device=device).int().expand(4000, 10))


def test_gradcheck(device: str) -> None:
    for score in SCORES:
        for renormalize in (False, True):
            x = _drawn(2, 5, torch.float64, device).requires_grad_()

            def run(x: Tensor, score: str = score, renormalize: bool = renormalize) -> Any:
                found = F.moe_router(x, 3, score=score, renormalize=renormalize, sequences=2,
                                     jitter=0.1, noise=0.001, seed=SEED)  # fmt: skip
                return found[0], found[2], found[3]

            assert torch.autograd.gradcheck(run, x)
            assert renormalize or torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_tokens(backend: str, device: str) -> None:
    x = torch.empty(0, 6, device=device, requires_grad=True)
    weights, indices, importance, lse = F.moe_router(x, 2, sequences=2, backend=backend)
    assert weights.shape == indices.shape == (0, 2)
    assert lse.shape == (0,)
    assert importance.tolist() == [[0.0] * 6] * 2
    (weights.sum() + importance.sum()).backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 6)


def test_dimensions(device: str) -> None:
    x = randn((2, 3, 16), torch.float32, device)
    weights, indices, importance, lse = F.moe_router(x, 4, sequences=2)
    assert weights.shape == indices.shape == (2, 3, 4)
    assert lse.shape == (2, 3)
    flat = F.moe_router(x.flatten(0, 1), 4, sequences=2)
    assert torch.equal(importance, flat[2])
    weights, indices = F.moe_router(x[0, 0], 4)
    assert torch.equal(indices, flat[1][0])


def test_results_repeat(device: str) -> None:
    """Sums have a fixed order."""
    x = randn((3000, 48), torch.float32, device).requires_grad_()
    runs = []
    for _ in range(2):
        found = F.moe_router(x, 4, renormalize=False, sequences=2)
        loss = found[0].sum() + found[2].square().sum() + found[3].square().sum()
        runs.append([*found, *torch.autograd.grad(loss, x)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_bad_arguments() -> None:
    x = torch.zeros(4, 8)
    for options, message in (
        ({"top_k": 9}, r"moe_router: top_k is 9, expected 1 to 8 \(of 8 experts\)"),
        ({"top_k": 17}, r"moe_router: top_k is 17, expected 1 to 8"),
        ({"top_k": 2, "score": "tanh"}, r"moe_router: score is 'tanh', expected"),
        ({"top_k": 2, "groups": 3}, r"moe_router: groups is 3, expected 1 to 32, a divisor of 8"),
        ({"top_k": 5, "groups": 2}, r"moe_router: top_groups is 1, expected groups of 5 experts"),
        ({"top_k": 2, "sequences": 3}, r"moe_router: sequences is 3, expected a divisor of 4"),
        ({"top_k": 2, "expert_bias": torch.zeros(7)}, r"moe_router: expert_bias has 7 elements"),
        ({"top_k": 2, "jitter": 1.5}, r"moe_router: jitter is 1.5, expected a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            F.moe_router(x, **options)
    with pytest.raises(ValueError, match=r"x has 4097 columns, expected 1 to 4096 experts"):
        F.moe_router(torch.zeros(1, 4097), 1)


def test_compiled(device: str) -> None:
    x = randn((6, 16), torch.float32, device).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        weights, _, importance, lse = F.moe_router(x.cos(), 3, score="sigmoid", sequences=2)
        return weights.square().sum() + importance.square().sum() + lse.square().mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected)
