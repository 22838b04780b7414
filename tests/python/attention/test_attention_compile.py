# SPDX-License-Identifier: MIT
"""attention inside torch.compile, torch.export, torch.func and opcheck."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import transformer_kernels as tfk
from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import OPTIONAL, op_arguments, tensors
from transformer_kernels.testing.dispatch import CallsOf
from transformer_kernels.testing.inputs import randn

OPS = torch.ops.transformer_kernels
pytestmark = pytest.mark.usefixtures("default_device")


def _offsets() -> Tensor:
    return torch.tensor([0, 4, 9], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def _raw_arguments(kind: str) -> tuple[Any, ...]:
    names = OPTIONAL["all" if kind == "all" else "plain"]
    given = op_arguments(names, packed=kind == "varlen")
    if kind == "all":
        given["q"] = given["q"].transpose(1, 2).contiguous().transpose(1, 2)
    return tuple(given.values())


@pytest.mark.parametrize("kind", ["plain", "all", "varlen"])
def test_opcheck(kind: str) -> None:
    arguments = _raw_arguments(kind)
    torch.library.opcheck(OPS.attention_forward.default, arguments)
    out, lse, rest = OPS.attention_forward(*arguments)
    everything = kind == "all"
    gradients = (torch.randn_like(out), torch.randn_like(lse), out, lse, rest)
    backward = (*gradients, *arguments, everything, everything)
    torch.library.opcheck(OPS.attention_backward.default, backward)
    leaves = tuple(
        x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() and i != 5 else x
        for i, x in enumerate(arguments)
    )
    torch.library.opcheck(OPS.attention.default, leaves)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_fullgraph(dynamic: bool) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out, lse = attention(q.sin(), k, v, bias=bias, causal=True, softcap=3.0, return_lse=True)
        return out.cos() + lse.transpose(1, 2).unsqueeze(-1)

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for queries, keys in ((5, 7), (6, 9), (11, 12)):
        leaves = [
            x.requires_grad_()
            for x in (*tensors(queries, keys, 4, 2, dim=8), randn((4, 1, keys), torch.float32))
        ]
        results = []
        for function in (block, compiled):
            out = function(*leaves)
            results.append((out, *torch.autograd.grad(out, leaves, torch.ones_like(out))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


def test_compiled_dropout_is_fresh_at_each_call() -> None:
    q, k, v = tensors(30, 30, dim=8)
    compiled = torch.compile(
        lambda *x: attention(*x, dropout=0.5), fullgraph=True, backend="aot_eager"
    )
    first, second = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(first, second)


def test_compile_of_varlen_and_sdpa() -> None:
    q, k, v = (randn((9, 2, 8), torch.float32) for _ in range(3))
    compiled = torch.compile(attention_varlen, fullgraph=True, backend="aot_eager")
    offsets = _offsets()
    torch.testing.assert_close(compiled(q, k, v, offsets), attention_varlen(q, k, v, offsets))
    ours = tfk.functional.scaled_dot_product_attention
    q, k, v = (randn((2, 3, 9, 8), torch.float32) for _ in range(3))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, is_causal=True), ours(q, k, v, is_causal=True))


def test_sizes_that_depend_on_data() -> None:
    """Packing by nonzero() and selecting keys give one graph for all outcomes."""

    def packed(x: Tensor, starts: Tensor) -> Any:
        return attention_varlen(x, x, x, torch.nonzero(starts).flatten().int())

    def selected(q: Tensor, k: Tensor, bias: Tensor, chosen: Tensor) -> Any:
        return attention(q, k[:, chosen], k[:, chosen], bias=bias[:, chosen])

    torch._dynamo.reset()
    x, starts = randn((9, 2, 8), torch.float32), torch.tensor([1, 0, 0, 0, 1, 0, 0, 0, 0, 1])
    q, k, _ = tensors(6, 9, 4, 2, dim=8)
    calls: list[Any] = [
        (packed, (x, starts)),
        (selected, (q, k, randn((6, 9), torch.float32), torch.arange(9) % 3 > 0)),
    ]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for function, arguments in calls:
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(*arguments), function(*arguments))


def test_an_unused_log_sum_exp_has_no_gradient_in_graphs() -> None:
    q, *rest = _raw_arguments("plain")
    seen = []
    for unused in (1, 0):
        results = OPS.attention(q.clone().requires_grad_(), *rest)
        with CallsOf(OPS.attention_backward.default) as watch:
            results[1 - unused].sum().backward()
        seen += [[dout.count_nonzero() > 0, dlse is not None] for dout, dlse, *_ in watch.calls]
    assert seen == [[True, False], [False, True]]


def test_export_keeps_one_node_a_call() -> None:
    model, x = tfk.nn.CausalSelfAttention(16, 2), torch.randn(2, 5, 16)
    program = torch.export.export(model, (x,))
    assert "transformer_kernels.attention.default" in {str(n.target) for n in program.graph.nodes}
    torch.testing.assert_close(program.module()(x), model(x))


def test_torch_func() -> None:
    q, k, v = tensors(4, 6, dim=3, dtype=torch.float64)

    def loss(q: Tensor) -> Tensor:
        return attention(q, k, v, causal=True).square().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    _, tangent = torch.func.jvp(loss, (q,), (q,))
    torch.testing.assert_close(tangent, (expected * q).sum())
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(loss(forward_ad.make_dual(q, q))).tangent
    torch.testing.assert_close(tangent, (expected * q).sum())
    stacked = torch.stack([q, 2 * q])
    mapped = torch.func.vmap(lambda x: attention(x, k, v))(stacked)
    torch.testing.assert_close(mapped[1], attention(2 * q, k, v))


def test_meta_tensors_have_shapes() -> None:
    q, k, v = (x.to("meta") for x in tensors(6, 9, 4, 2, dim=8, value_dim=5))
    out, lse = attention(q, k, v, return_lse=True)
    assert (out.shape, lse.shape) == ((2, 6, 4, 5), (2, 4, 6))


def test_state_is_that_of_plain_calls() -> None:
    """The direct path and the dispatched path give the same numbers."""
    arguments = _raw_arguments("all")
    direct = attention(
        *arguments[:3], bias=arguments[3], mask=arguments[4], alibi_slopes=arguments[5],
        sinks=arguments[6], seed=arguments[9], scale=0.3, window=(20, 0), softcap=2.0, dropout=0.5,
    )  # fmt: skip
    assert torch.equal(direct, OPS.attention_forward(*arguments)[0])
