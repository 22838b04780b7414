# SPDX-License-Identifier: MIT
"""Attention's Triton twin: compiled on a GPU, in Triton's interpreter elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

import transformer_kernels as tfk
from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.ops.attention import attention_triton
from transformer_kernels.testing.attention import Call, check, differentiate, tensors
from transformer_kernels.testing.inputs import randn

COMPILED = torch.cuda.is_available()
DEVICE = "cuda" if COMPILED else "cpu"
# Triton compiles no product of float64; its interpreter is exact enough to compare with the formula
# alone, and slow.
EXACT = torch.float32 if COMPILED else torch.float64
QUERIES, KEYS = (190, 300) if COMPILED else (20, 40)
FEATURES: dict[str, dict[str, Any]] = {
    "full": {"scale": -0.4},
    "causal": {"causal": True},
    "top left": {"causal": True, "top_left": True},
    "mask": {"mask": torch.rand(QUERIES, KEYS) > 0.3},
    "causal mask": {"causal": True, "mask": torch.rand(1, 2, 1, KEYS) > 0.3},
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses small tiles, so that there are several: the interpreter is no slower on large ones."""
    if COMPILED:
        return
    small = dict.fromkeys((64, 128, 256), attention_triton.Tile(16, 32, 4, 1))
    for table in ("FORWARD", "QUERIES", "KEYS", "FEATURED", "WIDE"):
        monkeypatch.setattr(attention_triton, table, small)


def _outcome(function: Any, leaves: dict[str, Tensor], **options: Any) -> list[Tensor]:
    """Results and gradients, for a gradient of each result."""
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    out, lse = function(**leaves, **options, return_lse=True)
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device)
    loss = (out * weight.view(out.shape)).sum() + finite.sin().sum()
    return [out, lse, *torch.autograd.grad(loss, list(leaves.values()))]


def _check_formula(function: Any, leaves: dict[str, Tensor], **options: Any) -> None:
    """Compares the gradients of both results with the formula's, the log-sum-exp included."""
    leaves = {name: x.to(DEVICE) for name, x in leaves.items()}
    options = {
        name: x.to(DEVICE) if isinstance(x, Tensor) and name != "seed" else x
        for name, x in options.items()
    }
    ours = _outcome(function, leaves, **options, backend="triton")
    expected = _outcome(function, leaves, **options, backend="reference")
    for a, b in zip(ours, expected, strict=True):
        tolerance = 1e-9 if a.dtype is torch.float64 else 5e-5
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def _named(*sizes: int, **more: Any) -> dict[str, Tensor]:
    return dict(zip("qkv", tensors(*sizes, dtype=EXACT, **more), strict=True))


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    leaves = _named(QUERIES, KEYS, 2, 1, dim=16, batch=1)
    _check_formula(attention, leaves, **FEATURES[name])


@pytest.mark.parametrize("shape", [(20, 30), (2, 1, 30), (2, 1, 20, 1), (1, 1, 1, 1)], ids=str)
def test_bias(shape: tuple[int, ...]) -> None:
    leaves = _named(20, 30, 2, 2, dim=8)
    bias = randn(shape, EXACT)
    bias[..., ::3] = -torch.inf if shape[-1] > 1 else 1.0
    _check_formula(attention, leaves, bias=bias, causal=True)


@pytest.mark.parametrize("level", [-1e4, -1e9, 1e9, -1e30, torch.finfo(torch.float32).min])
def test_rows_far_from_0(level: float) -> None:
    """Scores of a row are equal: log2(e) times them is rounded by whole powers, or infinite."""
    leaves = dict(zip("qkv", tensors(20, 30, 2, 1, dim=8, batch=1), strict=True))
    leaves["q"].zero_()
    bias = torch.zeros(20, 30)
    bias[::2] = level
    _check_formula(attention, leaves, bias=bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 70), (16, 32), (33, 31), (70, 1)], ids=str)
def test_edges_of_blocks(queries: int, keys: int, causal: bool) -> None:
    _check_formula(attention, _named(queries, keys, 2, 1, dim=8, batch=1), causal=causal)


