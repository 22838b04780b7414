# SPDX-License-Identifier: MIT
"""scaled_dot_product_attention: what PyTorch's accepts, returns and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels import _library, _torch
from transformer_kernels.ops.attention import _sdpa
from transformer_kernels.testing.inputs import randn

ours = tfk.functional.scaled_dot_product_attention

Q = torch.randn(2, 4, 30, 16)
K, V = torch.randn(2, 4, 50, 16), torch.randn(2, 4, 50, 16)
SEEN = torch.rand(30, 50) > 0.3
SEEN[:, 0] = True
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((Q, K, V), {}),
    "causal, longer keys": ((Q, K, V), {"is_causal": True}),
    "causal, longer queries": ((K, Q, Q), {"is_causal": True}),
    "positional": ((Q, K, V, SEEN, 0.0, False), {}),
    "boolean mask": ((Q, K, V), {"attn_mask": SEEN}),
    "mask of every head": ((Q, K, V), {"attn_mask": torch.randn(2, 4, 30, 50)}),
    "mask of keys": ((Q, K, V), {"attn_mask": torch.randn(2, 1, 1, 50)}),
    "mask and causal": ((Q, K, V, SEEN), {"is_causal": True}),
    "scale": ((Q, K, V), {"scale": 0.5}),
    "another value dim": ((Q, K, torch.randn(2, 4, 50, 24)), {}),
    "grouped": ((Q, K[:, :2], V[:, :2]), {"enable_gqa": True}),
    "three dimensions": ((Q[0], K[0], V[0]), {"is_causal": True}),
    "three dimensions, mask": ((Q[0], K[0], V[0]), {"attn_mask": torch.randn(4, 30, 50)}),
    "two dimensions": ((Q[0, 0], K[0, 0], V[0, 0]), {}),
    "five dimensions": ((Q[None], K[None], V[None]), {"is_causal": True}),
    "broadcast batch": ((Q, K[:1], V[:1]), {}),
    "wide heads": (tuple(torch.randn(1, 1, 8, 300) for _ in range(3)), {}),
    "no queries": ((Q[:, :, :0], K, V), {}),
    "half": ((Q.half(), K.half(), V.half()), {"is_causal": True}),
    "bfloat16": ((Q.bfloat16(), K.bfloat16(), V.bfloat16()), {"attn_mask": SEEN}),
}
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "dtypes": ((Q, K.double(), V), {}),
    "head dims": ((Q, K[..., :8], V), {}),
    "mask of one dimension": ((Q, K, V), {"attn_mask": torch.randn(50)}),
    "heads": ((Q, K[:, :3], V[:, :3]), {}),
    "mask's shape": ((Q, K, V, SEEN[:, :9]), {}),
    "mask's dtype": ((Q, K, V, SEEN.double()), {}),
    "dropout": ((Q, K, V, None, 1.5), {}),
    "integers": ((Q.int(), K.int(), V.int()), {}),
    "no tensor": (("q", K, V), {}),
    "flag of causal": ((Q, K, V), {"is_causal": 1}),
    "flag of groups": ((Q, K, V), {"enable_gqa": None}),
    "scale": ((Q, K, V), {"scale": "s"}),
    "mask's type": ((Q, K, V), {"attn_mask": [0.0]}),
}


def _call(name: str, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments, options = CALLS[name]
    return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments), {
        key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()
    }


@pytest.mark.parametrize("name", CALLS)
def test_what_torch_accepts(name: str, device: str) -> None:
    arguments, options = _call(name, device)
    a, b = ours(*arguments, **options), F.scaled_dot_product_attention(*arguments, **options)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    tolerance = 2 * torch.finfo(a.dtype).eps if a.dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["plain", "causal, longer keys", "boolean mask", "half"])
@pytest.mark.parametrize("heads_first", [True, False])
def test_memory_is_laid_out_as_torchs(name: str, heads_first: bool) -> None:
    arguments, options = CALLS[name]
    if not heads_first:
        arguments = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in arguments)
    expected = F.scaled_dot_product_attention(*arguments, **options)
    for backend in ("auto", "reference"):
        assert ours(*arguments, backend=backend, **options).stride() == expected.stride()


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    arguments, options = REFUSED[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        F.scaled_dot_product_attention(*arguments, **options)
    with pytest.raises(type(theirs.value)) as caught:
        ours(*arguments, **options)
    assert str(caught.value) == str(theirs.value)


@pytest.mark.parametrize("name", ["plain", "causal, longer keys", "mask of keys", "grouped"])
def test_gradients(name: str, device: str) -> None:
    arguments, options = _call(name, device)
    results = []
    for function in (ours, F.scaled_dot_product_attention):
        leaves = [x.double().requires_grad_() for x in arguments]
        named = {
            key: x.double().requires_grad_() if isinstance(x, torch.Tensor) else x
            for key, x in options.items()
        }
        wanted = [*leaves, *(x for x in named.values() if isinstance(x, torch.Tensor))]
        out = function(*leaves, **named)
        results.append(torch.autograd.grad(out.sin().sum(), wanted))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_without_a_key(device: str) -> None:
    seen = SEEN.clone()
    seen[3] = False
    q, k, v, seen = (x.to(device) for x in (Q, K, V, seen))
    a, b = ours(q, k, v, seen), F.scaled_dot_product_attention(q, k, v, seen)
    assert not a[:, :, 3].any()
    torch.testing.assert_close(a, b)


def test_scales_that_are_no_number(device: str) -> None:
    q, k, v = (x.to(device) for x in (Q, K, V))
    for scale in (float("inf"), float("nan")):
        assert ours(q, k, v, scale=scale).isnan().all()


def test_dropout(device: str) -> None:
    """The mean over dropout's draws is the result without dropout."""
    torch.manual_seed(1)
    q, k, v = (x.to(device) for x in (Q, K, V))
    mean = torch.stack([ours(q, k, v, dropout_p=0.3) for _ in range(200)]).mean(0)
    torch.testing.assert_close(mean, ours(q, k, v), atol=0.3, rtol=0)
    assert not ours(q, k, v, dropout_p=1.0).any()


