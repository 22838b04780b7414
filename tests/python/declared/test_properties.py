# SPDX-License-Identifier: MIT
"""Properties that hold for any shape, strides and options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import transformer_kernels.functional as tfk
from transformer_kernels.testing.cases import CASES
from transformer_kernels.testing.check import check_problem
from transformer_kernels.testing.inputs import LAYOUTS

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> int:
    """How often the test has run: after a near miss (tests/conftest.py) Hypothesis comes back to
    the same arguments, and the numbers are others."""
    return getattr(request.node, "execution_count", 1)


def _permuted(x: Tensor, order: list[int]) -> Tensor:
    return x.permute(order).contiguous().permute([order.index(i) for i in range(x.dim())])


@SETTINGS
@given(
    st.sampled_from(CASES),
    SHAPES,
    st.integers(2, 70),
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.integers(0, 2**31 - 1),
)
def test_shapes_and_layouts(draw, case, leading, cols, layout, dtype, seed) -> None:
    """Neighbouring values differ: the gradient of two that almost agree has no digits left."""
    torch.manual_seed(seed + draw)
    apart = 8.0 * (torch.arange(cols) % 2)
    x = LAYOUTS[layout]((torch.randn(*leading, cols) + apart).to(dtype))
    check_problem(case.build(x), magnitude=2.0)


@SETTINGS
@given(st.permutations(range(4)), st.integers(0, 3), st.booleans(), st.integers(0, 2**31 - 1))
def test_softmax_of_any_strides_and_dim(order, dim, log, seed) -> None:
    torch.manual_seed(seed)
    x = _permuted(torch.randn(3, 4, 2, 5, dtype=torch.float64), list(order))
    ours, theirs = (tfk.log_softmax, torch.log_softmax) if log else (tfk.softmax, torch.softmax)
    result, expected = ours(x, dim), theirs(x, dim)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.contiguous().stride()


@SETTINGS
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.data(),
    st.integers(0, 2**31 - 1),
)
def test_masks_broadcast(shape, data, seed) -> None:
    torch.manual_seed(seed)
    kept = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    drop = data.draw(st.integers(0, len(shape) - 1))
    mask_shape = [n if keep else 1 for n, keep in zip(shape, kept, strict=True)][drop:]
    x = torch.randn(*shape, dtype=torch.float64)
    mask = torch.rand(mask_shape) > 0.3
    expected = torch.softmax(x.masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0)
    torch.testing.assert_close(tfk.softmax(x, -1, mask=mask), expected)
    torch.testing.assert_close(tfk.softmax(x, -1, mask=mask, backend="reference"), expected)


@SETTINGS
@given(SHAPES, st.integers(1, 3), st.booleans(), st.integers(0, 2**31 - 1))
def test_normalized_shapes(leading, dims, rms, seed) -> None:
    torch.manual_seed(seed)
    x = torch.randn(*leading, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    shape = x.shape[-dims:]
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    ours, theirs = (
        (tfk.rms_norm, torch.nn.functional.rms_norm)
        if rms
        else (tfk.layer_norm, torch.nn.functional.layer_norm)
    )
    result, expected = ours(x, shape, weight), theirs(x, shape, weight)
    torch.testing.assert_close(result, expected)
    g = torch.randn_like(x)
    for a, b in zip(
        torch.autograd.grad(result, (x, weight), g),
        torch.autograd.grad(expected, (x, weight), g),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("seed", range(3))
def test_additive_mask_gradient_is_summed_to_its_shape(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    for shape in [(5,), (4, 1), (3, 1, 5), (2, 1, 1, 1), (1,), (2, 3, 4, 5)]:
        mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for op in (tfk.softmax, tfk.log_softmax):
            assert torch.autograd.gradcheck(
                lambda x, m, op=op: op(x, -1, scale=0.7, mask=m, causal=False), (x, mask)
            )
