# SPDX-License-Identifier: MIT
"""The experts against a loop over them; declared/test_declare.py tests the declarations."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference, floor_unit

BACKENDS = ("auto", "reference")
ACTIVATIONS: dict[str, Any] = {
    "swiglu": torch.nn.functional.silu,
    "geglu": torch.nn.functional.gelu,
    "reglu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "relu_squared": lambda z: torch.relu(z).square(),
}


class Case(NamedTuple):
    tokens: int
    chosen: int
    experts: int
    sizes: tuple[int, int, int]  # of x, hidden features, of y
    activation: str = "swiglu"
    packed: bool = True
    bias: bool = False
    capacity: float | None = None


# Sizes that are multiples of nothing, experts without tokens, one with all, dropped assignments.
CASES = (
    Case(37, 2, 5, (24, 16, 24)),
    Case(29, 3, 40, (17, 9, 13), "geglu", packed=False, bias=True),
    Case(23, 1, 1, (8, 40, 5), "reglu", packed=False),
    Case(33, 2, 4, (19, 11, 19), "gelu", bias=True),
    Case(26, 4, 6, (16, 8, 16), "silu", capacity=0.5),
    Case(31, 2, 3, (12, 21, 7), "swiglu", bias=True, capacity=0.75),
    Case(21, 2, 7, (9, 14, 9), "relu_squared"),
)


def _made(c: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The chosen experts, and the leaves of a call by name."""
    d, f, out = c.sizes
    gated = c.activation.endswith("glu")
    lines = 2 * f if gated and c.packed else f

    def made(*shape: int, terms: int = 1) -> Tensor:
        return randn(shape, dtype, device) * terms**-0.5

    leaves = {
        "input": made(c.tokens, d), "weights": made(c.tokens, c.chosen).abs().float(),
        "weight": made(c.experts, lines, d, terms=d),
        "down_weight": made(c.experts, out, f, terms=f),
    }  # fmt: skip
    if gated and not c.packed:
        leaves["up_weight"] = made(c.experts, f, d, terms=d)
        if c.bias:
            leaves["up_bias"] = made(c.experts, f)
    if c.bias:
        leaves |= {"bias": made(c.experts, lines), "down_bias": made(c.experts, out)}
    if dtype is torch.float64:
        leaves["weights"] = leaves["weights"].double()
    scores = torch.rand(c.tokens, c.experts, device=device)
    return scores.topk(c.chosen).indices.to(torch.int32), leaves


def _loop(
    c: Case, d: F.Dispatch, indices: Tensor, input: Tensor, weights: Tensor,  # noqa: A002
    weight: Tensor, down_weight: Tensor, up_weight: Tensor | None = None,
    bias: Tensor | None = None, up_bias: Tensor | None = None, down_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Each expert by PyTorch's layers, as models write it."""
    linear = torch.nn.functional.linear
    y = input.new_zeros(len(input), down_weight.shape[1])
    for e in range(c.experts):
        t, k = torch.where((indices == e) & (d.places >= 0))

        def of(p: Tensor | None, e: int = e) -> Any:
            return None if p is None else p[e]

        z = linear(input[t], of(weight), of(bias))
        if up_weight is not None:
            z = torch.cat([z, linear(input[t], of(up_weight), of(up_bias))], -1)
        if c.activation.endswith("glu"):
            gate, up = z.chunk(2, -1)
            h = ACTIVATIONS[c.activation](gate) * up
        else:
            h = ACTIVATIONS[c.activation](z)
        rows = linear(h, of(down_weight), of(down_bias)) * weights[t, k, None]
        y = y.index_add(0, t, rows.to(y.dtype))
    return y


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.activation)
def test_both_passes(c: Case, dtype: torch.dtype, device: str) -> None:
    """The reference is PyTorch's own products, which may sum 16-bit numbers in 16 bits."""
    for backend in BACKENDS if dtype.itemsize > 2 else BACKENDS[:1]:
        _check_passes(c, dtype, backend, device)


def _check_passes(c: Case, dtype: torch.dtype, backend: str, device: str) -> None:
    indices, leaves = _made(c, dtype, device)
    d = F.moe_dispatch(indices, c.experts, capacity_factor=c.capacity)
    assert (d.drop_rate() > 0).item() == (c.capacity is not None)

    def ours(*values: Tensor) -> Tensor:
        given = dict(zip(leaves, values, strict=True))
        first = (given.pop("input"), d, given.pop("weights"))
        return F.moe_experts(*first, activation=c.activation, backend=backend, **given)

    def theirs(*values: Tensor) -> Tensor:
        return _loop(c, d, indices, **dict(zip(leaves, values, strict=True)))

    dy = randn((c.tokens, c.sizes[2]), dtype, device)
    if c.activation == "reglu":  # its slope jumps where a gate may be rounded to either side of 0
        gates = torch.einsum("td,efd->tef", leaves["input"].double(), leaves["weight"].double())
        dy[(gates.abs() < 1e-4).flatten(1).any(1)] = 0
    tensors = [*leaves.values()]
    with poisoned():
        found = both_passes(ours, tensors, dy)
    in_torch = both_passes(theirs, tensors, dy)
    exact = both_passes(theirs, [x.double() for x in tensors], dy.double())
    for name, a, b, e in zip(("y", *leaves), found, in_torch, exact, strict=True):
        # Four tensors are stored, and rounded, on the way to a result: gate, up, h and rows of dy
        # times weights. Sums keep such errors of terms that cancel in them.
        units = 4 * floor_unit(dtype) / floor_unit(a.dtype)
        size = max(max(c.tokens, *c.sizes) ** 0.5, e.abs().max().item())
        assert_close_to_reference(a, b, e, name, magnitude=size * units)