def test_autocast_is_torchs(device: str) -> None:
    q, k, v = (x.to(device) for x in (Q, K, V))
    with torch.autocast(device, dtype=torch.bfloat16):
        a, b = ours(q, k, v), F.scaled_dot_product_attention(q, k, v)
        named = tfk.functional.attention(*(x.transpose(1, 2) for x in (q, k, v)))
        assert ours(q.double(), k.double(), v.double()).dtype is torch.float64
    assert a.dtype is b.dtype is named.dtype is torch.bfloat16
    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_autocast_lowers_heads_of_two_dtypes(device: str) -> None:
    """Such as rotated queries and keys in float32 beside 16-bit values."""
    q, k, v = Q.to(device), K.to(device), V.to(device, torch.bfloat16)
    with pytest.raises(ValueError, match="the dtypes: PyTorch's alone"):
        ours(q, k, v, backend="reference")
    with torch.autocast(device, dtype=torch.bfloat16):
        a, b = ours(q, k, v, backend="reference"), F.scaled_dot_product_attention(q, k, v)
        assert ours(q, k, v).dtype is torch.bfloat16
    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_another_backend_than_auto_takes_no_detour() -> None:
    reference = ours(Q, K, V, backend="reference")
    torch.testing.assert_close(reference, F.scaled_dot_product_attention(Q, K, V))
    with pytest.raises(ValueError, match=r"backend is 'cpu', expected 'auto' \(the head dim"):
        ours(*CALLS["wide heads"][0], backend="cpu")


def test_tensor_subclasses_are_asked() -> None:
    class Tagged(torch.Tensor):
        pass

    q = randn((1, 2, 5, 8), torch.float32).as_subclass(Tagged)
    assert isinstance(ours(q, q, q), Tagged)


def test_a_library_without_cuda_leaves_it_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "has_cuda_kernels", False)
    monkeypatch.setattr(_torch, "scaled_dot_product_attention", lambda query, *_, **__: query)
    with FakeTensorMode():
        x = torch.empty(2, 7, 16, device="cuda")
    assert ours(x, x, x) is x


# ---- few queries --------------------------------------------------------------------------------


def _runs_ours(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> bool:
    ran = []
    attend = _sdpa._attend
    monkeypatch.setattr(_sdpa, "_attend", lambda *a: ran.append(1) or attend(*a))
    found = ours(*arguments, **options)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*arguments, **options))
    return bool(ran)


@pytest.mark.parametrize(
    ("shape", "keys", "options", "expected"),
    [
        ((2, 4, 1, 16), 5000, {}, False),
        ((2, 8, 1, 16), 5000, {"enable_gqa": True}, False),
        ((2, 8, 3, 16), 5000, {"enable_gqa": True}, True),
        ((2, 4, 8, 16), 128, {"is_causal": True}, False),
        ((2, 4, 32, 16), 128, {"is_causal": True}, True),
        ((2, 4, 1, 16), 9, {"attn_mask": torch.ones(1, 9, dtype=torch.bool)}, True),
    ],
)
def test_few_queries_without_gradients_run_torchs(
    shape: tuple[int, ...], keys: int, options: dict[str, Any], expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    q, k, v = torch.randn(shape), *torch.randn(2, 2, 4, keys, 16)
    with torch.no_grad():
        assert _runs_ours(monkeypatch, q, k, v, **options) == expected


@pytest.mark.parametrize("trains", [False, True])
def test_few_queries_with_gradients_or_of_16_bits_run_ours(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = torch.randn(3, 2, 4, 1, 16).to(torch.float32 if trains else torch.bfloat16)
    with torch.set_grad_enabled(trains):
        assert _runs_ours(monkeypatch, q, k, v)
