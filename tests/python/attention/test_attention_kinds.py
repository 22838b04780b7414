# SPDX-License-Identifier: MIT
"""Tensor subclasses and lazy views, and PyTorch's function replaced by ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.nn import functional as F
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

import transformer_kernels as tfk
from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn

sdpa = tfk.functional.scaled_dot_product_attention
pytestmark = [
    pytest.mark.usefixtures("default_device"),
    pytest.mark.filterwarnings("ignore"),  # prototypes of PyTorch say that they are
]


# ---- PyTorch's causal masks ---------------------------------------------------------------------

LENGTHS = [(7, 7), (5, 9), (9, 5), (1, 6)]
MASKS = [causal_upper_left, causal_lower_right]


def _in_memory(mask: CausalBias, like: Tensor) -> Tensor:
    return mask._materialize(like.device)


def _poisoned(mask: CausalBias) -> CausalBias:
    """A tensor whose memory holds NaN, for code that reads it without asking."""
    with torch._C.DisableTorchFunctionSubclass():
        mask.data.fill_(float("nan"))
    return mask


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(2, 3), (3,), ()], ids=["four", "three", "two"])
def test_causal_masks_of_torch(
    mask: Callable[..., CausalBias], lengths: tuple[int, int], shape: tuple[int, ...]
) -> None:
    queries, keys = lengths
    q = randn((*shape, queries, 8), torch.float64).requires_grad_()
    k, v = (randn((*shape, keys, 8), torch.float64).requires_grad_() for _ in range(2))
    bias = _poisoned(mask(queries, keys))
    results = []
    for out in (sdpa(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, _in_memory(bias, q))):
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        results.append((out, *(x.nan_to_num() for x in gradients)))
    for ours, theirs in zip(*results, strict=True):
        assert type(ours) is Tensor
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mask", MASKS)
def test_causal_masks_where_pytorch_runs(
    mask: Callable[..., CausalBias], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's mask finds PyTorch's function by its name in the module, where ours may be."""
    torchs = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    q, k = randn((1, 1, 4, 300), torch.float32), randn((1, 1, 6, 300), torch.float32)
    bias = _poisoned(mask(4, 6))
    for function in (sdpa, F.scaled_dot_product_attention):
        torch.testing.assert_close(function(q, k, k, bias), torchs(q, k, k, _in_memory(bias, q)))


@pytest.mark.parametrize("mask", MASKS)
def test_causal_masks_beside_another_subclass(mask: Callable[..., CausalBias]) -> None:
    class Tagged(Tensor):
        pass

    q = randn((1, 2, 5, 8), torch.float32)
    bias = _poisoned(mask(5, 5))
    tagged = q.as_subclass(Tagged)
    out = sdpa(tagged, tagged, tagged, bias)
    assert type(out) is Tagged
    torch.testing.assert_close(out.as_subclass(Tensor), sdpa(q, q, q, is_causal=True))


def test_causal_masks_that_do_not_fit() -> None:
    q, k = randn((1, 2, 5, 8), torch.float32), randn((1, 2, 9, 8), torch.float32)
    with pytest.raises(ValueError, match=r"causal_lower_right\(5, 7\), expected \(5, 9\)"):
        sdpa(q, k, k, causal_lower_right(5, 7))
    with pytest.raises(ValueError, match=r"is_causal is True, expected False"):
        sdpa(q, k, k, causal_lower_right(5, 9), is_causal=True)
    expected = sdpa(q, k, k, is_causal=True)  # PyTorch reads no lengths of this one
    torch.testing.assert_close(sdpa(q, k, k, causal_upper_left(3, 3)), expected)


