# SPDX-License-Identifier: MIT
"""softmax and log_softmax: drop-in behaviour, masks, messages, the modules."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

X = torch.randn(4, 8)
PAIRS = [(tfk.functional.softmax, F.softmax), (tfk.functional.log_softmax, F.log_softmax)]
each_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["softmax", "log_softmax"])
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "last": (X, 1),
    "negative": (X, -1),
    "first": (X, 0),
    "first, negative": (X, -2),
    "middle": (torch.randn(2, 3, 4), 1),
    "no dims": (torch.tensor(1.0), 0),
    "no dims, negative": (torch.tensor(1.0), -1),
    "tensor dim": (X, torch.tensor(1)),
    "transposed": (X.t(), 1),
    "permuted": (torch.randn(2, 3, 4).permute(2, 0, 1), 1),
    "channels last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), 1),
    "expanded": (torch.randn(1, 8).expand(4, 8), 1),
    "no rows": (torch.randn(0, 8), 1),
    "no columns": (torch.randn(4, 0), 1),
    "over nothing": (torch.randn(4, 0), 0),
    "half": (X.half(), 1),
    "to float32": (X.half(), 1, 3, torch.float32),
    "to half": (X, 1, 3, torch.float16),
    "integers to float32": (torch.ones(2, 3, dtype=torch.int64), 1, 3, torch.float32),
    "nine dims": (torch.randn(1, 2, 1, 2, 1, 2, 1, 2, 8), 3),
    "nine dims, last": (torch.randn(1, 2, 1, 2, 1, 2, 1, 2, 8), -1),
}
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "dim too large": ((X, 2), "dim is 2, expected one of [-2, 1] (x has 2 dimensions)"),
    "dim too small": ((X, -3), "dim is -3, expected one of [-2, 1] (x has 2 dimensions)"),
    "no dims": ((torch.tensor(1.0), 1), "dim is 1, expected one of [-1, 0] (x has 0 dimensions)"),
    "float dim": ((X, 1.0), "dim is 1.0, expected an int"),
    "bool dim": ((X, True), "dim is True, expected an int"),
    "text dim": ((X, "C"), "dim is 'C', expected an int"),
    "integers": (
        (torch.ones(2, 3, dtype=torch.int64), -1), "x is int64, expected a floating-point dtype",
    ),
    "integer dtype": (
        (X, 1, 3, torch.int64), "x is int64, expected a floating-point dtype",
    ),
}  # fmt: skip


@each_pair
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_torch_accepts(ours: Any, theirs: Any, name: str) -> None:
    a, b = ours(*ACCEPTED[name]), theirs(*ACCEPTED[name])
    assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    x, dim = ACCEPTED[name][:2]
    assert_close_to_reference(a, b, theirs(x.to(a.dtype).double(), dim))


@each_pair
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(ours: Any, theirs: Any, name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        ours(*arguments)
    assert str(caught.value) == f"{ours.__name__}: {message}"
    with pytest.raises(Exception) as torchs:  # noqa: PT011
        theirs(*arguments)
    assert isinstance(caught.value, type(torchs.value))


@each_pair
def test_implicit_dim_warns_at_the_caller(ours: Any, theirs: Any) -> None:
    for x in (torch.tensor(1.0), torch.randn(3), X, torch.randn(2, 3, 4), torch.randn(2, 3, 4, 5)):
        with warnings.catch_warnings(record=True) as first:
            warnings.simplefilter("always")
            a = ours(x)
        with warnings.catch_warnings(record=True) as second:
            warnings.simplefilter("always")
            b = theirs(x)
        torch.testing.assert_close(a, b)
        assert [str(w.message) for w in first] == [str(w.message) for w in second]
        assert [w.filename for w in first] == [__file__]


@each_pair
def test_gradient_over_any_dim(ours: Any, theirs: Any) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 3, 4, dtype=torch.float64)
    for dim in range(-3, 3):
        (a,) = torch.autograd.grad(ours(x, dim), x, g)
        (b,) = torch.autograd.grad(theirs(x, dim), x, g)
        torch.testing.assert_close(a, b)


def test_attention_probabilities_like_sdpa(device: str) -> None:
    """Scale, mask and causality mean what they mean in scaled_dot_product_attention."""
    q, k = (randn((2, 3, 6, 16), torch.float64, device) for _ in range(2))
    v = torch.eye(6, dtype=torch.float64, device=device).expand(2, 3, 6, 6)
    mask = torch.rand(2, 1, 6, 6, device=device) > 0.3
    mask[..., 0] = True
    for options, ours in (
        ({}, {}),
        ({"is_causal": True}, {"causal": True}),
        ({"attn_mask": mask}, {"mask": mask}),
        ({"attn_mask": mask * 0.5}, {"mask": (mask * 0.5).double()}),
    ):
        if "attn_mask" in options:
            options = {"attn_mask": options["attn_mask"].to(ours["mask"].dtype)}
        expected = F.scaled_dot_product_attention(q, k, v, **options)
        p = tfk.functional.softmax(q @ k.transpose(-1, -2), -1, scale=1 / math.sqrt(16), **ours)
        torch.testing.assert_close(p, expected)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (1, 5), (5, 1)], ids=str)
def test_causal_is_aligned_to_the_bottom_right(shape: tuple[int, int], device: str) -> None:
    queries, keys = shape
    x = randn(shape, torch.float32, device)
    y = tfk.functional.softmax(x, -1, causal=True)
    for t in range(queries):
        seen = max(t + 1 + keys - queries, 0)
        assert (y[t, :seen] > 0).all()
        assert not y[t, seen:].any()
        torch.testing.assert_close(y[t].sum().item(), float(seen > 0))


@each_pair
def test_rows_without_an_element(ours: Any, theirs: Any, dtype: torch.dtype, device: str) -> None:
    x = randn((3, 9), dtype, device).requires_grad_()
    mask = torch.ones(3, 9, dtype=torch.bool, device=device)
    mask[1] = False
    empty = -torch.inf if "log" in ours.__name__ else 0.0
    additive = torch.zeros(3, 9, device=device, dtype=dtype).masked_fill(~mask, -torch.inf)
    for m in (mask, additive):
        y = ours(x, -1, mask=m)
        assert (y[1] == empty).all()
        assert_close_to_reference(y[0], theirs(x, -1)[0], theirs(x.double(), -1)[0])
        (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
        assert not dx[1].any()
        assert torch.isfinite(dx).all()
    lonely = ours(torch.full((1, 9), -torch.inf, dtype=dtype, device=device), -1)
    assert torch.isnan(lonely).all()


def test_masks_are_checked() -> None:
    def message(x: Tensor = X, **options: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as caught:
            tfk.functional.softmax(x, -1, **options)
        return str(caught.value).removeprefix("softmax: ")

    broadcast = "expected one that broadcasts to (4, 8) (the shape of x)"
    assert message(mask=torch.ones(4, 7).bool()) == f"mask has shape (4, 7), {broadcast}"
    assert message(mask=torch.ones(2, 4, 8).bool()) == f"mask has shape (2, 4, 8), {broadcast}"
    wanted = "expected bool or float32"
    assert message(mask=torch.ones(4, 8).half()) == f"mask is float16, {wanted}"
    assert message(mask=torch.ones(4, 8).double()) == f"mask is float64, {wanted}"
    wanted = "expected bool, float16 or float32"
    assert message(x=X.half(), mask=torch.ones(4, 8).double()) == f"mask is float64, {wanted}"
    with pytest.raises(ValueError, match="x has 1 dimensions, expected at least 2"):
        tfk.functional.softmax(X[0], -1, causal=True)
    with pytest.raises(ValueError, match="dim is 0, expected -1"):
        tfk.functional.softmax(X, 0, causal=True)


def test_mask_over_another_dim(device: str) -> None:
    x = randn((3, 4, 5), torch.float64, device)
    mask = torch.rand(4, 1, device=device) > 0.3
    mask[0] = True
    expected = torch.softmax(x.masked_fill(~mask, -torch.inf), 1)
    torch.testing.assert_close(tfk.functional.softmax(x, 1, mask=mask), expected)


# ---- the modules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(tfk.nn.Softmax, torch.nn.Softmax), (tfk.nn.LogSoftmax, torch.nn.LogSoftmax)],
)
def test_module_is_torchs(ours: Any, theirs: Any) -> None:
    for dim in (-1, 0, 1):
        a, b = ours(dim), theirs(dim)
        assert isinstance(a, theirs)
        assert repr(a) == repr(b)
        torch.testing.assert_close(a(X), b(X))
        for twin in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
            torch.testing.assert_close(twin(X), b(X))
    b = theirs(-1)
    b.__class__ = ours
    torch.testing.assert_close(b(X), theirs(-1)(X))


def test_module_options(device: str) -> None:
    module = tfk.nn.Softmax(-1, scale=0.5, causal=True)
    assert repr(module) == "Softmax(dim=-1, scale=0.5, causal=True)"
    x = randn((6, 6), torch.float32, device)
    mask: Tensor = torch.rand(6, 6, device=device) > 0.2
    expected = tfk.functional.softmax(x, -1, scale=0.5, causal=True, mask=mask)
    torch.testing.assert_close(module(x, mask), expected)


def test_a_single_number(device: str) -> None:
    x = torch.tensor(2.0, device=device)
    assert tfk.functional.softmax(x, -1) == 1
    assert tfk.functional.softmax(x, -1, mask=torch.tensor([False], device=device)) == 0
    for function, theirs in PAIRS:
        name = theirs.__name__
        with pytest.raises(TypeError, match=f"^{name}: x is int64"):
            function(torch.tensor(1, device=device), -1)
        with pytest.raises(ValueError, match=f"^{name}: x has 1 dimensions, expected at least 2"):
            function(x, -1, causal=True)
        with pytest.raises(ValueError, match=rf"^{name}: mask has shape \(3,\)"):
            function(x, -1, mask=torch.ones(3, dtype=torch.bool, device=device))


def test_dtype_may_be_a_type_of_python() -> None:
    assert tfk.functional.softmax(torch.randn(3), -1, dtype=float).dtype is torch.float64
    with pytest.raises(TypeError, match=r"softmax: dtype is 'float64', expected a torch.dtype"):
        tfk.functional.softmax(torch.randn(3), -1, dtype="float64")
