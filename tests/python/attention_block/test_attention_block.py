# SPDX-License-Identifier: MIT
"""attention_block: numbers, dropout, what one call keeps, frozen parameters, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch
from torch.utils.flop_counter import FlopCounterMode

import transformer_kernels as tfk
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional
BATCH, TIME, CHANNELS, HEADS, DIM = 2, 11, 24, 4, 6
NAMES = ("input", "residual", "qkv_weight", "qkv_bias", "out_weight", "out_bias", "norm_weight",
         "norm_bias")  # fmt: skip
PARAMETERS = NAMES[2:]
WIDE = ("residual", "out_bias", "norm_weight", "norm_bias")  # what float32 beside 16 bits comes in

each_level = pytest.mark.parametrize("level", [0, 1])
each_norm = pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])


def _leaves(
    dtype: torch.dtype, kv_heads: int = HEADS, device: str = "cpu", wide: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Tensors in ``dtype``; with ``wide`` the residual, the last bias and the norm in that."""
    rows = (HEADS + 2 * kv_heads) * DIM
    x = (BATCH, TIME, CHANNELS)
    sizes = dict(
        zip(
            NAMES,
            (x, x, (rows, CHANNELS), (rows,), (CHANNELS, HEADS * DIM), *((CHANNELS,),) * 3),
            strict=True,
        )
    )
    found = {}
    for name, size in sizes.items():
        scale = CHANNELS**-0.5 if name.endswith("_weight") and len(size) == 2 else 1.0
        is_wide = wide is not None and name in WIDE
        found[name] = (randn(size, torch.float64, device) * scale).to(wide if is_wide else dtype)
    return found


def _ours(leaves: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    return F.attention_block(*leaves.values(), HEADS, **options)


def _stock(
    leaves: dict[str, Tensor], kv_heads: int = HEADS, norm: str = "layer_norm",
    causal: bool = False, p: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x, residual, qkv_weight, qkv_bias, out_weight, out_bias, weight, bias = leaves.values()
    parts = (HEADS, kv_heads, kv_heads)
    qkv = in_torch.linear(x, qkv_weight, qkv_bias).unflatten(-1, (sum(parts), DIM))
    q, k, v = (t.transpose(1, 2) for t in qkv.split(parts, 2))
    heads = in_torch.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=kv_heads != HEADS, dropout_p=p
    )
    out = in_torch.linear(heads.transpose(1, 2).flatten(2), out_weight)
    out = out + out_bias
    s = residual + in_torch.dropout(out, p)
    normed = s.to(weight.dtype)
    if norm == "layer_norm":
        return in_torch.layer_norm(normed, (CHANNELS,), weight, bias).to(x.dtype), s
    return (in_torch.rms_norm(normed, (CHANNELS,), weight, 1e-5) + bias).to(x.dtype), s


Block = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]


def _run(block: Block, leaves: dict[str, Tensor], dys: tuple[Tensor, ...]) -> dict[str, Tensor]:
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    results = block(leaves)
    given = [dy.to(y.dtype) for dy, y in zip(dys, results, strict=True)]
    gradients = torch.autograd.grad(results, list(leaves.values()), given)
    found = {f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"y": results[0].detach(), "sum": results[1].detach(), **found}


