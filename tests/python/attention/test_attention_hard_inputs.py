# SPDX-License-Identifier: MIT
"""attention on inputs that kernels get wrong: scores beyond exp, NaN next door, strides past 2^31.

Lengths are random where nothing else is said: no tile ends where another run had it end.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import Call, check, check_outcome, differentiate, tensors
from transformer_kernels.testing.inputs import poisoned, randn

pytestmark = pytest.mark.usefixtures("default_device", "one_thread")


def _on_cuda_alone(default_device: None) -> None:
    if torch.get_default_device().type == "cpu":
        pytest.skip("for plans of CUDA")


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def low(request: pytest.FixtureRequest, default_device: None) -> torch.dtype:
    if request.param is torch.float16:  # float32 but for the copies, on a CPU
        _on_cuda_alone(default_device)
    return cast(torch.dtype, request.param)


@pytest.fixture(params=[64, 128, 256])
def dim(request: pytest.FixtureRequest, default_device: None) -> int:
    """One head dim for each form of the kernels on CUDA; a CPU has one form."""
    if request.param != 64:
        _on_cuda_alone(default_device)
    return int(request.param)


def _random(least: int, most: int) -> int:
    return int(torch.randint(least, most + 1, (), device="cpu"))


def _room(low: torch.dtype) -> float:
    """The allowance for large scores: a score of 100 is off by 100 units of 1, and so is its
    exponential. With few rows chance decides where this shows; in 16 bits the rounding of results
    hides it."""
    return 100.0 if low is torch.float32 else 1.0


# ---- scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rising", [True, False])
def test_every_tile_raises_the_maximum(low: torch.dtype, dim: int, rising: bool) -> None:
    """Each tile raises the maximum by more than a kernel may postpone, so it has to rescale its
    sums. Scores of many queries lie as far below the first tile's: their terms underflow."""
    q, k, v = tensors(100, 700, 2, 1, dim=dim, batch=1, dtype=low)
    ramp = torch.linspace(0.1, 40, 700).view(1, -1, 1, 1).to(low)
    k = k * (ramp if rising else ramp.flip(1))
    check(Call(q, k, v), magnitude=_room(low))
    options = {"causal": True, "scale": -(dim**-0.5)}
    check(Call(q, k, v, options=options), magnitude=_room(low))


@pytest.mark.parametrize("queries", [1, 70])
def test_log_sum_exps_below_what_exp_can_hold(low: torch.dtype, dim: int, queries: int) -> None:
    """All scores of a row are below -88.7, where exp of float32 is 0; lengths are 64 past a
    tile."""
    q, k, v = tensors(queries, 192, 2, 1, dim=dim, batch=2, dtype=low)
    q, k = 3 * (1 + q.abs()), -3 * (1 + k.abs())
    scale = 6.4 / dim
    _, lse = attention(q, k, v, scale=scale, return_lse=True)
    assert lse.max() < -88.7
    mask = torch.rand(2, 1, queries, 192) > 0.3
    for options in ({}, {"mask": mask}, {"causal": True}):
        check(Call(q, k, v, options={"scale": scale, **options}), magnitude=_room(low))


@pytest.mark.parametrize("keys", [64, 192])
def test_lengths_of_64_past_a_tile_with_a_mask(low: torch.dtype, keys: int) -> None:
    """A mask hides padding keys, as models do; one sequence is hidden from itself."""
    hidden = torch.zeros(3, 1, 1, keys, dtype=torch.bool)
    hidden[1, ..., keys - 30 :] = True
    hidden[2] = True
    call = Call(*tensors(keys, keys, 2, 2, batch=3, dtype=low), options={"mask": ~hidden})
    check(call)
    gradient = randn(call.q.shape, low)
    results, gradients = differentiate(attention, call, gradient, None, return_lse=True)
    assert (results["lse"][2] == -torch.inf).all()
    assert not results["out"][2].any()
    assert not any(x[2].any() for x in gradients.values())
    assert not gradients["v"][1, keys - 30 :].any()


# ---- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_left", [False, True])
def test_random_windows(low: torch.dtype, top_left: bool) -> None:
    for _ in range(4):
        window = (_random(-1, 200), _random(-1, 200))
        q, k, v = tensors(_random(1, 300), _random(1, 300), 2, 1, dtype=low)
        check(Call(q, k, v, options={"window": window, "top_left": top_left}))


def _sequences(count: int, most: int) -> list[int]:
    """The place where each sequence begins and the last one ends; one is empty."""
    lengths = [_random(1, most) for _ in range(count)]
    lengths[_random(0, count - 1)] = 0
    return [sum(lengths[:i]) for i in range(count + 1)]


