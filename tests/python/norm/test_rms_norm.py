# SPDX-License-Identifier: MIT
"""rms_norm and add_rms_norm: drop-in behaviour, messages, the module."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.functional import add_rms_norm, rms_norm
from transformer_kernels.testing.inputs import randn

X = torch.randn(4, 8)
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "list": (X, [8]),
    "two dims": (X, [4, 8]),
    "weight": (X, [8], torch.randn(8)),
    "eps": (X, [8], None, 1e-2),
    "no eps": (X, [8], torch.randn(8), None),
    "half": (X.half(), [8], torch.ones(8).half()),
    "half, float32 weight": (X.half(), [8], torch.ones(8)),
    "bfloat16, float64 weight": (X.bfloat16(), [8], torch.ones(8).double()),
    "float32, bfloat16 weight": (X, [8], torch.ones(8).bfloat16()),
    "float64, float32 weight": (X.double(), [8], torch.randn(8)),
    "integer weight": (X, [8], torch.ones(8, dtype=torch.int64)),
    "no rows": (torch.randn(0, 8), [8]),
    "no columns": (torch.randn(4, 0), [0]),
    "transposed": (torch.randn(3, 8, 4).transpose(1, 2), [8]),
    "gaps in weight": (X, [8], torch.randn(16)[::2]),
    "nine dims": (torch.randn(1, 2, 1, 2, 1, 2, 1, 2, 8), [8], None, 1e-5),
}
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "integer shape": (
        (X, 8),
        "normalized_shape is 8, expected a sequence of ints (did you mean (8,)?)",
    ),
    "empty shape": ((X, []), "normalized_shape is empty, expected at least 1 dimension"),
    "wrong shape": ((X, [7]), "x has shape (4, 8), expected (..., 7) (normalized_shape)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_torch_accepts(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of unequal dtypes
        theirs = F.rms_norm(*ACCEPTED[name])
    ours = rms_norm(*ACCEPTED[name])
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        F.rms_norm(*arguments)
    with pytest.raises((ValueError, TypeError)) as ours:
        rms_norm(*arguments)
    assert str(ours.value) == f"rms_norm: {message}"
    assert isinstance(ours.value, type(theirs.value))


@pytest.mark.parametrize("small", [1e-3, 1e-4])
def test_default_eps_is_torchs(small: float, dtype: torch.dtype) -> None:
    """The mean square is as small as eps, so the default eps shows."""
    x = torch.full((2, 8), small, dtype=dtype)
    torch.testing.assert_close(rms_norm(x, (8,)), F.rms_norm(x, (8,)))
    torch.testing.assert_close(tfk.nn.RMSNorm(8, dtype=dtype)(x), F.rms_norm(x, (8,)))


def test_weight_of_another_dtype_keeps_its_gradient() -> None:
    weight = torch.randn(8).bfloat16().requires_grad_()
    rms_norm(X, (8,), weight).sum().backward()
    ours, weight.grad = weight.grad, None
    assert ours is not None
    assert ours.dtype is torch.bfloat16
    F.rms_norm(X, (8,), weight.float()).sum().backward()
    torch.testing.assert_close(ours, weight.grad)


def test_bias_is_added(device: str) -> None:
    x, w, b = (randn(s, torch.float64, device) for s in [(5, 8), (8,), (8,)])
    expected = F.rms_norm(x, (8,), w, 1e-6) + b
    torch.testing.assert_close(rms_norm(x, (8,), w, 1e-6, bias=b), expected)
    y, s = add_rms_norm(x, x.clone(), (8,), w, 1e-6, bias=b)
    torch.testing.assert_close(s, 2 * x)
    torch.testing.assert_close(y, F.rms_norm(2 * x, (8,), w, 1e-6) + b)


@pytest.mark.parametrize(
    "options", [{}, {"elementwise_affine": False}, {"eps": 0.1, "dtype": torch.float64}], ids=str
)
def test_module_is_torchs(options: dict[str, Any]) -> None:
    ours, theirs = tfk.nn.RMSNorm((4, 8), **options), torch.nn.RMSNorm((4, 8), **options)
    assert isinstance(ours, torch.nn.RMSNorm)
    assert repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4, 8, dtype=options.get("dtype", torch.float32))
    torch.testing.assert_close(ours(x), theirs(x))
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(twin(x), ours(x))
    theirs.load_state_dict(ours.state_dict())


def test_zero_centered_module() -> None:
    module = tfk.nn.RMSNorm(8, zero_centered_weight=True)
    assert not module.weight.any()
    torch.testing.assert_close(module(X), F.rms_norm(X, (8,)))
