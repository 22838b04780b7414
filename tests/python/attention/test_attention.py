# SPDX-License-Identifier: MIT
"""attention and attention_varlen on every device: numbers, features, layouts."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.functional import attention
from transformer_kernels.ops.attention._ops import ATTENTION
from transformer_kernels.testing.attention import Call, check, differentiate, tensors
from transformer_kernels.testing.dispatch import CallsOf
from transformer_kernels.testing.inputs import poisoned, randn

pytestmark = pytest.mark.usefixtures("default_device")

SIZES = [
    (1, 1), (64, 128), (128, 192), (239, 1), (799, 3), (113, 203), (113, 211), (108, 256),
    (384, 256), (640, 128), (1, 300),
]  # fmt: skip
BIG_SIZES = [(1023, 1024), (1024, 1023), (1088, 1088)]
HEADS = {"mha": (2, 2), "gqa": (4, 2), "mqa": (3, 1)}
HEADS_OF_SIZE = dict(zip(SIZES, itertools.cycle(HEADS), strict=False))
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "top_left": True},
    "window": {"window": (70, 13)},
    "softcap": {"softcap": 15.0, "causal": True},
}
each_mask = pytest.mark.parametrize("mask", MASKS)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("heads", HEADS)
@each_mask
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_sizes(size: tuple[int, int], heads: str, mask: str, low: bool) -> None:
    """On the CPU, which has one kernel a dtype, sizes take turns with numbers of heads."""
    if torch.get_default_device().type == "cpu" and heads != HEADS_OF_SIZE[size]:
        pytest.skip("for plans of CUDA")
    dtype = torch.bfloat16 if low else torch.float32
    check(Call(*tensors(*size, *HEADS[heads], dtype=dtype), options=MASKS[mask]))


@pytest.mark.parametrize("size", BIG_SIZES, ids=str)
@each_mask
def test_big_sizes(size: tuple[int, int], mask: str) -> None:
    check(Call(*tensors(*size, batch=1, heads=1, kv_heads=1), options=MASKS[mask]))


@pytest.mark.parametrize("dim", [1, 3, 8, 40, 96, 128, 192, 256])
def test_head_dims(dim: int, dtype: torch.dtype) -> None:
    check(Call(*tensors(70, 130, dim=dim, dtype=dtype), options={"causal": True}))


@pytest.mark.parametrize("dims", [(64, 16), (5, 128)], ids=str)
def test_values_of_another_dim(dims: tuple[int, int], dtype: torch.dtype) -> None:
    check(Call(*tensors(50, 70, 4, 2, *dims, dtype=dtype)))


BROADCASTS = [
    (2, 4, 60, 90), (1, 4, 60, 90), (2, 1, 60, 90), (2, 4, 1, 90), (2, 4, 60, 1), (1, 1, 1, 1),
    (60, 90), (4, 1, 90), (90,),
]  # fmt: skip


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_bias_and_its_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(Call(*tensors(60, 90, 4, 2, dim=16, dtype=dtype), bias=randn(shape, dtype)))


@pytest.mark.parametrize("shape", [(4, 150, 200), (150, 200), (4, 1, 200), (4, 150, 1)], ids=str)
@pytest.mark.parametrize("mask", ["full", "window"])
def test_bias_of_several_tiles(shape: tuple[int, ...], mask: str) -> None:
    """The gradient of a bias sums over both sequences, and over heads, queries or keys."""
    q, k, v = tensors(150, 200, 4, 2, dim=64, dtype=torch.bfloat16)
    check(Call(q, k, v, bias=randn(shape, torch.bfloat16), options=MASKS[mask]))


def test_bias_of_float32_and_expanded() -> None:
    q, k, v = tensors(60, 90, dim=16, dtype=torch.bfloat16)
    check(Call(q, k, v, bias=randn((60, 90), torch.float32)))
    check(Call(q, k, v, bias=randn((1, 60, 90), torch.bfloat16).expand(2, 60, 90)))
    transposed = randn((90, 60), torch.bfloat16).t()
    check(Call(q, k, v, bias=transposed))


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_boolean_mask(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mask = torch.rand(shape) > 0.3
    check(Call(*tensors(60, 90, 4, 2, dim=16, dtype=dtype), options={"mask": mask}))


def test_alibi_and_sinks(dtype: torch.dtype) -> None:
    for shape in ((4,), (2, 4)):
        slopes = torch.rand(shape)
        options = {"alibi_slopes": slopes, "causal": True}
        check(Call(*tensors(60, 90, 4, 2, dim=16, dtype=dtype), options=options))
    # Many heads: of few gradients the largest error is small by chance now and then.
    sinks = randn((32,), torch.float64 if dtype is torch.float64 else torch.float32)
    check(Call(*tensors(60, 90, 32, 4, dim=16, dtype=dtype), sinks=sinks))


def test_everything_at_once(dtype: torch.dtype) -> None:
    options = {
        "causal": True, "window": (40, 0), "softcap": 3.0, "scale": 0.2,
        "mask": torch.rand(2, 1, 60, 90) > 0.2, "alibi_slopes": torch.rand(32),
    }  # fmt: skip
    sinks = randn((32,), torch.float64 if dtype is torch.float64 else torch.float32)
    bias = randn((32, 60, 90), dtype)
    check(Call(*tensors(60, 90, 32, 4, dim=24, dtype=dtype), bias, sinks, options))


def test_queries_without_a_key(dtype: torch.dtype) -> None:
    """A query without a key gives 0, a log-sum-exp of -inf, and a gradient of 0."""
    call = Call(*tensors(40, 10, dim=8, dtype=dtype), options={"causal": True})
    check(call)
    gradient = randn((2, 40, 2, 8), dtype)
    results, gradients = differentiate(attention, call, gradient, None, return_lse=True)
    assert not results["out"][:, :30].any()
    assert (results["lse"][..., :30] == -torch.inf).all()
    assert not gradients["q"][:, :30].any()
    assert attention(*tensors(5, 0, dim=8, dtype=dtype)).count_nonzero() == 0
    assert attention(*tensors(0, 5, dim=8, dtype=dtype)).shape == (2, 0, 2, 8)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys"])
def test_sizes_of_zero(empty: str, backend: str) -> None:
    """Gradients of the tensors that are not empty are zeros, also of bias and sinks."""
    sizes = {"batch": 2, "heads": 2, "queries": 5, "keys": 7, empty: 0}
    q, k, v = tensors(sizes["queries"], sizes["keys"], sizes["heads"], sizes["heads"], dim=8,
                      batch=sizes["batch"])  # fmt: skip
    bias, sinks = torch.randn(1, 1, 1, 1), torch.randn(sizes["heads"])
    leaves = [x.requires_grad_() for x in (q, k, v, bias, sinks)]
    with poisoned():
        out = attention(*leaves[:3], bias=bias, sinks=sinks, backend=backend)
        # The gradient of a sum is one number, expanded: PyTorch does not copy it where it is empty.
        gradients = torch.autograd.grad(out.sum(), leaves)
    assert out.shape == q.shape
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("sizes", [(20, 30), (30, 20)], ids=str)
def test_windows_that_hide_nothing(sizes: tuple[int, int]) -> None:
    """A window of any size hides nothing here: adding it to a position must not overflow."""
    q, k, v = tensors(*sizes, dim=8)
    gradient = torch.randn_like(q)
    for causal in (False, True):
        plain, wide = (
            differentiate(
                attention, Call(q, k, v), gradient, None, return_lse=True, causal=causal,
                window=window, deterministic=True,
            )
            for window in ((-1, -1), (sys.maxsize, sys.maxsize))
        )  # fmt: skip
        for a, b in zip(plain, wide, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_large_scores() -> None:
    """Each tile raises the maximum by more than exp can hold. Rounding of scores shows only where
    two nearly meet, so with few rows the outcome would be chance."""
    q, k, v = tensors(256, 1000, dim=64)
    ramp = torch.linspace(0.1, 40, 1000).view(1, -1, 1, 1)
    check(Call(q, k * ramp, v))
    check(Call(q, k * ramp.flip(1), v))
    check(Call(q, k, v, options={"scale": -30.0}))


@pytest.mark.parametrize(
    "layout", ["heads_first", "gaps", "aligned gaps", "packed", "last", "expanded"]
)
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    q, k, v = tensors(50, 50, dim=24, dtype=dtype)
    if layout == "heads_first":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif "gaps" in layout:  # NaN between the rows
        width, first = (48, 8) if layout == "aligned gaps" else (31, 3)
        wide = [torch.full((2, 50, 3, width), torch.nan, dtype=dtype) for _ in range(3)]
        inner = (..., slice(2), slice(first, first + 24))
        for buffer, x in zip(wide, (q, k, v), strict=True):
            buffer[inner] = x
        q, k, v = (buffer[inner] for buffer in wide)
    elif layout == "packed":
        q, k, v = torch.stack([q, k, v], 2).unbind(2)
    elif layout == "last":
        q, k, v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v))
    else:
        k, v = (x[:, :1].expand(-1, 50, -1, -1) for x in (k, v))
    check(Call(q, k, v, options={"causal": True}))


def test_heads_first_flag() -> None:
    q, k, v = tensors(20, 30, 4, 2, dim=8)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    flipped = (x.transpose(1, 2) for x in (q, k, v))
    out2, lse2 = attention(*flipped, causal=True, heads_first=True, return_lse=True)
    assert torch.equal(out, out2.transpose(1, 2))
    assert torch.equal(lse, lse2)


def test_the_reference_backend_is_the_same(dtype: torch.dtype) -> None:
    options = {"causal": True, "softcap": 2.0, "window": (20, 5)}
    check(Call(*tensors(40, 50, 4, 2, dim=16, dtype=dtype), options=options), backend="reference")
    sinks = randn((4,), torch.float64 if dtype is torch.float64 else torch.float32)
    call = Call(*tensors(40, 50, 4, 2, dim=16, dtype=dtype), randn((4, 1, 50), dtype), sinks)
    check(call, backend="reference")


# ---- dropout ------------------------------------------------------------------------------------


def _kept(batch: int, heads: int, queries: int, keys: int, p: float, seed: torch.Tensor) -> Any:
    """Reads off dropout's factors: with equal scores and one-hot values, the output holds them."""
    q = torch.zeros(batch, queries, heads, 1, dtype=torch.float64)
    k = torch.zeros(batch, keys, heads, 1, dtype=torch.float64)
    columns = []
    for begin in range(0, keys, 256):
        v = torch.zeros(batch, keys, heads, min(256, keys - begin), dtype=torch.float64)
        index = torch.arange(v.shape[-1])
        v[:, begin + index, :, index] = 1.0
        columns.append(attention(q, k, v, dropout=p, seed=seed))
    return torch.cat(columns, -1).transpose(1, 2) * keys


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_statistics(p: float) -> None:
    kept = _kept(2, 3, 200, 300, p, torch.tensor([1234, 0]))
    present = (kept > 0).double()
    assert abs(present.mean() - (1 - p)) < 4 * (p * (1 - p) / kept.numel()) ** 0.5
    torch.testing.assert_close(kept.max().item(), 1 / (1 - p), rtol=1e-3, atol=0)
    rows = present.mean(-1)
    assert rows.std() < 1.3 * (p * (1 - p) / 300) ** 0.5
    neighbours = (present[..., 1:] * present[..., :-1]).mean()
    assert abs(neighbours - (1 - p) ** 2) < 0.01