@pytest.mark.parametrize("name", ["bias", "mask", "sinks", "alibi_slopes", "seed"])
def test_causal_masks_elsewhere_are_refused(name: str) -> None:
    q = randn((1, 5, 2, 8), torch.float32)
    bias = _poisoned(causal_lower_right(5, 5))
    with pytest.raises(TypeError, match=rf"attention: {name} is a CausalBias, expected causal="):
        attention(q, q, q, dropout=0.5, **{name: bias})
    if name == "bias":
        with torch._C.DisableTorchFunctionSubclass(), pytest.raises(TypeError, match="CausalBias"):
            attention(q, q, q, bias=bias)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_masks_of_a_module(mask: Callable[..., CausalBias], need_weights: bool) -> None:
    layer = tfk.nn.MultiheadAttention(16, 2, batch_first=True)
    x, y = randn((1, 5, 16), torch.float32), randn((1, 8, 16), torch.float32)
    bias = _poisoned(mask(5, 8))
    expected, _ = layer(x, y, y, attn_mask=~_in_memory(bias, x), need_weights=need_weights)
    out, _ = layer(x, y, y, attn_mask=bias, need_weights=need_weights)
    torch.testing.assert_close(out, expected)


def test_causal_masks_compile() -> None:
    torch._dynamo.reset()
    q, k = randn((1, 2, 5, 8), torch.float32), randn((1, 2, 9, 8), torch.float32)

    def block(q: Tensor, k: Tensor) -> Tensor:
        return sdpa(q, k, k, causal_lower_right(5, 9))

    compiled = torch.compile(block, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k), block(q, k))


# ---- __torch_function__ of every argument -------------------------------------------------------


class Asked(Tensor):
    """A tensor that answers with the name of the function that asked it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func.__name__


class Plain(Tensor):
    pass


def _as(kind: type[Tensor], x: Tensor) -> Tensor:
    return x.as_subclass(kind)


def _batch() -> dict[str, Tensor]:
    q, k, v = tensors(5, 5, 2, dim=8)
    return {
        "q": q, "k": k, "v": v, "bias": torch.randn(5, 5), "mask": torch.rand(5, 5) > 0.1,
        "alibi_slopes": torch.rand(2), "sinks": torch.randn(2), "seed": torch.tensor([1, 2]),
    }  # fmt: skip


def _packed() -> dict[str, Tensor]:
    q, k, v = (randn((9, 2, 8), torch.float32) for _ in range(3))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    return {
        "q": q, "k": k, "v": v, "cu_seqlens_q": offsets, "cu_seqlens_k": offsets,
        "alibi_slopes": torch.rand(2), "sinks": torch.randn(2), "seed": torch.tensor([1, 2]),
    }  # fmt: skip


def _dropin() -> dict[str, Tensor]:
    tensors = {name: randn((1, 2, 5, 8), torch.float32) for name in ("query", "key", "value")}
    return {**tensors, "attn_mask": torch.randn(5, 5)}


CALLS = [
    *((attention, _batch, name) for name in _batch()),
    *((attention_varlen, _packed, name) for name in _packed()),
    *((sdpa, _dropin, name) for name in _dropin()),
]


@pytest.mark.parametrize(("function", "make", "name"), CALLS)
def test_every_argument_is_asked(
    function: Callable[..., Any], make: Callable[[], dict[str, Tensor]], name: str
) -> None:
    arguments = make()
    expected = function(**arguments)
    asked = {**arguments, name: _as(Asked, arguments[name])}
    assert function(**asked) == function.__name__
    out = function(**{**arguments, name: _as(Plain, arguments[name])})
    assert type(out) is Plain
    assert torch.equal(out.as_subclass(Tensor), expected)


def test_parameters_ask_nobody() -> None:
    arguments = {
        name: nn.Parameter(x) if x.is_floating_point() and name != "alibi_slopes" else x
        for name, x in _batch().items()
    }
    assert type(attention(**arguments)) is Tensor


# ---- what is refused by name --------------------------------------------------------------------


def _masked(x: Tensor) -> Tensor:
    result: Tensor = masked_tensor(x, torch.ones_like(x, dtype=torch.bool))
    return result


OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sparse": (Tensor.to_sparse, "has the layout sparse_coo, expected strided"),
    "nested": (
        lambda x: torch.nested.as_nested_tensor(list(x.unbind())),
        "is a nested tensor of strided layout, expected layout=torch.jagged",
    ),
    "jagged": (
        lambda x: torch.nested.as_nested_tensor(list(x.unbind()), layout=torch.jagged),
        "is a jagged nested tensor, expected a strided one",
    ),
    "masked": (_masked, "is a MaskedTensor, which"),
    "quantized": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "is quantized, expected a floating-point tensor",
    ),
    "mkldnn": (torch.ops.aten.to_mkldnn, "has the layout mkldnn, expected strided"),
}


# Each kind on every backend, and each argument.
NO_MEMORY = [
    *((kind, "k", backend) for kind in OTHERS for backend in ("auto", "reference", "triton")),
    *(("nested", name, "auto") for name in ("q", "v", "bias", "mask", "sinks", "alibi_slopes")),
]


@pytest.mark.parametrize(("kind", "name", "backend"), NO_MEMORY)
def test_what_is_no_memory_is_refused(kind: str, name: str, backend: str, device: str) -> None:
    change, message = OTHERS[kind]
    if device != "cpu" and kind in ("quantized", "mkldnn"):
        pytest.skip("exists on the CPU alone")
    q, k, v = tensors(5, 5, 2, dim=8)
    arguments: dict[str, Any] = {
        "q": q, "k": k, "v": v, "bias": torch.randn(2, 2, 5, 5), "sinks": torch.randn(2),
        "mask": torch.ones(2, 2, 5, 5, dtype=torch.bool), "alibi_slopes": torch.rand(2, 2),
    }  # fmt: skip
    arguments[name] = change(arguments[name])
    with pytest.raises(TypeError) as caught:
        attention(**arguments, backend=backend)
    assert str(caught.value).startswith(f"attention: {name} {message}")


def _outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask"])
def test_the_dropin_leaves_it_to_pytorch(kind: str, name: str, device: str) -> None:
    change, _ = OTHERS[kind]
    if device != "cpu" and kind in ("quantized", "mkldnn"):
        pytest.skip("exists on the CPU alone")
    arguments = {**_dropin(), "attn_mask": torch.randn(1, 2, 5, 5)}
    arguments[name] = change(arguments[name])
    ours = _outcome(sdpa, arguments)
    theirs = _outcome(F.scaled_dot_product_attention, arguments)
    if isinstance(ours, tuple):
        assert ours == theirs
    else:
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
def test_lazy_negation_is_seen(backend: str) -> None:
    """A lazily negated tensor's memory holds the opposite sign."""
    q, k, v = tensors(5, 5, 2, dim=8)
    negated = [torch._neg_view(-x) for x in (q, k, v)]
    assert all(x.is_neg() for x in negated)
    expected = attention(q, k, v, backend=backend)
    torch.testing.assert_close(attention(*negated, backend=backend), expected)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    g = torch.randn_like(q)
    out = attention(*leaves, backend=backend)
    wanted = torch.autograd.grad(out, leaves, g, retain_graph=True)
    for a, b in zip(torch.autograd.grad(out, leaves, torch._neg_view(-g)), wanted, strict=True):
        torch.testing.assert_close(a, b)


