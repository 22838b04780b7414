# SPDX-License-Identifier: MIT
"""Norms of the heads of queries and keys that the rotation behind them may compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import functional
from ._late import Late

_TRANSPOSED = (1, 2)  # time and heads


class Normed(Late):
    """The norm of heads (B, T, H, D), transposed or not, that has not been computed."""

    WHY = "a norm that the rotation computes, expected a function of PyTorch (fuse without qk_norm)"
    _tfk_x: Tensor
    _tfk_norm: Any
    _tfk_transposed: bool

    @staticmethod
    def of(x: Tensor, norm: Any, dtype: torch.dtype, transposed: bool = False) -> Normed:
        shape = x.transpose(*_TRANSPOSED).shape if transposed else x.shape
        made: Normed = Tensor._make_wrapper_subclass(Normed, shape, dtype=dtype, device=x.device)
        made._tfk_x, made._tfk_norm, made._tfk_transposed = x, norm, transposed
        made._tfk_computed = None
        return made

    def made(self) -> Tensor:
        y: Tensor = self._tfk_norm.alone(self._tfk_x)
        return y.transpose(*_TRANSPOSED) if self._tfk_transposed else y

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_late = func is Tensor.transpose and type(args[0]) is Normed and not kwargs
        if is_late and args[1:] == _TRANSPOSED and args[0]._tfk_computed is None:
            x = args[0]
            return Normed.of(x._tfk_x, x._tfk_norm, x.dtype, not x._tfk_transposed)
        return super().__torch_function__(func, types, args, kwargs)


def normed_and_rotated(q: Normed, k: Normed, **angles: Any) -> Any:
    """Both norms and the rotation of their results, in one pass."""
    heads = [x._tfk_x.transpose(*_TRANSPOSED) if x._tfk_transposed else x._tfk_x for x in (q, k)]
    weights = [x._tfk_norm.weight_of_heads() for x in (q, k)]
    eps = q._tfk_norm.epsilon()
    return functional.qk_norm(heads[0], heads[1], weights[0], weights[1], eps, **angles)