def test_dropout_depends_on_seed_and_offset_alone() -> None:
    seed = torch.tensor([5, 6])
    first = _kept(1, 2, 60, 100, 0.5, seed)
    assert torch.equal(first, _kept(1, 2, 60, 100, 0.5, seed))
    for other in ([5, 7], [6, 6], [5 + 2**40, 6], [5, 6 + 2**40]):
        share = (first != _kept(1, 2, 60, 100, 0.5, torch.tensor(other))).double().mean()
        assert 0.4 < share < 0.6


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_forward_and_backward(p: float, dtype: torch.dtype) -> None:
    """Compares with the reference for the same factors; the formula drops the same elements."""
    seed = torch.tensor([2**62 + 3, 17])
    options = {"dropout": p, "seed": seed}
    keep = _kept(2, 2, 60, 90, p, seed)
    for backend in ("auto", "reference"):
        q, k, v = tensors(60, 90, dim=16, dtype=dtype)
        check(Call(q, k, v, options=options), keep=keep, backend=backend)


def test_dropout_draws_from_torchs_generator() -> None:
    q, k, v = tensors(40, 40, dim=8)
    torch.manual_seed(3)
    first, second = (attention(q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, attention(q, k, v, dropout=0.5))
    assert not torch.equal(first, second)


# ---- sequences of different lengths -------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("padding", [0, 7])
def test_varlen_is_one_call_for_each_sequence(
    backend: str, padding: int, dtype: torch.dtype
) -> None:
    """Padding rows hold NaN, which must not be read; their results are 0."""
    q_at, k_at = [0, 7, 7, 60, 61, 161], [0, 70, 75, 75, 140, 141]
    q = randn((161 + padding, 4, 16), dtype)
    k, v = (randn((141 + padding, 2, 16), dtype) for _ in range(2))
    q[161:], k[141:], v[141:] = torch.nan, torch.nan, torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    options: dict[str, Any] = {
        "causal": True, "window": (30, 0), "softcap": 4.0, "alibi_slopes": torch.rand(5, 4),
        "return_lse": True, "backend": backend,
    }  # fmt: skip
    offsets = (torch.tensor(at, dtype=torch.int32) for at in (q_at, k_at))
    out, lse = tfk.functional.attention_varlen(*leaves, *offsets, **options)
    gradient = randn(out.shape, dtype)
    found = torch.autograd.grad(out, leaves, gradient)
    slopes = options.pop("alibi_slopes")
    for b in range(5):
        i, j = slice(q_at[b], q_at[b + 1]), slice(k_at[b], k_at[b + 1])
        parts = [x[at].unsqueeze(0) for x, at in zip(leaves, (i, j, j), strict=True)]
        one, one_lse = attention(*parts, alibi_slopes=slopes[b], **options)
        torch.testing.assert_close(out[i], one[0])
        torch.testing.assert_close(lse[:, i], one_lse[0])
        expected = torch.autograd.grad(one, leaves, gradient[i].unsqueeze(0))
        for a, e, at in zip(found, expected, (i, j, j), strict=True):
            torch.testing.assert_close(a[at], e[at])
    for x, used in zip((out, *found), (161, 161, 141, 141), strict=True):
        assert not x[used:].any()
    assert (lse[:, 161:] == -torch.inf).all()


def test_varlen_keys_default_to_queries() -> None:
    q, k, v = (randn((20, 2, 8), torch.float32) for _ in range(3))
    at = torch.tensor([0, 9, 20], dtype=torch.int32)
    a = tfk.functional.attention_varlen(q, k, v, at, causal=True)
    assert torch.equal(a, tfk.functional.attention_varlen(q, k, v, at, at, causal=True))


def test_varlen_dropout_is_that_of_the_formula() -> None:
    q, k, v = (randn((50, 2, 8), torch.float64) for _ in range(3))
    at = torch.tensor([0, 19, 50], dtype=torch.int32)
    options: dict[str, Any] = {"dropout": 0.4, "seed": torch.tensor([1, 2])}
    a = tfk.functional.attention_varlen(q, k, v, at, **options)
    b = tfk.functional.attention_varlen(q, k, v, at, backend="reference", **options)
    torch.testing.assert_close(a, b)


# ---- differentiation and repetition -------------------------------------------------------------


@pytest.mark.parametrize("heads", HEADS)
def test_gradcheck(heads: str) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(4, 5, *HEADS[heads], dim=3, batch=1,
                                                   dtype=torch.float64))  # fmt: skip
    count = q.shape[2]
    bias = randn((count, 1, 5), torch.float64).requires_grad_()
    sinks = randn((count,), torch.float64).requires_grad_()

    def run(*leaves: torch.Tensor) -> Any:
        q, k, v, bias, sinks = leaves
        return attention(
            q, k, v, bias=bias, sinks=sinks, causal=True, softcap=2.0, return_lse=True,
            dropout=0.25, seed=torch.tensor([1, 2]),
        )  # fmt: skip

    assert torch.autograd.gradcheck(run, (q, k, v, bias, sinks))
    assert torch.autograd.gradgradcheck(run, (q, k, v, bias, sinks))


