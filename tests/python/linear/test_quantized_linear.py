# SPDX-License-Identifier: MIT
"""The numbers of quantised weights; declared/test_declare.py tests the declaration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _choice
from transformer_kernels.testing.inputs import LAYOUTS, poisoned, randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

BACKENDS = ("auto", "cpu", "reference")
# Rows, terms, columns and numbers of a group: streamed, in odd groups, of more rows, of none.
SHAPES = [
    (1, 256, 67, 64), (3, 96, 5, 32), (16, 128, 130, 32), (5, 70, 9, 7), (40, 66, 21, 22),
    (0, 8, 5, 4), (3, 8, 0, 4),
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantized_linear(
    shape: tuple[int, ...], bits: int, backend: str, dtype: torch.dtype
) -> None:
    rows, terms, cols, group = shape
    weight = randn((cols, terms), torch.float64) * terms**-0.5
    packed, scales = F.quantize_weight(weight, bits, group)
    exact = F.dequantize_weight(packed, scales, dtype=torch.float64)
    leaves = [randn((rows, terms), dtype), randn((cols,), dtype)]
    dy = randn((rows, cols), dtype)
    with poisoned():
        found = both_passes(
            lambda x, b: F.quantized_linear(x, packed, scales, b, backend=backend), leaves, dy
        )
    theirs = both_passes(lambda x, b: in_torch.linear(x, exact.to(dtype), b), leaves, dy)
    wide = both_passes(
        lambda x, b: in_torch.linear(x, exact, b), [leaf.double() for leaf in leaves], dy.double()
    )
    for name, a, b, c in zip(("y", "dx", "dbias"), found, theirs, wide, strict=True):
        assert a.dtype == dtype
        many = max(rows, terms, cols, 1) if dtype.itemsize > 2 else 1
        assert_close_to_reference(a, b, c, name, magnitude=4 * many**0.5)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [2, 32, 128, None])
def test_numbers_are_off_by_half_a_scale(
    bits: int, group: int | None, scale_dtype: torch.dtype
) -> None:
    weight = randn((40, 256), torch.float32)
    weight[3] = 0
    packed, scales = F.quantize_weight(weight, bits, group, scale_dtype=scale_dtype)
    assert packed.shape == ((40, 256) if bits == 8 else (40, 128))
    assert packed.dtype is (torch.int8 if bits == 8 else torch.uint8)
    assert scales.shape == (40, 256 // (group or 256))
    assert scales.dtype is scale_dtype
    back = F.dequantize_weight(packed, scales, dtype=torch.float64)
    most = scales.double().repeat_interleave(group or 256, 1) / 2
    rounding = 2.0**-23 * weight.abs()  # of the quotient in float32
    assert ((weight - back).abs() <= most + rounding).all()


def test_the_layout_of_nibbles() -> None:
    """Packs nibbles as csrc/include/transformer_kernels/quantized.h describes."""
    packed, scales = F.quantize_weight(torch.tensor([[7.0, -7.0, 1.0, 0.0]]), 4, 4)
    assert scales.tolist() == [[1.0]]
    assert packed.tolist() == [[0x97, 0x01]]


@pytest.mark.parametrize(
    ("bits", "group", "expected"),
    [(8, 128, 0.0065), (4, 128, 0.117), (4, 32, 0.097)],
)
def test_the_error_of_normal_numbers(bits: int, group: int, expected: float) -> None:
    """The errors are those that docs/ops/linear.md states."""
    weight = randn((256, 1024), torch.float32)
    back = F.dequantize_weight(*F.quantize_weight(weight, bits, group))
    error = ((weight - back).norm() / weight.norm()).item()
    assert error == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("bits", [8, 4])
def test_layouts(layout: str, bits: int) -> None:
    packed, scales = F.quantize_weight(randn((20, 64), torch.float32), bits, 32)
    x, scales = LAYOUTS[layout](randn((6, 64), torch.float32)), LAYOUTS[layout](scales)
    if layout == "transposed":
        packed = packed.t().contiguous().t()
    y = F.quantized_linear(x, packed, scales, backend="cpu")
    plain = F.quantized_linear(
        x.contiguous(), packed.contiguous(), scales.contiguous(), backend="cpu"
    )
    assert torch.equal(y, plain)


def test_gradients_of_gradients() -> None:
    packed, scales = F.quantize_weight(randn((3, 8), torch.float64), 4, 4)
    leaves = [randn((5, 8), torch.float64), randn((3,), torch.float64)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    for backend in BACKENDS:

        def call(x: Tensor, b: Tensor, backend: str = backend) -> Tensor:
            return F.quantized_linear(x, packed, scales, b, backend=backend)

        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_same_bits_for_any_number_of_threads_and_rows(bits: int) -> None:
    packed, scales = F.quantize_weight(randn((500, 256), torch.float32), bits)
    x = randn((16, 256), torch.float32)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(F.quantized_linear(x, packed, scales, backend="cpu"))
    torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)
    for rows in (1, 3, 5):
        y = F.quantized_linear(x[:rows], packed, scales, backend="cpu")
        assert torch.equal(y, results[0][:rows])


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_stay_in_their_row(number: float) -> None:
    packed, scales = F.quantize_weight(randn((20, 64), torch.float32), 4, 32)
    x = randn((6, 64), torch.float32)
    expected = F.quantized_linear(x, packed, scales, backend="cpu")
    x[2, 3] = number
    y = F.quantized_linear(x, packed, scales, backend="cpu")
    rows = torch.arange(6) != 2
    assert torch.equal(y[rows], expected[rows])
    assert not torch.isfinite(y[2]).any()


@pytest.mark.parametrize("rows", [4, 40])
def test_nothing_of_the_weight_s_size_is_kept(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever product runs, it saves packed, scales and what the bias needs, but no whole
    weight."""
    monkeypatch.setattr(_choice, "BLAS", (1, 1, 0))
    packed, scales = F.quantize_weight(randn((64, 128), torch.float32))
    x = randn((rows, 128), torch.float32).requires_grad_()
    kept: list[Tensor] = []
    pack = lambda t: kept.append(t) or t  # type: ignore[func-returns-value] # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        F.quantized_linear(x, packed, scales).sum().backward()
    assert {t.data_ptr() for t in kept if t is not None} == {packed.data_ptr(), scales.data_ptr()}


