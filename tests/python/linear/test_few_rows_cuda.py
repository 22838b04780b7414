# SPDX-License-Identifier: MIT
"""Products of 16 rows and fewer on CUDA, with weights of 16, 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as in_torch

import transformer_kernels as tfk
from transformer_kernels.ops.linear import _choice
from transformer_kernels.ops.pointwise.table import ACTIVATIONS
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import poisoned, randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

pytestmark = pytest.mark.cuda

NARROW = (torch.float16, torch.bfloat16)
each_narrow = pytest.mark.parametrize("narrow", NARROW, ids=str)
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda w: w,
    "columns": lambda w: w.t().contiguous().t(),
}
# Terms and columns: less than a chunk, of many warps, of few columns and many, of columns that
# are no whole tile, of several strips a CTA, in one round each and in more.
SIZES = [
    (8, 8), (64, 96), (1096, 52), (4096, 768), (256, 3204), (136, 4096), (136, 34996),
    (1288, 17316),
]  # fmt: skip


@pytest.fixture(autouse=True)
def on_cuda() -> Any:
    with torch.device("cuda"):
        yield


def _operands(rows: int, terms: int, cols: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    weight = (randn((cols, terms), torch.float64) * max(terms, 1) ** -0.5).to(dtype)
    return randn((rows, terms), dtype), weight, randn((cols,), dtype)


@each_narrow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16])
def test_linear(rows: int, order: str, narrow: torch.dtype) -> None:
    for terms, cols in SIZES:
        x, weight, bias = _operands(rows, terms, cols, narrow)
        weight = ORDERS[order](weight)
        with poisoned():
            y = F.linear(x, weight, bias, backend="cuda")
        exact = in_torch.linear(x.double(), weight.double(), bias.double())
        assert_close_to_reference(y, in_torch.linear(x, weight, bias), exact, f"{terms}x{cols}")


@each_narrow
@pytest.mark.parametrize("activation", [row.name for row in ACTIVATIONS])
def test_linear_act(activation: str, narrow: torch.dtype) -> None:
    act = next(row.formula for row in ACTIVATIONS if row.name == activation)
    x, weight, bias = _operands(5, 512, 200, narrow)
    y = F.linear_act(x, weight, bias.float(), activation, backend="cuda")
    z = in_torch.linear(x.double(), weight.double(), bias.double())
    theirs = act((in_torch.linear(x, weight).float() + bias.float()).to(narrow))
    assert_close_to_reference(y, theirs, act(z), "y")


@each_narrow
@pytest.mark.parametrize("cols", [640, 17316])
def test_a_row_is_the_same_beside_any_others(cols: int, narrow: torch.dtype) -> None:
    x, weight, _ = _operands(16, 1024, cols, narrow)
    packed, scales = F.quantize_weight(weight.float(), 4, 128)
    whole = F.linear(x, weight, backend="cuda")
    quantized = F.quantized_linear(x, packed, scales, backend="cuda")
    for rows in (1, 3, 8, 11):
        assert torch.equal(F.linear(x[:rows], weight, backend="cuda"), whole[:rows])
        few = F.quantized_linear(x[:rows], packed, scales, backend="cuda")
        assert torch.equal(few, quantized[:rows])


def test_what_is_no_number_stays_in_its_row() -> None:
    x, weight, _ = _operands(12, 256, 96, torch.bfloat16)
    x[3, 5], x[9, 7] = float("nan"), float("inf")
    y = F.linear(x, weight, backend="cuda")
    assert (~y.isfinite().all(-1)).nonzero().flatten().tolist() == [3, 9]


@each_narrow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 5, 8, 16, 17, 300])
def test_quantized(rows: int, bits: int, narrow: torch.dtype) -> None:
    """Covers groups of one load and of several, and weights that become a plain matrix."""
    for terms, cols, group in ((256, 40, 128), (4096, 776, 128), (192, 3204, 64), (1024, 96, 1024),
                               (96, 64, 32), (70, 33, 35), (256, 17001, 128),
                               (2560, 17001, 64)):  # fmt: skip
        x, weight, bias = _operands(rows, terms, cols, narrow)
        packed, scales = F.quantize_weight(weight.float(), bits, group, scale_dtype=narrow)
        exact_weight = F.dequantize_weight(packed, scales, dtype=torch.float64)
        x.requires_grad_(), bias.requires_grad_()
        dy = randn((rows, cols), narrow)
        with poisoned():
            y = F.quantized_linear(x, packed, scales, bias, backend="cuda")
            dx, dbias = torch.autograd.grad(y, (x, bias), dy)
        theirs = in_torch.linear(x, exact_weight.to(narrow), bias)
        exact = in_torch.linear(x.double(), exact_weight, bias.double())
        assert_close_to_reference(y, theirs, exact, f"y of {terms}x{cols}")
        their_dx = dy @ exact_weight.to(narrow)
        assert_close_to_reference(dx, their_dx, dy.double() @ exact_weight, f"dx of {terms}x{cols}")
        assert_close_to_reference(dbias, dy.sum(0), dy.double().sum(0), "dbias")


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_every_number_times_every_kind_of_scale(bits: int, scale_dtype: torch.dtype) -> None:
    """A row of ones over one term gives the numbers themselves."""
    numbers = torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=torch.int8)
    packed = torch.zeros(len(numbers), 128, dtype=torch.int8)
    packed[:, 37] = numbers
    if bits == 4:
        packed = ((packed[:, 0::2] & 15) | (packed[:, 1::2] << 4)).view(torch.uint8)
    scales = (torch.rand(len(numbers), 1) + 0.5).to(scale_dtype)
    for dtype in NARROW:
        x = torch.zeros(3, 128, dtype=dtype)
        x[1, 37] = 1
        y = F.quantized_linear(x, packed, scales, backend="cuda")
        assert torch.equal(y[1], (numbers.float() * scales[:, 0].float()).to(dtype))
        assert not y[0].any()
        assert not y[2].any()


def test_wide_numbers_and_none() -> None:
    for dtype in (torch.float32, torch.float64):
        x, weight, bias = _operands(3, 128, 40, dtype)
        packed, scales = F.quantize_weight(weight, 4, 64)
        exact = in_torch.linear(x, F.dequantize_weight(packed, scales, dtype=dtype), bias)
        found = F.quantized_linear(x, packed, scales, bias, backend="cuda")
        torch.testing.assert_close(found, exact)
    x, weight, _ = _operands(0, 128, 40, torch.bfloat16)
    packed, scales = F.quantize_weight(weight.float(), 8, 64)
    assert F.quantized_linear(x, packed, scales, backend="cuda").shape == (0, 40)


def test_which_product_runs() -> None:
    x, weight, _ = _operands(4, 512, 512, torch.bfloat16)
    assert _choice.why_not(x, weight) is None
    assert (_choice.refusal("linear", x, weight) is None) == (
        torch.cuda.get_device_capability() == (9, 0)
    )
    assert "multiple of 8" in str(_choice.refusal("linear", x[:, :508], weight[:, :508]))
    assert _choice.why_not_few_rows(x) is None
    assert "16 rows" in str(_choice.why_not_few_rows(x.repeat(5, 1)))
    assert "16-bit" in str(_choice.why_not_few_rows(x.float()))


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="measured on Hopper",
)
def test_where_pytorch_s_product_is_as_fast() -> None:
    x, weight, _ = _operands(8, 512, 512, torch.bfloat16)
    large = torch.empty(2**15 + 1, 512, dtype=torch.bfloat16)
    assert _choice.refusal("linear", x, weight) is None
    assert _choice.refusal("linear", x[:4], ORDERS["columns"](weight)) is None
    assert "large weight" in str(_choice.refusal("linear", x, large))
    assert "kept by columns" in str(_choice.refusal("linear", x, ORDERS["columns"](weight)))
    weight.requires_grad_()
    assert "forward pass" in str(_choice.refusal("linear", x, weight))


def test_cuda_graph() -> None:
    x, weight, bias = _operands(2, 1024, 512, torch.bfloat16)
    packed, scales = F.quantize_weight(weight.float(), 4, 128)

    def step() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return F.linear(x, weight, bias), F.quantized_linear(x, packed, scales, bias)

    expected = step()
    graph, captured = capture(step)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
