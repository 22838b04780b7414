# SPDX-License-Identifier: MIT
"""MultiheadAttention beside PyTorch's, CausalSelfAttention beside GPT-2's formula."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels import _torch

BOOLEAN = torch.rand(7, 9) > 0.7
BOOLEAN[:, 0] = False
PADDING = torch.zeros(3, 9, dtype=torch.bool)
PADDING[1, 5:] = True
FUTURE = nn.Transformer.generate_square_subsequent_mask(7)
CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no bias": {"bias": False},
    "other dims": {"kdim": 10, "vdim": 12, "batch_first": True},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
}
FORWARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "attn_mask": {"attn_mask": BOOLEAN},
    "float attn_mask": {"attn_mask": torch.randn(7, 9)},
    "3d attn_mask": {"attn_mask": torch.randn(3 * 2, 7, 9)},
    "padding": {"key_padding_mask": PADDING},
    "both": {"key_padding_mask": PADDING, "attn_mask": BOOLEAN},
    "need_weights": {"need_weights": True, "average_attn_weights": False},
}


@pytest.fixture
def _beside_the_module(default_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves this file's constants to the device under test."""
    device = torch.get_default_device()
    moved = {
        name: {key: x.to(device) if isinstance(x, Tensor) else x for key, x in options.items()}
        for name, options in FORWARDS.items()
    }
    monkeypatch.setitem(globals(), "FORWARDS", moved)
    monkeypatch.setitem(globals(), "FUTURE", FUTURE.to(device))


on_each_device = pytest.mark.usefixtures("_beside_the_module")


def _pair(**options: Any) -> tuple[Any, Any]:
    theirs = nn.MultiheadAttention(16, 2, **options)
    ours = tfk.nn.MultiheadAttention(16, 2, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def _operands(module: Any) -> list[Tensor]:
    shapes = [(3, 7, 16), (3, 9, module.kdim), (3, 9, module.vdim)]
    tensors = [torch.randn(shape) for shape in shapes]
    if not module.batch_first:
        tensors = [x.transpose(0, 1).contiguous() for x in tensors]
    return [x.requires_grad_() for x in tensors]


def _assert_same(ours: Any, theirs: Any, operands: list[Tensor], options: dict[str, Any]) -> None:
    options = {"need_weights": False, **options}
    (a, a_weights), (b, b_weights) = (m(*operands, **options) for m in (ours, theirs))
    torch.testing.assert_close(a, b)
    assert (a_weights is None) == (b_weights is None)
    if a_weights is not None:
        torch.testing.assert_close(a_weights, b_weights)
    gradient = torch.randn_like(a)
    a_leaves, b_leaves = ([*operands, *m.parameters()] for m in (ours, theirs))
    found = torch.autograd.grad(a, a_leaves, gradient)
    for x, y in zip(found, torch.autograd.grad(b, b_leaves, gradient), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@on_each_device
@pytest.mark.parametrize("constructor", CONSTRUCTORS)
@pytest.mark.parametrize("forward", FORWARDS)
def test_multihead_attention_is_torchs(constructor: str, forward: str) -> None:
    ours, theirs = _pair(**CONSTRUCTORS[constructor])
    assert isinstance(ours, nn.MultiheadAttention)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    _assert_same(ours, theirs, _operands(ours), FORWARDS[forward])


@on_each_device
def test_self_attention_causal_and_unbatched() -> None:
    ours, theirs = _pair(batch_first=True)
    x = torch.randn(3, 7, 16, requires_grad=True)
    for options in ({"attn_mask": FUTURE, "is_causal": True}, {}):
        a, b = (m(x, x, x, need_weights=False, **options)[0] for m in (ours, theirs))
        torch.testing.assert_close(a, b)
        one = x[0].detach()
        a, b = (m(one, one, one, need_weights=False, **options)[0] for m in (ours, theirs))
        torch.testing.assert_close(a, b)
    padding = torch.tensor([False] * 5 + [True] * 2)
    options = {"key_padding_mask": padding, "attn_mask": FUTURE, "need_weights": False}
    a, b = (m(x[0], x[0], x[0], **options)[0] for m in (ours, theirs))
    torch.testing.assert_close(a, b)


def test_signatures_begin_as_torchs() -> None:
    for name in ("__init__", "forward"):
        theirs = list(inspect.signature(getattr(nn.MultiheadAttention, name)).parameters)
        found = list(inspect.signature(getattr(tfk.nn.MultiheadAttention, name)).parameters)
        assert found[: len(theirs)] == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"attn_mask": torch.zeros(3, 3)},
        {"key_padding_mask": torch.zeros(3, 4, dtype=torch.bool)},
        {"attn_mask": torch.zeros(7, 9, dtype=torch.uint8)},
        {"attn_mask": torch.zeros(7, 9, dtype=torch.float64)},
        {"attn_mask": [0.0]},
        {"key_padding_mask": torch.zeros(3, 9, dtype=torch.int64)},
        {"attn_mask": torch.zeros(7, 9), "is_causal": 1},
    ],
    ids=str,
)
def test_what_torch_refuses(options: dict[str, Any]) -> None:
    ours, theirs = _pair()
    operands = _operands(ours)
    with pytest.raises(Exception) as torchs:  # noqa: PT011
        theirs(*operands, need_weights=False, **options)
    with pytest.raises(type(torchs.value)) as caught:
        ours(*operands, need_weights=False, **options)
    assert str(caught.value) == str(torchs.value)


