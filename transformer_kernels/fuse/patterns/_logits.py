# SPDX-License-Identifier: MIT
"""Logits that a loss may need no more than in parts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import _torch, functional
from ..._torch import autocasts
from ..record import with_items
from ._late import Late
from ._products import weight_and_bias

LOSS = "cross_entropy"
# Moves that leave rows of logits what they are, if the classes stay the last dimension.
ROWS = frozenset(("contiguous", "flatten", "float", "reshape", "view"))
_LOSSES = (functional.cross_entropy, _torch.cross_entropy)
_arguments = inspect.signature(functional.cross_entropy).bind
_SHARED = ("ignore_index", "reduction", "label_smoothing", "z_loss", "softcap")


@dataclass
class _Use:
    """The fate of logits, which those that were moved share."""

    computed: bool = False
    skipped: bool = False  # a loss was computed without them


class Logits(Late):
    """The result of a head that has not been computed. Its rows may be moved; cross entropy of them
    is computed from what the head takes."""

    WHY = (
        "logits that skip_logits=True leaves out, expected the loss alone to take them (fuse"
        " without skip_logits)"
    )
    _tfk_hidden: Tensor
    _tfk_head: Any
    _tfk_use: _Use

    @staticmethod
    def of(hidden: Tensor, head: Any) -> Logits:
        dtype = hidden.dtype
        if autocasts(hidden) and dtype is not torch.float64:
            dtype = torch.get_autocast_dtype(hidden.device.type)
        return _made(hidden, head, dtype, _Use())

    def made(self) -> Tensor:
        self._tfk_use.computed = True
        y: Tensor = self._tfk_head.alone(self._tfk_hidden)
        return y.to(self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        late = args[0] if args and type(args[0]) is Logits else None
        if late is not None and not late._tfk_use.computed:
            found = None
            with torch._C.DisableTorchFunctionSubclass():
                if func in _LOSSES:
                    found = late._loss(*args, **(kwargs or {}))
                elif getattr(func, "__name__", "") in ROWS:
                    found = late._moved(func, *args[1:], **(kwargs or {}))
            if found is not None:
                return found
        return super().__torch_function__(func, types, args, kwargs)

    def _moved(self, move: Any, *args: Any, **kwargs: Any) -> Logits | None:
        """The moved rows; None where the result has other ones."""
        moved = move(torch.empty(self.shape, dtype=self.dtype, device="meta"), *args, **kwargs)
        if moved.shape[-1:] != self.shape[-1:] or any(isinstance(x, torch.dtype) for x in args):
            return None
        hidden = self._tfk_hidden.reshape(*moved.shape[:-1], self._tfk_hidden.shape[-1])
        return _made(hidden, self._tfk_head, moved.dtype, self._tfk_use)

    def _loss(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Cross entropy of labels of the rows; None for another one."""
        bound = _arguments(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        target, weight = given["target"], given["weight"]
        labels = target.shape == self.shape[:1] and not target.is_floating_point()
        is_old = given["size_average"] is not None or given["reduce"] is not None
        if self.dim() != 2 or not labels or is_old or (weight is not None and weight.requires_grad):
            return None
        shared = {name: given[name] for name in _SHARED}
        loss: Tensor = self._tfk_head.loss(self._tfk_hidden, target, weight=weight, **shared)
        self._tfk_use.skipped = True
        return loss if autocasts(self._tfk_hidden) else loss.to(self.dtype)


def _made(hidden: Tensor, head: Any, dtype: torch.dtype, use: _Use) -> Logits:
    shape = (*hidden.shape[:-1], weight_and_bias(head)[0].shape[0])
    made: Logits = Tensor._make_wrapper_subclass(Logits, shape, dtype=dtype, device=hidden.device)
    made._tfk_hidden, made._tfk_head, made._tfk_use = hidden, head, use
    made._tfk_computed = None
    return made


class NoLogits:
    """Stands in a model's output for logits that were never computed. It is false, and says why
    they are missing where they are asked for anything."""

    _WHY = (
        "the logits were not computed: tfk.fuse(model, skip_logits=True) computes the loss of"
        " training without them (in evaluation mode, without labels or without gradients they are"
        " there)"
    )

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NoLogits({self._WHY})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self._WHY}")


def settled(result: Any) -> Any:
    """A model's result, in which no logits wait: they are computed, unless a loss did without
    them."""
    if type(result) is Logits:
        use = result._tfk_use
        return NoLogits() if use.skipped and not use.computed else result.computed()
    if isinstance(result, dict):
        for name, value in result.items():
            result[name] = settled(value)
    elif isinstance(result, (tuple, list)):
        return with_items(result, map(settled, result))
    return result