def _dys(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    size = (BATCH, TIME, CHANNELS)
    return randn(size, dtype, device), randn(size, dtype, device)


def _check(
    leaves: dict[str, Tensor], kv_heads: int = HEADS, norm: str = "layer_norm",
    causal: bool = False, **options: Any,
) -> None:  # fmt: skip
    x = leaves["input"]
    dys = _dys(x.dtype, x.device.type)
    ours = partial(_ours, num_kv_heads=kv_heads, norm=norm, causal=causal, **options)
    stock = partial(_stock, kv_heads=kv_heads, norm=norm, causal=causal)
    with poisoned():
        found = _run(ours, leaves, dys)
    theirs = _run(stock, leaves, dys)
    doubles = {name: leaf.double() for name, leaf in leaves.items()}
    exact = _run(stock, doubles, tuple(dy.double() for dy in dys))
    for name, value in found.items():
        assert value.dtype is theirs[name].dtype
        # A gradient that passes several roundings to 16 bits may meet them in another order.
        magnitude = CHANNELS**0.5 if x.dtype.itemsize > 2 else 4.0
        assert_close_to_reference(value, theirs[name], exact[name], name, magnitude=magnitude)


# ---- numbers ------------------------------------------------------------------------------------


@each_level
@each_norm
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_both_passes(norm: str, level: int, backend: str, dtype: torch.dtype) -> None:
    kv_heads = 2 if norm == "rms_norm" else HEADS
    _check(
        _leaves(dtype, kv_heads), kv_heads, norm, causal=level == 0, recompute=level,
        backend=backend,
    )  # fmt: skip


def test_a_residual_in_float32() -> None:
    _check(_leaves(torch.bfloat16, wide=torch.float32), causal=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    arrange = LAYOUTS[layout]
    leaves = _leaves(torch.float32)
    if layout == "expanded":  # equal rows of weights add up where others cancel
        leaves |= {name: leaves[name] * CHANNELS**-0.5 for name in ("qkv_weight", "out_weight")}
    matrices = ("input", "residual", "qkv_weight", "out_weight")
    _check(leaves | {name: arrange(leaves[name]) for name in matrices}, causal=True)


def test_weights_stored_by_columns_are_read_where_they_lie() -> None:
    leaves = _leaves(torch.float32)
    turned = {n: leaves[n].t().contiguous().t() for n in ("qkv_weight", "out_weight")}
    _check(leaves | turned, causal=True)
    found = _run(partial(_ours, causal=True), leaves | turned, _dys(torch.float32))
    assert found["dqkv_weight"].stride() == turned["qkv_weight"].stride()


@each_level
def test_gradients_of_gradients(level: int) -> None:
    leaves = {name: x[:1, :3] if x.dim() == 3 else x for name, x in _leaves(torch.float64).items()}
    values = [value.requires_grad_() for value in leaves.values()]
    seeds = {"attention_seed": torch.tensor([1, 2]), "seed": torch.tensor([3, 4])}

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return F.attention_block(
            *tensors, HEADS, causal=True, attention_dropout_p=0.2, dropout_p=0.3, recompute=level,
            **seeds,
        )  # fmt: skip

    assert torch.autograd.gradcheck(call, values, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, values, fast_mode=True)


@each_level
def test_dropout_is_that_of_the_ops_inside(level: int) -> None:
    """Seeds drop the elements that attention and the norm of a sum drop, in both passes."""
    leaves, dys = _leaves(torch.float32), _dys(torch.float32)
    attention_seed, seed = torch.tensor([5, 8]), torch.tensor([7, 3])

    def chain(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual, qkv_weight, qkv_bias, out_weight, out_bias, weight, bias = given.values()
        qkv = F.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, HEADS, DIM))
        heads = F.attention(*qkv.unbind(2), causal=True, dropout=0.2, seed=attention_seed)
        out = F.linear(heads.flatten(2), out_weight)
        return F.bias_dropout_add_layer_norm(out, out_bias, residual, weight, bias, 0.3, seed=seed)

    ours = partial(
        _ours, causal=True, attention_dropout_p=0.2, dropout_p=0.3, attention_seed=attention_seed,
        seed=seed, recompute=level,
    )  # fmt: skip
    first, second = _run(ours, leaves, dys), _run(chain, leaves, dys)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-4, atol=1e-5)
    in_evaluation = _ours(leaves, dropout_p=0.3, attention_dropout_p=0.2, training=False)
    assert torch.equal(in_evaluation[0], _ours(leaves)[0])


