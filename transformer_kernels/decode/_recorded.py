# SPDX-License-Identifier: MIT
"""What a step runs while it is recorded, whoever wrote the model.

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

from ..functional import linear
from ..fuse.few import serving_few

_LINE = 8  # 16-bit numbers of 16 bytes, the least that cuBLAS's fast kernels write at once


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer: of few rows our kernel, where that is the faster one."""
    if bias is None and _has_ragged_rows(x, weight):
        return _padded_product(x, weight)
    y: Tensor = linear(x, weight, bias)
    return y


def _has_ragged_rows(x: Tensor, weight: Tensor) -> bool:
    """Whether rows of the result would begin in the middle of a line, as those of GPT-2's 50,257
    logits. Of one row there is no second one to begin."""
    is_like = x.dtype is weight.dtype and x.itemsize == 2 and weight.dim() == 2 and x.dim() > 1
    return is_like and len(weight) % _LINE > 0 and x.numel() > x.shape[-1]


def _padded_product(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` whose rows are padded in memory: cuBLAS takes four times as long to write
    rows that begin anywhere."""
    rows, columns = x.flatten(0, -2), len(weight)
    y = x.new_empty(len(rows), columns + -columns % _LINE)[:, :columns]
    return torch.mm(rows, weight.t(), out=y).unflatten(0, x.shape[:-1])


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
    return _product(mat1, mat2.t(), input)


_ANSWERS: dict[Any, Callable[..., Tensor]] = {F.linear: _product, torch.addmm: _sum_and_product}


class _Answers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _ANSWERS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def recorded_kernels() -> Iterator[None]:
    """Lets our kernels run linear layers of few rows and fused modules' calls of them."""
    with serving_few(), _Answers():
        yield
