# SPDX-License-Identifier: MIT
"""The registrations of the ops: every optional argument in every dtype against its fake kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_kernels  # noqa: F401
from transformer_kernels.testing.attention import tensors
from transformer_kernels.testing.inputs import randn

OPS = torch.ops.transformer_kernels
OPTIONAL = {
    "plain": (),
    "bias": ("bias",),
    "wide bias": ("wide bias",),
    "mask": ("mask",),
    "slopes": ("alibi_slopes",),
    "sinks": ("sinks",),
    "dropout": ("seed",),
    "all": ("bias", "mask", "alibi_slopes", "sinks", "seed"),
}
PACKED = {name: OPTIONAL[name] for name in ("plain", "slopes", "sinks", "dropout")}
PACKED["all"] = ("alibi_slopes", "sinks", "seed")
KINDS = ("test_schema", "test_autograd_registration", "test_faketensor")
pytestmark = pytest.mark.usefixtures("default_device")


def _optional(dtype: torch.dtype, names: tuple[str, ...]) -> list[Tensor | None]:
    """Bias, mask, slopes and sinks."""
    wide = torch.promote_types(dtype, torch.float32)
    given: dict[str, Tensor] = {
        "mask": torch.rand(6, 9) > 0.3,
        "alibi_slopes": torch.rand(4, dtype=wide),
        "sinks": torch.randn(4, dtype=wide),
    }
    bias = randn((4, 1, 9), wide if "wide bias" in names else dtype)
    with_bias = "bias" in names or "wide bias" in names
    rest = [given[n] if n in names else None for n in ("mask", "alibi_slopes", "sinks")]
    return [bias if with_bias else None, *rest]


def _arguments(dtype: torch.dtype, names: tuple[str, ...], packed: bool) -> tuple[Any, ...]:
    offsets: tuple[Tensor | None, ...] = (None, None)
    if packed:
        q, k, v = (randn((9, heads, 8), dtype) for heads in (4, 2, 2))
        offsets = (torch.tensor([0, 4, 9], dtype=torch.int32),) * 2
    else:
        q, k, v = tensors(6, 9, 4, 2, dim=8, value_dim=5, dtype=dtype)
    dropout = "seed" in names
    seed = torch.tensor([1, 2]) if dropout else None
    numbers = (0.3, 20, 0, False, 2.0, 0.5 if dropout else 0.0)
    return (q, k, v, *_optional(dtype, names), *offsets, seed, *numbers)


def _check(op: Any, arguments: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.default, arguments, test_utils=KINDS)


def _check_all(arguments: tuple[Any, ...]) -> None:
    _check(OPS.attention_forward, arguments)
    out, lse = OPS.attention_forward(*arguments)
    has_bias, has_sinks = arguments[3] is not None, arguments[6] is not None
    for dlse in (None, torch.randn_like(lse)):
        backward = (torch.randn_like(out), dlse, out, lse, *arguments)
        for asked in {False, has_bias or has_sinks}:
            _check(
                OPS.attention_backward, (*backward, asked and has_bias, asked and has_sinks, False)
            )
    differentiable = (0, 1, 2, 3, 6)
    leaves = tuple(
        x.requires_grad_() if i in differentiable and x is not None else x
        for i, x in enumerate(arguments)
    )
    _check(OPS.attention, (*leaves, False))


@pytest.mark.parametrize("names", OPTIONAL.values(), ids=OPTIONAL)
def test_batches(names: tuple[str, ...], dtype: torch.dtype) -> None:
    _check_all(_arguments(dtype, names, packed=False))


@pytest.mark.parametrize("names", PACKED.values(), ids=PACKED)
def test_packed_sequences(names: tuple[str, ...], dtype: torch.dtype) -> None:
    _check_all(_arguments(dtype, names, packed=True))