# ---- PyTorch's function replaced by ours --------------------------------------------------------

LEFT_TO_PYTORCH = {
    "wide heads": ((1, 1, 8, 300), (1, 1, 8, 300)),
    "broadcast batch": ((2, 4, 30, 16), (1, 4, 50, 16)),
    "two dimensions": ((30, 16), (50, 16)),
    "five dimensions": ((1, 2, 4, 30, 16), (1, 2, 4, 50, 16)),
}


@pytest.mark.parametrize("name", LEFT_TO_PYTORCH)
def test_ours_in_the_place_of_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = (randn(shape, torch.float32) for shape in LEFT_TO_PYTORCH[name])
    expected = F.scaled_dot_product_attention(q, k, k)
    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, k), expected)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_zero_attn": True}, {"num_heads": 1}])
def test_modules_over_replaced_functions(
    need_weights: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tfk.nn.MultiheadAttention(**{"embed_dim": 300, "num_heads": 2, **options})
    x = randn((5, 2, 300), torch.float32)
    expected, _ = nn.MultiheadAttention.forward(layer, x, x, x, need_weights=need_weights)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a replaced function runs")

    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    if not options and not need_weights:  # then nothing of PyTorch's module runs
        monkeypatch.setattr(F, "linear", never)
    out, _ = layer(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(out, expected)