def test_everything_at_once(dtype: torch.dtype) -> None:
    if COMPILED and dtype is torch.float64:
        pytest.skip("refused, see below")
    heads = 32 if COMPILED else 2
    options: dict[str, Any] = {
        "causal": True, "scale": 0.2, "mask": torch.rand(1, 1, 1, KEYS) > 0.2,
        "bias": randn((heads, 1, KEYS), dtype),
    }  # fmt: skip
    sizes = (QUERIES, KEYS, heads, heads // 2, 24, 40)
    call = Call(*tensors(*sizes, batch=1, dtype=dtype), options=options)
    check(call, backend="triton", device=DEVICE, magnitude=1.0)


@pytest.mark.cuda
@pytest.mark.parametrize("dim", [64, 80, 256])
@pytest.mark.parametrize("low", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["causal", "full"])
def test_head_dims(dim: int, name: str, low: torch.dtype) -> None:
    """Covers every row of the tables; a head dim of 80 is padded to 128."""
    call = Call(*tensors(300, 400, 2, 1, dim=dim, batch=1, dtype=low), options=FEATURES[name])
    check(call, backend="triton", device="cuda")


@pytest.mark.parametrize("layout", ["heads first", "packed", "last"])
def test_layouts(layout: str) -> None:
    q, k, v = tensors(20, 20, dim=12, batch=1, dtype=EXACT)
    if layout == "heads first":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif layout == "packed":
        q, k, v = torch.stack([q, k, v], 2).unbind(2)
    else:
        q, k, v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v))
    _check_formula(attention, {"q": q, "k": k, "v": v})
    out = attention(*(x.to(DEVICE) for x in (q, k, v)), backend="triton")
    assert out.stride() == attention(q, k, v, backend="reference").stride()


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys"])
def test_sizes_of_zero(empty: str) -> None:
    sizes = {"batch": 2, "heads": 2, "queries": 5, "keys": 7, empty: 0}
    leaves = _named(sizes["queries"], sizes["keys"], sizes["heads"], sizes["heads"], dim=8,
                    batch=sizes["batch"])  # fmt: skip
    _check_formula(attention, leaves)


def test_queries_without_a_key() -> None:
    leaves = _named(20, 6, 1, 1, dim=8, batch=1)
    _check_formula(attention, leaves, causal=True)


def test_sdpa() -> None:
    q, k, v = (x.transpose(1, 2).to(DEVICE) for x in tensors(20, 20, dim=8))
    ours = tfk.functional.scaled_dot_product_attention(q, k, v, is_causal=True, backend="triton")
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, theirs)


def test_bitwise_repeatable() -> None:
    call = Call(*tensors(40, 40, 2, 1, dim=8, batch=1), options={"causal": True}).to(DEVICE)
    gradient = randn((1, 40, 2, 8), torch.float32, DEVICE)
    outcomes = [
        differentiate(attention, call, gradient, None, return_lse=True, backend="triton")
        for _ in range(2)
    ]
    for first, second in zip(*outcomes, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.cuda
def test_float64_is_refused() -> None:
    q, k, v = (x.cuda() for x in tensors(4, 4, dim=8, dtype=torch.float64))
    with pytest.raises(TypeError, match="q is float64, expected float32, float16 or bfloat16"):
        attention(q, k, v, backend="triton")


# ---- what it leaves to the other backends -------------------------------------------------------

SCORES = "(Triton's kernels have no such scores)"
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "alibi_slopes": ({"alibi_slopes": torch.ones(2)}, "alibi_slopes is given, expected none"),
    "sinks": ({"sinks": torch.ones(2)}, "sinks is given, expected none"),
    "softcap": ({"softcap": 5.0}, "softcap is given, expected 0"),
    "dropout": ({"dropout": 0.5}, "dropout is given, expected 0"),
    "window": ({"window": (3, -1)}, "window_left is given, expected -1"),
    "causal window": ({"window": (3, -1), "causal": True}, "window_left is given, expected -1"),
    "future": ({"window": (-1, 3)}, "window_right is given, expected -1, or causal"),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("queries", [0, 4])
@pytest.mark.parametrize("differentiated", [False, True])
def test_refusals(
    name: str, queries: int, differentiated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals have the same words with and without gradients and for empty tensors, before any
    kernel."""
    monkeypatch.setattr(attention_triton, "_launch", pytest.fail)
    options, message = REFUSALS[name]
    options = {n: x.to(DEVICE) if isinstance(x, Tensor) else x for n, x in options.items()}
    leaves = [x.to(DEVICE).requires_grad_(differentiated) for x in tensors(queries, 6, dim=8)]
    with pytest.raises(
        tfk.ArgumentValueError, match=f"^{re.escape(f'attention: {message} {SCORES}')}$"
    ):
        attention(*leaves, **options, backend="triton")
    attention(*leaves, **options)  # what "auto" takes


def test_packed_sequences_are_refused() -> None:
    q = randn((5, 2, 8), torch.float32, DEVICE)
    at = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    message = f"attention: cu_seqlens_q is given, expected sequences of one length {SCORES}"
    with pytest.raises(tfk.ArgumentValueError, match=f"^{re.escape(message)}$"):
        attention_varlen(q, q, q, at, backend="triton")


def test_the_gradient_of_a_bias_is_refused() -> None:
    q, k, v = (x.to(DEVICE) for x in tensors(4, 6, dim=8))
    bias = randn((4, 6), torch.float32, DEVICE).requires_grad_()
    message = (
        "attention: bias requires a gradient, expected none with backend 'triton' (its kernels give"
        " those of q, k and v)"
    )
    with pytest.raises(tfk.ArgumentValueError, match=f"^{re.escape(message)}$"):
        attention(q, k, v, bias=bias, backend="triton")
    with torch.no_grad():
        out = attention(q, k, v, bias=bias, backend="triton")
    torch.testing.assert_close(out, attention(q, k, v, bias=bias.detach(), backend="reference"))
