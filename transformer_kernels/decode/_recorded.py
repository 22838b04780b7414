# SPDX-License-Identifier: MIT
"""Runs our kernels of few rows while a step is recorded, whoever wrote the model.

A replayed step costs the host nothing, so that kernels pay which a step launched by the host would
not gain from: PyTorch's functions are answered with them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .._cuda_graph import serving_few
from ..functional import linear


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor:  # noqa: A002
    """``F.linear``: of few rows our kernel, where that is the faster one."""
    y: Tensor = linear(input, weight, bias)
    return y


def _sum_and_product(
    input: Any,  # noqa: A002
    mat1: Any,
    mat2: Any,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    **others: Any,
) -> Tensor:
    """``torch.addmm``: the linear layer of Hugging Face's GPT-2."""
    if others or beta != 1 or alpha != 1 or not isinstance(input, Tensor) or input.dim() != 1:
        return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha, **others)
    y: Tensor = linear(mat1, mat2.t(), input)
    return y


_ANSWERS: dict[Any, Callable[..., Tensor]] = {F.linear: _linear, torch.addmm: _sum_and_product}


class _Answers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func if types else _ANSWERS.get(func, func)  # classes of tensors answer themselves
        return answer(*args, **(kwargs or {}))


@contextmanager
def recorded_kernels() -> Iterator[None]:
    """Lets our kernels run linear layers of few rows and fused modules' calls of them."""
    with serving_few(), _Answers():
        yield