@pytest.mark.parametrize("causal", [False, True])
def test_random_sequences(low: torch.dtype, dim: int, causal: bool) -> None:
    """Each sequence meets the rule as a call of its own; rows of no sequence hold NaN."""
    q_at, k_at = _sequences(5, 300), _sequences(5, 300)
    q = randn((q_at[-1] + 9, 2, dim), low)
    k, v = (randn((k_at[-1] + 9, 1, dim), low) for _ in range(2))
    for x, at in ((q, q_at), (k, k_at), (v, k_at)):
        x[at[-1] :] = torch.nan
    offsets = [torch.tensor(at, dtype=torch.int32) for at in (q_at, k_at)]
    gradient = randn(q.shape, low)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with poisoned():
        out, lse = attention_varlen(*leaves, *offsets, causal=causal, return_lse=True)
        gradients = torch.autograd.grad(out, leaves, gradient)
    for x, at in zip((out, *gradients), (q_at, q_at, k_at, k_at), strict=True):
        assert not x[at[-1] :].any()
    for b in range(5):
        i, j = slice(q_at[b], q_at[b + 1]), slice(k_at[b], k_at[b + 1])
        results = {"out": out[i].detach()[None], "lse": lse[:, i].detach()[None]}
        parts = [x[at][None] for x, at in zip(gradients, (i, j, j), strict=True)]
        found = dict(zip("qkv", parts, strict=True))
        if q_at[b] == q_at[b + 1] or k_at[b] == k_at[b + 1]:
            assert not results["out"].any()
            assert not any(x.any() for x in found.values())
        else:
            alone = Call(q[i][None], k[j][None], v[j][None], options={"causal": causal})
            check_outcome(alone, gradient[i][None], (results, found))


# ---- memory -------------------------------------------------------------------------------------


def _all_of(call: Call, gradient: Tensor) -> dict[str, Tensor]:
    results, gradients = differentiate(
        attention, call, gradient, None, return_lse=True, deterministic=True
    )
    return {**results, **{f"d{name}": x for name, x in gradients.items()}}


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 5.0}], ids=str)
def test_nan_stays_in_its_batch_and_head(
    low: torch.dtype, dim: int, options: dict[str, Any]
) -> None:
    """Tiles reach past the end of a sequence, and the memory there is multiplied by 0."""
    call = Call(*tensors(100, 150, 4, 2, dim=dim, batch=2, dtype=low), options=options)
    gradient = randn(call.q.shape, low)
    expected = _all_of(call, gradient)
    for x, heads in ((call.q, slice(2, 4)), (call.k, slice(1, 2)), (call.v, slice(1, 2))):
        x[1] = torch.nan
        x[0, :, heads] = torch.nan
    found = _all_of(call, gradient)
    for name, x in found.items():
        heads = 1 if name in ("dk", "dv") else 2
        of_head = (0, slice(heads)) if name == "lse" else (0, slice(None), slice(heads))
        assert torch.equal(x[of_head], expected[name][of_head]), name


def test_nan_shows_where_it_is_read(low: torch.dtype, dim: int) -> None:
    """NaN in a query spoils its row, NaN in a key all rows that see it, and nothing else."""
    q, k, v = tensors(150, 150, 2, 1, dim=dim, batch=1, dtype=low)
    for spoiled, rows in ((q, slice(90, 91)), (k, slice(90, None))):
        kept = spoiled[0, 90, 0, 2].clone()
        spoiled[0, 90, 0, 2] = torch.nan
        out, lse = attention(q, k, v, causal=True, return_lse=True)
        spoiled[0, 90, 0, 2] = kept
        bad = torch.zeros(150, 2, dtype=torch.bool)
        bad[rows, : 1 if spoiled is q else 2] = True
        assert torch.equal(lse[0].isnan(), bad.t())
        assert torch.equal(out[0].isnan(), bad.unsqueeze(-1).expand(out.shape[1:]))


def test_nan_stays_in_its_sequence(low: torch.dtype, dim: int) -> None:
    q, k, v = (randn((300, 2, dim), low) for _ in range(3))
    offsets = torch.tensor([0, 90, 170, 300], dtype=torch.int32)
    gradient = randn(q.shape, low)

    def outcome() -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention_varlen(*leaves, offsets, causal=True, deterministic=True)
        return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]

    expected = outcome()
    for x in (q, k, v):
        x[90:170] = torch.nan
    for a, b in zip(outcome(), expected, strict=True):
        assert torch.equal(a[:90], b[:90])
        assert torch.equal(a[170:], b[170:])


@pytest.mark.parametrize("axis", ["batch", "time", "heads"])
def test_strides_past_2_to_the_31(axis: str) -> None:
    """Three entries of the axis lie 2^30 elements apart; the elements between are never touched."""
    low = torch.bfloat16
    sizes = {"batch": (3, 20, 2, 64), "time": (1, 3, 2, 64), "heads": (1, 20, 3, 64)}[axis]
    place = ("batch", "time", "heads").index(axis)
    stride = (1 << 30) + 4096
    if torch.get_default_device().type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if free < 6 << 30:
            pytest.skip("needs 6 GiB of GPU memory")
    buffer = torch.empty(2 * stride + (1 << 16), dtype=low)
    views = []
    for i in range(3):
        strides = [20 * 3 * 64, 3 * 64, 64, 1]
        strides[place] = stride
        view = buffer.as_strided(sizes, strides, i << 13)
        view.copy_(randn(sizes, low))
        views.append(view)
    check(Call(*views, options={"causal": True}))