def test_gradcheck(device: str) -> None:
    for c in (CASES[1], CASES[3], CASES[5]):
        small = c._replace(tokens=6, experts=4, sizes=(3, 4, 2))
        indices, leaves = _made(small, torch.float64, device)
        d = F.moe_dispatch(indices, 4, capacity_factor=c.capacity)

        def run(
            *values: Tensor, names: Any = tuple(leaves), d: Any = d, act: str = c.activation
        ) -> Tensor:
            given = dict(zip(names, values, strict=True))
            return F.moe_experts(given.pop("input"), d, given.pop("weights"), activation=act,
                                 **given)  # fmt: skip

        tensors = [x.requires_grad_() for x in leaves.values()]
        assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("activation", ["swiglu", "clamped_swiglu"])
def test_samples_of_vmap(activation: str, device: str) -> None:
    """Each sample chooses other experts. Numbers that are not finite stay in their tokens."""
    shapes = ((4, 12, 6), (4, 5, 6), (4, 12), (4, 5))
    parameters = tuple(randn(shape, torch.float64, device) for shape in shapes)
    x, logits = (randn((2, 7, n), torch.float64, device) for n in (6, 4))
    x[0, 0] = torch.inf

    def rows(values: Any, x: Tensor, logits: Tensor) -> Tensor:
        weight, down, bias, down_bias = values
        weights, indices = F.moe_router(logits, 2)
        return F.moe_experts(
            x, F.moe_dispatch(indices, 4), weights, weight, down, activation, bias=bias,
            down_bias=down_bias,
        )  # fmt: skip

    def loss(values: Any, x: Tensor, logits: Tensor) -> Tensor:
        return rows(values, x, logits)[1:].square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2))
    for function in (rows, gradients):
        found = torch.func.vmap(function, in_dims=(None, 0, 0))(parameters, x, logits)
        for i in range(2):
            expected = function(parameters, x[i], logits[i])
            of_sample = torch.utils._pytree.tree_map(lambda t, i=i: t[i], found)
            torch.testing.assert_close(of_sample, expected, equal_nan=True)


