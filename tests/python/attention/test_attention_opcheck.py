# SPDX-License-Identifier: MIT
"""The registrations of the ops: every optional argument in every dtype against its fake kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transformer_kernels  # noqa: F401
from transformer_kernels.testing.attention import OPTIONAL, PACKED, op_arguments

OPS = torch.ops.transformer_kernels
KINDS = ("test_schema", "test_autograd_registration", "test_faketensor")
pytestmark = pytest.mark.usefixtures("default_device")


def _check(op: Any, arguments: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.default, arguments, test_utils=KINDS)


def _check_all(arguments: tuple[Any, ...]) -> None:
    _check(OPS.attention_forward, arguments)
    out, lse, rest = OPS.attention_forward(*arguments)
    has_bias, has_sinks = arguments[3] is not None, arguments[6] is not None
    for dlse in (None, torch.randn_like(lse)):
        backward = (torch.randn_like(out), dlse, out, lse, rest, *arguments)
        for asked in {False, has_bias or has_sinks}:
            _check(OPS.attention_backward, (*backward, asked and has_bias, asked and has_sinks))
    differentiable = (0, 1, 2, 3, 6)
    leaves = tuple(
        x.requires_grad_() if i in differentiable and x is not None else x
        for i, x in enumerate(arguments)
    )
    _check(OPS.attention, leaves)


@pytest.mark.parametrize("names", OPTIONAL.values(), ids=OPTIONAL)
def test_batches(names: tuple[str, ...], dtype: torch.dtype) -> None:
    _check_all(tuple(op_arguments(names, False, dtype).values()))


@pytest.mark.parametrize("names", PACKED.values(), ids=PACKED)
def test_packed_sequences(names: tuple[str, ...], dtype: torch.dtype) -> None:
    _check_all(tuple(op_arguments(names, True, dtype).values()))
