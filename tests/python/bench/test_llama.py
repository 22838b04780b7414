# SPDX-License-Identifier: MIT
"""The blocks that llama.cpp gets, and its product where its wheel is."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels import functional as F
from transformer_kernels.bench.rivals import llama


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_hold_the_numbers(bits: int) -> None:
    packed, scales = F.quantize_weight(torch.randn(6, 128), bits=bits, group_size=64)
    blocks = llama.blocks(packed, scales)
    factors = blocks[..., :2].contiguous().view(torch.float16).float()
    numbers = blocks[..., 2:]
    if bits == 8:
        values = numbers.contiguous().view(torch.int8).float()
    else:
        values = torch.cat((numbers & 15, numbers >> 4), -1).float() - 8
    weight = F.dequantize_weight(packed, scales)
    torch.testing.assert_close((values * factors).flatten(1), weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_its_product_is_that_of_the_same_weight(bits: int) -> None:
    if (reason := llama.why_absent(torch.device("cpu"))) is not None:
        pytest.skip(reason)
    packed, scales = F.quantize_weight(torch.randn(64, 256), bits=bits, group_size=128)
    x = torch.randn(3, 256, dtype=torch.bfloat16)
    y = llama.Product(x, packed, scales)()
    exact = x.double() @ F.dequantize_weight(packed, scales).double().T
    assert float((y - exact).norm() / exact.norm()) < 2e-2