def _gpt_oss(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def test_activations_by_parts(device: str) -> None:
    """gpt-oss's gate, by name and as a function, with weights as that model stores them."""
    gate_up, down = randn((4, 12, 20), torch.float64, device), randn((4, 10, 12), torch.float64,
                                                                    device)  # fmt: skip
    bias, down_bias = randn((4, 20), torch.float64, device), randn((4, 12), torch.float64, device)
    x = 3 * randn((9, 12), torch.float64, device)
    weights, indices = F.moe_router(randn((9, 4), torch.float64, device), 2)
    d = F.moe_dispatch(indices, 4)
    gate, up = gate_up[..., ::2].mT, gate_up[..., 1::2].mT
    for activation in ("clamped_swiglu", _gpt_oss):
        y = F.moe_experts(
            x, d, weights, gate, down.mT, activation, up_weight=up, bias=bias[:, ::2],
            up_bias=bias[:, 1::2], down_bias=down_bias,
        )  # fmt: skip
        expected = torch.zeros_like(x)
        for t in range(9):
            for k in range(2):
                e = indices[t, k]
                z = x[t] @ gate_up[e] + bias[e]
                row = _gpt_oss(z[::2], z[1::2]) @ down[e] + down_bias[e]
                expected[t] += weights[t, k] * row
        torch.testing.assert_close(y, expected)


def test_interleaved_weights(device: str) -> None:
    c = Case(9, 2, 4, (6, 5, 6), bias=True)
    indices, leaves = _made(c, torch.float64, device)
    d = F.moe_dispatch(indices, 4)
    x, weights = leaves.pop("input"), leaves.pop("weights")
    mixed = dict(leaves)
    for name in ("weight", "bias"):
        mixed[name] = torch.stack(leaves[name].chunk(2, 1), 2).flatten(1, 2)
    for activation in ("swiglu", _gpt_oss):
        torch.testing.assert_close(
            F.moe_experts(x, d, weights, activation=activation, interleaved=True, **mixed),
            F.moe_experts(x, d, weights, activation=activation, **leaves),
        )


def test_grouped_linear(device: str) -> None:
    """With weights of any strides; what follows the last group has no effect."""
    offsets = torch.tensor((0, 3, 3, 8), dtype=torch.int32, device=device)
    x = randn((10, 6), torch.float64, device).requires_grad_()
    stored = randn((3, 6, 5), torch.float64, device).requires_grad_()
    bias = randn((3, 5), torch.float64, device).requires_grad_()
    for backend in BACKENDS:
        y = F.grouped_linear(x, stored.transpose(1, 2), offsets, bias, backend=backend)[:8]
        group = torch.tensor((0, 0, 0, 2, 2, 2, 2, 2), device=device)
        expected = torch.einsum("mk,mkn->mn", x[:8], stored[group]) + bias[group]
        torch.testing.assert_close(y, expected)
        dy = randn((8, 5), torch.float64, device)
        found = torch.autograd.grad(y, (stored, bias), dy)
        of_torch = torch.autograd.grad(expected, (stored, bias), dy)
        for a, b in zip(found, of_torch, strict=True):
            torch.testing.assert_close(a, b)
    with poisoned():
        leaves = [t.detach().requires_grad_() for t in (x[:8], stored.transpose(1, 2), bias)]
        assert torch.autograd.gradcheck(
            lambda x, w, b: F.grouped_linear(x, w, offsets, b), leaves
        )  # fmt: skip


def test_determinism(device: str) -> None:
    c = Case(300, 4, 16, (40, 24, 40))
    indices, leaves = _made(c, torch.bfloat16, device)
    d = F.moe_dispatch(indices, c.experts)

    def run(*values: Tensor) -> Tensor:
        x, weights, weight, down = values
        return F.moe_experts(x, d, weights, weight, down)

    dy = randn((300, 40), torch.bfloat16, device)
    first, second = (both_passes(run, [*leaves.values()], dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast(device: str) -> None:
    """Products are in autocast's dtype, gradients in that of the parameters."""
    c = CASES[1]
    indices, leaves = _made(c, torch.float32, device)
    d = F.moe_dispatch(indices, c.experts)
    given = {name: x.requires_grad_() for name, x in leaves.items()}
    x, weights = given.pop("input"), given.pop("weights")
    with torch.autocast(device, torch.bfloat16):
        y = F.moe_experts(x, d, weights, activation="geglu", **given)
        rows = F.grouped_linear(x[: d.offsets[-1]], given["weight"], d.offsets.clamp(max=29))
    assert y.dtype is rows.dtype is torch.bfloat16
    y.sum().backward()
    assert {p.grad.dtype for p in leaves.values() if p.grad is not None} == {torch.float32}


def test_no_tokens(device: str) -> None:
    c = Case(0, 2, 3, (4, 5, 4))
    indices, leaves = _made(c, torch.float32, device)
    d = F.moe_dispatch(indices, 3)
    given = [x.requires_grad_() for x in leaves.values()]
    y = F.moe_experts(given[0], d, given[1], *given[2:])
    y.sum().backward()
    assert y.shape == (0, 4)
    assert all(x.grad is not None and not x.grad.any() for x in given[2:])


def test_bad_input() -> None:
    x, weights = torch.randn(3, 4), torch.ones(3, 2)
    d = F.moe_dispatch(torch.tensor([[0, 1], [1, 2], [2, 0]]), 3)
    weight, down = torch.randn(3, 10, 4), torch.randn(3, 4, 5)
    for arguments, message in (
        ((x, d, weights, weight, down, "swish"), "moe_experts: activation is 'swish', expected"),
        ((x, d, weights, weight[:2], down), r"moe_experts: weight has shape \(2, 5, 4\)"),
        ((x, d, weights, weight, down[..., 1:]), r"down_weight has shape \(3, 4, 4\), expected"),
        ((x, d, weights, weight[:, 1:], down), "weight has 9 rows, expected an even number"),
        ((x[:2], d, weights, weight, down), r"x has shape \(2, 4\), expected \(3, 4\)"),
        ((x, d, weights[:, :1], weight, down), r"weights has shape \(3, 1\), expected \(3, 2\)"),
        ((x[0], d, weights, weight, down), "x has 1 dimensions, expected at least 2"),
        (
            (x, d._replace(tokens=d.tokens + 2), weights, weight, down),
            "tokens holds ., expected a row of x, which has 3",
        ),
        ((x, d._replace(places=d.places + 3), weights, weight, down), "places has ., expected"),
    ):
        with pytest.raises((ValueError, IndexError), match=message):
            F.moe_experts(*arguments)
    with pytest.raises(TypeError, match="dispatch is Tensor, expected a Dispatch"):
        F.moe_experts(x, d.places, weights, weight, down)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="down_weight is float64, expected float32"):
        F.moe_experts(x, d, weights, weight, down.double())
    with pytest.raises(ValueError, match="up_bias is present, expected none"):
        F.moe_experts(x, d, weights, weight[:, :5], down, "gelu", up_bias=torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"offsets ends with 6, expected at most 5"):
        F.grouped_linear(torch.randn(5, 4), weight, d.offsets)