def test_the_same_bits_each_time() -> None:
    leaves, dys = _leaves(torch.float32), _dys(torch.float32)
    first, second = (_run(partial(_ours, causal=True), leaves, dys) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_autocast() -> None:
    """Products and attention run in 16 bits, the sum stays in the residual's dtype."""
    leaves = {name: x.requires_grad_() for name, x in _leaves(torch.float32).items()}
    with torch.autocast("cpu", torch.bfloat16):
        y, s = _ours(leaves, causal=True)
    assert (y.dtype, s.dtype) == (torch.bfloat16, torch.float32)
    gradients = torch.autograd.grad((y.float().sum(), s.sum()), list(leaves.values()))
    assert all(g.dtype is torch.float32 for g in gradients)
    torch.testing.assert_close(s, _stock(leaves, causal=True)[1], rtol=0.05, atol=0.05)


@pytest.mark.cuda
@each_level
@each_norm
def test_on_cuda(norm: str, level: int, dtype: torch.dtype) -> None:
    kv_heads = 2 if norm == "rms_norm" else HEADS
    leaves = _leaves(dtype, kv_heads, "cuda")
    _check(leaves, kv_heads, norm, causal=level == 0, recompute=level)


@pytest.mark.cuda
def test_master_weights_on_cuda() -> None:
    """Under autocast, gradients of float32 weights are float32, and are added to ``.grad``."""
    leaves = {n: x.requires_grad_() for n, x in _leaves(torch.float32, device="cuda").items()}
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            y, s = _ours(leaves, causal=True)
        (y.float().sum() + s.sum()).backward()
    expected = _run(
        partial(_stock, causal=True),
        leaves,
        tuple(torch.ones_like(t) for t in _dys(torch.float32, "cuda")),
    )
    for name, x in leaves.items():
        assert x.grad is not None
        assert x.grad.dtype is torch.float32
        scale = expected[f"d{name}"].abs().max()
        assert (x.grad - 2 * expected[f"d{name}"]).abs().max() < 0.1 * scale


# ---- what is kept, and what is computed ---------------------------------------------------------


def _kept(call: Callable[[], tuple[Tensor, Tensor]], leaves: dict[str, Tensor]) -> int:
    """Bytes that a call saves for its backward pass, besides parameters; each memory once."""
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        results = call()
    assert results[0].requires_grad
    owned = {leaves[name].untyped_storage().data_ptr() for name in PARAMETERS}
    return sum(size for pointer, size in storages.items() if pointer not in owned)


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_what_is_kept(kv_heads: int) -> None:
    """The elements of the docstring, and four numbers for statistics; less than PyTorch's chain."""
    leaves = {n: x.requires_grad_() for n, x in _leaves(torch.float32, kv_heads).items()}
    options = {"causal": True, "num_kv_heads": kv_heads, "dropout_p": 0.1}
    seed = torch.tensor([7, 3])
    kept = [
        _kept(partial(_ours, leaves, recompute=n, seed=seed, **options), leaves) - seed.nbytes
        for n in (0, 1)
    ]
    tokens, statistics = BATCH * TIME, 2 * HEADS + 2
    packed = (HEADS + 2 * kv_heads) * DIM
    assert kept[0] == 4 * tokens * (2 * CHANNELS + HEADS * DIM + packed + statistics)
    assert kept[1] == kept[0] - 4 * tokens * packed

    def chain() -> tuple[Tensor, Tensor]:
        return _stock(leaves, kv_heads, causal=True, p=0.1)

    assert kept[0] < _kept(chain, leaves)


def test_it_is_one_node() -> None:
    leaves = {name: x.requires_grad_() for name, x in _leaves(torch.float32).items()}
    y, s = _ours(leaves, causal=True)
    assert y.grad_fn is s.grad_fn
    assert y.grad_fn is not None
    after = [node for node, _ in y.grad_fn.next_functions if node is not None]
    assert {node.name() for node in after} == {"torch::autograd::AccumulateGrad"}


def _products(*frozen: str) -> float:
    """Operations of products in the backward pass."""
    leaves = {n: x.requires_grad_(n not in frozen) for n, x in _leaves(torch.float32).items()}
    results = _ours(leaves)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(results, _dys(torch.float32))
    return counter.get_total_flops()


def test_no_gradient_is_computed_for_frozen_operands() -> None:
    """With a frozen input and first layer, attention's backward pass does not run either."""
    of_out, of_qkv = (2 * BATCH * TIME * CHANNELS * n for n in (HEADS * DIM, 3 * HEADS * DIM))
    assert _products("qkv_weight") - _products("qkv_weight", "out_weight") == of_out
    assert _products("input") - _products("input", "qkv_weight") == of_qkv
    first = ("input", "qkv_weight", "qkv_bias")
    assert _products(*first) == of_out
    assert _products(*first, "out_weight") == 0


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 5}, "qkv_weight has 72 rows, expected a multiple of 15, at most 3840"),
        ({"num_kv_heads": 3}, r"num_kv_heads is 3, expected a divisor of num_heads \(4\)"),
        ({"norm": "batch_norm"}, "norm is 'batch_norm', expected 'layer_norm' or 'rms_norm'"),
        ({"recompute": 2}, "recompute is 2, expected 0 or 1"),
        ({"dropout_p": 1.5}, "dropout_p is 1.5, expected a number from 0 to 1"),
        ({"input": torch.ones(3, CHANNELS), "residual": torch.ones(3, CHANNELS)},
         r"x has 2 dimensions, expected 3 \(batch, time, channels\)"),
        ({"out_weight": torch.ones(CHANNELS, 25)}, "out_weight has 25 columns, expected 24"),
        ({"residual": torch.ones(2, 3, CHANNELS)}, "residual has shape"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refusals(change: dict[str, Any], message: str) -> None:
    given = {**_leaves(torch.float32), "num_heads": HEADS, **change}
    with pytest.raises((ValueError, TypeError), match=f"^attention_block: {message}"):
        F.attention_block(**given)