# ---- what is refused ----------------------------------------------------------------------------

_W = torch.ones(3, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((_W, 3), "bits is 3, expected 4 or 8"),
        (
            (_W, 4, 3),
            r"group_size is 3, expected a divisor of 8 \(the columns of weight\), or None",
        ),
        ((_W, 4, 0), "group_size is 0, expected a divisor of 8"),
        ((_W[:, 1:], 4, None), "weight has 7 columns, expected an even number"),
        ((_W.int(),), "weight is int32, expected a floating-point dtype"),
        ((_W[0],), "weight has 1 dimensions, expected 2"),
        ((_W * torch.nan, 8, 8), "weight has a group whose scale is not finite"),
        (("w",), "weight is str, expected a Tensor"),
    ],
)
def test_weights_that_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^quantize_weight: {message}"):
        F.quantize_weight(*arguments)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_small_weights(bits: int, scale_dtype: torch.dtype) -> None:
    """Scales for which the dtype has few bits or none: each is within half a step of the exact
    scale and a quarter more, never clamped, or refused."""
    most = 2 ** (bits - 1) - 1
    least = torch.finfo(scale_dtype).smallest_normal
    first = math.log2(torch.finfo(scale_dtype).eps) - 4
    kept = refused = 0
    for scale in least * 2.0 ** torch.arange(first, 3, 0.25, dtype=torch.float64):
        weight = torch.randn(4, 32, dtype=torch.float64).clamp(-1, 1)
        weight *= most * scale
        weight[:, ::8] = most * scale  # the largest of each group
        # The steps of subnormal numbers.
        steps = scale.item() / (least * torch.finfo(scale_dtype).eps)
        if math.ceil(steps) > 1.25 * steps:
            with pytest.raises(ValueError, match="a group whose scale is too small, expected"):
                F.quantize_weight(weight, bits, 8, scale_dtype=scale_dtype)
            refused += 1
            continue
        packed, scales = F.quantize_weight(weight, bits, 8, scale_dtype=scale_dtype)
        kept += 1
        found = F.dequantize_weight(packed, scales, dtype=torch.float64)
        step = scales.double().repeat_interleave(8, 1)
        assert ((found - weight).abs() <= step / 2 * (1 + 1e-6)).all()
        assert (step <= 1.25 * scale).all()
    assert kept > 8
    assert refused > 8


def test_groups_of_zeros_beside_others() -> None:
    weight = torch.randn(2, 16)
    weight[:, :8] = 0
    packed, scales = F.quantize_weight(weight, 8, 8, scale_dtype=torch.float16)
    assert (scales[:, 0] == 0).all()
    assert (F.dequantize_weight(packed, scales)[:, :8] == 0).all()


