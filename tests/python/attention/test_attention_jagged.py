# SPDX-License-Identifier: MIT
"""Jagged nested tensors: the result of each sequence is attention's of that sequence alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_upper_left

import transformer_kernels as tfk
from transformer_kernels.functional import attention
from transformer_kernels.testing.inputs import randn

sdpa = tfk.functional.scaled_dot_product_attention
LENGTHS, KEYS = (5, 1, 12), (7, 3, 12)
pytestmark = [
    pytest.mark.usefixtures("default_device"),
    pytest.mark.filterwarnings("ignore"),  # prototypes of PyTorch say that they are
]


def _parts(lengths: tuple[int, ...], heads: int, dim: int) -> list[Tensor]:
    return [randn((n, heads, dim), torch.float64) for n in lengths]


def _jagged(parts: list[Tensor], like: Tensor | None = None) -> Tensor:
    """A leaf with the offsets of another tensor."""
    if like is None:
        return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    rows, offsets = torch.cat(parts), like.offsets()
    return torch.nested.nested_tensor_from_jagged(rows, offsets, jagged_dim=1).requires_grad_()


def _inputs(self_attention: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    keys = LENGTHS if self_attention else KEYS
    return _parts(LENGTHS, 4, 8), _parts(keys, 2, 8), _parts(keys, 2, 6)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "features": {"softcap": 2.0, "sinks": torch.randn(4).double(), "scale": 0.2},
    "slopes": {"alibi_slopes": torch.rand(3, 4).double()},
    "top left": {"causal": True, "top_left": True},
}


@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_sequence_alone(
    name: str, heads_first: bool, self_attention: bool, device: str
) -> None:
    options = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in OPTIONS[name].items()}
    parts = _inputs(self_attention)
    q = _jagged(parts[0])
    k = _jagged(parts[1], q if self_attention else None)
    leaves = (q, k, _jagged(parts[2], k))
    given = tuple(x.transpose(1, 2) for x in leaves) if heads_first else leaves
    out, lse = attention(*given, heads_first=heads_first, return_lse=True, **options)
    if heads_first:
        out = out.transpose(1, 2)
    assert out.shape == (*q.shape[:-1], 6)
    assert out.offsets() is q.offsets()
    assert lse.transpose(1, 2).shape == q.shape[:-1]
    (out.values().square().sum() + lse.transpose(1, 2).values().sum()).backward()

    gradients: list[list[Tensor]] = [[], [], []]
    for b, triple in enumerate(zip(*parts, strict=True)):
        alone = [x.unsqueeze(0).requires_grad_() for x in triple]
        own = dict(options)
        if "alibi_slopes" in own:
            own["alibi_slopes"] = own["alibi_slopes"][b]
        expected, expected_lse = attention(*alone, return_lse=True, **own)
        torch.testing.assert_close(out[b], expected[0])
        torch.testing.assert_close(lse.transpose(1, 2)[b], expected_lse[0].T)
        found = torch.autograd.grad(expected.square().sum() + expected_lse.sum(), alone)
        for gradient, x in zip(gradients, found, strict=True):
            gradient.append(x[0])
    for x, expected_parts in zip(leaves, gradients, strict=True):
        assert x.grad is not None
        assert x.grad.offsets() is x.offsets()
        torch.testing.assert_close(x.grad.values(), torch.cat(expected_parts))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [False, True], ids=["", "causal_upper_left"])
def test_the_dropin_is_torchs(causal: bool, mask: bool) -> None:
    """PyTorch has no causal kernel for jagged tensors on the CPU, so sequences run one by one."""
    leaf = _jagged(_parts(LENGTHS, 2, 8)).detach()
    q = leaf.transpose(1, 2).float()
    out = sdpa(q, q, q, causal_upper_left(3, 3) if mask else None, is_causal=causal and not mask)
    assert out.shape == q.shape
    for x, found in zip(q.unbind(), out.unbind(), strict=True):
        expected = F.scaled_dot_product_attention(x, x, x, is_causal=causal or mask)
        torch.testing.assert_close(found, expected)


def test_the_dropin_takes_it_from_replaced_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernels run for head dims above ours, and for a batch jagged in another
    dimension."""
    wide = _jagged(_parts(LENGTHS, 1, 300)).detach().float().transpose(1, 2)
    stacks = torch.nested.nested_tensor([torch.randn(n, 6, 8) for n in (2, 3)], layout=torch.jagged)
    for x in (wide, stacks):
        monkeypatch.undo()
        expected = F.scaled_dot_product_attention(x, x, x)
        monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
        out = F.scaled_dot_product_attention(x, x, x)
        assert out.shape == expected.shape
        torch.testing.assert_close(out.values(), expected.values())


def test_what_is_refused() -> None:
    q = _jagged(_parts(LENGTHS, 2, 8))
    twin = _jagged(_parts(LENGTHS, 2, 8))

    def message(*arguments: Any, **options: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as caught:
            attention(*arguments, **options)
        return str(caught.value).removeprefix("attention: ")

    assert message(q, q, twin) == (
        "v has sequences of its own, expected those of k (the same offsets tensor)"
    )
    wanted = "expected none with jagged tensors (sequences share no scores)"
    assert message(q, q, q, mask=torch.ones(5, 5).bool()) == f"mask is given, {wanted}"
    assert message(q, q, q, heads_first=True).startswith("q is jagged in another dimension")
    assert message(q, torch.zeros(3, 5, 2, 8).double(), q).startswith("q is a jagged nested tensor")
    assert message(*[q.flatten(-2)] * 3).startswith("q has 3 dimensions, expected 4 (batch, time")
    padded = torch.randn(2, 6, 2, 8)
    gaps = torch.nested.narrow(padded, 1, torch.tensor([0, 1]), torch.tensor([3, 2]), torch.jagged)
    assert message(gaps, gaps, gaps).startswith("q is jagged with gaps between its sequences")
    closed = gaps.contiguous()
    torch.testing.assert_close(
        attention(closed, closed, closed)[1], attention(*[padded[1:, 1:3]] * 3)[0]
    )


def test_dropout_and_16_bit() -> None:
    q = _jagged(_parts(LENGTHS, 2, 8)).detach().bfloat16()
    torch.manual_seed(0)
    out = attention(q, q, q, dropout=1.0)
    assert out.dtype is torch.bfloat16
    assert not out.values().any()


def test_compile() -> None:
    torch._dynamo.reset()
    q = _jagged(_parts(LENGTHS, 2, 8)).detach()
    compiled = torch.compile(lambda x: attention(x.sin(), x, x), backend="aot_eager")
    out, expected = compiled(q), attention(q.sin(), q, q)
    torch.testing.assert_close(out.values(), expected.values())


def test_a_module_of_sequences() -> None:
    layer = tfk.nn.CausalSelfAttention(16, 2, window=4)
    parts = [torch.randn(n, 16) for n in LENGTHS]
    out = layer(torch.nested.nested_tensor(parts, layout=torch.jagged))
    out.values().sin().sum().backward()
    found = [x.grad for x in layer.parameters()]
    layer.zero_grad()
    for x, rows in zip(parts, out.unbind(), strict=True):
        expected = layer(x.unsqueeze(0))[0]
        torch.testing.assert_close(rows, expected)
        expected.sin().sum().backward()
    for x, gradient in zip(layer.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, x.grad)
