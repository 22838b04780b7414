# SPDX-License-Identifier: MIT
"""Results handed from one module to another: work that is done already.

A module that computes more than its own result leaves the rest with the module that will ask for
it. Every tensor that a program sees has its true value, so a result that nobody asks for, or that
no longer fits, is thrown away and nothing else happens.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .few import GIVEN


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _watcher() -> Any:
    """The hooks that would see tensors saved now: those of a checkpoint, for example, which counts
    them."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def moment(x: Tensor) -> tuple[Any, ...]:
    """Version, grad mode and hooks of saved tensors: while they stay, so does a result of ``x``."""
    return _version(x), torch.is_grad_enabled(), _watcher()


class Given:
    """A result ``y`` for the module that is called with ``x``, this tensor in this version.

    It is freed with ``x``: nobody can ask for it then.
    """

    __slots__ = ("_moment", "_x", "_y")

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._moment, held = moment(x), [y]
        self._y = held
        self._x = weakref.ref(x, lambda _: held.clear())

    def of(self, x: Tensor) -> Tensor | None:
        """The result, where it is that of ``x`` as a call would compute it now."""
        return self._y[0] if x is self._x() and moment(x) == self._moment else None

    @property
    def is_watched(self) -> bool:
        """Whether hooks saw the tensors that were saved when it was left."""
        return self._moment[-1] is not None

    def pair(self) -> tuple[Tensor, Tensor] | None:
        """The input and its result; None where they are gone."""
        x = self._x()
        return None if x is None else (x, self._y[0])

    def __reduce__(self) -> tuple[Any, ...]:  # a copy or a pickle of the module starts without it
        return type(None), ()


def give(module: Any, x: Tensor, y: Tensor) -> None:
    """Leaves ``y`` with a module, as its result for ``x``."""
    left = left_with(module)
    if left is not None:
        miss(module, left)
    module.__dict__[GIVEN] = Given(x, y)


def take(module: Any, x: Tensor) -> Tensor | None:
    """The result that was left for this call; whatever was left is gone afterwards."""
    given: Given | None = module.__dict__.pop(GIVEN, None)
    if given is None:
        return None
    y = given.of(x)
    if y is None:
        miss(module, given)
    return y


def left_with(module: Any, pop: bool = False) -> Given | None:
    """The result that was left with a module and not taken yet."""
    space = module.__dict__
    given: Given | None = space.pop(GIVEN, None) if pop else space.get(GIVEN)
    return given


def misses(module: Any) -> int:
    """How many results that were left with a module nobody has asked for."""
    count: int = module.__dict__.get("_tfk_misses", 0)
    return count


def miss(module: Any, left: Given | None = None) -> None:
    """Counts a result that nobody has asked for. Under a checkpoint none counts: its second run has
    to decide as the first one did."""
    if _watcher() is not None or (left is not None and left.is_watched):
        return
    module.__dict__["_tfk_misses"] = misses(module) + 1


def asked(module: Any) -> None:
    """Forgets the misses: somebody asks for what the module leaves."""
    module.__dict__["_tfk_misses"] = 0