def test_gradcheck_of_varlen() -> None:
    q, k, v = (randn((6, 2, 3), torch.float64).requires_grad_() for _ in range(3))
    at = torch.tensor([0, 2, 6], dtype=torch.int32)

    def run(*leaves: torch.Tensor) -> Any:
        return tfk.functional.attention_varlen(*leaves, at, causal=True, return_lse=True)

    assert torch.autograd.gradcheck(run, (q, k, v))
    assert torch.autograd.gradgradcheck(run, (q, k, v))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    call = Call(*tensors(500, 700, 4, 2, dim=32), randn((4, 1, 700), torch.float32),
                options={"causal": True, "dropout": 0.1, "seed": torch.tensor([1, 2])})  # fmt: skip
    gradient = randn((2, 500, 4, 32), torch.float32)
    threads = torch.get_num_threads()
    outcomes = []
    try:
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            outcomes.append(differentiate(attention, call, gradient, None, return_lse=True))
    finally:
        torch.set_num_threads(threads)
    for outcome in outcomes[1:]:
        for group, first in zip(outcome, outcomes[0], strict=True):
            assert all(torch.equal(group[name], first[name]) for name in first)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("asked", ["by keyword", "of torch", "not at all"])
def test_repeatable_gradients_are_asked_for(asked: str, with_bias: bool) -> None:
    leaves = [x.requires_grad_() for x in tensors(6, 9, dim=8)]
    if with_bias:
        leaves.append(torch.randn(6, 9, requires_grad=True))
    bias = leaves[3] if with_bias else None
    out = attention(*leaves[:3], bias=bias, deterministic=asked == "by keyword")
    torch.use_deterministic_algorithms(asked == "of torch")
    try:
        with CallsOf(ATTENTION.raw.backward) as watch:
            torch.autograd.grad(out.sum(), leaves)
    finally:
        torch.use_deterministic_algorithms(False)
    at = ATTENTION.backward_inputs.index("deterministic")
    assert [call[at] for call in watch.calls] == [asked != "not at all"]