def test_what_torch_refuses_of_operands() -> None:
    ours, theirs = _pair()
    q, k, v = _operands(ours)
    for operands in ((q[..., :12], k, v), (q, k, v[..., :12]), (q, k, v[:8]), (q, k[:, :2], v)):
        with pytest.raises(AssertionError) as torchs:
            theirs(*operands, need_weights=False)
        with pytest.raises(AssertionError) as caught:
            ours(*operands, need_weights=False)
        assert str(caught.value) == str(torchs.value)
    theirs.dropout = ours.dropout = 1.5
    with pytest.raises(RuntimeError, match="has to be between 0 and 1"):
        theirs(q, k, v, need_weights=False)
    with pytest.raises(RuntimeError, match="has to be between 0 and 1"):
        ours(q, k, v, need_weights=False)


@on_each_device
def test_results_are_contiguous_where_torchs_are() -> None:
    """Time is before batch, as by default: callers join both dimensions with view()."""
    ours, theirs = _pair()
    operands = _operands(ours)
    a, b = (m(*operands, need_weights=False)[0] for m in (ours, theirs))
    assert a.stride() == b.stride()


def test_wide_heads_are_pytorchs() -> None:
    ours = tfk.nn.MultiheadAttention(600, 2)
    x = torch.randn(3, 2, 600)
    with torch.no_grad():
        torch.testing.assert_close(
            ours(x, x, x, need_weights=False)[0], ours(x, x, x, need_weights=True)[0]
        )


@on_each_device
def test_inside_torchs_encoder_layer() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    twin = copy.deepcopy(layer)
    twin.self_attn = tfk.nn.MultiheadAttention(16, 2, batch_first=True)
    twin.self_attn.load_state_dict(layer.self_attn.state_dict())
    x = torch.randn(3, 7, 16)
    torch.testing.assert_close(twin(x, FUTURE), layer(x, FUTURE))


@on_each_device
def test_dropout_in_training_alone() -> None:
    module = tfk.nn.MultiheadAttention(16, 2, dropout=0.5)
    x = torch.randn(7, 3, 16)
    first, second = (module(x, x, x, need_weights=False)[0] for _ in range(2))
    assert not torch.equal(first, second)
    module.eval()
    first, second = (module(x, x, x, need_weights=False)[0] for _ in range(2))
    assert torch.equal(first, second)


def _gpt2(module: Any, x: Tensor, window: int = -1) -> Tensor:
    batch, time, channels = x.shape
    q, k, v = module.c_attn(x).split(channels, -1)
    q, k, v = (t.view(batch, time, module.num_heads, -1).transpose(1, 2) for t in (q, k, v))
    distance = torch.arange(time) - torch.arange(time).unsqueeze(-1)
    seen = (distance <= 0) & ((distance >= -window) | (window < 0))
    out = nn.functional.scaled_dot_product_attention(q, k, v, seen)
    return module.c_proj(out.transpose(1, 2).reshape(batch, time, channels))


@on_each_device
@pytest.mark.parametrize("window", [-1, 4])
def test_causal_self_attention(window: int) -> None:
    module = tfk.nn.CausalSelfAttention(24, 3, window=window)
    names = ["c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"]
    assert list(module.state_dict()) == names
    x = torch.randn(2, 19, 24, requires_grad=True)
    leaves = [x, *module.parameters()]
    a, b = module(x), _gpt2(module, x, window)
    torch.testing.assert_close(a, b)
    gradient = torch.randn_like(a)
    found = torch.autograd.grad(a, leaves, gradient)
    for p, q in zip(found, torch.autograd.grad(b, leaves, gradient), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_devices_without_kernels_of_ours_run_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    pytorchs = nn.functional.scaled_dot_product_attention

    def recorded(*arguments: Any, **options: Any) -> Tensor:
        calls.append(arguments[0].device.type)
        return pytorchs(*arguments, **options)

    for owner in (nn.functional, _torch):  # PyTorch's module looks it up there, ours keeps it
        monkeypatch.setattr(owner, "scaled_dot_product_attention", recorded)
    x = torch.empty(3, 7, 16, device="meta")
    assert tfk.nn.CausalSelfAttention(16, 2, device="meta")(x).shape == x.shape
    multihead = tfk.nn.MultiheadAttention(16, 2, batch_first=True, device="meta")
    assert multihead(x, x, x, need_weights=False)[0].shape == x.shape
    assert calls == ["meta", "meta"]


def test_modules_survive_copies() -> None:
    x = torch.randn(2, 5, 24)
    module = tfk.nn.CausalSelfAttention(24, 3, bias=False, dropout=0.1).eval()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
    assert "dropout=0.1" in repr(module)


def test_messages() -> None:
    with pytest.raises(ValueError, match=r"embed_dim is 10, expected a multiple of num_heads \(3"):
        tfk.nn.CausalSelfAttention(10, 3)
    with pytest.raises(ValueError, match="x has 2 dimensions, expected 3"):
        tfk.nn.CausalSelfAttention(6, 3)(torch.randn(4, 6))