@pytest.mark.parametrize("way", ["meta", "fake"])
def test_without_numbers(way: str) -> None:
    """A checkpoint fills the module, so nothing reads the numbers of its tensors."""
    fakes = FakeTensorMode() if way == "fake" else torch.device("meta")
    with fakes:
        made = [
            tfk.nn.QuantizedLinear(64, 32, group_size=32, bits=bits, scale_dtype=torch.float16)
            for bits in (4, 8)
        ]
        made.append(tfk.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 32), group_size=32))
        assert made[0](torch.randn(3, 64)).shape == (3, 32)
    if way == "meta":
        real = tfk.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 32), group_size=32)
        empty = made[-1].to_empty(device="cpu")
        empty.load_state_dict(real.state_dict())
        x = torch.randn(3, 64)
        assert torch.equal(empty(x), real(x))


def test_scales_that_do_not_fit_their_dtype() -> None:
    with pytest.raises(ValueError, match="expected numbers whose scales float16 holds"):
        F.quantize_weight(_W * 1e9, 8, 8, scale_dtype=torch.float16)
    with pytest.raises(TypeError, match="scale_dtype is float64, expected float32, float16 or"):
        F.quantize_weight(_W, 8, 8, scale_dtype=torch.float64)


def test_operands_that_are_refused() -> None:
    packed, scales = F.quantize_weight(_W, 4, 4)
    x = torch.ones(2, 8)
    for arguments, message in (
        ((x[:, 1:], packed, scales), "packed has 8 numbers a row, expected 7"),
        ((x, _W, scales), "packed is float32, expected int8 or uint8"),
        ((x, packed, scales[:2]), r"scales has shape \(2, 2\), expected \(3, a divisor of 8\)"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^quantized_linear: {message}"):
            F.quantized_linear(*arguments)


# ---- modules, graphs ----------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_module(bits: int, has_bias: bool) -> None:
    linear = torch.nn.Linear(64, 20, bias=has_bias)
    module = tfk.nn.QuantizedLinear.from_linear(linear, bits, 32)
    keys = ["packed", "scales", "bias"] if has_bias else ["packed", "scales"]
    assert sorted(module.state_dict()) == sorted(keys)
    x = randn((3, 2, 64), torch.float32)
    weight = F.dequantize_weight(module.packed, module.scales)
    torch.testing.assert_close(module(x), in_torch.linear(x, weight, linear.bias))
    other = tfk.nn.QuantizedLinear(64, 20, has_bias, bits=bits, group_size=32)
    assert not other(x).any()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    half = module.bfloat16()
    assert half.scales.dtype is torch.float32
    assert half(x.bfloat16()).dtype is torch.bfloat16


def test_what_is_beside_a_frozen_weight_is_trained() -> None:
    """Low-rank adapters train beside a frozen weight (Hu et al. 2021, arXiv:2106.09685)."""
    base = tfk.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 64), group_size=None)
    base.requires_grad_(False)
    first, down, up = torch.nn.Linear(8, 64), torch.nn.Linear(64, 4), torch.nn.Linear(4, 64)
    x = randn((5, 8), torch.float32)
    hidden = first(x)
    (base(hidden) + up(down(hidden))).sum().backward()
    assert all(p.grad is not None for m in (first, down, up) for p in m.parameters())
    assert all(p.grad is None for p in base.parameters())


def test_torch_compile() -> None:
    module = tfk.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 20), 4, 32)
    x = randn((3, 64), torch.float32).requires_grad_()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), module(x))
    (a,), (b,) = (torch.autograd.grad(m(x).sum(), x) for m in (compiled, module))
    torch.testing.assert_close(a, b)


def test_autocast_is_pytorch_s() -> None:
    packed, scales = F.quantize_weight(randn((16, 128), torch.float32))
    x = randn((4, 128), torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = F.quantized_linear(x, packed, scales)
    assert y.dtype is torch.bfloat16
    (dx,) = torch.autograd.grad(y.float().sum(), x)
    assert dx.dtype is torch.float32


@pytest.mark.cuda
@pytest.mark.parametrize("bits", [8, 4])
def test_on_cuda_the_weight_of_more_rows_is_dequantised(bits: int) -> None:
    packed, scales = F.quantize_weight(randn((64, 128), torch.float32, "cuda"), bits)
    x = randn((20, 128), torch.bfloat16, "cuda").requires_grad_()
    y = F.quantized_linear(x, packed, scales)
    weight = F.dequantize_weight(packed, scales, dtype=torch.bfloat16)
    assert torch.equal(y, in_torch.linear(x, weight))
    y.sum().backward()
    assert x.grad is not None
